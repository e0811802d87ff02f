"""How each node learned so far, for the page: a few hundred points, however long the run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from murmurate.core.figures.progress import Progress

POINTS_MAX = 400
NODES_MAX = 32
EVERY_S = 1.0


class Point(NamedTuple):
    at: float
    """Seconds since the first point."""
    samples: int
    loss: float
    """Of training. Accuracy, test and validation are of the last evaluation there was then."""
    accuracy: float
    staleness: float
    test_loss: float
    validation_loss: float
    validation_accuracy: float


class Curves:
    """Points of every node at common instants; when there are too many, every other one goes."""

    def __init__(self) -> None:
        self.points: dict[str, list[Point]] = {}
        self.began = math.nan
        """When the first point was taken."""
        self._every_s = EVERY_S
        self._next = -math.inf

    def note(self, now: float, board: Iterable[Progress]) -> None:
        """As often as one likes: a point is taken when it is time."""
        if now < self._next:
            return
        self.began = now if math.isnan(self.began) else self.began
        for told in board:
            points = self.points.get(told.name)
            if points is None:
                if len(self.points) >= NODES_MAX:
                    continue
                points = self.points[told.name] = []
            points.append(
                Point(
                    now - self.began,
                    told.samples,
                    told.loss,
                    told.accuracy,
                    told.staleness_now,
                    told.test_loss,
                    told.validation_loss,
                    told.validation_accuracy,
                )
            )
        if any(len(points) > POINTS_MAX for points in self.points.values()):
            self._every_s *= 2
            for points in self.points.values():
                points[:] = points[::2]
        self._next = now + self._every_s

    def lists(self) -> dict[str, list[list[float | None]]]:
        """For JSON: by node, its points; what is not known is null."""
        return {
            name: [[value if math.isfinite(value) else None for value in point] for point in points]
            for name, points in self.points.items()
        }
