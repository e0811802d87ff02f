"""Training with murmurate against the alternatives: speed, stragglers, latency, memory, start.

Each turn is of fresh processes, and asserts that what was published has been applied by everyone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contenders
import latency as latency_of
import memory as memory_of
from crew import Shared, Task
from report import Effort, Goal, Report, Scenario, disturbed, ratios

SLOW_S = 0.09
MODEL_BYTES = (250_000, 40_000_000, 100_000_000)
HUGE_BYTES = 500_000_000
"""Only if it is asked for (`--size '500 MB'`): minutes, and 9 GiB."""
LARGE_BYTES = 100_000_000
"""Of a smaller model the imports are a large part."""


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
    report.keep(title, samples)
    for name, each in samples.items():
        report.add(f"{title}: {name}", total(each), unit="1/s")
        report.add(f"{title}: {name}, CPU", (s["cpu_ms_per_step"] for s in each), unit="ms")
    mine = total(samples["murmurate"])
    for name, goal in goals.items():
        report.add(
            f"{title}: murmurate / {name}",
            ratios(mine, total(samples[name])),
            goal=Goal(value=goal),
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
        goal=Goal(
            value=0.95
        ),  # without room a step is published with the next: speed must not come from it
        unit="x",
        disturbed=disturbed(samples["murmurate"]),
    )
    # Messages may wait for company: what that saves is paid in staleness.
    for key in ("updates_per_message", "staleness"):
        values = [rank[key] for sample in samples["murmurate"] for rank in sample["ranks"]]
        report.add(f"{title}: {key.replace('_', ' ')}", values)
    again = sum(sample["discarded"] for each in samples.values() for sample in each)
    report.remark(f"{again} turns were done again: others used the machine")


def pair(report: Report, effort: Effort) -> None:
    goals = {"isolated": 0.85, "ddp": 1.3, "hogwild": 0.85}
    against(report, effort, "2 nodes, batch 64", nodes=2, batch=64, goals=goals)


def pair128(report: Report, effort: Effort) -> None:
    against(report, effort, "2 nodes, batch 128", nodes=2, batch=128, goals={"isolated": 0.9})


def four(report: Report, effort: Effort) -> None:
    goals = {"isolated": 0.7, "ddp": 1.15}
    against(report, effort, "4 nodes, batch 64", nodes=4, batch=64, goals=goals)


def by_default(report: Report, effort: Effort) -> None:
    """`join` as it comes, against processes that do not communicate."""
    for nodes, goal in ((2, 0.97), (4, 0.95)):

        def turn(contender: str, nodes: int = nodes) -> Callable[[], Any]:
            return lambda: contenders.repetition(
                Task(contender=contender, nodes=nodes, batch=64, seconds=effort.seconds)
            )

        title = f"{nodes} nodes, batch 64, rule shared"
        samples = effort.interleaved({name: turn(name) for name in ("default", "isolated")})
        report.keep(title, samples)
        mine, silent = samples["default"], samples["isolated"]
        report.add(
            f"{title}: default / isolated",
            ratios(total(mine), total(silent)),
            goal=Goal(value=goal),
            unit="x",
            disturbed=disturbed(mine, silent),
        )
        report.add(
            f"{title}: the same in CPU time",
            ratios([s["cpu_ms_per_step"] for s in silent], [s["cpu_ms_per_step"] for s in mine]),
            unit="x",
        )
        steps = [rank["made"] / rank["published"] for sample in mine for rank in sample["ranks"]]
        report.add(f"{title}: steps per update", steps)


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
    report.keep("straggler", samples)
    for name, each in samples.items():
        report.add(name, total(each), unit="1/s")
    fast = [sample["ranks"][0]["samples_per_s"] for sample in samples["murmurate"]]
    report.add(
        "fast one / alone",
        ratios(fast, total(samples["alone"])),
        goal=Goal(value=0.8),
        unit="x",
        disturbed=disturbed(samples["murmurate"], samples["alone"]),
    )
    report.add(
        "murmurate / ddp",
        ratios(total(samples["murmurate"]), total(samples["ddp"])),
        goal=Goal(value=5.0),
        unit="x",
        disturbed=disturbed(samples["murmurate"], samples["ddp"]),
    )


def latency(report: Report, effort: Effort) -> None:
    samples = effort.interleaved(
        {"latency": lambda: latency_of.repetition(Shared(Task(contender="murmurate")))}
    )
    report.keep("latency", samples)
    for key, goal in (
        ("p50_ms", Goal(value=10.0, at_most=True)),
        ("p99_ms", None),
        ("max_ms", None),
    ):
        values = [sample[key] for sample in samples["latency"]]
        report.add(f"hook to applied: {key.removesuffix('_ms')}", values, goal=goal, unit="ms")


def memory(report: Report, effort: Effort) -> None:
    """Above `import torch`; memory varies little, so a few repetitions are enough."""
    few = effort.few(3)
    sizes = MODEL_BYTES[:1] if effort.quick else MODEL_BYTES
    if effort.size:
        every = (*MODEL_BYTES, HUGE_BYTES)
        sizes = tuple(size for size in every if f"{size / 1e6:g} MB" == effort.size)
    for size in sizes:
        samples = few.interleaved({"memory": lambda size=size: memory_of.repetition(size)})
        title = f"{size / 1e6:g} MB model"
        report.keep(title, samples)
        each = samples["memory"]
        goal = Goal(value=4 * each[0]["model_mib"] + 64, at_most=True)
        report.add(f"{title}: without murmurate", (s["alone_mib"] for s in each), unit="MiB")
        report.add(f"{title}: node", (s["extra_mib"] for s in each), goal=goal, unit="MiB")
        report.add(f"{title}: in models", (s["extra_models"] for s in each), unit="x")
        for narrow, where in ((False, ""), (True, ", as on narrow links")):
            shared = f"{title}, rule shared, momentum{where}"
            samples = few.interleaved(
                {
                    "memory": lambda size=size, narrow=narrow: memory_of.repetition(
                        size, "shared", 0.9, narrow=narrow
                    )
                }
            )
            report.keep(shared, samples)
            beside = [sample["beside_models"] for sample in samples["memory"]]
            goal = Goal(value=5.0, at_most=True) if size >= LARGE_BYTES else None
            report.add(f"{shared}: models beside torch's own", beside, goal=goal, unit="x")


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
    report.keep("start", samples)
    for name, values in samples.items():
        report.add(name, values, goal=Goal(value=0.5, at_most=True), unit="s")


SCENARIOS: dict[str, Scenario] = {
    "pair": pair,
    "pair128": pair128,
    "default": by_default,
    "four": four,
    "straggler": straggler,
    "latency": latency,
    "memory": memory,
    "start": start,
}


if __name__ == "__main__":
    import run

    sys.exit(run.main(SCENARIOS, __doc__))
