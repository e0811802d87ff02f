"""The picture of `bench/converge.py`: what n peers end with, by rule, one frame for each regime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

ACROSS = 3
ORDER = ("equal", "one-slow", "half-slow", "delay-1", "delay-4", "delay-16", "narrow", "churn")
STYLES = {
    "shared": {"color": "tab:blue", "linewidth": 2.5, "zorder": 5},
    "shared:own": {"color": "tab:cyan", "linewidth": 2.5},
    "capped": {"color": "tab:green"},
    "average": {"color": "tab:purple"},
    "sum": {"color": "tab:red"},
    "synchronous": {"color": "tab:gray", "linestyle": "--"},
}


def draw(made: Sequence[dict[str, Any]], path: Path) -> Path | None:
    """None: there is nothing to draw. A row of frames for each workload, at the rate of one."""
    rows = [row for row in made if row["lr_factor"] == 1 and row["codec"] == "auto"]
    rows = [row for row in rows if row["split"] == "none" and row["rule"] != "alone"]
    if not rows:
        return None
    rows.sort(key=lambda row: ORDER.index(row["regime"]) if row["regime"] in ORDER else len(ORDER))
    shown = list(dict.fromkeys((row["workload"], row["regime"]) for row in rows))
    shown.sort(key=lambda each: each[0])
    down = -(-len(shown) // ACROSS)
    figure, frames = plt.subplots(down, ACROSS, figsize=(3.4 * ACROSS, 2.6 * down), squeeze=False)
    for frame in frames.flat[len(shown) :]:
        frame.set_visible(False)
    for frame, (workload, regime) in zip(frames.flat, shown, strict=False):
        here = [row for row in rows if (row["workload"], row["regime"]) == (workload, regime)]
        _frame(frame, here)
        frame.set_title(f"{workload}, {regime}", fontsize=9)
        frame.set_ylabel("test loss" if here[0]["alone"] < 0 else "accuracy, %", fontsize=8)
    handles: dict[str, Any] = {}
    for frame in figure.axes:
        handles |= dict(zip(*reversed(frame.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles))
    figure.tight_layout(rect=(0, 0.12 / down, 1, 1))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _frame(frame: Any, rows: Sequence[dict[str, Any]]) -> None:
    alone = rows[0]["alone"]
    sign = -1 if alone < 0 else 1
    frame.axhline(sign * alone, color="black", linewidth=0.8, linestyle=":", label="one node")
    for rule in dict.fromkeys(row["rule"] for row in rows):
        points = sorted((row["n"], row["value"], row["low"], row["high"]) for row in rows
                        if row["rule"] == rule)  # fmt: skip
        points.insert(0, (1, alone, alone, alone))
        counts = [point[0] for point in points]
        style = STYLES.get(rule, {})
        frame.plot(counts, [sign * p[1] for p in points], marker="o", markersize=3, label=rule,
                   **style)  # fmt: skip
        frame.fill_between(counts, [sign * p[2] for p in points], [sign * p[3] for p in points],
                           alpha=0.15, color=style.get("color"))  # fmt: skip
    frame.set_xscale("log", base=2)
    counts = sorted({1, *(row["n"] for row in rows)})
    frame.set_xticks(counts, [str(n) for n in counts], fontsize=8)
    if sign > 0:
        frame.set_ylim(max(0, alone - 12), None)
    else:
        frame.set_ylim(None, -alone * 1.12)
    frame.grid(alpha=0.3)
