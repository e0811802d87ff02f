"""What comes on a link, without the network: frames in, whole messages and receipts out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from murmurate.edge.net import wire
from murmurate.edge.net.depot import Depot
from murmurate.edge.net.incoming import IncomingMessage
from murmurate.edge.net.pieces import PIECE_BYTES_MIN
from murmurate.edge.net.transport import INLINE_BYTES, WINDOW_BYTES, WINDOW_MESSAGES
from murmurate.errors import ChecksumMismatch, RemoteProtocolError

if TYPE_CHECKING:
    from murmurate.edge.net.transport import Ears

UNTOLD_MAX = 16
"""Offers whose answer has not left. Who keeps the rules has one."""


class Assembly:
    """What comes on one link: what its sender may send next, and what to answer."""

    def __init__(
        self,
        hello: wire.Hello,
        ears: Ears,
        depot: Depot,
        *,
        call_soon: Callable[[Callable[[], None]], None],
        on_reply: Callable[[float], None],
        on_offer: Callable[[int], None],
    ) -> None:
        """`hello` is the sender's. `call_soon`: run this on the loop's thread. `on_reply(wait_s)`:
        `reply` has news, which may wait so long. `on_offer(key)`: that is offered here, whatever
        other link of the same sender was carrying it."""
        self.who = (hello.name, hello.epoch)
        self._sender = hello.name
        self._ears = ears
        self._depot = depot
        self._call_soon = call_soon
        self._on_reply = on_reply
        self._on_offer = on_offer
        self._current: IncomingMessage | None = None
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
        self.closed = False
        self.broken: wire.BulkHead | None = None
        """What was under way when it was closed."""

    @property
    def idle(self) -> bool:
        """Nothing is under way, and all that came is consumed and told."""
        return self._current is None and self._landed == self._number == self._said

    # -- what comes in ---------------------------------------------------------------------------

    def receive(self, frame: wire.Frame) -> None:
        """RemoteProtocolError: the sender does not keep the rules; close the link."""
        if self.closed:
            return
        if frame.hello is not None:
            raise RemoteProtocolError("frame.hello", "a second one on this link")
        for note in frame.notes:
            self._ears.received(self._sender, note, _nothing)
        if frame.piece is not None:
            self._piece(frame.piece, frame.raw)
        elif frame.raw:
            raise RemoteProtocolError("frame.raw", "without a piece it belongs to")

    def _piece(self, piece: wire.TensorPiece, raw: memoryview) -> None:
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

    def _give_up(self, incoming: IncomingMessage) -> None:
        """Nothing of it is kept, what came before included; the link ends here."""
        self._current = None
        incoming.let_go()
        if incoming.large:
            self._depot.release(incoming.total)
        self._ears.broke(self._sender, incoming.head, False)

    def _begin(self, piece: wire.TensorPiece) -> IncomingMessage | None:
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
        if piece.offer:
            self._on_offer(piece.key)
        incoming = IncomingMessage(piece.number, piece.total, piece.key, piece.head)
        if not piece.offer:
            self._unconsumed_bytes += piece.total
            self._current = incoming
            return incoming
        if not self._ears.wants(self._sender, piece.head):
            if len(self._grants) >= UNTOLD_MAX:
                raise RemoteProtocolError("bulk.offer", "the ones before are not answered yet")
            self._grants.append(wire.Grant(number=piece.number, offset=0, skip=True))
            self._count(piece.number)
            self._on_reply(0.0)
            return None
        self._unconsumed_bytes += piece.total
        self._current = incoming
        self._ears.heard(self._sender, piece.head)
        self._depot.ask(self, incoming)
        return None

    def give_way(self, key: int) -> None:
        """Another link carries this transfer: what is here of it is for that one."""
        current = self._current
        if current is None or not current.large or current.key != key:
            return
        self.close()
        self.broken = None
        self._ears.broke(self._sender, current.head, True)

    def grant(self, incoming: IncomingMessage) -> None:
        """There is memory for an offer."""
        self._moved_at = self._depot.now()
        self._grants.append(wire.Grant(number=incoming.number, offset=incoming.filled, skip=False))
        self._on_reply(0.0)

    def _deliver(self, incoming: IncomingMessage) -> None:
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

    def reply(self, *, last: bool = False) -> wire.Reply | None:
        """What to tell the sender now; None: nothing new. `last`: I begin nothing more."""
        if not self._grants and self._landed == self._said and not last:
            return None
        grants, self._grants = tuple(self._grants), []
        self._said = self._landed
        self._fresh_bytes = 0
        return wire.Reply(grants, self._landed, last)

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
        self.closed = True
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
