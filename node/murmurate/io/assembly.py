"""The receiving side of a link, without the network: frames in, whole messages and receipts out.

Pieces are copied into one buffer of exactly the size the receiver itself expects for that head;
a sender cannot make it larger. Memory for large messages comes from one `Depot`, shared by all
links: when it is used up, further offers wait for their turn.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from murmurate.core import buffers
from murmurate.core.gate import square
from murmurate.errors import ChecksumMismatch, RemoteProtocolError
from murmurate.io import span, wire
from murmurate.io.link import PIECE_BYTES_MIN
from murmurate.io.transport import INLINE_BYTES, WINDOW_BYTES, WINDOW_MESSAGES, Limits

if TYPE_CHECKING:
    from murmurate.io.deadline import Deadline
    from murmurate.io.transport import Ears

PARTIALS_MAX = 64
SENDERS_MAX = 1024
NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.uint8: np.uint8,
}
COUNTED = (wire.ShareHead, wire.SnapshotHead)
"""Whose norm is counted while they come."""


@dataclass(slots=True, eq=False)
class _Incoming:
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


@dataclass(slots=True, eq=False)
class _Partial:
    payload: torch.Tensor
    filled: int
    total: int
    until: float


class Depot:
    """Memory for large messages under way, all links together, and the parts of broken ones."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self.limits = limits
        self.now = now
        self._budget = limits.budget_bytes
        self._used = 0
        self._waiting: deque[tuple[Assembly, _Incoming]] = deque()
        self._partials: dict[tuple[str, int, int], _Partial] = {}
        self._patience: dict[str, Deadline] = {}

    def patience(self, sender: str) -> Deadline:
        """How long a sender's transfer may stand still; remembered when its link breaks."""
        known = self._patience.pop(sender, None) or self.limits.stall(self.limits.stall_s)
        self._patience[sender] = known  # the latest last
        if len(self._patience) > SENDERS_MAX:
            del self._patience[next(iter(self._patience))]
        return known

    @property
    def used_bytes(self) -> int:
        return self._used

    def ask(self, assembly: Assembly, incoming: _Incoming) -> None:
        """Memory for an offer, now or later: then the assembly grants it."""
        self._budget = max(self._budget, 2 * incoming.total)
        self._waiting.append((assembly, incoming))
        self._serve()

    def release(self, nbytes: int) -> None:
        self._used -= nbytes
        self._serve()

    def leave(self, assembly: Assembly) -> None:
        """A link is closed: its offers need no answer."""
        self._waiting = deque(item for item in self._waiting if item[0] is not assembly)

    def keep(self, who: tuple[str, int], incoming: _Incoming) -> None:
        """The link broke in the middle: what is here may save sending it again."""
        assert incoming.payload is not None
        until = self.now() + self.limits.partial_s
        partial = _Partial(incoming.payload, incoming.filled, incoming.total, until)
        self._forget((*who, incoming.key))
        self._partials[*who, incoming.key] = partial
        if len(self._partials) > PARTIALS_MAX:
            self._forget(next(iter(self._partials)))
        self._serve()

    def sweep(self) -> None:
        now = self.now()
        for key in [key for key, partial in self._partials.items() if partial.until <= now]:
            self._forget(key)
        self._serve()

    def _forget(self, key: tuple[str, int, int]) -> None:
        partial = self._partials.pop(key, None)
        if partial is not None:
            self._used -= partial.total

    def _serve(self) -> None:
        while self._waiting:
            assembly, incoming = self._waiting[0]
            name = (*assembly.who, incoming.key)
            partial = self._partials.get(name)
            if partial is not None and partial.total == incoming.total:
                del self._partials[name]  # its memory stays in use, by the transfer again
                incoming.payload = partial.payload
                incoming.filled = partial.filled
                incoming.square = None
                if partial.payload.dtype != wire.payload_dtype(incoming.head):
                    incoming.filled = 0
                    incoming.allocate()
            else:
                while self._used + incoming.total > self._budget and self._partials:
                    self._forget(next(iter(self._partials)))
                if self._used + incoming.total > self._budget:
                    return
                self._used += incoming.total
                incoming.allocate()
            self._waiting.popleft()
            assembly.grant(incoming)


class Assembly:
    """One incoming link: what its sender may send next, and what to answer."""

    def __init__(
        self,
        hello: wire.Hello,
        ears: Ears,
        depot: Depot,
        *,
        call_soon: Callable[[Callable[[], None]], None],
        on_reply: Callable[[float], None],
    ) -> None:
        """`call_soon`: run this on the loop's thread. `on_reply(wait_s)`: `reply` has
        news, which may wait so long."""
        self.who = (hello.name, hello.epoch)
        self._sender = hello.name
        self._ears = ears
        self._depot = depot
        self._call_soon = call_soon
        self._on_reply = on_reply
        self._current: _Incoming | None = None
        self._moved_at = 0.0
        self._heard_at = -math.inf
        self._patience = depot.patience(hello.name)
        self._number = 0
        self._unconsumed_bytes = 0
        self._consumed: set[int] = set()
        """Consumed out of order: beyond `_landed`."""
        self._landed = 0
        self._grants: list[wire.Grant] = []
        self._fresh_bytes = 0
        self._said = 0
        self._closed = False
        self.broken: wire.BulkHead | None = None
        """What was under way when it was closed."""

    # -- what comes in ---------------------------------------------------------------------------

    def receive(self, frame: wire.Frame) -> None:
        """RemoteProtocolError: the sender does not keep the rules; close the link."""
        if self._closed:
            return
        if frame.hello is not None:
            raise RemoteProtocolError("frame.hello", "a second one on this link")
        for note in frame.notes:
            self._ears.received(self._sender, note, _nothing)
        if frame.piece is not None:
            self._piece(frame.piece, frame.raw)
        elif frame.raw:
            raise RemoteProtocolError("frame.raw", "without a piece it belongs to")

    def _piece(self, piece: wire.Piece, raw: memoryview) -> None:
        current = self._current
        begun = None
        if current is None:
            current = begun = self._begin(piece)
            if current is None:
                return
        elif piece.offer or piece.head is not None:
            raise RemoteProtocolError("bulk.head", f"transfer {current.number} is not complete")
        if piece.number != current.number or piece.total != current.total:
            raise RemoteProtocolError("bulk.number", f"transfer {current.number} is not complete")
        if current.large and current.payload is None:
            raise RemoteProtocolError("bulk.raw", "not granted yet")
        if piece.offset != current.filled or not raw or len(raw) > current.total - current.filled:
            problem = (
                f"{len(raw)} bytes at {piece.offset}, {current.filled} of {current.total} here"
            )
            raise RemoteProtocolError("bulk.offset", problem)
        try:
            current.check(raw, piece.checksum)
        except ChecksumMismatch:
            self._give_up(current)
            raise
        current.write(raw)
        now = self._depot.now()
        if current is not begun:
            # As if it had been as large as they get: the next one may be. (The last may be tiny.)
            share = max(len(raw), PIECE_BYTES_MIN) / wire.RAW_BYTES_MAX
            self._patience.note((now - self._moved_at) / share)
        self._moved_at = now
        if current.filled < current.total:
            if now >= self._heard_at + self._depot.limits.heard_s:
                self._heard_at = now
                self._ears.heard(self._sender, current.head)
            return
        self._current = None
        self._deliver(current)

    def _give_up(self, incoming: _Incoming) -> None:
        """Nothing of it is kept, what came before included; the link ends here."""
        self._current = None
        incoming.let_go()
        if incoming.large:
            self._depot.release(incoming.total)
        self._ears.broke(self._sender, incoming.head, False)

    def _begin(self, piece: wire.Piece) -> _Incoming | None:
        """A new transfer; None: an offer, answered or waiting."""
        if piece.number != self._number + 1:
            raise RemoteProtocolError("bulk.number", f"{piece.number} after {self._number}")
        if piece.head is None or piece.offset:
            raise RemoteProtocolError("bulk.head", "missing at the beginning of a transfer")
        if piece.offer != (piece.total > INLINE_BYTES):
            raise RemoteProtocolError("bulk.offer", f"wrong for {piece.total} bytes")
        if self._unconsumed_bytes >= WINDOW_BYTES:
            raise RemoteProtocolError("bulk.number", "more than the window takes")
        expected = self._ears.expected_bytes(piece.head)
        if piece.total != expected:
            raise RemoteProtocolError("bulk.total", f"{piece.total} bytes, expected {expected}")
        self._number = piece.number
        incoming = _Incoming(piece.number, piece.total, piece.key, piece.head)
        if not piece.offer:
            self._unconsumed_bytes += piece.total
            self._current = incoming
            return incoming
        if not self._ears.wants(self._sender, piece.head):
            self._grants.append(wire.Grant(number=piece.number, offset=0, skip=True))
            self._count(piece.number)
            self._on_reply(0.0)
            return None
        self._unconsumed_bytes += piece.total
        self._current = incoming
        self._ears.heard(self._sender, piece.head)
        self._depot.ask(self, incoming)
        return None

    def grant(self, incoming: _Incoming) -> None:
        """There is memory for an offer."""
        self._moved_at = self._depot.now()
        self._grants.append(wire.Grant(number=incoming.number, offset=incoming.filled, skip=False))
        self._on_reply(0.0)

    def _deliver(self, incoming: _Incoming) -> None:
        freed = False

        def free() -> None:
            nonlocal freed
            if freed:
                return
            freed = True
            if incoming.large:
                self._depot.release(incoming.total)
            self._unconsumed_bytes -= incoming.total
            self._fresh_bytes += incoming.total
            self._count(incoming.number)
            self._on_reply(self._patience_s(incoming.head))

        payload = incoming.payload
        assert payload is not None
        incoming.let_go()
        try:
            message = wire.put_together(incoming.head, payload, incoming.norm)
            self._ears.received(self._sender, message, lambda: self._call_soon(free))
        except RemoteProtocolError:
            freed = True  # its memory; it has not landed, and the link ends here
            if incoming.large:
                self._depot.release(incoming.total)
            raise

    def _patience_s(self, head: wire.BulkHead) -> float:
        """How long the news that it has landed may wait for company. Nobody waits for that of a
        push while there is room in the window; the next share waits for that of the last."""
        if (
            self._fresh_bytes >= WINDOW_BYTES // 4
            or self._landed - self._said >= WINDOW_MESSAGES // 2
        ):
            return 0.0
        limits = self._depot.limits
        return limits.landed_s if isinstance(head, wire.ShareHead) else limits.landed_push_s

    def _count(self, number: int) -> None:
        self._consumed.add(number)
        while self._landed + 1 in self._consumed:
            self._landed += 1
            self._consumed.remove(self._landed)

    # -- what goes back --------------------------------------------------------------------------

    def reply(self) -> bytes | None:
        """What to tell the sender now; None: nothing new."""
        if not self._grants and self._landed == self._said:
            return None
        grants, self._grants = tuple(self._grants), []
        self._said = self._landed
        self._fresh_bytes = 0
        return wire.encode_reply(wire.Reply(welcome=None, grants=grants, landed=self._landed))

    def stalled(self) -> bool:
        """In the middle of a transfer, and nothing comes."""
        current = self._current
        if current is None or current.payload is None:
            return False
        if self._depot.now() - self._moved_at <= self._patience.limit:
            return False
        self._patience.miss()
        return True

    def close(self) -> None:
        """The link is gone; a large transfer that was under way is kept for its next try."""
        self._closed = True
        self._depot.leave(self)
        current, self._current = self._current, None
        if current is not None:
            self.broken = current.head
        if current is None or current.payload is None or not current.large:
            return
        if current.filled:
            self._depot.keep(self.who, current)
        else:
            self._depot.release(current.total)


def _nothing() -> None:
    """Small messages need no receipt."""
