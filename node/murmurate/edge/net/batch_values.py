"""Batches as bytes: tensors one after the other, little-endian, and back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch

from murmurate.edge.net.coordinator_wire import BATCH_BYTES_MAX, ITEM_BYTES, Batches, BatchTensor
from murmurate.edge.net.pieces import PieceOrder, PieceSize
from murmurate.errors import ConfigError, RemoteProtocolError

DTYPES = {
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "bf2": torch.bfloat16,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "b1": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SWAP = sys.byteorder == "big"
Batch = tuple[torch.Tensor, ...]


def shape_of(batch: Sequence[torch.Tensor]) -> tuple[BatchTensor, ...]:
    """What a batch consists of; ConfigError when it cannot be sent."""
    tensors = []
    for tensor in batch:
        dtype = getattr(tensor, "dtype", type(tensor).__name__)
        if dtype not in _NAMES:
            raise ConfigError(f"a batch with {dtype}: only {', '.join(map(str, _NAMES))} are sent")
        tensors.append(BatchTensor(_NAMES[tensor.dtype], tuple(tensor.shape)))
    size = sum(tensor.nbytes for tensor in tensors)
    if not 0 < size <= BATCH_BYTES_MAX:
        raise ConfigError(f"a batch of {size} bytes: 1 to {BATCH_BYTES_MAX} can be sent")
    return tuple(tensors)


def pack(batch: Sequence[torch.Tensor]) -> bytes:
    return b"".join(
        bytes(as_bytes(swapped(tensor.detach().cpu().contiguous()))) for tensor in batch
    )


class OutgoingBatches:
    """Batches to be sent, whole, one after another."""

    def __init__(self, raws: Sequence[bytes]) -> None:
        self._raws = raws
        self.value_bytes = sum(map(len, raws))

    def pieces(self, size: PieceSize) -> Iterator[tuple[int, bytes]]:
        """Offset and bytes, in order."""
        data = memoryview(self._raws[0] if len(self._raws) == 1 else b"".join(self._raws))
        offset = 0
        while offset < len(data):
            part = bytes(data[offset : offset + size.nbytes])
            yield offset, part
            offset += len(part)


class IncomingBatches:
    """Batches that were announced, and come."""

    def __init__(self, head: Batches) -> None:
        """RemoteProtocolError: so many bytes are not those batches."""
        self.head = head
        self._each = sum(tensor.nbytes for tensor in head.tensors)
        expected = self._each * len(head.numbers)
        if not self._each or head.value_bytes != expected:
            detail = f"{head.value_bytes}, expected {expected} for {len(head.numbers)} batches"
            raise RemoteProtocolError("batches.value_bytes", detail)
        self._order = PieceOrder("batches", expected)
        self._bytes = torch.empty(expected, dtype=torch.uint8)
        self._view = memoryview(self._bytes.numpy())  # type: ignore[arg-type]

    def take(self, offset: int, raw: bytes | memoryview) -> list[tuple[int, Batch]] | None:
        """All of them, if these were the last bytes."""
        done = self._order.take(offset, len(raw))
        self._view[offset : offset + len(raw)] = raw
        if not done:
            return None
        each = self._bytes.view(len(self.head.numbers), self._each)
        return [(n, self._cut(each[place])) for place, n in enumerate(self.head.numbers)]

    def _cut(self, data: torch.Tensor) -> Batch:
        """The tensors in these bytes: views, where they lie as their type needs it."""
        batch, start = [], 0
        for tensor in self.head.tensors:
            part = data[start : start + tensor.nbytes]
            aligned = part.storage_offset() % ITEM_BYTES[tensor.dtype] == 0
            part = part if aligned else part.clone()
            batch.append(swapped(part.view(DTYPES[tensor.dtype]).view(tensor.shape)))
            start += tensor.nbytes
        return tuple(batch)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def swapped(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes in the other order, where this machine has it the other way round."""
    size = tensor.element_size()
    if not _SWAP or size == 1:
        return tensor
    flipped = tensor.reshape(-1).view(torch.uint8).reshape(-1, size).flip(1).contiguous()
    return flipped.reshape(-1).view(tensor.dtype).reshape(tensor.shape)
