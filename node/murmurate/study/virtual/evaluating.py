"""When a run in virtual time is evaluated on the way: by virtual time and samples alone."""

from __future__ import annotations

import math

TIMES = 10
"""In a run, if nothing else is asked for: before the first step, then at every tenth of it."""
ROUNDING = 1e-9


class EvaluationPlan:
    """Every so many virtual seconds; None: by parts of the budget; 0: never."""

    def __init__(self, every_s: float | None) -> None:
        self._every_s = every_s
        self._count = 0

    @property
    def next_s(self) -> float:
        """The second before which nothing is due, where seconds are what it goes by."""
        return self._count * self._every_s if self._every_s else math.inf

    def due(self, now: float, part: float) -> bool:
        """Whether to evaluate now; asked again, it is done. Never at the end: then all are."""
        if part >= 1.0 or self._every_s == 0.0:
            return False
        if self._every_s is None:
            reached = math.floor(TIMES * part + ROUNDING)
        else:
            reached = math.floor(now / self._every_s + ROUNDING)
        if reached < self._count:
            return False
        self._count = reached + 1
        return True
