"""The file of a race: solvers × settings × rng seeds. What is wrong in it is told with its line."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from murmurate.errors import ConfigError
from murmurate.study.race import up_options

TOP = (
    "title",
    "time",
    "seeds",
    "target",
    "target_loss",
    "rates",
    "all",
    "solvers",
    "settings",
    "quick",
)
TIMES = ("virtual", "real")
TUNED = ("given", "one-node", "per-solver")
RATES = ("tuned", "values")
PLAIN = "as given"
"""The name of the only setting, where the file has none."""
ALONE = "one node"
"""The solver of the cells that tune a rate for one node."""
OF_MANY = (
    "mode", "rule", "topology", "codec", "every", "peers-data", "speed", "delay-s", "link-bytes-s",
    "join", "leave", "kill", "slow", "widths", "memory", "split", "generator", "nodes", "fold-s",
)  # fmt: skip
"""What says nothing to one node alone, and is left out when a rate is tuned for one."""
QUICK_PART = 10
"""Of the budget, in a quick race that has no [quick] of its own."""
SEED_MAX = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceCell:
    """One training."""

    solver: str
    setting: str
    seed: int
    options: Mapping[str, Any]
    tunes: bool = False
    """It is for finding a rate, and in no table."""

    @property
    def arguments(self) -> list[str]:
        return [*up_options.arguments_of(self.options), f"--seed={self.seed}"]

    @property
    def key(self) -> str:
        """Names its file: what it is, and a hash of all that decides it."""
        whole = json.dumps([self.solver, self.setting, self.arguments])
        readable = re.sub(r"[^\w-]+", "-", f"{self.solver}-{self.setting}-{self.seed}").strip("-")
        return f"{readable}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"

    @property
    def cost(self) -> float:
        """About proportional to the time it takes."""
        nodes = float(self.options.get("nodes", 4))
        return nodes * float(self.options.get("seconds") or 1.0)

    def with_rate(self, lr: float | None) -> RaceCell:
        if lr is None:
            return self
        options = {**self.options, "lr": lr}
        return RaceCell(
            solver=self.solver,
            setting=self.setting,
            seed=self.seed,
            options=options,
            tunes=self.tunes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceFile:
    """What was asked for, checked."""

    path: Path
    title: str
    time: str = "virtual"
    seeds: tuple[int, ...] = (0,)
    target: float | None = None
    target_loss: float | None = None
    tuned: str = "given"
    rates: tuple[float, ...] = ()
    base: Mapping[str, Any] = field(default_factory=dict)
    solvers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def cells(self) -> list[RaceCell]:
        """Seed by seed, so that there is a whole picture soon."""
        return [
            self._cell(solver, setting, seed)
            for seed in self.seeds
            for setting in self.settings
            for solver in self.solvers
        ]

    def tuning(self) -> list[RaceCell]:
        """The cells that find rates, on the first seed: of one node, or of each solver in the
        first setting."""
        seed = self.seeds[0]
        if self.tuned == "one-node":
            options = {key: value for key, value in self.base.items() if key not in OF_MANY}
            options |= {"virtual": self.time == "virtual", "rule": "sum", "nodes": 1}
            alone = RaceCell(solver=ALONE, setting="", seed=seed, options=options, tunes=True)
            return [alone.with_rate(lr) for lr in self.rates]
        if self.tuned == "per-solver":
            first = next(iter(self.settings))
            cells = [self._cell(solver, first, seed, tunes=True) for solver in self.solvers]
            return [cell.with_rate(lr) for cell in cells for lr in self.rates]
        return []

    def _cell(self, solver: str, setting: str, seed: int, *, tunes: bool = False) -> RaceCell:
        options = {"virtual": self.time == "virtual", **self.base}
        options |= {**self.settings[setting], **self.solvers[solver]}
        return RaceCell(solver=solver, setting=setting, seed=seed, options=options, tunes=tunes)


# -- reading ---------------------------------------------------------------------------------------


def read(path: Path, *, quick: bool = False) -> RaceFile:
    """ConfigError with a line `file:line: what is wrong; what exists` for each mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected the TOML file of a race") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text in UTF-8") from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        place = f"{path}:{at[1]}" if at else str(path)
        raise ConfigError(f"{place}: not TOML: {error}") from None
    return _Reading(path, text, content, quick=quick).race()


class _Reading:
    def __init__(self, path: Path, text: str, content: dict[str, Any], *, quick: bool) -> None:
        self.path, self.content, self.quick = path, content, quick
        self.lines = lines_of(text)
        self.problems: list[str] = []

    def race(self) -> RaceFile:
        self._known(self.content, TOP, ())
        base = self._options("all")
        if self.quick:
            base = self._quick(base)
        solvers = self._tables("solvers")
        settings = self._tables("settings") or {PLAIN: {}}
        if not solvers:
            self._wrong(("solvers",), "no solver; at least one table, such as [solvers.shared]")
        tuned, rates = self._rates()
        made = RaceFile(
            path=self.path,
            title=str(self.content.get("title", self.path.stem)),
            time=self._one_of("time", TIMES),
            seeds=self._seeds(),
            target=self._number("target"),
            target_loss=self._number("target_loss"),
            tuned=tuned,
            rates=rates,
            base=base,
            solvers=solvers,
            settings=settings,
        )
        if not self.problems:
            self._try(made)
        if self.problems:
            raise ConfigError("\n".join(dict.fromkeys(self.problems)))
        return made

    def _wrong(self, where: Sequence[str], what: str) -> None:
        """At the line of the key, or of the nearest table that holds it."""
        known = [where[:length] for length in range(len(where), 0, -1)]
        line = next((self.lines[tuple(each)] for each in known if tuple(each) in self.lines), 1)
        self.problems.append(f"{self.path}:{line}: {what}")

    def _known(self, table: Mapping[str, Any], names: Iterable[str], where: Sequence[str]) -> None:
        names = list(names)
        for key in table:
            if up_options.spelled(key) not in names and key not in names:
                if where and up_options.spelled(key) in up_options.DECIDED:
                    self._wrong([*where, key], f"{key}: {up_options.NOT_HERE}")
                    continue
                near = difflib.get_close_matches(up_options.spelled(key), names, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                self._wrong([*where, key], f"{key}: unknown; {hint}there are {', '.join(names)}")

    def _options(self, *where: str) -> dict[str, Any]:
        table: Any = self.content
        for key in where:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        if not isinstance(table, dict):
            self._wrong(where, f"{'.'.join(where)}: expected a table of options of murmurate up")
            return {}
        self._known(table, up_options.option_names(), where)
        return {up_options.spelled(key): value for key, value in table.items()}

    def _tables(self, name: str) -> dict[str, dict[str, Any]]:
        tables = self.content.get(name, {})
        if not isinstance(tables, dict):
            self._wrong((name,), f"{name}: expected tables, such as [{name}.first]")
            return {}
        return {each: self._options(name, each) for each in tables}

    def _quick(self, base: dict[str, Any]) -> dict[str, Any]:
        if "quick" in self.content:
            return base | self._options("quick")
        budget = {key: base[key] for key in ("seconds", "samples") if key in base}
        return base | {
            key: value / QUICK_PART if key == "seconds" else max(1, int(value) // QUICK_PART)
            for key, value in budget.items()
            if isinstance(value, int | float)
        }

    def _one_of(self, key: str, values: Sequence[str]) -> str:
        value = self.content.get(key, values[0])
        if value not in values:
            self._wrong((key,), f"{key} = {value!r}: expected {' or '.join(values)}")
        return str(value)

    def _seeds(self) -> tuple[int, ...]:
        seeds = self.content.get("seeds", [0])
        fine = isinstance(seeds, list) and all(
            isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < SEED_MAX
            for seed in seeds
        )
        if not fine or not seeds:
            self._wrong(
                ("seeds",), f"seeds = {seeds}: expected whole numbers from 0 on, at least one"
            )
            return (0,)
        twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
        if twice is not None:
            self._wrong(("seeds",), f"seeds = {seeds}: {twice} twice, which would count it twice")
        return tuple(seeds[:1] if self.quick else seeds)

    def _number(self, key: str) -> float | None:
        value = self.content.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            self._wrong((key,), f"{key} = {value!r}: expected a number above 0")
            return None
        if key == "target" and value > 1:
            self._wrong((key,), f"target = {value}: an accuracy, from 0 to 1")
        return float(value)

    def _rates(self) -> tuple[str, tuple[float, ...]]:
        table = self.content.get("rates", {})
        if not isinstance(table, dict):
            self._wrong(("rates",), "rates: expected a table with tuned and values")
            return "given", ()
        self._known(table, RATES, ("rates",))
        tuned, values = table.get("tuned", "given"), table.get("values", [])
        if tuned not in TUNED:
            self._wrong(("rates", "tuned"), f"tuned = {tuned!r}: expected {', '.join(TUNED)}")
            return "given", ()
        fine = isinstance(values, list) and all(
            isinstance(each, int | float) and not isinstance(each, bool) and each > 0
            for each in values
        )
        if not fine or bool(values) != (tuned != "given"):
            self._wrong(
                ("rates", "values") if "values" in table else ("rates",),
                f"values = {values}: rates above 0 to try, where they are tuned, and only there",
            )
            return "given", ()
        return str(tuned), tuple(float(each) for each in values)

    def _try(self, race: RaceFile) -> None:
        """Whatever `up` would refuse is refused now, not after hours."""
        first = race.seeds[0]
        found: dict[tuple[tuple[str, ...], str], list[RaceCell]] = {}
        tried = [cell for cell in [*race.cells(), *race.tuning()] if cell.seed == first]
        for cell in tried:
            try:
                up_options.check(cell.arguments)
            except ConfigError as error:
                for what in str(error).splitlines():
                    found.setdefault((tuple(self._culprit(cell, what)), what), []).append(cell)
        for (where, what), cells in found.items():
            self._wrong(where, f"{_shared_name(cells, tried)}{what}")

    def _culprit(self, cell: RaceCell, what: str) -> list[str]:
        """The table and key that a complaint of `up` is about, as far as it says."""
        match = re.search(r"--([a-z-]+)|\b[a-z]+\.([a-z_]+) = |^([a-z_]+) ", what)
        key = next((each for each in match.groups() if each), "") if match else ""
        for where in (["solvers", cell.solver], ["settings", cell.setting], ["quick"], ["all"]):
            for spelling in (key, key.replace("-", "_")):
                if (*where, spelling) in self.lines:
                    return [*where, spelling]
        return ["solvers", cell.solver] if cell.solver != ALONE else ["rates"]


def _shared_name(cells: Sequence[RaceCell], of: Sequence[RaceCell]) -> str:
    """What is wrong in all of these cells is said once: of the solver or setting they share."""
    if len(cells) == len(of) > 1:
        return ""
    solvers = {cell.solver for cell in cells}
    settings = {cell.setting for cell in cells if cell.setting}
    named = [each for names in (solvers, settings) if len(names) == 1 for each in names]
    return f"{', '.join(named)}: " if named else ""


KEY = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Where each key and table of a TOML text stands, which tomllib does not tell."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        dotted = rf"{KEY}(?:\s*\.\s*{KEY})*"
        if header := re.match(rf"\s*\[\[?\s*({dotted})\s*\]", line):
            table = _keys(header[1])
            found.setdefault(table, number)
        elif key := re.match(rf"\s*({dotted})\s*=", line):
            found.setdefault((*table, *_keys(key[1])), number)
    return found


def _keys(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(KEY, dotted))
