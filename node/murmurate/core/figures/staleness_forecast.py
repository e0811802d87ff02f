"""How stale updates are now, and how stale theory says they should be: live, on every node.

Staleness at node j is expected (core/theory.py, per receiver) to be, over all it applies,

    sum_i  lambda_i / Lambda [ (Lambda - lambda_i) (mu_i + L) + lambda_j L ]      i != j
    plus   lambda_j / Lambda   (Lambda - lambda_j)  mu_j                          its own

which for n equal nodes is (n - 1) lambda (mu + L), and whose mean over all nodes is
`gossip_expected_unequal`; a node with several updates under way meets its own, too: `overlapping`.
Rates lambda and compute times mu come from the counters that everyone tells twice a second; no
staleness that was measured is used.

The delay L is from the making of an update to its arrival at another node. Each node tells when its
newest updates were made, the others know when these came. The difference is of two wall clocks;
however wrong they are, in the mean over all pairs the errors cancel, and only that mean is used.

What makes staleness is not the seconds of a delay but what is made meanwhile. A process that stands
still makes nothing, and receives nothing: on a busy machine most of the seconds are of that kind
(with 4 processes on 2 cores lambda L came out at twice what it should be, and the prediction 40 %
too high). So of each delay only what the fastest of late took counts in seconds; for the rest each
node counts the updates it made itself meanwhile, and they count as the time it needs for them.

One more term, 0 where all is calm: updates that overtake each other. The formula takes it that j
has all that an update of i was computed on. If the way from k to j took more than those from k to i
and from i to j together, it has not, and what it lacks counts twice too little:

    2 sum_{i, k != j} lambda_i lambda_k / Lambda  E max(0, L_kj - L_ij - L_ki - mu)

with delays drawn independently from those seen here of late.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from murmurate.core.effect import Rng
from murmurate.core.figures.progress import Progress
from murmurate.core.theory import overlapping

WINDOW_S = 10.0
"""What «now» means: what is shown is over the last this many seconds."""
SPAN_S, SPAN_UPDATES = 1.0, 8
"""A rate is over at least so long and so many updates …"""
SPAN_S_MAX = 60.0
"""… but not longer than this."""
MADE_MIN, MADE_MAX, MADE_S = 8, 256, 2.0
"""Updates whose making is told: those of the last seconds, in these bounds. Each is told several
times, as a word may get lost or be late."""
ARRIVED_MAX = 1024
"""Arrivals remembered, of each origin."""
OWN_MAX = 4096
"""Own updates whose making is remembered."""
DRAWS = 200
"""Of three delays each, to see how often updates overtake."""


class Counted(NamedTuple):
    """A node's counters at one instant of its own clock."""

    at: float
    published: int
    compute_s: float
    """Of all its updates together."""


class ForecastPoint(NamedTuple):
    """What this node had applied, and foresaw, at one instant."""

    now: float
    updates: int
    total: int
    """Staleness of all of them together."""
    expected: float


class Delay(NamedTuple):
    """Of one update of another node."""

    now: float
    """When it became known."""
    seconds: float
    later: int
    """Updates that were made here meanwhile, after the time that the fastest one took."""
    meanwhile: int
    """All that were made here meanwhile, if our two clocks are the same."""


class Makings:
    """When this node made its own updates, by its wall clock: the newest."""

    def __init__(self) -> None:
        self._walls: list[float] = []

    def add(self, wall: float) -> None:
        self._walls.append(wall)
        if len(self._walls) >= 2 * OWN_MAX:
            del self._walls[:OWN_MAX]

    @property
    def newest(self) -> tuple[float, ...]:
        if not self._walls:
            return ()
        recent = bisect.bisect_left(self._walls, self._walls[-1] - MADE_S) - len(self._walls)
        return tuple(self._walls[max(-MADE_MAX, min(-MADE_MIN, recent)) :])

    def between(self, start: float, end: float) -> int:
        """Updates made after `start` and before `end`."""
        return bisect.bisect_left(self._walls, end) - bisect.bisect_right(self._walls, start)


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
        "told_fastest_s",
        "told_later_updates",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.heard_at = -math.inf
        self.told_fastest_s = math.nan
        self.told_later_updates = math.nan
        self._counted: deque[Counted] = deque()
        self._delays: deque[Delay] = deque()
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

    def late(self, now: float, told: Progress, own: Makings) -> list[Delay]:
        """It told when updates were made: how long did those take that came? The new ones."""
        for seq, at in enumerate(told.made_at, told.last - len(told.made_at) + 1):
            if seq > self._last:
                self._made[seq] = at
        self._last = max(self._last, told.last)
        both: list[tuple[float, float]] = []
        for seq in list(self._made):
            if (came := self._arrived.pop(seq, None)) is not None:
                both.append((self._made.pop(seq), came))
            elif seq <= told.last - ARRIVED_MAX:
                del self._made[seq]  # it came with a snapshot
        while self._delays and self._delays[0].now < now - 2 * SPAN_S and len(self._delays) > 1:
            self._delays.popleft()
        taken = [came - made for made, came in both] + [each.seconds for each in self._delays]
        fastest = min(taken, default=0.0)
        new = [
            Delay(now, came - made, own.between(made + fastest, came), own.between(made, came))
            for made, came in both
        ]
        self._delays.extend(new)
        return new

    def delays(self, now: float) -> list[Delay]:
        """The last ones."""
        return [delay for delay in self._delays if delay.now >= now - WINDOW_S]


class Outlook:
    """This node's view of the last seconds. Whoever calls it holds the runtime's lock."""

    def __init__(self, rng: Rng) -> None:
        self._own = Makings()
        self._mine = Track(0)
        self._others: dict[str, Track] = {}
        self._applied: deque[ForecastPoint] = deque()
        self._rng = rng
        self._delayed = self._meanwhile = 0
        self._overtaken = 0.0
        """Of all updates of others so far whose delay is known, in own updates."""

    def count(
        self, now: float, published: int, compute_s: float, applied: int, staleness: int
    ) -> None:
        """My own counters, a few times a second."""
        self._mine.count(now, now, published, compute_s)
        self._applied.append(ForecastPoint(now, applied, staleness, self._expected(now)))
        while self._applied[0].now < now - WINDOW_S and len(self._applied) > 2:
            self._applied.popleft()

    def make(self, wall: float) -> None:
        """I have made an update."""
        self._own.add(wall)

    @property
    def made_at(self) -> tuple[float, ...]:
        """When my newest updates were made."""
        return self._own.newest

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
        track.told_fastest_s = told.fastest_delay_s
        track.told_later_updates = told.later_updates
        track.count(now, told.at, told.published, told.step_s * told.published)
        if new := track.late(now, told, self._own):
            self._delayed += len(new)
            self._meanwhile += sum(delay.meanwhile for delay in new)
            seen = [float(d.meanwhile) for t in self._tracks for d in t.delays(now)]
            self._overtaken += len(new) * self._overtaking(seen, 1.0)

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        for name in [name for name in self._others if name not in names]:
            del self._others[name]

    def silence_s(self, now: float) -> dict[str, float]:
        """Since each of the others was last heard of."""
        return {name: now - track.heard_at for name, track in self._others.items()}

    def delay_s(self, now: float) -> float:
        """Mean delay of others' updates to me, wrong by the clocks' differences; NaN: unknown."""
        return _mean([_mean([d.seconds for d in t.delays(now)]) for t in self._tracks])

    def fastest_s(self, now: float) -> float:
        """Mean over the others of their fastest update's delay; likewise wrong."""
        return _mean(
            [min((d.seconds for d in t.delays(now)), default=math.nan) for t in self._tracks]
        )

    def later_updates(self, now: float) -> float:
        """Mean over their last updates: what I made between the fastest and this one."""
        return _mean(self._later(now))

    def _later(self, now: float) -> list[float]:
        return [float(d.later) for t in self._tracks for d in t.delays(now)]

    @property
    def _tracks(self) -> Collection[Track]:
        return self._others.values()

    @property
    def delays_so_far(self) -> tuple[float, float]:
        """Of all updates of others since the beginning, on average: own ones made while one was on
        its way, and of a third node those it was computed on and came later. Right where all nodes
        have one clock."""
        count = max(1, self._delayed)
        return self._meanwhile / count, self._overtaken / count

    def _overtaking(self, delays: Sequence[float], ahead: float) -> float:
        """The mean of how much longer one way is than two others and `ahead` together."""
        if len(self._others) < 2 or not delays or max(delays) <= ahead:
            return 0.0
        count, drawn = len(delays), self._rng.randrange
        late = (
            delays[drawn(count)] - delays[drawn(count)] - delays[drawn(count)] - ahead
            for _ in range(DRAWS)
        )
        return math.fsum(max(0.0, each) for each in late) / DRAWS

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
            return math.nan if mine is None else expected_at(mine, {}, 0.0)
        tracks = [self._others[name] for name in rates]
        fastest = [track.told_fastest_s for track in tracks]
        later = [
            (rate, track.told_later_updates / rate.updates_per_s)
            for track, rate in zip(tracks, rates.values(), strict=True)
        ]
        if mine is not None:  # else it takes part in no pair both ways
            fastest.append(self.fastest_s(now))
            later.append((mine, self.later_updates(now) / mine.updates_per_s))
        delay_s = math.fsum(fastest) / len(fastest) + mean_delay_s(later)
        if not math.isfinite(delay_s):
            return math.nan
        if mine is None:
            return expected_at(Rate(0.0, 0.0), rates, delay_s)
        fastest_s = max(0.0, math.fsum(fastest) / len(fastest))
        seen = [each / mine.updates_per_s for each in self._later(now)]
        overtaken_s = self._overtaking(seen, mine.compute_s + fastest_s)
        return expected_at(mine, rates, delay_s) + overtaking_at(mine, rates, overtaken_s)


def _mean(values: Collection[float]) -> float:
    """Of those that are known; NaN: none is."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


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
    rates = [mine, *others.values()]
    return (own + theirs) / total + overlapping(
        [each.updates_per_s for each in rates], [each.compute_s for each in rates]
    )


def mean_delay_s(delays: Sequence[tuple[Rate, float]]) -> float:
    """Of all updates that are on their way to somebody: those of the others to each node, counted
    as often as it makes one of its own."""
    total = math.fsum(rate.updates_per_s for rate, _ in delays)
    weights = [rate.updates_per_s * (total - rate.updates_per_s) for rate, _ in delays]
    whole = math.fsum(weights)
    if whole <= 0:
        return _mean([delay for _, delay in delays])
    return math.fsum(w * delay for w, (_, delay) in zip(weights, delays, strict=True)) / whole


def overtaking_at(mine: Rate, others: Mapping[str, Rate], overtaken_s: float) -> float:
    """The last term at the top; `overtaken_s` is its mean."""
    total = mine.updates_per_s + math.fsum(each.updates_per_s for each in others.values())
    pairs = math.fsum(
        i.updates_per_s * k.updates_per_s for i, k in itertools.permutations(others.values(), 2)
    )
    return 2 * overtaken_s * pairs / total
