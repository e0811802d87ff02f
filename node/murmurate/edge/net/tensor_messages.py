"""Messages with a tensor: a head (small, protobuf) and the tensor's bytes in pieces.

The head comes before the bytes, so that a receiver knows what they are, and how many there should
be, before it spends memory on them.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from typing import Annotated, NamedTuple, cast

import torch

from murmurate.core.batches.held import BatchRuns, HeldBatches
from murmurate.core.clock import Clock
from murmurate.core.codecs import codec
from murmurate.core.gossip.average.push_sum import Share
from murmurate.core.intervals import SEQ_MAX
from murmurate.core.message import (
    GENERATIONS_MAX,
    PARTS_MAX,
    Generation,
    Push,
    Rumour,
    Snapshot,
    Stamp,
)
from murmurate.core.values.limits import Count, Few, Figure, OneOf, Ordinal
from murmurate.edge.net.messages import parsed, varint
from murmurate.edge.net.shapes import shape_of
from murmurate.edge.net.stamps import CONTEXTS_MAX, read_stamps, write_push
from murmurate.errors import LocalProtocolError, RemoteProtocolError
from murmurate.v1 import peer_pb2 as pb

HEAD_BYTES_MAX = 60 << 10
TOTAL_BYTES_MAX = 1 << 42
"""No tensor is larger; whether it is this model's size is for the receiver to say."""
MEMBERS_MAX = 4096

DTYPES = {"f4": torch.float32, "f8": torch.float64, "i8": torch.int64}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SWAP = sys.byteorder == "big"

Dtype = Annotated[str, OneOf(tuple(DTYPES))]


class PartHead(NamedTuple):
    codec: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class PushHead:
    stamps: tuple[Stamp, ...]
    dtype: str
    size: int = 0
    parts: tuple[PartHead, ...] = ()
    """Codecs and bytes of the encoded forms; none: the numbers are plain."""


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    clock: Clock
    history: Annotated[tuple[Generation, ...], Few(GENERATIONS_MAX)]
    members: Annotated[tuple[Rumour, ...], Few(MEMBERS_MAX)]
    dtype: Dtype
    batches: BatchRuns = ()
    repeated_batches: BatchRuns = ()


@dataclass(frozen=True, slots=True)
class ShareHead:
    seq: Ordinal
    epoch: Ordinal
    to_epoch: Ordinal
    weight: Figure
    """The share checks it."""
    clock: Clock
    dtype: Dtype


BulkHead = PushHead | SnapshotHead | ShareHead

SNAPSHOT = shape_of(SnapshotHead, pb.SnapshotHead.DESCRIPTOR, "snapshot")
SHARE = shape_of(ShareHead, pb.ShareHead.DESCRIPTOR, "share")
Bulk = Push | Snapshot | Share


class TensorPiece(NamedTuple):
    """Bytes `offset` … of transfer `number`, which has `total`; or an offer of it."""

    number: int
    offset: int
    total: int
    key: int
    offer: bool
    head: BulkHead | None
    checksum: int = 0


# -- a message and its parts ---------------------------------------------------------------------


def take_apart(message: Bulk) -> tuple[BulkHead, torch.Tensor]:
    """The head, and the tensor: flat, contiguous, on the CPU, its bytes as on the wire."""
    match message:
        case Push() if message.parts:
            forms = [cast("codec.Encoded", part) for part in message.parts]
            tensor = forms[0].data if len(forms) == 1 else torch.cat([f.data for f in forms])
            return _push_head(message), tensor  # the codec has put the bytes in order
        case Push():
            tensor = message.payload
            head: BulkHead = _push_head(message)
        case Snapshot():
            tensor = message.weights
            head = SnapshotHead(
                message.clock,
                message.history,
                message.members,
                _dtype_name(tensor),
                message.batches.numbers,
                message.batches.repeated,
            )
        case Share():
            tensor = message.model
            head = ShareHead(
                message.seq,
                message.epoch,
                message.to_epoch,
                message.weight,
                message.clock,
                _dtype_name(tensor),
            )
    if tensor.requires_grad or tensor.dim() != 1 or not tensor.is_cpu or not tensor.is_contiguous():
        tensor = tensor.detach().reshape(-1).cpu().contiguous()
    return head, _swapped(tensor.clone()) if _SWAP else tensor


def put_together(head: BulkHead, payload: torch.Tensor, norm: float | None = None) -> Bulk:
    """The message; `payload` holds the bytes as they came, in a tensor of the head's dtype.

    `norm`: of that tensor, if it was counted while they came.
    """
    if payload.dtype != payload_dtype(head) or payload.dim() != 1:
        raise RemoteProtocolError("bulk.dtype", f"{head.dtype}, the tensor is {payload.dtype}")
    if isinstance(head, PushHead) and head.parts:
        return Push(head.stamps, parts=_opened(head, payload))
    if _SWAP:
        payload = _swapped(payload)
    match head:
        case PushHead():
            return Push(head.stamps, payload)
        case SnapshotHead():
            return Snapshot(
                payload,
                head.clock,
                head.history,
                head.members,
                unshared=True,
                norm=None if _SWAP else norm,
                batches=HeldBatches(head.batches, head.repeated_batches),
            )
        case ShareHead():
            life = (head.epoch, head.to_epoch)
            return Share(
                head.seq,
                *life,
                head.weight,
                payload,
                head.clock,
                unshared=True,
                norm=None if _SWAP else norm,
            )


def checksum(raw: bytes | bytearray | memoryview) -> int:
    """CRC-32 of the bytes of a piece: 4 GB/s here, and every language has it.

    Pieces of snapshots have one: weights that were damaged on the way would spoil all training on
    them. Pieces of pushes have none: 0.24 s/GB at each end is a quarter of what they cost.
    """
    return zlib.crc32(raw)


def payload_dtype(head: BulkHead) -> torch.dtype:
    """What the bytes that belong to this head are."""
    if isinstance(head, PushHead) and head.parts:
        return torch.uint8
    return DTYPES[head.dtype]


def parts_bytes(head: PushHead, size: int) -> int:
    """The bytes of all forms of a push for a model of this size, each checked."""
    if head.size != size:
        raise RemoteProtocolError("push.size", f"{head.size} elements, the model has {size}")
    if head.dtype != "f4":
        raise RemoteProtocolError("push.dtype", f"{head.dtype}: only f4 is encoded")
    for part in head.parts:
        codec.check_bytes(part.codec, size, part.nbytes)
    return sum(part.nbytes for part in head.parts)


def _push_head(push: Push) -> PushHead:
    if not push.parts:
        return PushHead(push.stamps, _dtype_name(push.payload))
    parts = tuple(PartHead(part.codec, part.nbytes) for part in push.parts)
    return PushHead(push.stamps, "f4", push.parts[0].size, parts)


def _opened(head: PushHead, data: torch.Tensor) -> tuple[codec.Encoded, ...]:
    """The forms in these bytes, each checked."""
    if parts_bytes(head, head.size) != data.numel():
        raise RemoteProtocolError("bulk.total", f"{data.numel()} bytes, not those of the parts")
    forms = []
    at = 0
    for part in head.parts:
        forms.append(codec.opened(part.codec, head.size, data[at : at + part.nbytes]))
        at += part.nbytes
    return tuple(forms)


def _dtype_name(tensor: torch.Tensor) -> str:
    try:
        return _DTYPE_NAMES[tensor.dtype]
    except KeyError:
        raise LocalProtocolError(
            f"{tensor.dtype} cannot be sent, only {', '.join(map(str, _DTYPE_NAMES))}"
        ) from None


def _swapped(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes in the other order, in place."""
    tensor.numpy().byteswap(inplace=True)
    return tensor


# -- pieces --------------------------------------------------------------------------------------


def encode_piece(
    *,
    number: int = 0,
    offset: int = 0,
    total: int,
    key: int = 0,
    head: BulkHead | bytes | None = None,
    offer: bool = False,
    checksum: int = 0,
) -> bytes:
    """The bytes of a `Bulk`. A head that goes to several links is best encoded once before."""
    out = b"\x08" + varint(number) + b"\x10" + varint(offset) + b"\x18" + varint(total)
    if head is not None:
        out += head if isinstance(head, bytes) else encode_head(head)
    if offer:
        out += b"\x38\x01"
    if key:
        out += b"\x41" + key.to_bytes(8, "little")
    if checksum:
        out += b"\x4d" + checksum.to_bytes(4, "little")
    return out


def decode_piece(data: bytes | memoryview, raw_bytes: int) -> TensorPiece:
    """A checked piece, which comes with so many raw bytes."""
    m = parsed("bulk", pb.Bulk, data, HEAD_BYTES_MAX + 64)
    number, offset, total = m.number, m.offset, m.total
    if not 0 < number <= SEQ_MAX:
        raise RemoteProtocolError("bulk.number", f"{number}, expected 1 to {SEQ_MAX}")
    if not 0 < total <= TOTAL_BYTES_MAX:
        raise RemoteProtocolError("bulk.total", f"{total}, expected 1 to {TOTAL_BYTES_MAX}")
    if offset + raw_bytes > total:
        raise RemoteProtocolError("bulk.offset", f"{offset} + {raw_bytes} of {total} bytes")
    kind = m.WhichOneof("head")
    if m.offer:
        if kind is None:
            raise RemoteProtocolError("bulk.head", "an offer that does not say of what")
        if offset or raw_bytes:
            raise RemoteProtocolError("bulk.offer", "it comes with bytes")
    elif not raw_bytes:
        raise RemoteProtocolError("bulk.raw", "a piece without bytes")
    elif kind is not None and offset:
        raise RemoteProtocolError("bulk.head", f"again, at byte {offset}")
    head: BulkHead | None = None
    if kind == "push":
        head = _read_push(m.push)
    elif kind == "snapshot":
        head = SNAPSHOT.read(m.snapshot)
    elif kind == "share":
        head = SHARE.read(m.share)
    return TensorPiece(number, offset, total, m.key, m.offer, head, m.checksum)


# -- heads ---------------------------------------------------------------------------------------


def encode_head(head: BulkHead) -> bytes:
    """The bytes of the head as part of a `Bulk`; `LocalProtocolError` when they are too many."""
    data, work = _head_bytes(head)
    if len(data) > HEAD_BYTES_MAX or work > CONTEXTS_MAX:
        raise LocalProtocolError(
            f"{type(head).__name__}: {len(data)} bytes, at most {HEAD_BYTES_MAX}"
        )
    return data


def push_fits(push: Push) -> bool:
    """Whether the stamps of this sum fit into a head. Few always do, short of 1,000 origins."""
    if sum(1 + s.context.spans + len(s.batches) for s in push.stamps) <= 256:
        return True
    data, work = _head_bytes(_push_head(push))
    return len(data) <= HEAD_BYTES_MAX and work <= CONTEXTS_MAX


def _head_bytes(head: BulkHead) -> tuple[bytes, int]:
    """The bytes, and the work of reading its contexts."""
    work = 0
    try:
        match head:
            case PushHead():
                push, work = write_push(head.dtype, head.stamps)
                if head.parts:
                    push.size = head.size
                    push.parts.extend(pb.Part(codec=c, bytes=size) for c, size in head.parts)
                m = pb.Bulk(push=push)
            case SnapshotHead():
                m = pb.Bulk(snapshot=SNAPSHOT.write(head))
            case ShareHead():
                m = pb.Bulk(share=SHARE.write(head))
        return m.SerializeToString(), work
    except (ValueError, TypeError, KeyError) as error:
        raise LocalProtocolError(f"{type(head).__name__}: {error}") from error


_DTYPE = OneOf(tuple(DTYPES)).check("push.dtype")
_SIZE = Count(1, TOTAL_BYTES_MAX // 4).check("push.size")
_PARTS = Few(PARTS_MAX).check("push.parts")


def _read_push(m: pb.PushHead) -> PushHead:
    dtype = _DTYPE(m.dtype)
    if not m.parts:
        if m.size:
            raise RemoteProtocolError("push.size", f"{m.size}, without parts")
        return PushHead(read_stamps(m), dtype)
    size = _SIZE(m.size)
    parts = []
    for each in _PARTS(m.parts):
        codec.check_bytes(each.codec, size, each.bytes)
        parts.append(PartHead(each.codec, each.bytes))
    return PushHead(read_stamps(m), dtype, size, tuple(parts))
