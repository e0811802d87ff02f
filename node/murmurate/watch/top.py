"""`murmurate top`: a running swarm, live, as one of its members knows it.

Asks that member once a second. What others do per second comes from two of their own accounts and
the time between these on their own clocks, so it is right however late they arrive.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from murmurate.core.values.names import nearest
from murmurate.edge.net.credentials import Credentials
from murmurate.errors import ConfigError, TransportError
from murmurate.watch import status
from murmurate.watch.swarm import Json, as_json
from murmurate.watch.view import PLAIN_WIDTH

WINDOW_S = 5.0
"""Rates are over accounts at most this far apart."""
STATE_STYLES = {"alive": "green", "suspect": "yellow", "dead": "red", "left": "dim"}


class Column(NamedTuple):
    title: str
    value: Callable[[Json], float | str | None]
    shape: str
    high_first: bool = True


def _ratio(row: Json) -> float | None:
    measured, predicted = row["staleness_now"], row["staleness_predicted"]
    return measured - predicted if measured is not None and predicted is not None else None


COLUMNS = {
    "name": Column("node", lambda row: str(row["name"]), "", False),
    "state": Column("state", lambda row: str(row["state"]), "", False),
    "samples": Column("samples/s", lambda row: row["samples_now"], ",.0f"),
    "updates": Column("updates/s", lambda row: row["updates_now"], ",.1f"),
    "staleness": Column("staleness", lambda row: row["staleness_now"], ",.2f"),
    "predicted": Column("predicted", lambda row: row["staleness_predicted"], ",.2f"),
    "bytes": Column("MB/s", lambda row: row["bytes_now"] and row["bytes_now"] / 1e6, ",.2f"),
    "loss": Column("loss", lambda row: row["loss"], ".4f"),
    "test_loss": Column("test loss", lambda row: row["test_loss"], ".4f"),
    "accuracy": Column("accuracy", lambda row: row["accuracy"], ".1%"),
    "lag": Column("lag", lambda row: row["lag"], ",d"),
    "address": Column("address", lambda row: str(row["address"]), "", False),
}


NARROW = ("address", "test_loss", "bytes", "updates", "loss", "samples", "predicted", "lag")
"""What is left out where there is no room, the first first."""


def run(
    address: str,
    credentials: Credentials,
    *,
    sort: str = "name",
    interval_s: float = 1.0,
    count: int | None = None,
    timeout_s: float = 5.0,
) -> int:
    """Until Ctrl-C, or `count` tables; a member that does not answer is asked again."""
    status.check(address)
    if sort not in COLUMNS:
        expected = f"one of {', '.join(COLUMNS)}{nearest(sort, COLUMNS)}"
        raise ConfigError(f"--sort {sort!r}: expected {expected}")
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    rates = Rates()
    shown = 0
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while count is None or shown < count:
            began = time.monotonic()
            try:
                swarm = as_json(asyncio.run(status.ask(address, timeout_s, credentials)))
            except TransportError as error:
                if not shown:
                    raise
                _show(live, console, Text(f"{error}; asking again", style="red"))
            else:
                rates.take(swarm)
                _show(live, console, picture(swarm, rates, sort, console.width))
                shown += 1
            if count is None or shown < count:
                time.sleep(max(0.0, interval_s - (time.monotonic() - began)))
    return 0


def _show(live: Live, console: Console, what: Group | Text) -> None:
    if console.is_terminal:
        live.update(what, refresh=True)
    else:
        console.print(what)


class Rates:
    """Per second, of each member, over its last accounts."""

    def __init__(self) -> None:
        self._told: dict[str, deque[Json]] = {}

    def take(self, swarm: Json) -> None:
        for row in swarm["members"]:
            told = self._told.setdefault(row["name"], deque())
            if row["at"] is None or (told and row["at"] <= told[-1]["at"]):
                continue
            if told and row["updates_published"] < told[-1]["updates_published"]:
                told.clear()  # a new life
            told.append(row)
            while told[-1]["at"] - told[0]["at"] > WINDOW_S and len(told) > 2:
                told.popleft()

    def of(self, name: str, key: str) -> float | None:
        told = self._told.get(name)
        if told is None or len(told) < 2:
            return None
        first, last = told[0], told[-1]
        return float((last[key] - first[key]) / (last["at"] - first["at"]))


def rows(swarm: Json, rates: Rates, sort: str) -> list[Json]:
    """One for each member, sorted."""
    found = []
    for row in swarm["members"]:
        name, alive = row["name"], row["state"] in ("alive", "suspect")
        per_s: Mapping[str, float | None] = {
            "samples_now": rates.of(name, "samples"),
            "updates_now": rates.of(name, "updates_published"),
            "bytes_now": rates.of(name, "bytes_sent"),
        }
        if not alive:
            per_s = dict.fromkeys(per_s, 0.0)
        elif per_s["samples_now"] is None:
            per_s = {**per_s, "samples_now": row["samples_per_s"]}
        found.append({**row, **per_s})
    column = COLUMNS[sort]
    found.sort(key=lambda row: row["name"])
    known = [row for row in found if column.value(row) is not None]
    known.sort(key=column.value, reverse=column.high_first)  # type: ignore[arg-type]
    return known + [row for row in found if column.value(row) is None]


def picture(swarm: Json, rates: Rates, sort: str, width: int = PLAIN_WIDTH) -> Group:
    """The whole screen. Where it is narrow some columns are left out: half a number is none."""
    members = rows(swarm, rates, sort)
    cells = {key: [_cell(key, row) for row in members] for key in COLUMNS}
    titles = {key: each.title + "*" * (key == sort) for key, each in COLUMNS.items()}
    needed = {
        key: 1 + max(len(titles[key]), *(len(cell) for cell in cells[key]), 0) for key in COLUMNS
    }
    shown = [*COLUMNS]
    for key in NARROW:
        if sum(needed[each] for each in shown) - 1 > width and key != sort:
            shown.remove(key)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for key in shown:
        right = "right" if COLUMNS[key].shape else "left"
        table.add_column(titles[key], justify=right, no_wrap=True)  # type: ignore[arg-type]
    for number in range(len(members)):
        table.add_row(*(cells[key][number] for key in shown))
    warnings = [Text(text, style="yellow") for text in swarm["warnings"]]
    hints = [Text(text, style="dim") for text in swarm["hints"]]
    head = Text(headline(swarm, members), no_wrap=True, overflow="ellipsis")
    return Group(head, table, *warnings, *hints)


def headline(swarm: Json, members: Sequence[Json]) -> str:
    """The swarm as a whole, in one line."""
    alive = [row for row in members if row["state"] == "alive"]
    samples = sum(row["samples_now"] or 0.0 for row in alive)
    total = sum(row["samples"] for row in members)
    held = f"{swarm['updates']:,} updates in the clock of {swarm['name']}"
    if swarm["name"] == "coordinator" and not swarm["updates"]:  # it has pushes, and no clock
        held = f"{sum(row['updates_applied'] for row in members):,} pushes of those who are here"
    return (
        f"{swarm['run']} ({swarm['rule']}): {len(alive)} of {len(members)} alive,"
        f" {total:,} samples, {samples:,.0f}/s, {held}"
    )


def _cell(key: str, row: Json) -> Text:
    column = COLUMNS[key]
    value = column.value(row)
    if value is None:
        return Text("")
    if isinstance(value, str):
        return Text(value, style=STATE_STYLES.get(value, "") if key == "state" else "")
    beyond = key == "staleness" and (_ratio(row) or 0.0) > 1 + 0.5 * (
        row["staleness_predicted"] or 0
    )
    return Text(f"{value:{column.shape}}", style="yellow" if beyond else "")
