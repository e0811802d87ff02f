"""Figures with their spread, and how they are taken: interleaved, on a machine that is named.

Contenders take turns in a shuffled order (A, B, A, B …). A figure is the median of all samples, for
a ratio the median of the ratios of turns next to each other; behind it the smallest and the
largest. A turn during which others used more than 5 % of the machine is done again, whatever its
result. All samples are in the JSON.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FORMAT = 1
FOREIGN_MAX = 0.05
"""Of the machine, used by others during a turn; beyond it the turn is done again."""
DISCARDED_MAX = 6
"""Then it is kept, and what depends on it has no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a figure should be, and what it must not be worse than."""

    value: float
    floor: float | None = None
    at_most: bool = False

    def reached(self, value: float) -> bool:
        return value <= self.value if self.at_most else value >= self.value

    def failed(self, value: float) -> bool:
        if self.floor is None:
            return False
        return value > self.floor if self.at_most else value < self.floor

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.value:g}"


@dataclass(slots=True, kw_only=True)
class Figure:
    """A measured value with its spread, and what it has to be."""

    scenario: str
    what: str
    median: float
    low: float
    high: float
    unit: str = ""
    goal: Goal | None = None
    disturbed: int = 0
    """Turns in it during which others used the machine."""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        if self.disturbed:
            return f"{self.goal} ? ({self.disturbed} disturbed)"
        return f"{self.goal} {'yes' if self.goal.reached(self.median) else 'NO'}"

    @property
    def failed(self) -> bool:
        return self.goal is not None and not self.disturbed and self.goal.failed(self.median)

    def __str__(self) -> str:
        spread = f"[{self.low:.3g} - {self.high:.3g}]"
        return f"  {self.what:44} {self.median:9.3g} {self.unit:5} {spread:20} {self.verdict}"


@dataclass(slots=True)
class Report:
    """Everything that was measured in one run, printed as it comes."""

    figures: list[Figure] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)
    scenario: str = ""
    judged: bool = True
    """Whether figures are held against their goals; those of a quick run mean nothing."""

    def begin(self, scenario: str) -> None:
        self.scenario = scenario
        print(f"\n{scenario:46} {'median':>9} {'':5} {'spread':20} goal", flush=True)

    def add(self, what: str, values: Iterable[float], **rest: Any) -> None:
        values = list(values)
        if not self.judged:
            rest["goal"] = None
        figure = Figure(
            scenario=self.scenario,
            what=what,
            median=statistics.median(values),
            low=min(values),
            high=max(values),
            **rest,
        )
        self.figures.append(figure)
        print(figure, flush=True)

    def keep(self, title: str, samples: Any) -> None:
        self.samples.setdefault(self.scenario, {})[title] = samples

    def remark(self, text: str) -> None:
        """A sentence that belongs beside the figures."""
        self.remarks.append(f"{self.scenario}: {text}")
        print(f"  {text}", flush=True)

    def write(self, path: Path, **about: Any) -> None:
        figures = [asdict(figure) | {"verdict": figure.verdict} for figure in self.figures]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(
                {
                    "format": FORMAT,
                    **about,
                    "load": self.loads,
                    "figures": figures,
                    "remarks": self.remarks,
                    "samples": self.samples,
                },
                indent=1,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long and how often; the shuffling is seeded."""

    repetitions: int = 7
    seconds: float = 4.0
    seed: int = 0
    quick: bool = False
    """Small sizes and one turn: to see that it runs, not how fast."""
    size: str | None = None
    """Only this one, where there are several ("100 MB")."""

    def few(self, repetitions: int) -> Effort:
        return replace(self, repetitions=min(self.repetitions, repetitions))

    def sizes(self, known: Iterable[str]) -> list[str]:
        """Which of them to measure, the smallest first."""
        sizes = list(known)
        if self.quick:
            return sizes[:1]
        return [size for size in sizes if self.size in (None, size)]

    def interleaved(self, turns: dict[str, Callable[[], Any]]) -> dict[str, list[Any]]:
        rng = random.Random(self.seed)
        samples: dict[str, list[Any]] = {name: [] for name in turns}
        for number in range(self.repetitions):
            for name in rng.sample(list(turns), len(turns)):
                samples[name].append(self._undisturbed(turns[name]))
            print(f"  {number + 1}/{self.repetitions}", end="\r", file=sys.stderr, flush=True)
        return samples

    def _undisturbed(self, turn: Callable[[], Any]) -> Any:
        """Again while others use the machine: decided by what they used, never by the result."""
        for discarded in range(1 if self.quick else DISCARDED_MAX + 1):
            sample = turn()
            if not isinstance(sample, dict) or "foreign" not in sample:
                return sample
            sample["discarded"] = discarded
            if sample["foreign"] <= FOREIGN_MAX:
                break
        return sample


def disturbed(*samples: list[dict[str, Any]]) -> int:
    """How many were kept although others used the machine."""
    return sum(sample["foreign"] > FOREIGN_MAX for each in samples for sample in each)


def ratios(over: Iterable[float], under: Iterable[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def busy_s() -> float:
    """CPU seconds of everybody on this machine since it was started, the hypervisor's too."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(*roots: int) -> float:
    """CPU seconds of processes and of all they started, also of what has ended by now."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    ticks = 0
    for pid, own in used.items():
        above = pid
        while above not in roots and above in parents:
            above = parents[above]
        ticks += own if above in roots else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, Any]:
    """What this was measured on."""
    processor, memory = platform.machine(), 0
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory = int(line.split()[1]) * 1024
    return {
        "cpu": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "grpcio": _version("grpcio"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


Scenario = Callable[[Report, Effort], None]


def run_all(scenarios: dict[str, Scenario], effort: Effort, json_path: Path) -> int:
    """Run these one after the other, write the JSON; 1: a figure is below its floor."""
    report, about = Report(judged=not effort.quick), machine()
    began, date = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    how = "quick, sizes and figures mean nothing" if effort.quick else f"{effort.seconds:g} s each"
    print(f"{date}; {effort.repetitions} turns, {how}; load {os.getloadavg()[0]:.2f}")
    for name, scenario in scenarios.items():
        load, start = os.getloadavg()[0], time.monotonic()
        report.begin(name)
        scenario(report, effort)
        after, took = os.getloadavg()[0], time.monotonic() - start
        report.loads.append({"scenario": name, "before": load, "after": after, "seconds": took})
        report.write(  # after each, so that a failure later loses nothing
            json_path,
            date=date,
            machine=about,
            seconds=time.monotonic() - began,
            options={key: getattr(effort, key) for key in Effort.__slots__},
        )
    missed = [f for f in report.figures if f.goal and not f.disturbed and "NO" in f.verdict]
    failed = [figure for figure in report.figures if figure.failed]
    loads = ", ".join(f"{each['after']:.2f}" for each in report.loads)
    print(f"\n{time.monotonic() - began:.0f} s; load after each: {loads}")
    print(f"{len(report.figures)} figures, {len(missed)} goals missed, {len(failed)} below a floor")
    print(f"all samples: {json_path}")
    return 1 if failed else 0
