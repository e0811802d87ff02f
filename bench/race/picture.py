"""The picture: accuracy over time, one panel for each scenario."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from race.contenders import BACK_AT, CONTENDERS, KILLED_AT, SCENARIOS
from race.judge import Curve

LOOKS: dict[str, dict[str, Any]] = {
    "alone": {"color": "#7f7f7f", "linestyle": "--", "linewidth": 1.4},
    "ddp": {"color": "#1f77b4", "linewidth": 1.6},
    "hivemind": {"color": "#2ca02c", "linewidth": 1.6},
    "flower": {"color": "#9467bd", "linewidth": 1.6},
    "murmurate": {"color": "#d62728", "linewidth": 2.6, "zorder": 5},
}
PANEL_INCHES = (4.6, 3.1)
FLOOR = 0.3
"""Of the accuracies at the end: nothing below is shown."""


def draw(curves: Mapping[tuple[str, str], Curve], heading: str, path: Path) -> None:
    """`curves` by scenario and contender."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    scenarios = [name for name in SCENARIOS if any(name == key[0] for key in curves)]
    columns = min(2, len(scenarios))
    rows = -(-len(scenarios) // columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize="large")
    ends = [curve[-1][1] for curve in curves.values()]
    high = max(value for curve in curves.values() for _, value in curve)
    low = max(0.0, FLOOR * min(ends), high - 0.5)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for number, scenario in enumerate(scenarios):
        axes = panels[number // columns][number % columns]
        for contender, look in LOOKS.items():
            curve = curves.get((scenario, contender))
            if curve is None:
                continue
            label = CONTENDERS[contender].title
            axes.plot([p[0] for p in curve], [p[1] for p in curve], label=label, **look)
        last = max(curve[-1][0] for key, curve in curves.items() if key[0] == scenario)
        if scenario == "killed":
            axes.axvspan(KILLED_AT * last, BACK_AT * last, color="#000000", alpha=0.06, lw=0)
            axes.text(0.5 * last, low, "one is gone", ha="center", va="bottom", fontsize="small")
        axes.set_title(SCENARIOS[scenario], fontsize="medium")
        axes.set(xlim=(0, last), ylim=(low, min(1.0, high + 0.02)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(alpha=0.3)
        if number % columns == 0:
            axes.set_ylabel("test accuracy")
        if number // columns == rows - 1:
            axes.set_xlabel("seconds of training")
    for spare in range(len(scenarios), rows * columns):
        panels[spare // columns][spare % columns].set_visible(False)
    panels[0][0].legend(loc="lower right", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
