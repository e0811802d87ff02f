"""When a model is evaluated on the way, and the names of what is found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from murmurate.workloads import Evaluation

SHARE = 0.05
"""Of the time, at most, goes into evaluations on the way."""


FIRST = 1 / 8
"""Of the usual pause is the first; then each is twice the last: most happens at the start."""


class EvaluationTimes:
    """Every so many seconds, and less often where one takes long; with 0 s never on the way."""

    def __init__(self, asked_s: float | None, usual_s: float, now: float) -> None:
        self._every_s = usual_s if asked_s is None else asked_s
        self._pause_s = FIRST * usual_s if asked_s is None else asked_s
        self._next = now + self._pause_s if self._every_s else math.inf

    def due(self, now: float) -> bool:
        return now >= self._next

    def took(self, began: float, ended: float) -> None:
        """An evaluation did."""
        self._pause_s = min(self._every_s, 2 * self._pause_s)
        self._next = began + max(self._pause_s, (ended - began) / SHARE)


def named(found: Evaluation, *, validation: bool) -> dict[str, Any]:
    """As `Swarm.log` takes it: what was found on the test set, or on what was held out of training,
    never goes under the other's name."""
    if validation:
        return {"validation_loss": found.loss, "validation_accuracy": found.accuracy}
    return {"test_loss": found.loss, "accuracy": found.accuracy}
