"""The sending side of one link, without the network: what to put into the next frame.

Small messages go first, and ride with a piece of a bulk message when there is one. Bulk messages
leave one after the other, a large one after the other side granted it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from murmurate.core.message import Snapshot
from murmurate.edge.net import wire
from murmurate.edge.net.pieces import PieceSize
from murmurate.edge.net.transport import INLINE_BYTES, WINDOW_BYTES, WINDOW_MESSAGES, Limits
from murmurate.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from murmurate.edge.net.deadline import Deadline

NOTE_OVERHEAD = 8
"""Tag and length around a small message in a frame, at most."""
SAMPLES = 256


def as_bytes(payload: torch.Tensor) -> memoryview:
    """The memory of a flat contiguous CPU tensor."""
    return payload.numpy().data.cast("B")


def content_key(head: bytes, raw: memoryview) -> int:
    """A name for a large message: from its head, its size and a sample of its bytes.

    Not proof against forgery, which would only spoil what the forger itself sends.
    """
    digest = hashlib.blake2b(head, digest_size=8)
    digest.update(len(raw).to_bytes(8, "little"))
    stride = max(64, len(raw) // SAMPLES)
    for start in range(0, len(raw), stride):
        digest.update(raw[start : start + 64])
    return int.from_bytes(digest.digest(), "little")


def told_checksum(message: Any, raw: memoryview) -> int:
    """What a piece says of its bytes, while they are near; 0: nothing, they are of no snapshot."""
    return wire.checksum(raw) if isinstance(message, Snapshot) else 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Packed:
    """A bulk message ready to be cut into pieces; the same for every link."""

    message: Any
    head: bytes
    raw: memoryview
    key: int

    @classmethod
    def of(cls, message: Any) -> Packed:
        parts, payload = wire.take_apart(message)
        head, raw = wire.encode_head(parts), as_bytes(payload)
        key = content_key(head, raw) if len(raw) > INLINE_BYTES else 0
        return cls(message, head, raw, key)


@dataclass(slots=True, eq=False)
class _Transfer:
    packed: Packed
    number: int = 0
    """0: not begun."""
    began: float = 0.0
    sent: int = 0
    granted: bool = False

    @property
    def total(self) -> int:
        return len(self.packed.raw)


class SendQueue:
    """What waits for one peer, what is under way, and what has landed there."""

    def __init__(self, limits: Limits, now: Callable[[], float], stall: Deadline) -> None:
        """`stall` is told how long pieces take until they have landed: that is the link's own
        pace, while a piece that was written may only wait nearer to the wire."""
        self._limits = limits
        self._now = now
        self._stall = stall
        self._notes: deque[bytes] = deque()
        self._notes_bytes = 0
        self._queue: deque[_Transfer] = deque()
        self._under_way: deque[_Transfer] = deque()
        """Begun and not landed, by number; only the last one may be incomplete."""
        self._bytes = 0
        self._number = 0
        self._piece = PieceSize()
        self._last_raw = 0

    def post(self, note: bytes) -> None:
        self._notes.append(note)
        self._notes_bytes += len(note)
        limits = self._limits
        while len(self._notes) > limits.notes_max or self._notes_bytes > limits.notes_bytes_max:
            self._notes_bytes -= len(self._notes.popleft())

    def carry(self, packed: Packed) -> None:
        self._queue.append(_Transfer(packed))
        self._bytes += len(packed.raw)

    def take_over(self, other: SendQueue) -> None:
        """What waits there waits here. Nothing of it has been sent."""
        assert not other._under_way
        for note in other._notes:
            self.post(note)
        self._queue.extend(other._queue)
        self._bytes += other._bytes
        other.broke()

    @property
    def free(self) -> bool:
        waiting = len(self._queue) + len(self._under_way)
        return self._bytes < WINDOW_BYTES and waiting < WINDOW_MESSAGES

    @property
    def has_bulk(self) -> bool:
        """Whether bytes of a bulk message wait, maybe for a grant or for room."""
        under_way = self._under_way
        return bool(self._queue) or bool(under_way and under_way[-1].sent < under_way[-1].total)

    @property
    def idle(self) -> bool:
        """Nothing waits and everything has landed."""
        return not (self._notes or self._queue or self._under_way)

    @property
    def ready(self) -> bool:
        """Whether there is something to send now."""
        if self._notes:
            return True
        transfer = self._current()
        return transfer is not None and (transfer.number == 0 or transfer.granted)

    def next_frame(self, reply: bytes = b"") -> bytes | None:
        """The next frame, with this reply; None: nothing to send now."""
        notes: list[bytes] = []
        room = wire.REST_BYTES_MAX - (len(reply) + NOTE_OVERHEAD if reply else 0)
        while (
            self._notes
            and len(notes) < wire.NOTES_MAX
            and len(self._notes[0]) + NOTE_OVERHEAD <= room
        ):
            note = self._notes.popleft()
            self._notes_bytes -= len(note)
            room -= len(note) + NOTE_OVERHEAD
            notes.append(note)
        piece, raw = self._next_piece(room)
        self._last_raw = len(raw)
        if not notes and not piece and not reply:
            return None
        return wire.encode_frame(notes=notes, reply=reply, piece=piece, raw=raw)

    def _next_piece(self, room: int) -> tuple[bytes, bytes | memoryview]:
        transfer = self._current()
        if transfer is None:
            return b"", b""
        packed, total = transfer.packed, transfer.total
        first = transfer.number == 0
        offer = first and total > INLINE_BYTES
        if not first and not transfer.granted:
            return b"", b""  # the offer is out
        raw = packed.raw[transfer.sent : transfer.sent + (0 if offer else self._piece.nbytes)]
        piece = wire.encode_piece(
            number=transfer.number or self._number + 1,
            offset=transfer.sent,
            total=total,
            key=packed.key,
            offer=offer,
            head=packed.head if first else None,
            checksum=0 if offer else told_checksum(packed.message, raw),
        )
        if len(piece) + NOTE_OVERHEAD > room:
            return b"", b""  # the small messages go first, alone
        if first:
            self._number += 1
            transfer.number = self._number
            transfer.began = self._now()
            transfer.granted = not offer
            self._under_way.append(self._queue.popleft())
        transfer.sent += len(raw)
        return piece, raw

    def _current(self) -> _Transfer | None:
        """The one whose bytes are next."""
        if self._under_way and self._under_way[-1].sent < self._under_way[-1].total:
            return self._under_way[-1]
        if not self._queue:
            return None
        unlanded = sum(transfer.total for transfer in self._under_way)
        return self._queue[0] if unlanded < WINDOW_BYTES else None

    def took(self, seconds: float) -> None:
        """How long the last frame took to leave."""
        self._piece.took(seconds, self._last_raw)

    def on_grants(self, grants: Sequence[wire.Grant]) -> None:
        for grant in grants:
            transfer = self._under_way[-1] if self._under_way else None
            if transfer is None or transfer.number != grant.number or transfer.granted:
                raise RemoteProtocolError("grant.number", f"{grant.number} was not offered")
            if grant.offset > transfer.total:
                raise RemoteProtocolError("grant.offset", f"{grant.offset} of {transfer.total}")
            transfer.granted = True
            transfer.sent = transfer.total if grant.skip else grant.offset

    def on_landed(self, number: int) -> list[Any]:
        """Messages that have landed now."""
        landed: list[Any] = []
        while self._under_way and self._under_way[0].number <= number:
            transfer = self._under_way[0]
            if transfer.sent < transfer.total:
                break
            self._under_way.popleft()
            self._bytes -= transfer.total
            pieces = -(-transfer.total // wire.RAW_BYTES_MAX)
            self._stall.note((self._now() - transfer.began) / pieces)
            landed.append(transfer.packed.message)
        if number > self._number or (self._under_way and self._under_way[0].number <= number):
            raise RemoteProtocolError("reply.landed", f"{number} was not sent yet")
        return landed

    def broke(self) -> list[Any]:
        """The link is gone: the messages that are not known to have landed. Nothing waits now."""
        lost = [transfer.packed.message for transfer in (*self._under_way, *self._queue)]
        for waiting in (self._notes, self._under_way, self._queue):
            waiting.clear()
        self._notes_bytes = self._bytes = 0
        return lost
