"""`murmurate race FILE.toml`: solvers × settings × rng seeds, as one table.

In virtual time the same file gives the same table, to the last digit. Every finished cell is a
file; the same command again does what is missing and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from murmurate.errors import ConfigError
from murmurate.study.race import results, showing
from murmurate.study.race.race_file import ALONE, RaceCell, RaceFile, read
from murmurate.study.race.sweep import FinishedCells, sweep, write

Json = dict[str, Any]


def run(file: str, *, out: str | None, jobs: int | None, quick: bool) -> int:
    """To the end, whatever of it was done before."""
    race = read(Path(file), quick=quick)
    name = f"{race.path.stem}-race{'-quick' if quick else ''}"
    folder = Path(out) if out is not None else race.path.with_name(name)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder}: it is not a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}") from None
    finished = FinishedCells(folder / "cells")
    at_once = jobs or (os.cpu_count() or 1) if race.time == "virtual" else 1
    _do(race.tuning(), finished, at_once, "rates")
    rates = best_rates(race, finished)
    cells = [cell.with_rate(rates[cell.solver]) for cell in race.cells()]
    _do(cells, finished, at_once, "cells")
    found = {}
    for cell in cells:
        result = finished.get(cell)
        if result is not None:
            found[cell.solver, cell.setting, cell.seed] = result
    tell(race, found, rates, folder)
    return 0


def best_rates(race: RaceFile, finished: FinishedCells) -> dict[str, float | None]:
    """Of each solver: as the file has it, or the best of those that were tried."""
    best: dict[str, tuple[float, float]] = {}
    for cell in race.tuning():
        result = finished.get(cell)
        if result is not None:
            value = -float("inf") if result["nc"] else results.value_of(result)
            rate = float(cell.options["lr"])
            if cell.solver not in best or value > best[cell.solver][0]:
                best[cell.solver] = value, rate
    made: dict[str, float | None] = {}
    for solver in race.solvers:
        given = race.solvers[solver].get("lr", race.base.get("lr"))
        tuned = best.get(solver, best.get(ALONE))
        made[solver] = tuned[1] if tuned else (None if given is None else float(given))
    return made


def _do(cells: Sequence[RaceCell], finished: FinishedCells, jobs: int, what: str) -> None:
    todo = [cell for cell in cells if finished.get(cell) is None]
    if not todo:
        return
    console = Console(stderr=True, highlight=False)
    if len(todo) < len(cells):
        console.print(f"{len(cells) - len(todo)} of {len(cells)} {what} are there already")
    watch = _Watch(todo, what, console)
    with watch:
        for cell in sweep(todo, finished, jobs):
            watch.done(cell)


class _Watch:
    """How far it is: a bar on a terminal, a line for each cell elsewhere."""

    def __init__(self, todo: Sequence[RaceCell], what: str, console: Console) -> None:
        self._console, self._what = console, what
        self._cost, self._count, self._all = 0.0, 0, len(todo)
        self._whole = sum(cell.cost for cell in todo)
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(what, total=len(todo), left="")

    def __enter__(self) -> None:
        if self._console.is_terminal:
            self._bar.start()

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def done(self, cell: RaceCell) -> None:
        self._cost += cell.cost
        self._count += 1
        spent = time.monotonic() - self._began
        left = told_left(spent * (self._whole - self._cost) / self._cost)
        if self._console.is_terminal:
            self._bar.update(self._task, advance=1, left=left)
        else:
            named = f"{cell.solver}, {cell.setting}" if cell.setting else cell.solver
            lr = f", lr {cell.options['lr']:g}" if cell.tunes else ""
            print(
                f"{self._count}/{self._all} {self._what}: {named}, seed {cell.seed}{lr}; {left}",
                file=sys.stderr,
                flush=True,
            )


def told_left(seconds: float) -> str:
    if seconds < 1:
        return "nearly done"
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left"


def tell(
    race: RaceFile,
    found: dict[tuple[str, str, int], Json],
    rates: dict[str, float | None],
    folder: Path,
) -> None:
    rows = results.rows(race, found, rates)
    showing.print_table(race, rows)
    cells = [
        {"solver": solver, "setting": setting, "seed": seed, **results.with_target(result, race)}
        for (solver, setting, seed), result in found.items()
    ]
    whole = {
        "title": race.title,
        "file": race.path.name,
        "time": race.time,
        "seeds": list(race.seeds),
        "target": race.target,
        "target_loss": race.target_loss,
        "rates": {"tuned": race.tuned, "values": list(race.rates), "chosen": rates},
        "rows": rows,
        "cells": cells,
    }
    write(folder / "race.json", json.dumps(whole, indent=1, allow_nan=False) + "\n")
    write(folder / "race.html", showing.html_page(race, rows, found))
    print(folder / "race.json")
    print(folder / "race.html")
    if showing.draw(race, found, folder / "race.png"):
        print(folder / "race.png")
    else:
        print("no race.png: matplotlib is not here (pip install 'murmurate[lab]')", file=sys.stderr)
