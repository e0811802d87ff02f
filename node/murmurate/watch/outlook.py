"""How stale updates are now, and how stale theory says they should be: live, on every node.

Staleness at node j is expected (core/staleness.py, per receiver) to be, over all it applies,

    sum_i  lambda_i / Lambda [ (Lambda - lambda_i) (mu_i + L) + lambda_j L ]      i != j
    plus   lambda_j / Lambda   (Lambda - lambda_j)  mu_j                          its own

which for n equal nodes is (n - 1) lambda (mu + L), and whose mean over all nodes is
`gossip_expected_unequal`. Rates lambda and compute times mu come from the counters that everyone
tells twice a second, so do delays; no staleness that was measured is used.

The delay L is from the making of an update to its arrival at another node, where the end of a step
folds it in. Each node tells when its newest updates were made, the others know when these came. The
difference is of two wall clocks; however wrong they are, in the mean over all pairs the errors
cancel, and only that mean is used. (Little's law, from counters alone, gave 5 ms too much: a node
tells best when its training lets it, which is just after a step.)

It is worked out over about a second, again and again, and averaged: when a machine is busy, rates
fall while times grow, and a product of two means over 10 s came out 4 to 10 % too high.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from murmurate.io.progress import Progress

WINDOW_S = 10.0
"""What «now» means: what is shown is over the last this many seconds."""
SPAN_S, SPAN_UPDATES = 1.0, 8
"""A rate is over at least so long and so many updates …"""
SPAN_S_MAX = 60.0
"""… but not longer than this."""
MADE_MAX = 8
"""Updates whose making is told."""
ARRIVED_MAX = 256
"""Arrivals remembered, of each origin."""


class Counted(NamedTuple):
    """A node's counters at one instant of its own clock."""

    at: float
    published: int
    compute_s: float
    """Of all its updates together."""


class Applied(NamedTuple):
    """What this node had applied, and foresaw, at one instant."""

    now: float
    updates: int
    total: int
    """Staleness of all of them together."""
    expected: float


@dataclass(frozen=True, slots=True)
class Rate:
    """Of one node."""

    updates_per_s: float
    compute_s: float
    """Mean, of an update."""


class Track:
    """What one node told in the last seconds."""

    __slots__ = (
        "_arrived",
        "_counted",
        "_delays",
        "_last",
        "_made",
        "epoch",
        "heard_at",
        "told_delay_s",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.heard_at = -math.inf
        self.told_delay_s = math.nan
        self._counted: deque[Counted] = deque()
        self._delays: deque[tuple[float, float]] = deque()
        self._made: dict[int, float] = {}
        self._arrived: dict[int, float] = {}
        """When updates were made, and when they came, of which not both is known yet."""
        self._last = 0

    def count(self, now: float, at: float, published: int, compute_s: float) -> None:
        self.heard_at = now
        if self._counted and at <= self._counted[-1].at:
            self._counted.clear()  # its clock was set back
        self._counted.append(Counted(at, published, compute_s))
        while self._counted[0].at < at - SPAN_S_MAX and len(self._counted) > 2:
            self._counted.popleft()

    def rate(self, now: float) -> Rate | None:
        """None: not known, or it makes none."""
        if len(self._counted) < 2 or self.heard_at < now - WINDOW_S:
            return None
        last = self._counted[-1]
        for first in itertools.islice(reversed(self._counted), 1, None):
            made, took_s = last.published - first.published, last.at - first.at
            if took_s >= SPAN_S and made >= SPAN_UPDATES:
                break
        if made <= 0:
            return None
        return Rate(made / took_s, (last.compute_s - first.compute_s) / made)

    def arrive(self, seq: int, wall: float) -> None:
        self._arrived.setdefault(seq, wall)
        if len(self._arrived) > ARRIVED_MAX:
            del self._arrived[next(iter(self._arrived))]

    def late(self, now: float, told: Progress) -> None:
        """It told when updates were made: how long did those take that came?"""
        for seq, at in enumerate(told.made_at, told.last - len(told.made_at) + 1):
            if seq > self._last:
                self._made[seq] = at
        self._last = max(self._last, told.last)
        for seq in list(self._made):
            if (came := self._arrived.pop(seq, None)) is not None:
                self._delays.append((now, came - self._made.pop(seq)))
            elif seq <= told.last - ARRIVED_MAX:
                del self._made[seq]  # it came with a snapshot
        while self._delays and self._delays[0][0] < now - 2 * SPAN_S and len(self._delays) > 1:
            self._delays.popleft()

    def delay_s(self, now: float) -> float:
        """Mean of the last ones; NaN: unknown."""
        recent = [delay for at, delay in self._delays if at >= now - WINDOW_S]
        return math.fsum(recent) / len(recent) if recent else math.nan


class Outlook:
    """This node's view of the last seconds. Whoever calls it holds the runtime's lock."""

    def __init__(self) -> None:
        self._made: deque[float] = deque(maxlen=MADE_MAX)
        self._mine = Track(0)
        self._others: dict[str, Track] = {}
        self._applied: deque[Applied] = deque()

    def count(
        self, now: float, published: int, compute_s: float, applied: int, staleness: int
    ) -> None:
        """My own counters, a few times a second."""
        self._mine.count(now, now, published, compute_s)
        self._applied.append(Applied(now, applied, staleness, self._expected(now)))
        while self._applied[0].now < now - WINDOW_S and len(self._applied) > 2:
            self._applied.popleft()

    def make(self, wall: float) -> None:
        """I have made an update."""
        self._made.append(wall)

    @property
    def made_at(self) -> tuple[float, ...]:
        """When my newest updates were made."""
        return tuple(self._made)

    def arrive(self, origin: str, epoch: int, seq: int, wall: float) -> None:
        """One of another's updates came, for the first time or again."""
        track = self._others.get(origin)
        if track is not None and track.epoch == epoch:
            track.arrive(seq, wall)

    def hear(self, told: Progress, now: float) -> None:
        """Another node told its progress."""
        track = self._others.get(told.name)
        if track is None or track.epoch != told.epoch:
            track = self._others[told.name] = Track(told.epoch)
        track.told_delay_s = told.delay_s
        track.count(now, told.at, told.published, told.step_s * told.published)
        track.late(now, told)

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        for name in [name for name in self._others if name not in names]:
            del self._others[name]

    def silence_s(self, now: float) -> dict[str, float]:
        """Since each of the others was last heard of."""
        return {name: now - track.heard_at for name, track in self._others.items()}

    def delay_s(self, now: float) -> float:
        """Mean delay of others' updates to me, wrong by the clocks' differences; NaN: unknown."""
        delays = [each.delay_s(now) for each in self._others.values()]
        known = [delay for delay in delays if not math.isnan(delay)]
        return math.fsum(known) / len(known) if known else math.nan

    def staleness(self) -> float:
        """Mean of what was applied here in the last seconds; NaN: nothing was."""
        if len(self._applied) < 2:
            return math.nan
        first, last = self._applied[0], self._applied[-1]
        updates = last.updates - first.updates
        return (last.total - first.total) / updates if updates > 0 else math.nan

    def predicted(self) -> float:
        """Mean staleness expected of what was applied here in the last seconds; NaN: not enough is
        known yet."""
        total = weight = 0.0
        for before, after in itertools.pairwise(self._applied):
            updates = after.updates - before.updates
            if updates > 0 and not math.isnan(after.expected):
                total += updates * after.expected
                weight += updates
        return max(0.0, total / weight) if weight else math.nan

    def _expected(self, now: float) -> float:
        """Of this moment; below 0 where a delay near 0 was found so."""
        mine = self._mine.rate(now)
        rates = {name: rate for name, each in self._others.items() if (rate := each.rate(now))}
        if not rates:
            return math.nan if mine is None else 0.0
        delays = [self.delay_s(now), *(self._others[name].told_delay_s for name in rates)]
        if mine is None:
            delays = delays[1:]  # it takes part in no pair both ways
        if any(math.isnan(delay) for delay in delays):
            return math.nan
        delay_s = math.fsum(delays) / len(delays)
        return expected_at(mine or Rate(0.0, 0.0), rates, delay_s)


def expected_at(mine: Rate, others: Mapping[str, Rate], delay_s: float) -> float:
    """The formula at the top, of a node with rate `mine` among `others`."""
    total = mine.updates_per_s + math.fsum(each.updates_per_s for each in others.values())
    if total == 0:
        return 0.0
    own = mine.updates_per_s * (total - mine.updates_per_s) * mine.compute_s
    theirs = math.fsum(
        each.updates_per_s
        * ((total - each.updates_per_s) * (each.compute_s + delay_s) + mine.updates_per_s * delay_s)
        for each in others.values()
    )
    return (own + theirs) / total
