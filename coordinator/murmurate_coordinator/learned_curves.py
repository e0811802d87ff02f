"""How the whole model and its members learned, for the report of a coordinator that stands alone:
`murmurate up` has the same of what its processes tell it."""

from __future__ import annotations

from murmurate.core.figures.curves import Curves, Point
from murmurate.watch import report
from murmurate_coordinator.figures import NAME

EVALUATIONS_MAX = 4 * report.CURVE_MAX
"""More than a report shows; when there are too many, every other one goes."""


class LearnedCurves:
    """Losses once a second, evaluations at the instants of the weights they are of."""

    def __init__(self) -> None:
        self.curves = Curves()
        self._evaluations: list[report.CurvePoint] = []

    def evaluated(self, at: float, samples: int, found: report.Json) -> None:
        """The whole model, with so many samples in it."""
        known = {key: found[key] for key in report.CURVE_COLUMNS if key in found}
        self._evaluations.append(report.CurvePoint(at, samples, samples, **known))
        if len(self._evaluations) > EVALUATIONS_MAX:
            del self._evaluations[:-1:2]

    def told(self, began: float) -> report.Json:
        """The keys of a report. `began`: when training did, if it had never been interrupted."""
        points = dict(self.curves.points)
        whole = [*map(self._losses, points.pop(NAME, ())), *self._evaluations]
        return report.centred_curves(
            {NAME: sorted(whole, key=lambda point: point.seconds)},
            {name: [*map(self._losses, each)] for name, each in points.items()},
            began,
        )

    def _losses(self, point: Point) -> report.CurvePoint:
        at = self.curves.began + point.at
        return report.CurvePoint(at, point.samples, point.samples, report.number(point.loss))
