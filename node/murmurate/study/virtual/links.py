"""Links of a known width: a node sends one large message after another, and receives so.

A message leaves when all that its sender handed over before has left, takes its bytes over the
sender's width, then the delay of the way; its receiver takes it in behind what came before, over
its own width. Small messages (probes, digests) take the delay alone: on real links they go between
the pieces of a large one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from murmurate.study.sim.network import Steady


class VirtualLinks:
    """When each node's link is free again, and when what it carries is there."""

    def __init__(
        self,
        network: Steady,
        bytes_s: float | None = None,
        widths: Mapping[str, float] | None = None,
    ) -> None:
        """`bytes_s`: of every link; None: as wide as it takes. `widths`: of some nodes'."""
        self._network = network
        self._bytes_s = math.inf if bytes_s is None else bytes_s
        self._widths = dict(widths or {})
        self.narrow = math.isfinite(self._bytes_s) or bool(self._widths)
        """Whether any of them takes time for a message."""
        self._sent: dict[str, float] = {}
        self._received: dict[str, float] = {}
        self._path: dict[tuple[str, str], float] = {}

    def width(self, name: str) -> float:
        """Bytes in a second, infinite where nothing was said."""
        return self._widths.get(name, self._bytes_s)

    def slowest_s(self, nbytes: int, names: Iterable[str]) -> float:
        """How long a message of this size takes over the narrowest link."""
        return nbytes / min(self.width(name) for name in names)

    def free(self, source: str, target: str, now: float) -> bool:
        """Whether the way from one to the other takes a large message: it carries one at a time.
        Those of one node to several others are behind one another on its link."""
        return now >= self._path.get((source, target), 0.0)

    def send(self, source: str, target: str, nbytes: int, now: float) -> tuple[float, float]:
        """When a message of this size has left, so that the next may, and when it is there. One of
        no size worth counting goes between the pieces of the large ones."""
        delay_s = self._network.between(source, target)
        if not nbytes:
            return now, now + delay_s
        begins = max(now, self._sent.get(source, 0.0))
        left = begins + nbytes / self.width(source)
        # Each link is taken up by its own work alone: a sender that is the slower end leaves its
        # receiver room for others meanwhile, and the other way round.
        work_s = nbytes / self.width(target)
        taken_in = max(now + delay_s, self._received.get(target, 0.0)) + work_s
        there = max(left + delay_s, begins + delay_s + work_s, taken_in)
        self._sent[source], self._received[target] = left, taken_in
        self._path[source, target] = there - delay_s
        return left, there
