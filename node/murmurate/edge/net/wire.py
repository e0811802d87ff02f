"""Frames as bytes, and back (docs/wire.md, proto/murmurate/v1/peer.proto).

A frame is protobuf like everything else, but it is put together and taken apart here by hand: the
tensor's bytes are copied once on the way out and not at all on the way in. Whatever is wrong with
bytes from the network comes out as `RemoteProtocolError`, which names the field, or as
`SchemaMismatch` (another version), and as nothing else; lengths are checked before memory is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from murmurate.core.figures.progress import Progress
from murmurate.core.values.limits import Count, Few, Line, Name, NameOrNone, Number, Ordinal
from murmurate.edge.net.description import (
    DESCRIPTION_BYTES_MAX,
    DescribedMember,
    DescribedTensor,
    Description,
    check_describe_request,
    decode_description,
    encode_description,
)
from murmurate.edge.net.messages import PROTOCOL_VERSION, Codec, Version, varint
from murmurate.edge.net.small_messages import NOTE_BYTES_MAX, Note, decode_note, encode_note
from murmurate.edge.net.tensor_messages import (
    DTYPES,
    HEAD_BYTES_MAX,
    TOTAL_BYTES_MAX,
    Bulk,
    BulkHead,
    PartHead,
    PushHead,
    ShareHead,
    SnapshotHead,
    TensorPiece,
    checksum,
    decode_piece,
    encode_head,
    encode_piece,
    parts_bytes,
    payload_dtype,
    push_fits,
    put_together,
    take_apart,
)
from murmurate.errors import LocalProtocolError, RemoteProtocolError
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
    "LinkRefusal",
    "Note",
    "PartHead",
    "Progress",
    "PushHead",
    "Reply",
    "ShareHead",
    "SnapshotHead",
    "TensorPiece",
    "check_describe_request",
    "checksum",
    "decode_description",
    "decode_frame",
    "decode_note",
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
"""All of a frame that is not raw."""
FRAME_BYTES_MAX = RAW_BYTES_MAX + REST_BYTES_MAX
NOTES_MAX = 1024
GRANTS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """«I am `name` in my life `epoch`; I train this run with this model»: first on every link, from
    who opens it and then from who was called."""

    version: Version = PROTOCOL_VERSION
    run: Name
    swarm: NameOrNone
    schema: Name
    name: Name
    epoch: Ordinal
    address: Line
    link: Number = 0
    """Of who opens it: which of its links this is, in this life …"""
    seen: Number = 0
    """… and the highest such number of the other that it has welcomed."""


@dataclass(frozen=True, slots=True)
class Grant:
    """«Go on with transfer `number` from byte `offset`»; `skip`: I have it already."""

    number: Ordinal
    offset: Annotated[int, Count(0, TOTAL_BYTES_MAX)] = 0
    skip: bool = False


@dataclass(frozen=True, slots=True)
class LinkRefusal:
    """«I do not listen to you any more»: a status of gRPC as a number, and why."""

    status: Annotated[int, Count(0, 99)]
    sentence: Line


@dataclass(frozen=True, slots=True)
class Reply:
    """What one side says of the transfers that the other sends it, and of the link itself."""

    grants: Annotated[tuple[Grant, ...], Few(GRANTS_MAX)] = ()
    landed: Number = 0
    last: bool = False
    """I begin nothing more on this link."""
    refusal: LinkRefusal | None = None


class Frame(NamedTuple):
    """One frame, checked. `raw` points into the bytes it was read from."""

    hello: Hello | None
    notes: tuple[Note, ...]
    reply: Reply | None
    piece: TensorPiece | None
    raw: memoryview


HELLO = Codec(Hello, pb.Hello, "hello", bytes_max=REST_BYTES_MAX)
REPLY = Codec(Reply, pb.Reply, "reply", bytes_max=REST_BYTES_MAX)


# -- frames --------------------------------------------------------------------------------------


def encode_frame(
    *,
    hello: Hello | None = None,
    notes: Sequence[bytes] = (),
    reply: bytes = b"",
    piece: bytes = b"",
    raw: bytes | memoryview = b"",
) -> bytes:
    """One frame of encoded parts: one join, so one copy of `raw`."""
    parts: list[bytes | memoryview] = []
    if hello is not None:
        data = HELLO.encode(hello)
        parts += (b"\x0a", varint(len(data)), data)
    for note in notes:
        parts += (b"\x12", varint(len(note)), note)
    if reply:
        parts += (b"\x2a", varint(len(reply)), reply)
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
    reply: memoryview | None = None
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
        elif tag == 0x2A and reply is None:
            reply = part
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
        if bulk is not None or notes or raw is not None or reply is not None:
            raise RemoteProtocolError("frame.hello", "not alone in its frame")
        return Frame(HELLO.decode(hello), (), None, None, view[:0])
    if bulk is None and raw is not None:
        raise RemoteProtocolError("frame.raw", "bytes of no transfer")
    if bulk is None and not notes and reply is None:
        raise RemoteProtocolError("frame", "empty")
    piece = decode_piece(bulk, raw_bytes) if bulk is not None else None
    return Frame(
        None,
        tuple([decode_note(note) for note in notes]),
        REPLY.decode(reply) if reply is not None else None,
        piece,
        raw if raw is not None else view[:0],
    )


# -- replies -------------------------------------------------------------------------------------


def encode_reply(reply: Reply) -> bytes:
    """The bytes of a reply. Most say only what has landed."""
    if reply.landed and not (reply.grants or reply.last or reply.refusal):
        return b"\x10" + varint(reply.landed)
    if len(reply.grants) > GRANTS_MAX:
        raise LocalProtocolError(f"reply: {len(reply.grants)} grants, at most {GRANTS_MAX}")
    return REPLY.encode(reply)
