"""`murmurate plot report.json …`: pictures of a run, from its report (extra `lab`).

Training loss, test loss and accuracy of every node over the samples of the whole swarm and over
time, and how stale its updates were where they were applied, beside what theory expects. If the run
kept its trajectory, a second picture: the loss landscape around it. Of several reports `several.py`
draws the first picture, and their trajectories lie in one plane.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmurate.errors import ConfigError

if TYPE_CHECKING:
    from murmurate.study.lab.landscape import Landscape

Json = dict[str, Any]
INCHES = (11.0, 12.0)
ROWS = (
    ("training loss", "on each node's own data, mean of its last 20 steps", ("loss",)),
    ("test loss", "where it was evaluated", ("test_loss", "validation_loss")),
    ("test accuracy", "where it was evaluated", ("accuracy", "validation_accuracy")),
)
"""What is drawn: its name, more about it, and the columns of a curve."""
BOTH = "test and validation"
ALONG = (("samples", "samples of the whole swarm"), ("seconds", "seconds"))
WHOLE = "coordinator"
"""Whose curve is of the whole model, not of a node."""
OTHERS = (WHOLE, "generator")
"""What else there is beside nodes."""
EXPECTED = "those of murmurate up --report and murmurate coordinator --report have some"
HALF = 0.5
"""An accuracy that was never below it is drawn from the next lower tenth on."""
NAMED_MAX = 9
"""More nodes than that have shades of one colour: nobody tells twenty apart."""
MARKED_MAX = 60
"""More evaluations than that are a line."""
HISTOGRAMS_MAX = 8
LOG_FROM = 30.0
"""A loss that falls to less than one in so many is drawn on a logarithmic scale."""
BARS_MAX = 60
LANDSCAPE_INCHES = (13.0, 6.2)
LEVELS = 24
CUT = 1.6
"""The surface is cut off at so many times the highest loss on the way."""


def run(files: Sequence[str], out: str | None) -> int:
    """A PNG beside the first report, or where `out` says; its format is that of the name. With a
    trajectory one more, `-landscape` added to its name."""
    from murmurate.study.lab import landscape, several

    reports = [read(file) for file in files]
    names = several.names(files)
    target = Path(out) if out is not None else Path(files[0]).with_suffix(".png")
    folders = [Path(file).parent for file in files]
    runs = dict(zip(names, zip(reports, folders, strict=True), strict=True))
    heading = title(reports[0])
    if len(reports) > 1:
        heading = f"{len(reports)} runs of {several.workload(reports)}"
        _save(several.draw(_figure(several.INCHES), runs, heading), target)
    else:
        _save(draw(reports[0]), target)
    if any(report.get("trajectory") for report in reports):
        around = landscape.of_runs(runs)
        second = target.with_name(f"{target.stem}-landscape{target.suffix}")
        _save(draw_landscape(around, heading), second)
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
        raise ConfigError(f"{file}: {error.strerror}; {EXPECTED}") from None
    except ValueError:
        raise ConfigError(f"{file}: not JSON; {EXPECTED}") from None
    if not isinstance(report, dict) or not report.get("curves"):
        raise ConfigError(f"{file}: no curves in it{_why_none(report)}; {EXPECTED}")
    if "curve_columns" not in report:
        raise ConfigError(f"{file}: its curves are of an earlier version of murmurate")
    return report


def _why_none(report: Any) -> str:
    """As far as it can be told from what is in it."""
    if isinstance(report, dict) and report.get("mode") == "batches":
        return ": a generator trains nothing, its peers do"
    if isinstance(report, dict) and "curves" not in report and "updates_published" in report:
        return ": it is of one node, and has its last figures only"
    if isinstance(report, dict) and report.get("mode"):
        return ": nothing was trained, or it is of an earlier version of murmurate"
    return ""


def draw(report: Json) -> Any:
    """A figure: three rows of curves, over samples on the left and over time on the right, and one
    of histograms."""
    figure = _figure(INCHES)
    figure.suptitle(title(report))
    groups = _histograms(report)
    rows = figure.add_gridspec(2, 1, height_ratios=(len(ROWS), 0.8))
    grid = rows[0].subgridspec(len(ROWS), len(ALONG))
    for row, (what, note, kinds) in enumerate(ROWS):
        what = what if len(_known(report, kinds)) < len(kinds) else what.replace("test", BOTH)
        axes = None
        for place, (along, label) in enumerate(ALONG):
            axes = figure.add_subplot(grid[row, place], sharey=axes)
            _curves(axes, report, along, kinds)
            axes.set(xlabel=label if row == len(ROWS) - 1 else "", ylabel=what)
            if place == 0 and note:
                axes.set_title(f"{what}: {note}", fontsize="medium", loc="left")
        _legend(axes, report, kinds)
    bars = rows[1].subgridspec(1, max(1, len(groups)))
    axes = None
    for number, (name, counts) in enumerate(groups.items()):
        axes = figure.add_subplot(bars[0, number], sharex=axes)
        _bars(axes, name, counts, report["staleness_predicted"])
    return figure


def _figure(inches: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot: matplotlib is not here: pip install 'murmurate[lab]'") from None
    return Figure(figsize=inches, layout="constrained")


def title(report: Json) -> str:
    nodes = sum(row.get("role") not in OTHERS for row in report["nodes"])
    return (
        f"{report['workload']}, {report['mode']}, rule {report['rule']}:"
        f" {nodes} node{'s' * (nodes != 1)}, {report['samples']:,} samples"
        f" in {report['wall_s']:.1f}{' virtual' if report.get('virtual') else ''} s"
    )


def _curves(axes: Any, report: Json, along: str, kinds: Sequence[str]) -> None:
    """Of every node, what is known of it."""
    columns = {name: number for number, name in enumerate(report["curve_columns"])}
    x, longest, lowest, highest = columns[along], 0.0, math.inf, 0.0
    for (name, points), colour in zip(report["curves"].items(), _line_colours(report), strict=True):
        longest = max([longest, *(point[x] for point in points[-1:])])
        for kind in kinds:
            y = columns[kind]
            known = [point for point in points if point[y] is not None]
            if not known:
                continue
            lowest = min(lowest, *(point[y] for point in known))
            highest = max(highest, *(point[y] for point in known))
            held_out = kind.startswith("validation")
            look: Json = {"color": colour, "label": name, "linewidth": 1.4}
            if kind != "loss" or len(known) == 1:
                # Few, and each of one instant; what lies between them nobody has seen.
                look |= {"marker": "o", "markersize": 3.5 if len(known) < MARKED_MAX else 0}
            if held_out:
                look |= {"linestyle": "--", "markerfacecolor": "white"}
            axes.plot([p[x] for p in known], [p[y] for p in known], **look)
    axes.set_xlim(0, 1.02 * longest or 1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(axis="x", style="plain")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if kinds[0] == "accuracy":
        axes.set_ylim(0 if lowest < HALF or not highest else math.floor(10 * lowest) / 10, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.10g} %")
    elif 0 < lowest < highest / LOG_FROM:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif highest:
        axes.set_ylim(bottom=0)
    if not axes.lines:
        axes.text(0.5, 0.5, "not evaluated", transform=axes.transAxes, ha="center", color="grey")


def _known(report: Json, kinds: Sequence[str]) -> list[str]:
    """Of these columns, those in which any node has anything."""
    columns = [(kind, report["curve_columns"].index(kind)) for kind in kinds]
    points = [point for each in report["curves"].values() for point in each]
    return [kind for kind, y in columns if any(point[y] is not None for point in points)]


def _line_colours(report: Json) -> list[Any]:
    """Of each node's curve: the whole model of a coordinator black; of many nodes shades of one."""
    from matplotlib import colormaps

    names = [name for name in report["curves"] if name != WHOLE]
    if len(names) <= NAMED_MAX:
        shades: list[Any] = [f"C{number}" for number in range(len(names))]
    else:
        shades = [colormaps["viridis"](number / (len(names) - 1)) for number in range(len(names))]
    of = dict(zip(names, shades, strict=True))
    return [of.get(name, "black") for name in report["curves"]]


def _legend(axes: Any, report: Json, kinds: Sequence[str]) -> None:
    """With the training losses, whose upper right is empty: who has which colour. With the others,
    if there are both: which lines are of the test data, and which of data held out of training."""
    from matplotlib.lines import Line2D

    if kinds == ("loss",):
        colours = dict(zip(report["curves"], _line_colours(report), strict=True))
        names = list(colours)
        if len(names) > NAMED_MAX + 1:
            names = [names[0], names[-1]]
        lines = [Line2D([], [], color=colours[name], label=name) for name in names]
        if len(names) < len(colours):
            lines.insert(1, Line2D([], [], linestyle="", label=f"… {len(colours)} in all …"))
        axes.legend(handles=lines, fontsize="small", loc="upper right", ncols=1 + len(lines) // 5)
    elif any(line.get_linestyle() == "--" for line in axes.lines):
        look: Json = {"color": "grey", "marker": "o", "markersize": 3.5}
        held_out = {"linestyle": "--", "markerfacecolor": "white"}
        lines = [
            Line2D([], [], label="held out of training (validation)", **look | held_out),
            Line2D([], [], label="test data", **look),
        ]
        axes.legend(handles=lines, fontsize="small", loc="best")


def _histograms(report: Json) -> dict[str, list[Sequence[int]]]:
    """By node, and of many nodes all together."""
    counts: dict[str, list[Sequence[int]]] = report["staleness_counts"]
    if len(counts) <= HISTOGRAMS_MAX:
        return counts
    pool: dict[int, int] = {}
    for each in counts.values():
        for value, times in each:
            pool[value] = pool.get(value, 0) + times
    return {f"all {len(counts)} nodes": [*sorted(pool.items())]}


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
    axes.set_title(f"staleness at {name}", fontsize="medium", loc="left")
    axes.set(xlabel="updates")
    axes.spines[["top", "right"]].set_visible(False)
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

    from murmurate.study.lab.landscape import heights

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
