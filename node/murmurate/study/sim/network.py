"""A seeded network: what becomes of each message."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from murmurate.study.sim.options import Faults


class Network:
    """Loss, duplication, delay, reordering, cuts, clogs and slow links, by one rng."""

    def __init__(self, faults: Faults, rng: random.Random, counts: Counter[str]) -> None:
        self.faults = faults
        self.rng = rng
        self.counts = counts
        self._cut: set[tuple[str, str]] = set()
        self._clogged: dict[tuple[str, str], float] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self.calm = False

    def arrivals(self, source: str, target: str, now: float) -> list[float]:
        """When copies of a message sent now arrive; empty: it is lost."""
        if self.calm:
            return [now + 0.002 + self.rng.random() * 0.002]
        faults, rng = self.faults, self.rng
        if self._cut and (source, target) in self._cut:
            self.counts["cut off"] += 1
            return []
        if faults.loss and rng.random() < faults.loss:
            self.counts["lost"] += 1
            return []
        start = now
        if self._clogged:
            start = max(now, self._clogged.get((source, target), now))
        out = [start + self._delay()]
        if faults.duplicate and rng.random() < faults.duplicate:
            self.counts["duplicated"] += 1
            out.append(start + self._delay())
        if faults.late_duplicate_s and rng.random() < 0.02:
            self.counts["late duplicate"] += 1
            out.append(start + rng.random() * faults.late_duplicate_s)
        return out

    def _delay(self) -> float:
        faults, rng = self.faults, self.rng
        delay = 0.0005 + faults.delay_s * (0.5 + rng.expovariate(2.0))
        if faults.reorder_s and rng.random() < 0.1:
            self.counts["reordered"] += 1
            delay += rng.random() * faults.reorder_s
        return delay

    def sending_s(self, source: str, target: str) -> float:
        """How long a push occupies the link before the next one may follow."""
        if self.calm or not self.faults.slow_links:
            return 0.0
        path = (source, target)
        if path not in self._slow:
            slow = self.rng.random() < self.faults.slow_links
            self._slow[path] = self.rng.uniform(0.2, 1.5) if slow else 0.0
            self.counts["slow link"] += slow
        return self._slow[path]

    def cut(self, side: set[str], others: set[str]) -> set[tuple[str, str]]:
        """Separate two sides, or only one direction; returns what was cut, to be healed."""
        paths = {(a, b) for a in side for b in others}
        if not self.faults.one_way:
            paths |= {(b, a) for a, b in paths}
        self._cut |= paths
        self.counts["one-way cut" if self.faults.one_way else "cut"] += 1
        return paths

    def heal(self, paths: set[tuple[str, str]]) -> None:
        self._cut -= paths

    def clog(self, source: str, target: str, until: float) -> None:
        """Hold everything on one path until then."""
        self.counts["clog"] += 1
        self._clogged[source, target] = until

    def calm_down(self) -> None:
        self.calm = True
        self._cut.clear()
        self._clogged.clear()


class Steady:
    """A network on which everything arrives, after a time that is known: to compare at equal time.

    A message takes the longer one of its two ends' delays.
    """

    def __init__(self, delay_s: float, delays_s: Mapping[str, float]) -> None:
        self.delay_s = delay_s
        self.delays_s = dict(delays_s)

    def between(self, source: str, target: str) -> float:
        one = self.delays_s.get(source, self.delay_s)
        return max(one, self.delays_s.get(target, self.delay_s))

    def arrivals(self, source: str, target: str, now: float) -> list[float]:
        """As `Network.arrivals`: always one."""
        return [now + self.between(source, target)]
