"""A finished race: a table on the terminal, a page that can be mailed, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from murmurate.study.lab import page
from murmurate.study.race import up_options
from murmurate.study.race.race_file import RaceFile
from murmurate.study.race.results import FIGURES, TARGETS, curve

Json = dict[str, Any]
Results = Mapping[tuple[str, str, int], Json]
ALONG = (("seconds", "seconds"), ("samples", "samples of all nodes"))
PLAIN_WIDTH = 180
MANY = 1000


def told_rates(race: RaceFile) -> str:
    """How the rates were chosen, in a sentence."""
    tried = ", ".join(f"{rate:g}" for rate in race.rates)
    if race.tuned == "one-node":
        return f"rates tuned once for one node (of {tried}), then the same for all"
    if race.tuned == "per-solver":
        first = next(iter(race.settings))
        return f"rates tuned for each solver (of {tried}), in setting {first}"
    return "rates as given"


def told(key: str, value: float | None, deviation: float | None = None) -> str:
    """A figure as a person reads it, with its spread over seeds."""
    if value is None:
        return "-"
    unit, scale, digits = "", 1.0, 3
    if key in ("accuracy", "wait"):
        unit, scale, digits = " %", 100.0, 2
    elif "bytes" in key:
        unit, scale, digits = " MB", 1e-6, 2
    elif key in ("staleness", "staleness_p99", "target_s"):
        digits = 2
    elif key == "samples_per_s":
        digits = 0 if value >= MANY else 1
    text = f"{scale * value:,.{digits}f}"
    if deviation is not None:
        text += f" ± {scale * deviation:,.{digits}f}"
    return text + unit


def _columns(race: RaceFile) -> list[tuple[str, str]]:
    targeted = race.target is not None or race.target_loss is not None
    return [*FIGURES, *(TARGETS if targeted else ())]


def _cells(race: RaceFile, row: Json) -> list[str]:
    made = []
    for key, _ in _columns(race):
        text = told(key, row[key], row[f"{key}_spread"])
        if key == "target_s" and row["reached"] < row["seeds"]:
            text = f"{text} ({row['reached']} of {row['seeds']})" if row["reached"] else "never"
        if key == "accuracy" and row["nc"]:
            text += f" NC {row['nc']}×" if row["seeds"] > 1 else " NC"
        made.append(text)
    return made


def print_table(race: RaceFile, rows: Sequence[Json]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH, soft_wrap=True)
    for setting in race.settings:
        here = [row for row in rows if row["setting"] == setting]
        table = Table(title=f"{race.title}: {setting}", title_justify="left", box=None)
        table.add_column("solver")
        table.add_column("lr", justify="right")
        for _, head in _columns(race):
            table.add_column(head, justify="right")
        for row in here:
            lr = "-" if row["lr"] is None else f"{row['lr']:g}"
            table.add_row(row["solver"], lr, *_cells(race, row))
        console.print(table)
    seeds = len(race.seeds)
    of = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed"
    console.print(f"{of}; {race.time} time; {told_rates(race)}")


def html_page(race: RaceFile, rows: Sequence[Json], results: Results) -> str:
    seeds = ", ".join(str(seed) for seed in race.seeds)
    about = (
        f"<p>{page.text(race.path.name)}: {page.text(race.time)} time, seeds {seeds};"
        f" {page.text(told_rates(race))}. Figures are means ± standard deviation over the seeds,"
        " bands in the curves from the lowest to the highest.</p>"
    )
    parts = [about]
    for setting in race.settings:
        said = written(race.settings[setting])
        parts.append(f"<h2>{page.text(setting)}</h2>")
        if said:
            parts.append(f'<p class="soft">{page.text(said)}</p>')
        here = [row for row in rows if row["setting"] == setting]
        head = ["solver", "lr", *(name for _, name in _columns(race))]
        parts.append(
            page.table(
                head,
                [
                    [
                        page.text(row["solver"]),
                        "-" if row["lr"] is None else f"{row['lr']:g}",
                        *(page.text(each) for each in _cells(race, row)),
                    ]
                    for row in here
                ],
            )
        )
        for what in ("accuracy", "loss"):
            for along, label in ALONG:
                lines = curves(race, results, setting, along, what)
                parts.append(page.chart(f"{what} over {along}", lines, x=label, y=what))
    parts.append(f"<h2>What all have</h2><p>{page.text(written(race.base))}</p>")
    solvers = [
        [page.text(name), page.text(written(options))] for name, options in race.solvers.items()
    ]
    parts.append(page.table(["solver", "options of murmurate up"], solvers, numbers=False))
    return page.page(race.title, parts)


def written(options: Mapping[str, Any]) -> str:
    """As the options of `murmurate up` that they are."""
    return " ".join(up_options.arguments_of(options))


def curves(
    race: RaceFile, results: Results, setting: str, along: str, what: str
) -> list[page.Line]:
    made = []
    for solver in race.solvers:
        found = [results.get((solver, setting, seed)) for seed in race.seeds]
        points = curve([each for each in found if each is not None], along, what)
        made.append(
            page.Line(
                name=solver,
                points=[(at, mean) for at, mean, _, _ in points],
                band=[(low, high) for _, _, low, high in points] if len(race.seeds) > 1 else (),
            )
        )
    return made


def draw(race: RaceFile, results: Results, path: Path) -> bool:
    """The curves as PNG. False: matplotlib is not here."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    settings = list(race.settings)
    kinds = [(what, along) for what in ("accuracy", "loss") for along, _ in ALONG]
    figure = Figure(figsize=(4.2 * len(kinds), 3.2 * len(settings)), layout="constrained")
    frames = figure.subplots(len(settings), len(kinds), squeeze=False)
    for setting, row in zip(settings, frames, strict=True):
        for (what, along), axes in zip(kinds, row, strict=True):
            for number, line in enumerate(curves(race, results, setting, along, what)):
                if not line.points:
                    continue
                places = [at for at, _ in line.points]
                colour = page.COLOURS[number % len(page.COLOURS)]
                axes.plot(places, [v for _, v in line.points], color=colour, label=line.name)
                if line.band:
                    low, high = ([edge[k] for edge in line.band] for k in (0, 1))
                    axes.fill_between(places, low, high, color=colour, alpha=0.15)
            axes.set(xlabel=along, ylabel=what)
            axes.set_title(setting, fontsize="medium", loc="left")
            axes.grid(alpha=0.25)
            axes.locator_params(axis="x", nbins=5)
    if frames[0][0].get_legend_handles_labels()[0]:
        frames[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=110)
    return True
