"""What a person sees of a run: a live table on a terminal, a line now and then elsewhere.

Figures come as the rows of a report (`report.node_row`) with a `state`; nothing here measures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from murmurate.watch.report import Json, warned

LINE_S = 2.0
"""Between two lines where there is no terminal."""
REFRESH_S = 0.2
GONE = ("killed", "died", "stopped")
"""Did not come to the end: shown below the others, and in none of their averages."""
BEYOND = 0.03
"""Of the samples asked for: so much more is not worth a word."""
PLAIN_WIDTH = 120
"""Where there is no terminal to ask: tables are not squeezed into 80 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One moment of a run."""

    title: str
    elapsed_s: float
    part: float
    """Of the budget, from 0 to 1."""
    rows: Sequence[Json] = ()
    bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def with_note(self, note: str) -> Scene:
        return replace(self, note=note)


class LiveView:
    """Shows scenes; `say` puts a line above them. Use it as a context manager."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        if not self.console.is_terminal:
            self.console = Console(highlight=False, soft_wrap=True, width=PLAIN_WIDTH)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._next = 0.0

    def __enter__(self) -> LiveView:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    @property
    def due(self) -> bool:
        """Whether a scene would be drawn now. To make one may cost more than to draw it."""
        return time.monotonic() >= self._next

    def show(self, scene: Scene) -> None:
        """As often as one likes: it draws only when it is time."""
        if not self.due:
            return
        now = time.monotonic()
        if self.console.is_terminal:
            self._next = now + REFRESH_S
            self._live.update(live(scene), refresh=True)
        else:
            self._next = now + LINE_S
            self.say(line(scene))

    def end(self, report: Json) -> None:
        rows = sorted(report["nodes"], key=lambda row: row.get("state") in GONE)
        self.console.print(table(rows, f"{report['workload']}, {report['rule']}"))
        for text in summary(report):
            self.say(text)


# -- pictures ------------------------------------------------------------------------------------


def live(scene: Scene) -> Group:
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        scene.title,
        ProgressBar(total=1.0, completed=min(scene.part, 1.0), width=30),
        f"{min(scene.part, 1.0):.0%}",
        f"{scene.elapsed_s:.0f} s",
        scene.note,
    )
    parts: list[Table | Text] = [bar]
    if scene.rows:
        parts.append(table(scene.rows, None, scene.bytes_per_s))
    return Group(*parts)


def line(scene: Scene) -> str:
    """The same in one line."""
    parts = [f"{scene.elapsed_s:6.1f} s", f"{min(scene.part, 1.0):4.0%}"]
    live_rows = [row for row in scene.rows if row.get("state") in ("training", "done")]
    training = [row for row in live_rows if row["role"] != "coordinator"]
    if live_rows:
        parts.append(f"{len(training)} nodes")
        trained = [row for row in scene.rows if row["role"] != "coordinator"]
        parts.append(f"{sum(row['samples'] for row in trained):,} samples")
        parts.append(f"{sum(row['samples_per_s'] for row in training):,.0f}/s")
        for name, shape, rows in (
            ("loss", ".3f", training),
            ("test_loss", ".3f", live_rows),
            ("accuracy", ".1%", live_rows),
            ("validation_loss", ".3f", live_rows),
            ("validation_accuracy", ".1%", live_rows),
        ):
            known = [row[name] for row in rows if row[name] is not None]
            if known:
                parts.append(f"{name.replace('_', ' ')} {sum(known) / len(known):{shape}}")
        seen = sum(row["staleness"]["count"] for row in training)
        if seen:
            total = sum(row["staleness"]["count"] * row["staleness"]["mean"] for row in training)
            parts.append(f"staleness {total / seen:.1f}")
        if scene.bytes_per_s:
            parts.append(f"{sum(scene.bytes_per_s.values()) / 1e6:.1f} MB/s")
    if scene.note:
        parts.append(scene.note)
    return "  ".join(parts)


def table(
    rows: Sequence[Json],
    title: str | None = None,
    bytes_per_s: Mapping[str, float] | None = None,
) -> Table:
    """One row for each node; columns that fit 80 characters."""
    picture = Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    picture.add_column("node", no_wrap=True)
    picture.add_column("state", no_wrap=True)
    shares = any("share" in row for row in rows)
    # Until the end a run with a validation part knows that alone: it is shown, under its name.
    held_out = all(row["test_loss"] is None for row in rows) and any(
        row["validation_loss"] is not None for row in rows
    )
    kinds = ("validation_loss", "validation_accuracy") if held_out else ("test_loss", "accuracy")
    seen = ("val. loss", "val. acc.") if held_out else ("test loss", "accuracy")
    names = ["samples", "per s", "loss", *seen, "applied", "staleness"]
    if shares:
        names = ["share", *names, "waited"]
    for name in [*names, "MB/s" if bytes_per_s is not None else "MB sent"]:
        picture.add_column(name, justify="right", no_wrap=True)
    placed = any("address" in row for row in rows)
    if placed:
        picture.add_column("address", no_wrap=True)
    for row in rows:
        sent = row["bytes_sent"]
        if bytes_per_s is not None:
            sent = bytes_per_s.get(row["name"], 0.0)
        state = str(row.get("state", ""))
        picture.add_row(
            row["name"],
            Text(state, style={"died": "red", "killed": "yellow"}.get(state, "")),
            *([_maybe(row.get("share"), ".0%")] if shares else []),
            f"{row['samples']:,}",
            f"{row['samples_per_s']:,.0f}",
            _maybe(row["loss"], ".4f"),
            _maybe(row[kinds[0]], ".4f"),
            _maybe(row[kinds[1]], ".1%"),
            f"{row['updates_applied']:,}",
            f"{row['staleness']['mean']:.2f}",
            *([f"{row['wait_s']:.1f} s"] if shares else []),
            f"{sent / 1e6:,.1f}",
            *([str(row.get("address", ""))] if placed else []),
        )
    return picture


def summary(report: Json) -> list[str]:
    """What the run came to, in a few lines."""
    lines = [f"{report['samples']:,} samples in {report['wall_s']:.1f} s"]
    if report["accuracy_mean"] is not None:
        lines[0] += (
            f"; accuracy {report['accuracy_mean']:.1%} on average,"
            f" {report['accuracy_min']:.1%} at least"
        )
    if report["nc"]:
        lines[0] += "; NC: it says one class for everything, or its loss is no number"
    lines += _gone(report["nodes"])
    if report["mode"] == "ist" and "coverage" in report:
        covered = report["coverage"]
        least = min(covered, key=covered.__getitem__, default="")
        lines.append(
            f"{report['pushes']:,} pushes in {report['plans']:,} plans"
            + (f"; the least trained is {least}: {covered[least]:.0%} of it" if least else "")
        )
    if report["mode"] == "hub" and "version" in report:
        pushes, version = report["pushes"], report["version"]
        lines.append(f"{pushes:,} pushes in {version:,} updates, {report['protocol']}")
    if report["staleness"]["count"]:
        predicted = report["staleness_predicted"]
        expected = "" if predicted is None else f" (predicted {predicted:.2f})"
        lines.append(
            f"staleness {report['staleness']['mean']:.2f} updates on average{expected},"
            f" {report['staleness']['p99']:,} at the 99th percentile"
        )
    if report["replica_distance_max"] is not None:
        lines.append(f"replicas differ by {report['replica_distance_max']:.1e} at most, relative")
    refused = {reason for row in report["nodes"] for reason in row["rejected"]}
    if refused:
        count = sum(times for row in report["nodes"] for times in row["rejected"].values())
        lines.append(f"{count:,} messages rejected: {', '.join(sorted(refused))}")
    lines += [f"warning: {text}" for text in warned(report["nodes"])]
    return lines


def beyond(samples: int, asked: int | None, wall_s: float) -> str:
    """Why more was trained than was asked for, where it is more than a little; else empty."""
    if not asked or samples <= asked * (1.0 + BEYOND):
        return ""
    return (
        f"{samples / asked - 1.0:.0%} beyond the {asked:,} samples asked for: nodes hear of the end"
        f" a moment later and train until then, which is much of a run of {wall_s:.1f} s, and"
        " little of a longer one"
    )


def _gone(rows: Sequence[Json]) -> list[str]:
    """One line for those who did not come to the end; none where nobody did."""
    gone = [row for row in rows if row.get("state") in GONE]
    if not gone or len(gone) == len(rows):
        return []
    told = (
        f"{row['name']} {row['state']}"
        + ("" if row["accuracy"] is None else f" at {row['accuracy']:.1%}")
        for row in gone
    )
    return [f"not in that: {', '.join(told)}"]


def _maybe(value: float | None, shape: str) -> str:
    return "" if value is None else f"{value:{shape}}"
