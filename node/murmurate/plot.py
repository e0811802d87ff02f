"""`murmurate plot report.json`: pictures of a run, from its report alone (extra `lab`).

Loss and accuracy of every node over the samples of the whole swarm and over time, and how stale its
updates were where they were applied, beside what theory expects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from murmurate.errors import ConfigError

Json = dict[str, Any]
INCHES = (11.0, 10.5)
BARS_MAX = 60


def run(file: str, out: str | None) -> int:
    """One PNG beside the report, or where `out` says; its format is that of the name."""
    report = read(file)
    target = Path(out) if out is not None else Path(file).with_suffix(".png")
    figure = draw(report)
    try:
        figure.savefig(target, dpi=130)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {target}: cannot be written: {error}") from None
    print(target)
    return 0


def read(file: str) -> Json:
    """ConfigError: not a report with curves in it."""
    try:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; expected a report of murmurate up") from None
    except ValueError:
        raise ConfigError(f"{file}: not JSON; expected a report of murmurate up") from None
    if not isinstance(report, dict) or not report.get("curves"):
        raise ConfigError(f"{file}: no curves in it; expected a report of murmurate up --report")
    return report


def draw(report: Json) -> Any:
    """A figure: two rows of curves, one of histograms."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot: matplotlib is not here: pip install 'murmurate[lab]'") from None
    figure = Figure(figsize=INCHES, layout="constrained")
    figure.suptitle(title(report))
    grid = figure.add_gridspec(3, max(2, len(report["curves"])))
    half = grid.ncols // 2
    for row, (what, column) in enumerate((("loss", 2), ("accuracy", 3))):
        for place, (x, along) in enumerate((("samples of the swarm", 1), ("seconds", 0))):
            at = slice(0, half) if place == 0 else slice(half, None)
            _curves(figure.add_subplot(grid[row, at]), report, what, column, x, along)
    axes = None
    for number, (name, counts) in enumerate(report["staleness_counts"].items()):
        axes = figure.add_subplot(grid[2, number], sharex=axes)
        _bars(axes, name, counts, report["staleness_predicted"])
    return figure


def title(report: Json) -> str:
    return (
        f"{report['workload']}, {report['mode']}, rule {report['rule']}: {len(report['nodes'])}"
        f" nodes, {report['samples']:,} samples in {report['wall_s']:.1f} s"
    )


def _curves(axes: Any, report: Json, what: str, column: int, x: str, along: int) -> None:
    for name, points in swarm_samples(report["curves"]).items():
        known = [point for point in points if point[column] is not None]
        axes.plot([p[along] for p in known], [p[column] for p in known], label=name, linewidth=1.2)
    axes.set(xlabel=x, ylabel=what)
    axes.grid(alpha=0.3)
    if what == "accuracy":
        axes.set_ylim(0, 1)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


def swarm_samples(curves: dict[str, Sequence[Sequence[Any]]]) -> dict[str, list[list[Any]]]:
    """The same curves with, in place of a node's own samples, those of all nodes at that time."""
    out: dict[str, list[list[Any]]] = {}
    for name, points in curves.items():
        out[name] = [
            [at, sum(_samples(other, at) for other in curves.values()), *rest]
            for at, _, *rest in points
        ]
    return out


def _samples(points: Sequence[Sequence[Any]], at: float) -> float:
    """Straight lines between points, flat before and after."""
    before: Sequence[Any] | None = None
    for point in points:
        if point[0] >= at:
            if before is None or point[0] == before[0]:
                return float(point[1]) if point[0] == at else 0.0
            part = (at - before[0]) / (point[0] - before[0])
            return float(before[1] + part * (point[1] - before[1]))
        before = point
    return float(before[1]) if before is not None else 0.0


def _bars(axes: Any, name: str, counts: Sequence[Sequence[int]], predicted: float | None) -> None:
    largest = max((value for value, _ in counts), default=0)
    width = max(1, -(-(largest + 1) // BARS_MAX))
    total = sum(times for _, times in counts)
    bars: dict[int, int] = {}
    for value, times in counts:
        bars[value // width] = bars.get(value // width, 0) + times
    axes.bar([at * width for at in bars], bars.values(), width=width, align="edge", alpha=0.8)
    if total:
        mean = sum(value * times for value, times in counts) / total
        axes.axvline(mean + 0.5, color="C1", label=f"mean {mean:.2f}")
    if predicted is not None:
        axes.axvline(predicted + 0.5, color="C3", linestyle="--", label=f"theory {predicted:.2f}")
    axes.set(title=name, xlabel="staleness, updates")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
