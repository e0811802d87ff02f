"""Several runs in the same frames: test loss and accuracy over samples and over time, and how long
the weights were where a trajectory has them (002, Figs 3 to 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from murmurate.edge.disk import trajectory
from murmurate.errors import ConfigError

Json = dict[str, Any]
Runs = Mapping[str, tuple[Mapping[str, Any], Path]]
INCHES = (11.0, 9.0)
KINDS = (("test_loss", "test loss"), ("accuracy", "test accuracy"))
ALONG = (("samples", "samples of the whole swarm"), ("seconds", "seconds"))


def names(files: Sequence[str]) -> list[str]:
    """Of the runs: their files' names, with the folder where two have the same."""
    stems = [Path(file).stem for file in files]
    if len(set(stems)) == len(stems):
        return stems
    whole = [str(Path(file).with_suffix("")) for file in files]
    if len(set(whole)) < len(whole):
        raise ConfigError(f"{whole[0]}: the same report twice")
    return whole


def workload(reports: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({str(report["workload"]) for report in reports}))


def evaluated(report: Mapping[str, Any], along: str, what: str) -> list[tuple[float, float]]:
    """Of the node that was evaluated most often, or of the whole model."""
    at = {name: place for place, name in enumerate(report["curve_columns"])}
    x, y = at[along], at[what]
    curves = [
        [(point[x], point[y]) for point in curve if point[y] is not None]
        for curve in report["curves"].values()
    ]
    return max(curves, key=len, default=[])


def norms(report: Mapping[str, Any], folder: Path) -> dict[str, list[tuple[float, float]]]:
    """By node: seconds, and the length of all weights together."""
    found = {}
    for name, file in (report.get("trajectory") or {}).items():
        kept = trajectory.read(folder / file)
        lengths = np.linalg.norm(kept.weights.astype(np.float64), axis=1)
        found[name] = [*zip(kept.at_s.tolist(), lengths.tolist(), strict=True)]
    return found


def draw(figure: Any, runs: Runs, heading: str) -> Any:
    """Two rows of curves; a third of weights' lengths, where any run kept its trajectory."""
    known = {name: norms(report, folder) for name, (report, folder) in runs.items()}
    rows = len(KINDS) + any(known.values())
    figure.suptitle(heading)
    grid = figure.add_gridspec(rows, len(ALONG))
    for row, (what, label) in enumerate(KINDS):
        axes = None
        for column, (along, place) in enumerate(ALONG):
            axes = figure.add_subplot(grid[row, column], sharey=axes)
            for name, (report, _) in runs.items():
                points = evaluated(report, along, what)
                said = f"{name} (NC)" if report.get("nc") else name
                if points:
                    axes.plot(*zip(*points, strict=True), ".-", label=said, linewidth=1.3)
            axes.set(xlabel=place, ylabel=label)
            axes.grid(alpha=0.25)
    figure.axes[0].legend(fontsize="small")
    if any(known.values()):
        axes = figure.add_subplot(grid[rows - 1, :])
        for name, of in known.items():
            for node, points in of.items():
                axes.plot(*zip(*points, strict=True), ".-", label=f"{name}, {node}", linewidth=1.3)
        axes.set(xlabel="seconds", ylabel="length of the weights")
        axes.grid(alpha=0.25)
        axes.legend(fontsize="small")
    return figure
