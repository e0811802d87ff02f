"""The loss around the way a swarm has gone (paper 002): for `murmurate plot`.

All points of all nodes' trajectories together, centred, have two principal components; the plane
through their mean that these span holds more of the trajectories than any other, and says how much.
The loss is evaluated on a grid in that plane. A point of a trajectory lies beside the plane, so the
loss at its foot is another than its own: both are given for the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from murmurate.edge.disk import trajectory
from murmurate.errors import ConfigError

if TYPE_CHECKING:
    from murmurate.workloads import Workload

GRID = 21
"""Points in each direction. Paper 002 has 15 in the text and 25 in its code."""
MARGIN = 0.4
"""Of the range of the trajectories that is shown beyond them, on each side."""
SAMPLES_MAX = 1000
"""Of the test set, where the workload can be told so."""
SAY_S = 5.0
CHUNK = 1 << 16

Array = np.ndarray[Any, np.dtype[np.float64]]
Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Plane:
    """Where the most of some points lies."""

    centre: Array
    axes: Array
    """Two rows of length 1, at right angles."""
    explained: tuple[float, float]
    """Parts of the variance."""
    feet: Array
    """Of each point: its two coordinates in the plane."""

    def at(self, first: float, second: float) -> Array:
        """The weights at a place in the plane."""
        place: Array = self.centre + first * self.axes[0] + second * self.axes[1]
        return place


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """What is drawn."""

    first: Array
    second: Array
    """Coordinates of the grid."""
    loss: Array
    """By second, then first coordinate."""
    paths: Mapping[str, Array]
    """Feet of each node's points, in order."""
    explained: tuple[float, float]
    end_loss: float
    end_foot_loss: float
    """Of the mean of the last points, and of its foot."""


def plane(points: Rows) -> Plane:
    """By the points' inner products: there are few of them, and many weights in each."""
    count, size = points.shape
    centre = points.mean(axis=0, dtype=np.float64)
    products = np.zeros((count, count))
    for start in range(0, size, CHUNK):
        part = points[:, start : start + CHUNK] - centre[start : start + CHUNK]
        products += part @ part.T
    values, vectors = np.linalg.eigh(products)
    values = np.maximum(values[::-1], 0.0)
    vectors = vectors[:, ::-1]
    total = float(values.sum())
    if count < 3 or size < 2 or values[1] <= 1e-12 * total or total == 0.0:
        raise ConfigError("trajectory: its points lie on a line: no landscape can be drawn")
    axes = np.empty((2, size))
    for start in range(0, size, CHUNK):
        part = points[:, start : start + CHUNK] - centre[start : start + CHUNK]
        axes[:, start : start + CHUNK] = vectors[:, :2].T @ part
    axes /= np.sqrt(values[:2])[:, None]
    feet = vectors[:, :2] * np.sqrt(values[:2])
    if feet[-1, 0] < feet[0, 0]:  # signs are arbitrary: training goes to the right
        axes[0] *= -1
        feet[:, 0] *= -1
    return Plane(centre, axes, (float(values[0] / total), float(values[1] / total)), feet)


def survey(
    paths: Mapping[str, Rows], loss: Callable[[Array], float], grid: int = GRID
) -> Landscape:
    """Of these trajectories; `loss` is of flat weights."""
    flat = plane(np.concatenate(list(paths.values())))
    first, second = (_ticks(flat.feet[:, axis], grid) for axis in (0, 1))
    ends: Array = np.stack([rows[-1] for rows in paths.values()]).mean(axis=0, dtype=np.float64)
    foot = flat.axes @ (ends - flat.centre)
    began = time.monotonic()
    end_loss = loss(ends)
    spent_s = (time.monotonic() - began) * grid * grid
    if spent_s > SAY_S:
        print(f"landscape: {grid} x {grid} evaluations, {spent_s:.0f} s or so", file=sys.stderr)
    cuts = np.cumsum([len(rows) for rows in paths.values()])[:-1]
    return Landscape(
        first=first,
        second=second,
        loss=np.array([[loss(flat.at(x, y)) for x in first] for y in second]),
        paths=dict(zip(paths, np.split(flat.feet, cuts), strict=True)),
        explained=flat.explained,
        end_loss=end_loss,
        end_foot_loss=loss(flat.at(*foot)),
    )


def _ticks(feet: Array, grid: int) -> Array:
    low, high = float(feet.min()), float(feet.max())
    beyond = MARGIN * (high - low)
    return np.linspace(low - beyond, high + beyond, grid)


def of_report(report: Mapping[str, Any], folder: Path, grid: int = GRID) -> Landscape:
    """Of one run, whose files lie in this folder."""
    return of_runs({"": (report, folder)}, grid)


def of_runs(runs: Mapping[str, tuple[Mapping[str, Any], Path]], grid: int = GRID) -> Landscape:
    """All of these in one plane: by name a report and the folder of the files that it names. The
    loss is that of the workload's test set."""
    kept = {}
    for run, (report, folder) in runs.items():
        for name, file in (report.get("trajectory") or {}).items():
            alone = len(report["trajectory"]) == 1
            called = name if len(runs) == 1 else run if alone else f"{run}, {name}"
            kept[called] = trajectory.read(folder / file)
    workloads_of = sorted({each.about.get("workload", "") for each in kept.values()})
    if len(workloads_of) > 1:
        raise ConfigError(f"trajectory: of {' and '.join(workloads_of)}; expected one workload")
    shapes = {each.weights.shape[1] for each in kept.values()}
    if len(shapes) != 1:
        raise ConfigError(f"trajectory: models of {len(shapes)} sizes; expected one")
    about = next(iter(kept.values())).about
    paths = {name: each.weights for name, each in kept.items()}
    return survey(paths, _loss(about, shapes.pop()), grid)


def _loss(about: Mapping[str, str], size: int) -> Callable[[Array], float]:
    """The workload's loss on its test set, of flat weights."""
    import torch

    from murmurate import workloads
    from murmurate.core.layout import Layout, tracked

    if lacking := {"workload", "schema"} - set(about):
        raise ConfigError(f"trajectory: does not say its {min(lacking)}")
    workload: Workload = workloads.load(about["workload"], data=about.get("data"))
    if hasattr(workload, "shorten_test"):
        workload.shorten_test(SAMPLES_MAX)
    model = workload.model()
    layout, parameters = Layout.of(model, statistics=True)
    if layout.schema != about["schema"]:  # with everybody's second moments, as data = "own" has it
        layout, parameters = Layout.of(model, statistics=True, moments=True)
    running = tracked(model)
    if layout.schema != about["schema"] or layout.size != size:
        raise ConfigError(
            f"trajectory: {size:,} weights of a model that {about['workload']} is not any more"
        )
    floats = [name for name, each in model.named_buffers() if each.is_floating_point()]
    if lost := [name for name in floats if name not in running]:
        raise ConfigError(
            f"trajectory: {lost[0]} is no weight and was not kept (such buffers stay with their"
            " node): there is no landscape of such a model"
        )
    tensors = [*parameters, *(each.tensor for each in running.values())]

    def loss(weights: Array) -> float:
        layout.scatter(torch.from_numpy(weights).to(layout.dtype), tensors)
        for each in running.values():
            if each.key == "running_var":  # between two places it may be below what can be
                each.tensor.clamp_(min=0.0)
        return float(workload.evaluate(model).loss)

    return loss


def heights(landscape: Landscape, feet: Sequence[Sequence[float]] | Array) -> Array:
    """The loss at places inside the grid, between its points."""
    place = np.asarray(feet, dtype=float)
    x = _between(landscape.first, place[:, 0])
    y = _between(landscape.second, place[:, 1])
    loss = landscape.loss
    low_x, low_y = x.astype(int), y.astype(int)
    dx, dy = x - low_x, y - low_y
    out: Array = (
        loss[low_y, low_x] * (1 - dx) * (1 - dy)
        + loss[low_y, low_x + 1] * dx * (1 - dy)
        + loss[low_y + 1, low_x] * (1 - dx) * dy
        + loss[low_y + 1, low_x + 1] * dx * dy
    )
    return out


def _between(ticks: Array, values: Array) -> Array:
    """Places on a scale of equal steps, kept inside it."""
    place: Array = np.clip((values - ticks[0]) / (ticks[1] - ticks[0]), 0, len(ticks) - 1 - 1e-9)
    return place
