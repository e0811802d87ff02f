"""What the weights that were left on disk are worth: test accuracy over time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from race.contenders import VICTIM
from race.workloads import WORKLOADS, initial, put

POINTS = 20
"""Of a curve, after the one at 0."""
GAP = 1.6
"""Of the interval between snapshots: more is a time in which there was no new model."""
Points = list[tuple[float, float]]
Curve = Sequence[Sequence[float]]


class Judge:
    """Evaluates snapshots, when nothing else runs."""

    def __init__(self, workload: str, seed: int, *, quick: bool) -> None:
        torch.set_num_threads(1)
        self.workload = WORKLOADS[workload]()
        self.share = 0.1 if quick else 1.0
        self.start = self.workload.accuracy(initial(self.workload, seed).eval(), self.share)

    def _worth(self, path: Path) -> float:
        model = self.workload.model().eval()
        put(model, np.load(path, allow_pickle=False))
        return self.workload.accuracy(model, self.share)

    def judge(self, folder: Path, seconds: float, killed_at: float | None) -> dict[str, Any]:
        """The mean over those who live, and of each life what was found."""
        lives: dict[str, Points] = {}
        paths = sorted(folder.glob("*.npy"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for path, worth in zip(paths, pool.map(self._worth, paths), strict=True):
                peer, life, stamp, _ = path.name.split(".")
                lives.setdefault(f"{peer}.{life}", []).append((int(stamp) / 1e3, worth))
        curve = []
        for number in range(POINTS + 1):
            at = seconds * number / POINTS
            values = [
                value
                for life, points in lives.items()
                if not (killed_at is not None and life == f"{VICTIM}.0" and at > killed_at)
                and (value := self._value(life, points, at, seconds / POINTS)) is not None
            ]
            curve.append((at, sum(values) / len(values)))
        return {"curve": curve, "lives": lives}

    def _value(self, life: str, points: Points, at: float, interval: float) -> float | None:
        """Between two snapshots on a straight line; where there was none for long, the one before.
        None: this life has not begun."""
        if life.endswith(".0"):
            points = [(0.0, self.start), *points]
        before = [point for point in points if point[0] <= at]
        if not before:
            return None
        when, value = before[-1]
        if len(before) == len(points):
            return value
        then, next_value = points[len(before)]
        if then - when > GAP * interval:
            return value
        return value + (next_value - value) * (at - when) / (then - when)


def at_end(curve: Curve) -> float:
    """The mean of the last tenth: single points of one model scatter by a point or two."""
    last = curve[-1][0]
    values = [value for at, value in curve if at >= 0.9 * last - 1e-9]
    return sum(values) / len(values)


def reached(curve: Curve, accuracy: float) -> float | None:
    """When, as a mean of three points, it has come to this; None: not in this time."""
    before: tuple[float, float] | None = None
    for number in range(2, len(curve)):
        at = curve[number][0]
        mean = sum(value for _, value in curve[number - 2 : number + 1]) / 3
        if mean >= accuracy:
            if before is None or mean <= before[1]:
                return at
            return before[0] + (at - before[0]) * (accuracy - before[1]) / (mean - before[1])
        before = (at, mean)
    return None
