"""One message with a tensor while it comes in: its bytes so far, and their norm.

Pieces are copied into one buffer of exactly the size the receiver itself expects for that head;
a sender cannot make it larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from murmurate.core import buffers
from murmurate.core.admission import square
from murmurate.core.codecs import span
from murmurate.edge.net import wire
from murmurate.edge.net.transport import INLINE_BYTES
from murmurate.errors import ChecksumMismatch

NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.uint8: np.uint8,
}
COUNTED = (wire.ShareHead, wire.SnapshotHead)
"""Whose norm is counted while they come."""


@dataclass(slots=True, eq=False)
class IncomingMessage:
    """A bulk message of which `filled` bytes are here."""

    number: int
    total: int
    key: int
    head: wire.BulkHead
    payload: torch.Tensor | None = None
    """None: offered, and waiting for memory; or small, and nothing is here yet."""
    filled: int = 0
    square: float | None = None
    """Of the norm, as far as it is here; None: it is counted at the end."""
    _numbers: np.ndarray | None = None
    """The payload, looked up once, …"""
    _into: memoryview | None = None
    """… and its memory."""

    @property
    def large(self) -> bool:
        return self.total > INLINE_BYTES

    def allocate(self) -> None:
        dtype = wire.payload_dtype(self.head)
        # Encoded forms come in any size, and blocks are kept by size: these must not be.
        size = self.total // dtype.itemsize
        if dtype == torch.uint8 and not self._is_turn():
            self.payload = torch.empty(size, dtype=dtype)
        else:
            once = isinstance(self.head, wire.SnapshotHead)
            share = isinstance(self.head, wire.ShareHead)
            self.payload = buffers.empty(size, dtype, once=once, large_pages=share)
        if dtype.is_floating_point and isinstance(self.head, COUNTED):
            self.square = 0.0

    def _is_turn(self) -> bool:
        """A part of a large model, as all of its nodes cut it."""
        head = self.head
        return (
            isinstance(head, wire.PushHead)
            and len(head.parts) == 1
            and head.parts[0] == (span.CODEC, span.turn_bytes(head.size))
        )

    def write(self, raw: memoryview) -> None:
        if self.payload is None:  # small: it came without an offer
            if len(raw) == self.total:
                self._write_all(raw)
                return
            self.allocate()
        if self._into is None:
            assert self.payload is not None
            self._numbers = self.payload.numpy()
            self._into = self._numbers.data.cast("B")
        began, self.filled = self.filled, self.filled + len(raw)
        self._into[began : self.filled] = raw
        if self.square is not None:
            self._count(began)

    def _write_all(self, raw: memoryview) -> None:
        """One copy, and no memory is looked for first."""
        dtype = NUMPY[wire.payload_dtype(self.head)]
        numbers = np.frombuffer(bytearray(raw), dtype)
        self.payload, self.filled = torch.from_numpy(numbers), self.total
        if self.payload.is_floating_point() and isinstance(self.head, COUNTED):
            self.square = square(numbers)

    def _count(self, began: int) -> None:
        """The norm of a piece while it is near; at the end it would hold up the fold."""
        assert self._numbers is not None
        assert self.square is not None
        first, odd = divmod(began, self._numbers.itemsize)
        last, odd_too = divmod(self.filled, self._numbers.itemsize)
        if odd or odd_too:
            self.square = None
        else:
            self.square += square(self._numbers[first:last])

    def let_go(self) -> None:
        """Nothing here holds the payload any more."""
        self.payload = self._numbers = self._into = None

    @property
    def norm(self) -> float | None:
        return None if self.square is None else math.sqrt(self.square)

    def check(self, raw: memoryview, told: int) -> None:
        """Before it is written, and while it is near: 0.2 ms for a piece."""
        if isinstance(self.head, wire.SnapshotHead) and (crc := wire.checksum(raw)) != told:
            problem = f"{crc:08x} of what arrived at byte {self.filled}, not {told:08x}"
            raise ChecksumMismatch("snapshot.checksum", problem)
