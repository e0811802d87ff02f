"""Do the others move as I do? Measured at each own publication, from what is there anyway.

Two cosines, each of my newest gain: with my own gains of late, and with what the others have added
to the weights of late. A gain is a gradient, scaled, without momentum (`training.gain`). Of like
data it is one direction that all share and noise of its own, so the two cosines are alike, both
near 0 where noise is all there is. Peers with data of different kinds each have a direction of
their own that stays, and that the others pull back from: the first cosine is then well above 0 and
the second below. That the others' updates have the swarm's momentum in them does not disturb this:
it is the sum of all directions, in which a peer's own is small. What was measured is in
docs/convergence.md; the limits below are from there.

It looks at a few thousand coordinates at most, so that it costs nothing on a large model.
"""

from __future__ import annotations

import math

import torch

from murmurate.core.figures.latch import Latch

COORDINATES_MAX = 8192
OF_LATE = 8
"""Own publications that a direction is a mean over …"""
SMOOTHED = 32
"""… and those that a cosine is."""
EVIDENCE = 16
"""Own publications before anything is said …"""
IN_A_ROW = 8
"""… and so many that must agree."""
SURE = 4.0
"""A mean cosine counts as known that is so many of its standard errors from 0."""
STAYS = 0.12
"""An own direction that stays: its mean cosine is at least this."""
APART = -0.02
"""The others pull back: their mean cosine is at most this."""
SHARE = 0.5
"""The others go along: their mean cosine is at least so much of the own one."""
TIMID, TIMID_EVIDENCE, TIMID_IN_A_ROW, TIMID_NO_MORE = 0.8, 32, 32, 0.6
"""The whole swarm goes straight on: the cosine, and since when; and when it no longer does."""


class Likeness:
    """What one node knows of its own direction and of the others'. For the thread that trains."""

    def __init__(self, size: int, place: slice = slice(None)) -> None:
        """`place`: of the weights, where it looks: one part, if they are published in parts."""
        start, stop, _ = place.indices(size)
        self._place = slice(start, stop, _stride(stop - start))
        self.own = _Mean()
        """Cosine with my own gains of late."""
        self.others = _Mean()
        """Cosine with what the others have added of late."""
        self._gain: torch.Tensor | None = None
        self._last: torch.Tensor | None = None
        """The weights right after my last publication."""
        self._mine: torch.Tensor | None = None
        self._theirs: torch.Tensor | None = None
        self._unlike, self._alike = Latch(IN_A_ROW), Latch(IN_A_ROW)
        self._timid = Latch(TIMID_IN_A_ROW)

    # -- told -------------------------------------------------------------------------------------

    def gained(self, gain: torch.Tensor) -> None:
        """This is what I gained, in all of the weights; it is about to be published."""
        self._gain = gain[self._place].clone()

    def arrived(self, weights: torch.Tensor) -> None:
        """The weights as they are before my publication: what is new in them is the others'."""
        if self._gain is None:
            return
        last, self._last = self._last, None
        if last is None:
            return
        added = weights[self._place] - last
        self._theirs = _of_late(self._theirs, added)

    def published(self, weights: torch.Tensor) -> bool:
        """My publication is in the weights. Whether something new was measured."""
        gain, self._gain = self._gain, None
        if gain is None:
            return False
        self._last = weights[self._place].clone()
        norm = float(torch.linalg.vector_norm(gain))
        if not 0.0 < norm < math.inf:
            return False
        gain /= norm
        measured = self._measure(gain)
        self._mine = _of_late(self._mine, gain)
        return measured

    def forget(self) -> None:
        """The weights were replaced: what is new in them is nobody's update."""
        self._gain = self._last = None

    # -- known ------------------------------------------------------------------------------------

    @property
    def unlike(self) -> bool:
        """The others' data is of another kind than mine."""
        return self._unlike.on

    @property
    def alike(self) -> bool:
        """The others' data is of the same kind as mine."""
        return self._alike.on

    @property
    def timid(self) -> bool:
        """All go the same way for long: they could take longer steps."""
        return self._timid.on

    def _measure(self, gain: torch.Tensor) -> bool:
        if self._mine is None or self._theirs is None:
            return False
        own, others = _cosine(gain, self._mine), _cosine(gain, self._theirs)
        if not (math.isfinite(own) and math.isfinite(others)):
            return False  # nobody has added anything
        self.own.add(own)
        self.others.add(others)
        mine, theirs = self.own, self.others
        stays = mine.count >= EVIDENCE and mine.mean >= STAYS and mine.sure
        against = theirs.mean <= APART and theirs.sure
        along = theirs.mean >= SHARE * mine.mean and theirs.sure
        self._unlike.look(begins=stays and against, ends=not stays or theirs.mean > 0.0)
        self._alike.look(begins=stays and along, ends=stays and not along)
        straight = mine.count >= TIMID_EVIDENCE and mine.mean >= TIMID and theirs.mean >= TIMID
        self._timid.look(begins=straight, ends=mine.mean < TIMID_NO_MORE)
        return True


class _Mean:
    """A sliding mean, and how sure it is."""

    __slots__ = ("_variance", "count", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = math.nan
        self._variance = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        if self.count == 1:
            self.mean = value
            return
        part = max(1.0 / self.count, 1.0 / SMOOTHED)
        off = value - self.mean
        self.mean += part * off
        self._variance = (1.0 - part) * (self._variance + part * off * off)

    @property
    def sure(self) -> bool:
        """Whether the mean is not 0 by chance; a sliding mean is over twice as many as it says."""
        error = math.sqrt(self._variance / min(self.count, 2 * SMOOTHED))
        return abs(self.mean) >= SURE * error


def _stride(size: int) -> int:
    """From one coordinate to the next; none of the widths that layers have divide it."""
    stride = max(1, -(-size // COORDINATES_MAX))
    while stride > 1 and any(stride % prime == 0 for prime in (2, 3, 5, 7)):
        stride += 1
    return stride


def _of_late(mean: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    return new.clone() if mean is None else mean.mul_(1.0 - 1.0 / OF_LATE).add_(new)


def _cosine(unit: torch.Tensor, other: torch.Tensor) -> float:
    """NaN: the other is nothing."""
    norm = float(torch.linalg.vector_norm(other))
    return float(torch.dot(unit, other)) / norm if norm > 0.0 else math.nan
