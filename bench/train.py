"""Training with murmurate against the alternatives: speed, stragglers, latency, memory, start.

    python bench/train.py [pair pair128 four straggler latency memory start]
                          [--repetitions 7] [--seconds 4] [--json FILE]

Contenders take turns in a shuffled order, each turn in fresh processes. Every repetition asserts
that what was published has been applied by everyone. A repetition during which others used more
than 5 % of the machine is done again, whatever its result. A figure is the median of the ratios of
turns next to each other; behind it the smallest and the largest. All samples are in the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import contenders
import latency as latency_of
import memory as memory_of
import torch
from crew import Shared, Task

SLOW_S = 0.09
FOREIGN_MAX = 0.05
"""Of the machine, used by others during a repetition; beyond it the repetition is done again."""
DISCARDED_MAX = 6
"""Then it is kept, and what depends on it has no verdict."""
MODEL_BYTES = (250_000, 40_000_000, 100_000_000)


@dataclass(slots=True)
class Figure:
    """A measured value with its spread, and what it has to be."""

    what: str
    value: float
    low: float
    high: float
    goal: float | None = None
    at_most: bool = False
    unit: str = ""
    disturbed: int = 0
    """Repetitions in it during which others used the machine."""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        if self.disturbed:
            sign = "<=" if self.at_most else ">="
            return f"{sign} {self.goal:g} ? ({self.disturbed} disturbed)"
        good = self.value <= self.goal if self.at_most else self.value >= self.goal
        return f"{'<=' if self.at_most else '>='} {self.goal:g} {'yes' if good else 'NO'}"

    def __str__(self) -> str:
        spread = f"[{self.low:.3g} - {self.high:.3g}]"
        return f"{self.what:44} {self.value:9.3g} {self.unit:5} {spread:20} {self.verdict}"


@dataclass(slots=True)
class Report:
    figures: list[Figure] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)

    def add(self, what: str, values: Iterable[float], **goal: Any) -> None:
        values = list(values)
        figure = Figure(what, statistics.median(values), min(values), max(values), **goal)
        self.figures.append(figure)
        print(figure, flush=True)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often; the shuffling is seeded."""

    repetitions: int
    seconds: float
    seed: int = 0

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
        for discarded in range(DISCARDED_MAX + 1):
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


def ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def total(samples: list[dict[str, Any]]) -> list[float]:
    return [sample["samples_per_s"] for sample in samples]


def against(
    report: Report,
    effort: Effort,
    title: str,
    *,
    nodes: int,
    batch: int,
    goals: dict[str, float],
) -> None:
    """Samples per second of murmurate against each contender named in `goals`."""

    def turn(contender: str) -> Callable[[], Any]:
        return lambda: contenders.repetition(
            Task(contender=contender, nodes=nodes, batch=batch, seconds=effort.seconds)
        )

    samples = effort.interleaved({name: turn(name) for name in ("murmurate", *goals)})
    report.samples[title] = samples
    for name, each in samples.items():
        report.add(f"{title}: {name}", total(each), unit="1/s")
        report.add(f"{title}: {name}, CPU", (s["cpu_ms_per_step"] for s in each), unit="ms")
    mine = total(samples["murmurate"])
    for name, goal in goals.items():
        report.add(
            f"{title}: murmurate / {name}",
            ratios(mine, total(samples[name])),
            goal=goal,
            unit="x",
            disturbed=disturbed(samples["murmurate"], samples[name]),
        )
        report.add(
            f"{title}: the same in CPU time",
            ratios(
                [sample["cpu_ms_per_step"] for sample in samples[name]],
                [sample["cpu_ms_per_step"] for sample in samples["murmurate"]],
            ),
            unit="x",
        )
    report.add(
        f"{title}: updates per step",
        [
            rank["published"] / rank["made"]
            for sample in samples["murmurate"]
            for rank in sample["ranks"]
        ],
        goal=0.95,  # without room a step is published with the next: speed must not come from it
        unit="x",
        disturbed=disturbed(samples["murmurate"]),
    )
    # Messages may wait for company: what that saves is paid in staleness.
    for key in ("updates_per_message", "staleness"):
        values = [rank[key] for sample in samples["murmurate"] for rank in sample["ranks"]]
        report.add(f"{title}: {key.replace('_', ' ')}", values)
    again = sum(sample["discarded"] for each in samples.values() for sample in each)
    print(f"  {again} repetitions were done again: others used the machine")


def pair(report: Report, effort: Effort) -> None:
    goals = {"isolated": 0.85, "ddp": 1.3, "hogwild": 0.85}
    against(report, effort, "2 nodes, batch 64", nodes=2, batch=64, goals=goals)


def pair128(report: Report, effort: Effort) -> None:
    against(report, effort, "2 nodes, batch 128", nodes=2, batch=128, goals={"isolated": 0.9})


def four(report: Report, effort: Effort) -> None:
    goals = {"isolated": 0.7, "ddp": 1.15}
    against(report, effort, "4 nodes, batch 64", nodes=4, batch=64, goals=goals)


def straggler(report: Report, effort: Effort) -> None:
    """The second of two sleeps in every step; the first should not notice."""

    def turn(contender: str, nodes: int, *slow_s: float) -> Callable[[], Any]:
        return lambda: contenders.repetition(
            Task(contender=contender, nodes=nodes, seconds=effort.seconds, slow_s=slow_s)
        )

    samples = effort.interleaved(
        {
            "alone": turn("isolated", 1),
            "murmurate": turn("murmurate", 2, 0.0, SLOW_S),
            "ddp": turn("ddp", 2, 0.0, SLOW_S),
        }
    )
    report.samples["straggler"] = samples
    for name, each in samples.items():
        report.add(f"straggler: {name}", total(each), unit="1/s")
    fast = [sample["ranks"][0]["samples_per_s"] for sample in samples["murmurate"]]
    report.add(
        "straggler: fast one / alone",
        ratios(fast, total(samples["alone"])),
        goal=0.8,
        unit="x",
        disturbed=disturbed(samples["murmurate"], samples["alone"]),
    )
    report.add(
        "straggler: murmurate / ddp",
        ratios(total(samples["murmurate"]), total(samples["ddp"])),
        goal=5.0,
        unit="x",
        disturbed=disturbed(samples["murmurate"], samples["ddp"]),
    )


def latency(report: Report, effort: Effort) -> None:
    samples = effort.interleaved(
        {"latency": lambda: latency_of.repetition(Shared(Task(contender="murmurate")))}
    )
    report.samples["latency"] = samples
    for key, goal in (("p50_ms", 10.0), ("p99_ms", None), ("max_ms", None)):
        values = [sample[key] for sample in samples["latency"]]
        name = key.removesuffix("_ms")
        report.add(f"latency, hook to applied: {name}", values, goal=goal, at_most=True, unit="ms")


def memory(report: Report, effort: Effort) -> None:
    """Above `import torch`; memory varies little, so a few repetitions are enough."""
    few = Effort(min(effort.repetitions, 3), effort.seconds, effort.seed)
    for size in MODEL_BYTES:
        samples = few.interleaved({"memory": lambda size=size: memory_of.repetition(size)})
        title = f"memory, {size / 1e6:g} MB model"
        report.samples[title] = samples
        each = samples["memory"]
        goal = 4 * each[0]["model_mib"] + 64
        report.add(f"{title}: without murmurate", (s["alone_mib"] for s in each), unit="MiB")
        report.add(
            f"{title}: node", (s["extra_mib"] for s in each), goal=goal, at_most=True, unit="MiB"
        )
        report.add(f"{title}: in models", (s["extra_models"] for s in each), unit="x")


def start(report: Report, effort: Effort) -> None:
    """How long a person waits for the command line, and a script for the import."""

    def turn(*command: str) -> Callable[[], float]:
        def run() -> float:
            began = time.monotonic()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return time.monotonic() - began

        return run

    program = Path(sys.executable).with_name("murmurate")
    samples = effort.interleaved(
        {
            "import murmurate": turn(sys.executable, "-c", "import murmurate"),
            "murmurate --help": turn(str(program), "--help"),
        }
    )
    report.samples["start"] = samples
    for name, values in samples.items():
        report.add(f"start: {name}", values, goal=0.5, at_most=True, unit="s")


SCENARIOS: dict[str, Callable[[Report, Effort], None]] = {
    "pair": pair,
    "pair128": pair128,
    "four": four,
    "straggler": straggler,
    "latency": latency,
    "memory": memory,
    "start": start,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = options.scenarios or list(SCENARIOS)
    if unknown := [name for name in chosen if name not in SCENARIOS]:
        parser.error(f"{unknown[0]!r}: expected {', '.join(SCENARIOS)}")
    effort = Effort(options.repetitions, options.seconds, options.seed)
    report = Report()
    began = time.monotonic()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    loads = [os.getloadavg()[0]]
    print(f"{machine}; {effort.repetitions} repetitions of {effort.seconds:g} s; load {loads[0]}")
    for name in chosen:
        SCENARIOS[name](report, effort)
        loads.append(os.getloadavg()[0])
    print(f"{time.monotonic() - began:.0f} s; load {loads}")
    if options.json:
        figures = [
            {key: getattr(figure, key) for key in Figure.__slots__} for figure in report.figures
        ]
        options.json.write_text(
            json.dumps(
                {
                    "machine": machine,
                    "load": loads,
                    "figures": figures,
                    "samples": report.samples,
                },
                indent=1,
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
