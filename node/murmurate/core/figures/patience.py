"""How long one who is done waits for those who are not: as long as they may be expected to end.

Scripts of one run mostly make the same number of steps. So whoever has made fewer than I did when I
was done is on its way to there, and whoever has made about as many is about to end; it may be
evaluating. Whoever has made many more has plans of its own, and whoever has stood still for long
will not end soon. Nobody waits longer than it has trained itself, or a minute where that was short.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from murmurate.core.figures.progress import Progress

LEAST_S = 60.0
"""A wait may be so long, however short the training was."""
ALIKE, ALIKE_STEPS = 1.25, 16
"""Up to so much more than mine, and so many steps, is the number of steps of one script."""
OTHER_PLANS_S = 5.0
"""Whoever is beyond that is given so long all the same: it may be about to end."""
STANDS_STILL_S = 120.0
"""Without a step for so long nobody is waited for any more."""


@dataclass(slots=True)
class _Seen:
    steps: int
    at: float
    first: int
    since: float


class Patience:
    """Of one node that is done, with so many steps, since a moment."""

    def __init__(self, steps: int, trained_s: float, now: float) -> None:
        self._steps = steps
        self._began = now
        self._deadline = now + max(LEAST_S, trained_s)
        self._seen: dict[str, _Seen] = {}

    def waits_for(self, others: Iterable[Progress], now: float) -> list[str]:
        """Of those who are not done, the names of whom to wait for."""
        if now >= self._deadline:
            return []
        return [told.name for told in others if self._is_expected(told, now)]

    def _is_expected(self, told: Progress, now: float) -> bool:
        seen = self._seen.get(told.name)
        if seen is None or told.steps < seen.steps:  # a new life may begin anew
            seen = self._seen[told.name] = _Seen(told.steps, now, told.steps, now)
        elif told.steps > seen.steps:
            seen.steps, seen.at = told.steps, now
        if told.steps > ALIKE * self._steps + ALIKE_STEPS:
            return now < self._began + OTHER_PLANS_S
        return now < seen.at + STANDS_STILL_S

    def left_s(self, name: str, now: float) -> float:
        """About how long that one needs to make as many steps as I did; NaN: nobody knows."""
        seen = self._seen.get(name)
        if seen is None or seen.steps <= seen.first or now <= seen.since:
            return math.nan
        rate = (seen.steps - seen.first) / (now - seen.since)
        return max(0.0, (self._steps - seen.steps) / rate)
