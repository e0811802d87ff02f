"""`murmurate reproduce 000 … 004 | all`: a paper's figures beside ours, as table, JSON and page."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from murmurate.errors import ConfigError
from murmurate.study.lab import page
from murmurate.study.race.sweep import write
from murmurate.study.reproduce.claim import AGREES, DIFFERS, Effort, PaperStudy

PAPERS = ("000", "001", "002", "003", "004")
PLAIN_WIDTH = 150


def run(which: str, effort: Effort, out: str) -> int:
    """The pages of these papers, in the folder `out`. Exit code 0: also where a paper is wrong."""
    if effort.text is not None and not Path(effort.text).is_file():
        raise ConfigError(f"--text {effort.text}: there is no such file; any text will do")
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}") from None
    for paper in PAPERS if which == "all" else (which,):
        began = time.monotonic()
        made = study(paper, effort)
        tell(made)
        write(folder / f"{paper}.json", json.dumps(made.json(), indent=1) + "\n")
        write(folder / f"{paper}.html", html_page(made))
        took_s = time.monotonic() - began
        print(f"{folder / f'{paper}.html'} ({took_s:.0f} s)", flush=True)
    return 0


def study(paper: str, effort: Effort) -> PaperStudy:
    module = import_module(f"murmurate.study.reproduce.paper_{paper}")
    make: Callable[[Effort], PaperStudy] = module.study
    return make(effort)


def counts(made: PaperStudy) -> str:
    """How many of each kind, in a line."""
    found = Counter(claim.verdict for claim in made.claims)
    return ", ".join(f"{times} {verdict}" for verdict, times in found.most_common())


def tell(made: PaperStudy) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    table = Table(title=f"{made.paper}: {made.title}", title_justify="left")
    for head in ("where", "what", "paper", "ours", "", "why"):
        table.add_column(head, overflow="fold")
    for claim in made.claims:
        table.add_row(claim.where, claim.what, claim.paper, claim.ours, claim.verdict, claim.why)
    console.print(table)
    console.print(f"{made.paper}: {counts(made)}. {made.bends}")


def html_page(made: PaperStudy) -> str:
    looks = {AGREES: "agree", DIFFERS: "differ"}
    rows = [
        [
            page.text(claim.where),
            page.text(claim.what),
            page.text(claim.paper),
            page.text(claim.ours),
            f'<span class="{looks.get(claim.verdict, "open")}">{page.text(claim.verdict)}</span>',
            page.text(claim.why),
        ]
        for claim in made.claims
    ]
    head = ["where", "what", "the paper", "here", "", "why"]
    parts = [
        f"<p>{page.text(counts(made))}. {page.text(made.bends)}</p>",
        page.table(head, rows, numbers=False),
        *made.charts,
    ]
    return page.page(f"Paper {made.paper}: {made.title}", parts)
