"""Frames and replies as bytes, and back (docs/wire.md, proto/murmurate/v1/peer.proto).

A frame is protobuf like everything else, but it is put together and taken apart here by hand: the
tensor's bytes are copied once on the way out and not at all on the way in. Whatever is wrong with
bytes from the network comes out as `RemoteProtocolError`, which names the field, or as
`SchemaMismatch` (another version), and as nothing else; lengths are checked before memory is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from murmurate.errors import LocalProtocolError, RemoteProtocolError
from murmurate.io import fields
from murmurate.io.bulk import (
    DTYPES,
    HEAD_BYTES_MAX,
    TOTAL_BYTES_MAX,
    Bulk,
    BulkHead,
    PartHead,
    Piece,
    PushHead,
    ShareHead,
    SnapshotHead,
    bytes_by_codec,
    checksum,
    decode_piece,
    encode_head,
    encode_piece,
    parts_bytes,
    payload_dtype,
    push_fits,
    put_together,
    take_apart,
    varint,
)
from murmurate.io.description import (
    DESCRIPTION_BYTES_MAX,
    DescribedMember,
    DescribedTensor,
    Description,
    check_describe_request,
    decode_description,
    encode_description,
)
from murmurate.io.fields import PROTOCOL_VERSION
from murmurate.io.notes import NOTE_BYTES_MAX, Note, decode_note, encode_note
from murmurate.io.progress import Progress
from murmurate.v1 import peer_pb2 as pb

__all__ = [
    "DESCRIPTION_BYTES_MAX",
    "DTYPES",
    "FRAME_BYTES_MAX",
    "GRANTS_MAX",
    "HEAD_BYTES_MAX",
    "NOTES_MAX",
    "NOTE_BYTES_MAX",
    "PROTOCOL_VERSION",
    "RAW_BYTES_MAX",
    "REST_BYTES_MAX",
    "TOTAL_BYTES_MAX",
    "Bulk",
    "BulkHead",
    "DescribedMember",
    "DescribedTensor",
    "Description",
    "Frame",
    "Grant",
    "Hello",
    "Note",
    "PartHead",
    "Piece",
    "Progress",
    "PushHead",
    "Reply",
    "ShareHead",
    "SnapshotHead",
    "Welcome",
    "bytes_by_codec",
    "check_describe_request",
    "checksum",
    "decode_description",
    "decode_frame",
    "decode_note",
    "decode_reply",
    "encode_description",
    "encode_frame",
    "encode_head",
    "encode_note",
    "encode_piece",
    "encode_reply",
    "parts_bytes",
    "payload_dtype",
    "push_fits",
    "put_together",
    "take_apart",
]

RAW_BYTES_MAX = 1 << 20
REST_BYTES_MAX = 64 << 10
"""All of a frame that is not raw; a reply, too, has no more."""
FRAME_BYTES_MAX = RAW_BYTES_MAX + REST_BYTES_MAX
NOTES_MAX = 1024
GRANTS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Greeting:
    version: int = PROTOCOL_VERSION
    run: str
    swarm: str
    schema: str
    name: str
    epoch: int
    address: str


class Hello(_Greeting):
    """«I am `name` in my life `epoch`; I train this run with this model»: first on every link."""

    __slots__ = ()


class Welcome(_Greeting):
    """The answer to a hello: who I am."""

    __slots__ = ()


class Frame(NamedTuple):
    """One frame, checked. `raw` points into the bytes it was read from."""

    hello: Hello | None
    notes: tuple[Note, ...]
    piece: Piece | None
    raw: memoryview


@dataclass(frozen=True, slots=True)
class Grant:
    """«Go on with transfer `number` from byte `offset`»; `skip`: I have it already."""

    number: int
    offset: int = 0
    skip: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    welcome: Welcome | None = None
    grants: tuple[Grant, ...] = ()
    landed: int = 0


# -- frames --------------------------------------------------------------------------------------


def encode_frame(
    *,
    hello: Hello | None = None,
    notes: Sequence[bytes] = (),
    piece: bytes = b"",
    raw: bytes | memoryview = b"",
) -> bytes:
    """One frame of encoded parts: one join, so one copy of `raw`."""
    parts: list[bytes | memoryview] = []
    if hello is not None:
        data = _greeting_bytes(hello)
        parts += (b"\x0a", varint(len(data)), data)
    for note in notes:
        parts += (b"\x12", varint(len(note)), note)
    if piece:
        parts += (b"\x1a", varint(len(piece)), piece)
    if raw:
        parts += (b"\x22", varint(len(raw)), raw)
    rest = sum(map(len, parts)) - len(raw)
    if rest > REST_BYTES_MAX or len(raw) > RAW_BYTES_MAX or len(notes) > NOTES_MAX:
        raise LocalProtocolError(
            f"frame: {len(raw)} raw bytes, {rest} others in {len(notes)} notes: over the limits"
        )
    return b"".join(parts)


def decode_frame(data: bytes) -> Frame:
    """The checked frame; its `raw` is a view into `data`."""
    size = len(data)
    if size > FRAME_BYTES_MAX:
        raise RemoteProtocolError("frame", f"{size} bytes, at most {FRAME_BYTES_MAX}")
    view = memoryview(data)
    hello: memoryview | None = None
    bulk: memoryview | None = None
    raw: memoryview | None = None
    notes: list[memoryview] = []
    at = 0
    while at < size:
        tag = data[at]
        length = shift = 0
        at += 1
        while True:
            if at >= size or shift > 28:
                raise RemoteProtocolError("frame", f"no length at byte {at}")
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        end = at + length
        if end > size:
            raise RemoteProtocolError("frame", f"{length} bytes at byte {at} of {size}")
        part = view[at:end]
        at = end
        if tag == 0x22 and raw is None:
            raw = part
        elif tag == 0x1A and bulk is None:
            bulk = part
        elif tag == 0x12 and len(notes) < NOTES_MAX:
            notes.append(part)
        elif tag == 0x0A and hello is None:
            hello = part
        else:
            raise RemoteProtocolError("frame", f"unknown or repeated field, tag {tag}")
    raw_bytes = len(raw) if raw is not None else 0
    if raw_bytes > RAW_BYTES_MAX:
        raise RemoteProtocolError("frame.raw", f"{raw_bytes} bytes, at most {RAW_BYTES_MAX}")
    if size - raw_bytes > REST_BYTES_MAX:
        raise RemoteProtocolError(
            "frame", f"{size - raw_bytes} bytes beside raw, at most {REST_BYTES_MAX}"
        )
    if hello is not None:
        if bulk is not None or notes or raw is not None:
            raise RemoteProtocolError("frame.hello", "not alone in its frame")
        return Frame(_read_hello(hello), (), None, view[:0])
    if bulk is None and raw is not None:
        raise RemoteProtocolError("frame.raw", "bytes of no transfer")
    if bulk is None and not notes:
        raise RemoteProtocolError("frame", "empty")
    piece = decode_piece(bulk, raw_bytes) if bulk is not None else None
    return Frame(
        None,
        tuple([decode_note(note) for note in notes]),
        piece,
        raw if raw is not None else view[:0],
    )


# -- replies -------------------------------------------------------------------------------------


def encode_reply(reply: Reply) -> bytes:
    if len(reply.grants) > GRANTS_MAX:
        raise LocalProtocolError(f"reply: {len(reply.grants)} grants, at most {GRANTS_MAX}")
    parts: list[bytes] = []
    if reply.welcome is not None:
        data = _greeting_bytes(reply.welcome)
        parts += (b"\x0a", varint(len(data)), data)
    for grant in reply.grants:
        data = pb.Grant(
            number=grant.number, offset=grant.offset, skip=grant.skip
        ).SerializeToString()
        parts += (b"\x12", varint(len(data)), data)
    if reply.landed:
        parts += (b"\x18", varint(reply.landed))
    return b"".join(parts)


def decode_reply(data: bytes) -> Reply:
    m = fields.parsed("reply", pb.Reply, data, REST_BYTES_MAX)
    fields.few("reply.grants", m.grants, GRANTS_MAX)
    return Reply(
        _read_welcome(m.welcome) if m.HasField("welcome") else None,
        tuple(
            Grant(
                fields.number("grant.number", each.number, 1),
                fields.number("grant.offset", each.offset, 0, TOTAL_BYTES_MAX),
                each.skip,
            )
            for each in m.grants
        ),
        fields.number("reply.landed", m.landed),
    )


# -- greetings -----------------------------------------------------------------------------------


def _greeting_bytes(greeting: _Greeting) -> bytes:
    g = greeting
    try:
        data: bytes = pb.Hello(
            version=g.version,
            run=g.run,
            swarm=g.swarm,
            schema=g.schema,
            name=g.name,
            epoch=g.epoch,
            address=g.address,
        ).SerializeToString()
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"{type(g).__name__}: {error}") from error
    return data


def _read_hello(data: memoryview) -> Hello:
    m = fields.parsed("hello", pb.Hello, data, REST_BYTES_MAX)
    return Hello(
        version=fields.version("hello", m.version),
        run=fields.name("hello.run", m.run),
        swarm=fields.text("hello.swarm", m.swarm, fields.NAME_BYTES_MAX),
        schema=fields.name("hello.schema", m.schema),
        name=fields.name("hello.name", m.name),
        epoch=fields.number("hello.epoch", m.epoch, 1),
        address=fields.text("hello.address", m.address),
    )


def _read_welcome(m: pb.Welcome) -> Welcome:
    return Welcome(
        version=fields.version("welcome", m.version),
        run=fields.name("welcome.run", m.run),
        swarm=fields.text("welcome.swarm", m.swarm, fields.NAME_BYTES_MAX),
        schema=fields.name("welcome.schema", m.schema),
        name=fields.name("welcome.name", m.name),
        epoch=fields.number("welcome.epoch", m.epoch, 1),
        address=fields.text("welcome.address", m.address),
    )
