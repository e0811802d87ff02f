"""Has the loss risen, well above its best, and for long? Or shot up at once, and never come back?

Losses are of single batches and jump; so what is looked at is a sliding mean. How much of a rise is
one depends on the scale: a quarter of all that was gained so far, or of half of where it began,
whichever is more, and well beyond what chance does. A loss near 0 that triples has not risen.

At a rate that is far too high the best is over after a few steps, and what follows is about as bad
as the beginning. A model that takes its time to begin looks the same, but for the height it never
shot up to.
"""

from __future__ import annotations

import math

from murmurate.core.figures.latch import Latch

SMOOTHED = 32
"""Losses that the mean is over."""
IN_A_ROW = 32
"""So many of its values in a row must be above the limit."""
PART, AT_LEAST = 0.25, 0.5
CHANCE = 3.0
"""Standard errors of the mean."""
FIRST, OF_LOWEST = 4, 3.0
"""The beginning is the mean of so many losses, of those not above so many times the lowest."""
HIGH, FAR = 0.5, 12.0
"""It shot up: two losses were above the mean of now by that part of the beginning, and by so many
times what losses of now are below that mean, which is 5 of their standard deviations."""
BACK, EVIDENCE = 0.2, 64
"""It has come back: the mean is below the beginning by that part of it; asked after so many."""
NOT_FINITE = 3
"""So many losses in a row that are no numbers."""


class LossTrend:
    """The losses of one node, in order."""

    def __init__(self) -> None:
        self.best = math.nan
        """The lowest mean so far, where it is one of enough losses, …"""
        self.best_at = 0
        """… and after how many steps."""
        self.mean = math.nan
        self.began = math.nan
        self.high = self._highest = -math.inf
        """The second of the highest losses, and the highest."""
        self.steps = 0
        """Of the last loss."""
        self._count = 0
        self._first: list[float] = []
        self._variance = self._below = 0.0
        """About the mean; and how far below it losses are that are, on average of all."""
        self._risen = Latch(IN_A_ROW)
        self._shot_up = Latch(IN_A_ROW)
        self._not_finite = Latch(NOT_FINITE)

    def note(self, loss: float, steps: int) -> None:
        """The loss of a batch, after so many steps."""
        self.steps = steps
        finite = math.isfinite(loss)
        self._not_finite.look(begins=not finite, ends=finite)
        if not finite:
            return
        self._count += 1
        if self._count == 1:
            self.mean = loss
        if self._count <= FIRST:
            self._first.append(loss)
            self.began = _beginning(self._first)
        part = max(1.0 / self._count, 1.0 / SMOOTHED)
        off = loss - self.mean
        self.mean += part * off
        self._variance = (1.0 - part) * (self._variance + part * off * off)
        self._below += part * (max(0.0, -off) - self._below)
        self._look_for_height(loss)
        self._look_for_rise(steps)

    def _look_for_height(self, loss: float) -> None:
        size = abs(self.began)
        self.high = max(self.high, min(self._highest, loss))
        self._highest = max(self._highest, loss)
        back = self.mean < self.began - BACK * size
        up = self.high > self.mean + max(HIGH * size, FAR * self._below)
        self._shot_up.look(begins=self._count >= EVIDENCE and up and not back, ends=back)

    def _look_for_rise(self, steps: int) -> None:
        if self._count < SMOOTHED:
            return
        if self._count == SMOOTHED or (self.mean < self.best and not self._risen.on):
            self.best, self.best_at = self.mean, steps
        rise, limit = self.mean - self.best, self._limit()
        self._risen.look(begins=rise > limit, ends=rise < 0.5 * limit)

    def _limit(self) -> float:
        error = math.sqrt(self._variance / (2 * SMOOTHED))
        gained = max(self.began - self.best, AT_LEAST * abs(self.began))
        return PART * gained + CHANCE * error

    @property
    def risen(self) -> bool:
        """Well above its best, for long."""
        return self._risen.on

    @property
    def shot_up(self) -> bool:
        """It rose in the beginning, and is not below that now."""
        return self._shot_up.on

    @property
    def not_finite(self) -> bool:
        return self._not_finite.on


def _beginning(first: list[float]) -> float:
    lowest = min(first)
    kept = [loss for loss in first if lowest <= 0.0 or loss <= OF_LOWEST * lowest]
    return math.fsum(kept) / len(kept)
