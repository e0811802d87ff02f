"""What each peer still has to be sent: bounded, and nothing is dropped, it is summed.

A link that is slower than the training gets fewer, fuller messages: it takes all that waits on its
path as one push, which carries all their stamps, each with its own context, so that staleness stays
exact. What waits is added up sooner, where it takes more than `bytes_max`. Only a path
that is more than `STAMPS_MAX` updates behind is given up, and repaired by snapshot.
"""

from __future__ import annotations

from collections.abc import Callable

from murmurate.core.clock import Dot
from murmurate.core.message import STAMPS_MAX, Push, summed


class Outbox:
    """Pushes waiting for each peer, oldest first."""

    __slots__ = ("_bytes_max", "_dots", "_queues")

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._queues: dict[str, list[Push]] = {}
        self._dots: dict[str, dict[Dot, None]] = {}

    def put(self, to: str, push: Push) -> bool:
        """Queue a push, unless part of it is queued already. False: the path is given up."""
        queue = self._queues.setdefault(to, [])
        dots = self._dots.setdefault(to, {})
        if any(stamp.dot in dots for stamp in push.stamps):
            return True
        if len(dots) + len(push.stamps) > STAMPS_MAX:
            self.forget(to)
            return False
        queue.append(push)
        for stamp in push.stamps:
            dots[stamp.dot] = None
        if len(queue) > 1 and self.nbytes(to) > self._bytes_max:
            queue[:] = [summed(queue)]
        return True

    def take(self, to: str) -> Push | None:
        """Everything that waits for a peer, in one push."""
        queue = self._queues.get(to)
        if not queue:
            return None
        push = summed(queue)
        queue.clear()
        dots = self._dots[to]
        for stamp in push.stamps:
            del dots[stamp.dot]
        return push

    def waiting(self) -> list[str]:
        """Peers with something waiting, in a stable order."""
        return [to for to, queue in self._queues.items() if queue]

    def holds(self, to: str, dot: Dot) -> bool:
        """Whether this update waits for that peer."""
        return dot in self._dots.get(to, ())

    def updates(self, to: str) -> int:
        return len(self._dots.get(to, ()))

    def nbytes(self, to: str) -> int:
        return sum(push.nbytes for push in self._queues.get(to, ()))

    def change(self, change: Callable[[Push], Push | None]) -> None:
        """Put another form of each push in its place; None: it need not be sent."""
        for to, queue in self._queues.items():
            queue[:] = [new for push in queue if (new := change(push)) is not None]
            self._dots[to] = {stamp.dot: None for push in queue for stamp in push.stamps}

    def forget(self, to: str) -> None:
        """The peer is gone, or too far behind: what waits for it will reach it another way."""
        self._queues.pop(to, None)
        self._dots.pop(to, None)
