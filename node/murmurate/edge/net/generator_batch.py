"""Batches as bytes: tensors one after the other, little-endian, and back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from murmurate.edge.net.generator_wire import BATCH_BYTES_MAX, ITEM_BYTES, BatchTensor, Piece
from murmurate.edge.net.pieces import PieceOrder
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


class Unpacking:
    """Puts one batch after the other together from its pieces."""

    def __init__(self, tensors: Sequence[BatchTensor]) -> None:
        self._tensors = tuple(tensors)
        self._total = sum(tensor.nbytes for tensor in self._tensors)
        self._number = 0
        self._batch = 0
        self._order = PieceOrder("piece", self._total)
        self._view = memoryview(b"")
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self.skipped = 0
        """Numbers of this stream that did not come."""

    def take(self, piece: Piece, raw: bytes | memoryview) -> list[tuple[int, Batch]]:
        """The batches of which this was the last piece."""
        view, total = memoryview(raw), self._total
        if not piece.more:
            made = self._take(piece.batch, piece.offset, piece.number, view)
            return [] if made is None else [(piece.batch, made)]
        if piece.offset or len(view) != total * (1 + len(piece.more)):
            raise RemoteProtocolError(
                "piece.more", f"{len(view)} bytes, {1 + len(piece.more)} batches of {total} each"
            )
        out: list[tuple[int, Batch]] = []
        for place, batch in enumerate((piece.batch, *piece.more)):
            part = view[place * total : (place + 1) * total]
            made = self._take(batch, 0, piece.number + place, part)
            assert made is not None
            out.append((batch, made))
        return out

    def _take(self, batch: int, offset: int, number: int, raw: memoryview) -> Batch | None:
        begun = self._order.filled > 0
        if begun and batch != self._batch:
            raise RemoteProtocolError("piece.batch", f"{batch} amid {self._batch}")
        done = self._order.take(offset, len(raw))
        if not begun:
            if number <= self._number:
                raise RemoteProtocolError("piece.number", f"{number} after {self._number}")
            self.skipped += number - self._number - 1
            self._number, self._batch = number, batch
            self._bytes = torch.empty(self._total, dtype=torch.uint8)
            self._view = memoryview(self._bytes.numpy())  # type: ignore[arg-type]
        elif number != self._number:
            raise RemoteProtocolError("piece.number", f"{number} amid {self._number}")
        self._view[offset : offset + len(raw)] = raw
        if not done:
            return None
        self._order = PieceOrder("piece", self._total)
        return self._cut(self._bytes)

    def _cut(self, data: torch.Tensor) -> Batch:
        """The tensors in these bytes: views, where they lie as their type needs it."""
        batch, start = [], 0
        for tensor in self._tensors:
            part = data[start : start + tensor.nbytes]
            part = part.clone() if start % ITEM_BYTES[tensor.dtype] else part
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
