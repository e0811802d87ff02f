"""`murmurate plot report.json`: pictures of a run, from its report (extra `lab`).

Loss and accuracy of every node over the samples of the whole swarm and over time, and how stale its
updates were where they were applied, beside what theory expects. If the run kept its trajectory, a
second picture: the loss landscape around it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmurate.errors import ConfigError

if TYPE_CHECKING:
    from murmurate.landscape import Landscape

Json = dict[str, Any]
INCHES = (11.0, 10.5)
BARS_MAX = 60
LANDSCAPE_INCHES = (13.0, 6.2)
LEVELS = 24
CUT = 1.6
"""The surface is cut off at so many times the highest loss on the way."""


def run(file: str, out: str | None) -> int:
    """A PNG beside the report, or where `out` says; its format is that of the name. With a
    trajectory one more, `-landscape` added to its name."""
    report = read(file)
    target = Path(out) if out is not None else Path(file).with_suffix(".png")
    _save(draw(report), target)
    if report.get("trajectory"):
        from murmurate import landscape

        around = landscape.of_report(report, Path(file).parent)
        second = target.with_name(f"{target.stem}-landscape{target.suffix}")
        _save(draw_landscape(around, title(report)), second)
    return 0


def _save(figure: Any, target: Path) -> None:
    try:
        figure.savefig(target, dpi=130)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {target}: cannot be written: {error}") from None
    print(target, flush=True)


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
    figure = _figure(INCHES)
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


def _figure(inches: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot: matplotlib is not here: pip install 'murmurate[lab]'") from None
    return Figure(figsize=inches, layout="constrained")


def title(report: Json) -> str:
    return (
        f"{report['workload']}, {report['mode']}, rule {report['rule']}: {len(report['nodes'])}"
        f" nodes, {report['samples']:,} samples in {report['wall_s']:.1f} s"
    )


def _curves(axes: Any, report: Json, what: str, column: int, x: str, along: int) -> None:
    curves = swarm_samples(report["curves"])
    for name, points in curves.items():
        known = [point for point in points if point[column] is not None]
        axes.plot([p[along] for p in known], [p[column] for p in known], label=name, linewidth=1.2)
    longest = max((points[-1][along] for points in curves.values() if points), default=0)
    axes.set(xlabel=x, ylabel=what, xlim=(0, 1.02 * longest or 1))
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


# -- the landscape ---------------------------------------------------------------------------------


def draw_landscape(landscape: Landscape, heading: str) -> Any:
    """A map with contours, and the same from the side."""
    figure = _figure(LANDSCAPE_INCHES)
    part, more = (100 * each for each in landscape.explained)
    points = sum(len(path) for path in landscape.paths.values())
    figure.suptitle(
        f"{heading}\n{points} points of {len(landscape.paths)} trajectories; the plane has"
        f" {part:.1f} + {more:.1f} = {part + more:.1f} % of their variance; loss at the end"
        f" {landscape.end_loss:.3g}, at its foot in the plane {landscape.end_foot_loss:.3g}",
        fontsize="medium",
    )
    grid = figure.add_gridspec(1, 2, width_ratios=(1.1, 1))
    _map(figure, figure.add_subplot(grid[0, 0]), landscape)
    _surface(figure.add_subplot(grid[0, 1], projection="3d"), landscape)
    return figure


def _map(figure: Any, axes: Any, landscape: Landscape) -> None:
    import numpy as np
    from matplotlib.colors import LogNorm

    low, high = float(landscape.loss.min()), float(landscape.loss.max())
    low = max(low, 1e-6 * high)
    levels = np.geomspace(low, high, LEVELS)
    place = (landscape.first, landscape.second, np.maximum(landscape.loss, low))
    filled = axes.contourf(*place, levels=levels, norm=LogNorm(low, high), cmap="viridis")
    axes.contour(*place, levels=levels, colors="white", linewidths=0.4, alpha=0.5)
    bar = figure.colorbar(filled, ax=axes, label="loss on the test set", format="%.3g")
    bar.set_ticks(levels[:: LEVELS // 6])
    bar.minorticks_off()
    for (name, path), colour in zip(landscape.paths.items(), _colours(landscape), strict=True):
        axes.plot(*path.T, ".-", color=colour, linewidth=1.1, markersize=3.5, label=name)
    starts, ends = _ends(landscape)
    axes.plot(*starts, "o", color="white", markeredgecolor="black", label="start", zorder=5)
    axes.plot(*ends, "*", color="white", markeredgecolor="black", markersize=13, label="end")
    part, more = landscape.explained
    axes.set(xlabel=f"PC 1, {part:.1%} of the variance", ylabel=f"PC 2, {more:.1%}")
    axes.legend(fontsize="small", loc="best", framealpha=0.8)


def _surface(axes: Any, landscape: Landscape) -> None:
    """The paths lie on it, at the loss of their feet. What is far above them is cut off: the rim
    would hide the valley."""
    import numpy as np

    from murmurate.landscape import heights

    lines = {name: heights(landscape, path) for name, path in landscape.paths.items()}
    top = CUT * max(float(line.max()) for line in lines.values())
    low = float(landscape.loss.min())
    x, y = np.meshgrid(landscape.first, landscape.second)
    look: Json = {"cmap": "viridis", "alpha": 0.7, "linewidth": 0.2, "edgecolor": "white"}
    look |= {"rstride": 1, "cstride": 1, "vmin": low, "vmax": top}
    axes.plot_surface(x, y, np.minimum(landscape.loss, top), **look)
    lift = 0.02 * (top - low)
    for (name, line), colour in zip(lines.items(), _colours(landscape), strict=True):
        path = landscape.paths[name]
        axes.plot(*path.T, line + lift, color=colour, linewidth=1.6, zorder=10)
    cut = "" if top >= landscape.loss.max() else f", cut off at {top:.3g}"
    axes.set(xlabel="PC 1", ylabel="PC 2", zlim=(low, top), title=f"loss{cut}")
    axes.set_box_aspect((1, 1, 0.7), zoom=0.92)
    axes.view_init(elev=34, azim=-58)


def _ends(landscape: Landscape) -> tuple[list[list[float]], list[list[float]]]:
    """First and last feet of all paths, as x and y."""
    paths = list(landscape.paths.values())
    first, last = ([[float(p[at][axis]) for p in paths] for axis in (0, 1)] for at in (0, -1))
    return first, last


def _colours(landscape: Landscape) -> list[str]:
    """Bright ones: the map is dark where the paths end."""
    wheel = ["#ff7f0e", "#ff3b6b", "#ffffff", "#f5d547", "#7fd8ff", "#ff9ff3", "#9cff57", "#c8a2ff"]
    return [wheel[number % len(wheel)] for number in range(len(landscape.paths))]
