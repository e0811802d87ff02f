"""Test accuracy over time, in real processes, against what users pick instead.

    make bench-race           (python bench/time_to_accuracy.py [--quick] [--only …] …)

Four peers train one model, each step padded to 50 ms, so that two cores hold all of them and the
machine is not what is measured. Every contender has the same initial weights, the same batches for
each peer, the optimizer and rate that were chosen for one node, and the same padding; a step begins
with its batch and ends when the optimizer's step is done, with all that a contender does in it.

alone      one process
ddp        DistributedDataParallel over gloo, started by torchrun
hivemind   its Optimizer with local updates; --tune tries its options on `equal` first and takes the
           best for all scenarios
flower     FedAvg, tuned likewise
murmurate  as it comes

equal      all alike
slow       one peer takes 500 ms for a step
killed     one peer is killed at a third of the time and comes back, as a new process that has
           imported everything, at two thirds
link       each peer's link takes 100 Mbit/s, and a packet 20 ms from one to the other

Weights are written to disk with their time and evaluated when the race is over; a curve is the
mean over the peers that live. Peers are in network namespaces (which takes root), where the
kernel counts their bytes; without root they share loopback, and `link` is left out.
hivemind and Flower run in the environment of `make bench-peers`, where murmurate is not.

Each race is a line of bench/results/time_to_accuracy.jsonl, and is not run again (--again does).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(1, str(HERE.parent))  # tests.chaos.lab makes the networks

import peers  # noqa: E402
from peers import missing  # noqa: E402
from race import tuning  # noqa: E402
from race.conductor import Race  # noqa: E402
from race.contenders import CONTENDERS, SCENARIOS  # noqa: E402
from race.judge import Curve, at_end, reached  # noqa: E402
from race.picture import draw  # noqa: E402
from race.workloads import FASHION_MNIST, WORKLOADS  # noqa: E402
from report import FOREIGN_MAX, machine  # noqa: E402
from tests.chaos.lab import cannot_net  # noqa: E402

RESULTS = HERE / "results"
Line = dict[str, Any]


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # with all it has started
    peers.BIN = options.peers_venv / "bin"
    if not FASHION_MNIST.is_dir() and "lenet5" in options.workloads:
        print("FashionMNIST is not there: apt-get install dataset-fashion-mnist", file=sys.stderr)
        return 2
    left_out = {name: problem for name in CONTENDERS if (problem := absent(name))}
    for name, problem in left_out.items():
        print(f"left out: {name}: {problem}")
    if problem := cannot_net():
        print(f"left out: link: {problem}; bytes are loopback's, shared out equally")
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    lines = read(options.out)
    able = [name for name in options.contenders if name not in left_out]
    for workload in options.workloads:
        if options.tune:
            tune(workload, [name for name in able if name in tuning.CANDIDATES], lines, options)
        for scenario, contender, seed in chosen(able, options):
            if scenario == "link" and cannot_net():
                continue
            key = identity(workload, scenario, contender, seed, options.seconds)
            wanted = tuning.chosen(lines, workload, contender, options.seconds)
            known = lines.get(key)
            if options.again or known is None or known["options"] != wanted:
                run(key, scenario, wanted, options.seconds, lines, options)
    for workload in options.workloads:
        summary(workload, lines, options)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="of training in a race")
    parser.add_argument("--quick", action="store_true", help="10 s: only to see that it runs")
    parser.add_argument("--only", default="", help="contenders and scenarios, with commas")
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--tune", action="store_true", help="try settings of others first")
    parser.add_argument("--keep", type=Path, help="a folder that keeps logs and weights")
    parser.add_argument("--peers-venv", type=Path, default=HERE.parent / ".venv-peers")
    parser.add_argument("--out", type=Path, default=RESULTS / "time_to_accuracy.jsonl")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 10.0
    options.workloads = list(WORKLOADS) if options.workload == "all" else [options.workload]
    words = [word for word in options.only.split(",") if word]
    if unknown := [word for word in words if word not in (*CONTENDERS, *SCENARIOS)]:
        parser.error(f"{unknown[0]!r}: expected {', '.join((*CONTENDERS, *SCENARIOS))}")
    options.contenders = [name for name in CONTENDERS if name in words] or list(CONTENDERS)
    options.scenarios = [name for name in SCENARIOS if name in words] or list(SCENARIOS)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return options


def absent(contender: str) -> str:
    package = CONTENDERS[contender].package
    return missing(package) if package else ""


def chosen(able: list[str], options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Seed after seed, so that what is there early is whole; alone is the same in all scenarios."""
    for seed in range(options.seeds):
        for scenario in options.scenarios:
            for contender in able:
                if contender != "alone":
                    yield scenario, contender, seed
                elif scenario == options.scenarios[0]:
                    yield "equal", contender, seed


def tune(
    workload: str, contenders: list[str], lines: dict[str, Line], options: argparse.Namespace
) -> None:
    """Try what was not tried yet."""
    for contender in contenders:
        for number, wanted in enumerate(tuning.candidates(contender, workload)):
            key = tuning.key(workload, contender, options.seconds, number)
            if key not in lines or lines[key]["options"] != wanted or options.again:
                print(f"  {contender}: {wanted}")
                run(key, "equal", wanted, options.seconds / 2, lines, options)


def identity(workload: str, scenario: str, contender: str, seed: int, seconds: float) -> str:
    return f"{workload}/{scenario}/{contender}/{seconds:g} s/{seed}"


def read(path: Path) -> dict[str, Line]:
    """Races that were run before; of several of one kind the last."""
    if not path.exists():
        return {}
    return {line["key"]: line for line in map(json.loads, path.read_text().splitlines())}


def run(
    key: str,
    scenario: str,
    wanted: dict[str, Any],
    seconds: float,
    lines: dict[str, Line],
    options: argparse.Namespace,
) -> None:
    """One race, which becomes a line. One that fails is told, and run again next time; a setting
    with which it fails is no good one, and not tried again."""
    workload, where, contender, _, seed = key.split("/")
    tried = where == tuning.SCENARIO
    line: Line = {"key": key, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    line |= {"load": os.getloadavg()[0], "options": wanted}
    try:
        line |= Race(
            contender,
            scenario,
            workload=workload,
            seconds=seconds,
            seed=0 if tried else int(seed),
            peers_python=options.peers_venv / "bin" / "python",
            options=wanted,
            keep=options.keep / key.replace("/", "-") if options.keep else None,
            quick=options.quick,
        ).run()
    except AssertionError as error:
        print(f"  {key}: failed: {error}", flush=True)
        if not tried:
            return
    lines[key] = line
    with options.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    if "curve" in line:
        end = f"{at_end(line['curve']):6.1%} at the end"
        print(f"  {key}: {end}, load before {line['load']:.1f}", flush=True)


# -- what came out ---------------------------------------------------------------------------------


def mean_curve(curves: list[Curve]) -> Curve:
    return [
        (points[0][0], sum(value for _, value in points) / len(points))
        for points in zip(*curves, strict=True)
    ]


def summary(workload: str, lines: dict[str, Line], options: argparse.Namespace) -> None:
    """A table for each scenario, and the picture."""
    found: dict[tuple[str, str], list[Line]] = {}
    for scenario in options.scenarios:
        for contender in options.contenders:
            where = "equal" if contender == "alone" else scenario
            keys = [
                identity(workload, where, contender, seed, options.seconds)
                for seed in range(options.seeds)
            ]
            if some := [lines[key] for key in keys if key in lines]:
                found[scenario, contender] = some
    if not found:
        return
    curves = {key: mean_curve([line["curve"] for line in some]) for key, some in found.items()}
    print(
        f"\n{workload}: {WORKLOADS[workload].tuned}; {options.seconds:g} s, {options.seeds} seed(s)"
    )
    for contender in options.contenders:
        settings = tuning.told(lines, workload, contender, options.seconds)
        print(f"  {CONTENDERS[contender].title}: {settings}")
    for scenario in options.scenarios:
        table(scenario, found, curves)
    heading = f"{HEADINGS[workload]}, {WORKLOADS[workload].tuned}"
    path = options.out.with_name(f"{options.out.stem}.{workload}.png")
    try:
        draw(curves, heading, path)
    except ImportError as error:
        print(f"no picture: {error} (the extra `lab` has matplotlib)")
    else:
        print(f"\npicture: {path}")


HEADINGS = {"lenet5": "LeNet-5 on FashionMNIST", "text": "A small transformer on text"}


def table(
    scenario: str,
    found: dict[tuple[str, str], list[Line]],
    curves: dict[tuple[str, str], Curve],
) -> None:
    print(f"\n{scenario}: {SCENARIOS[scenario]}")
    print(
        f"  {'':14} {'at the end':>10} {'spread':>13} {'as alone':>15} {'steps of all':>12}"
        f" {'MB a node':>10} {'KB a step':>10}  {'machine':}"
    )
    alone = curves.get((scenario, "alone"))
    for (where, contender), some in found.items():
        if where != scenario:
            continue
        curve = curves[where, contender]
        ends = [at_end(line["curve"]) for line in some]
        spread = f"{min(ends):.1%}-{max(ends):.1%}" if len(ends) > 1 else ""
        when = reached(curve, at_end(alone)) if alone else None
        steps = sum(sum(line["steps"]) for line in some) / len(some)
        sent = sum(sum(line["bytes_sent"]) for line in some) / len(some)
        nodes = len(some[0]["bytes_sent"])
        foreign = max(line["foreign"] for line in some)
        print(
            f"  {CONTENDERS[contender].title:14} {at_end(curve):10.1%} {spread:>13}"
            f" {f'{when:.1f} s' if when is not None else 'not':>15} {steps:12.0f}"
            f" {sent / nodes / 1e6:10.1f} {sent / max(steps, 1) / 1e3:10.1f}"
            f"  {f'others had {foreign:.0%}' if foreign > FOREIGN_MAX else 'calm'}"
        )


if __name__ == "__main__":
    sys.exit(main())
