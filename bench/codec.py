"""What codecs cost, and what they keep.

    python bench/codec.py [speeds [FILE.json]]        as ratios from one interleaved run
    python bench/codec.py accuracy [FILE.json]        accuracy and bytes of whole swarms
    python bench/codec.py virtual [FILE.json]         the same in virtual time: the same schedule

Speeds: 100 MB of fp32, one thread, CPU time; A, B, A, B …, medians, and the spread of the single
ratios. Each pair is checked for having done the same. Contenders write into memory they have.

Accuracy: `murmurate up` with 4 nodes, one run for each codec, workload and seed, all with the same
budget of samples; bytes are those of all nodes together, with everything that is sent, and per
sample. Codecs take turns, so that a machine that gets slower does so for all.

Virtual: the same with `--virtual`: who steps when, and when an update arrives, is the same for all
codecs of a seed, whatever else this machine does. What is left is what the codec does; a run of
real processes is never the same twice, and differs by more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from murmurate.core.codecs.choice import Choice, parse_codec
from murmurate.core.codecs.codec import Encoded, Encoder
from murmurate.edge.runtime.malloc import keep_memory
from murmurate.errors import ConfigError

ELEMENTS = 25_000_000
PAIRS = 11
PART = 0.01
GOALS = {
    "bf16 encode / memcpy": 0.8,
    "int8 encode / memcpy": 0.3,
    "top-k 1 % / torch.topk": 10.0,
    "axpy / copy_": 0.85,
    "bf16 decode and apply / axpy": 0.6,
}
CODECS = ("fp32", "bf16", "int8", "topk", "topk(0.01)")
BUDGETS = {"digits": 320_000, "fashion-mnist": 300_000}
SEEDS = {"digits": (0, 1, 2, 3, 4), "fashion-mnist": (0, 1, 2)}
DELAY_S = 1.0
"""In virtual time: steps of a node that an update is on its way."""
RUN_S = {False: 170, True: 7200}
"""Of real processes; in virtual time, which may be frozen for long."""


# -- speeds --------------------------------------------------------------------------------------


def timed(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def pairs(ours: Callable[[], object], theirs: Callable[[], object], count: int) -> dict[str, float]:
    """How many times as fast as the other one."""
    ours(), theirs()
    mine, others = [], []
    for _ in range(count):
        others.append(timed(theirs))
        mine.append(timed(ours))
    ratios = sorted(other / own for own, other in zip(mine, others, strict=True))
    return {
        "ours_ms": statistics.median(mine) * 1e3,
        "theirs_ms": statistics.median(others) * 1e3,
        "ratio": statistics.median(others) / statistics.median(mine),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
    }


def speeds() -> dict[str, dict[str, float]]:
    keep_memory()
    torch.set_num_threads(1)
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0)) * 1e-3
    copy, sizes = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    weights, plain = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    encoders = {name: Encoder(Choice(name, PART), ELEMENTS) for name in ("bf16", "int8", "topk")}
    forms: dict[str, Encoded] = {}
    wanted = int(PART * ELEMENTS)

    def encode(name: str) -> Callable[[], object]:
        def act() -> None:
            forms[name] = encoders[name].encode(values)

        return act

    def apply(name: str) -> Callable[[], object]:
        return lambda: forms[name].add_to(weights)

    def memcpy() -> None:
        copy.copy_(values)

    def axpy() -> None:
        plain.add_(values)

    def topk() -> None:
        torch.abs(values, out=sizes)
        torch.topk(sizes, wanted, sorted=False)

    out = {
        "axpy / copy_": pairs(axpy, memcpy, PAIRS),
        "bf16 encode / memcpy": pairs(encode("bf16"), memcpy, PAIRS),
        "int8 encode / memcpy": pairs(encode("int8"), memcpy, PAIRS),
        "top-k 1 % / torch.topk": pairs(encode("topk"), topk, PAIRS),
        "bf16 decode and apply / axpy": pairs(apply("bf16"), axpy, PAIRS),
        "int8 decode and apply / axpy": pairs(apply("int8"), axpy, PAIRS),
        "top-k decode and apply / axpy": pairs(apply("topk"), axpy, PAIRS),
    }
    norm = torch.linalg.vector_norm(values)
    assert torch.equal(copy, values)
    assert torch.equal(forms["bf16"].decoded(), values.to(torch.bfloat16).float())
    assert torch.linalg.vector_norm(forms["int8"].decoded() - values) < 0.01 * norm
    sent = forms["topk"].decoded()
    kept = sent != 0
    assert 0.5 * wanted <= int(kept.sum()) <= 1.5 * wanted
    assert values[kept].abs().min() >= values[~kept].abs().max()  # the largest, as topk
    assert ((sent - values)[kept].abs() <= values[kept].abs() / 16).all()
    return out


def show_speeds(found: dict[str, dict[str, float]]) -> None:
    print(f"{'100 MB, one thread':32} {'ours':>9} {'theirs':>9} {'ratio':>7}  {'spread':13} goal")
    for what, row in found.items():
        goal = f"≥ {GOALS[what]:g}" if what in GOALS else ""
        print(
            f"{what:32} {row['ours_ms']:6.1f} ms {row['theirs_ms']:6.1f} ms {row['ratio']:6.2f}x"
            f"  {row['ratio_min']:.2f} – {row['ratio_max']:.2f}".ljust(82)
            + f" {goal}"
        )


# -- accuracy against bytes ----------------------------------------------------------------------


def swarm(options: argparse.Namespace, workload: str, codec: str, seed: int) -> dict[str, Any]:
    virtual = options.what == "virtual"
    samples = options.samples or BUDGETS[workload]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        words = ["up", f"--nodes={options.nodes}", f"--workload={workload}", f"--seed={seed}"]
        words += [f"--codec={codec}", f"--samples={samples}", f"--report={file}"]
        words += [f"--lr={options.lr}"] if options.lr else []
        words += ["--virtual", f"--delay-s={DELAY_S}"] if virtual else []
        command = [sys.executable, "-m", "murmurate", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=RUN_S[virtual])
        report = json.loads(file.read_text())
    rows = report["nodes"]
    tensors: Counter[str] = Counter()
    for row in rows:
        tensors.update(row["bytes_by_codec"])
    return {
        "workload": workload,
        "codec": codec,
        "seed": seed,
        "accuracy": report["accuracy_mean"],
        "samples": report["samples"],
        "bytes": sum(row["bytes_sent"] for row in rows),
        "bytes_by_codec": dict(tensors),
        "updates": sum(row["updates_published"] for row in rows),
        "staleness": report["staleness"]["mean"],
        "replica_distance_max": report["replica_distance_max"],
        "wall_s": report["wall_s"],
    }


def accuracy(options: argparse.Namespace) -> list[dict[str, Any]]:
    def run(job: tuple[str, int, str]) -> dict[str, Any]:
        workload, seed, codec = job
        found = swarm(options, workload, codec, seed)
        print(
            f"  {workload} {codec} seed {seed}: {found['accuracy']:.2%},"
            f" {found['bytes'] / 1e6:.2f} MB, {found['updates']} updates",
            file=sys.stderr,
            flush=True,
        )
        return found

    jobs = [
        (workload, seed, codec)
        for workload in options.workload or BUDGETS
        for seed in (range(options.seeds) if options.seeds else SEEDS[workload])
        for codec in dict.fromkeys(["fp32", *(options.codec or CODECS)])  # all are held against it
    ]
    # Real processes want the machine for themselves; virtual time is the same beside others.
    at_once = options.jobs if options.what == "virtual" else 1
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(run, jobs))


def against(right: list[float], plain: list[float]) -> str:
    """The mean of the differences, seed by seed, and its standard error."""
    off = [one - other for one, other in zip(right, plain, strict=True)]
    error = statistics.stdev(off) / len(off) ** 0.5 if len(off) > 1 else 0.0
    return f"{statistics.fmean(off):+.2f} ± {error:.2f}" if right is not plain else ""


def show_accuracy(runs: list[dict[str, Any]]) -> None:
    print(
        "| workload | codec | accuracy | spread | against fp32 | MB sent | fp32 / codec |"
        " bytes per sample | bytes per update | updates |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for workload in dict.fromkeys(run["workload"] for run in runs):
        plain: list[float] = []
        plain_per_sample = 0.0
        for codec in dict.fromkeys(run["codec"] for run in runs):
            these = [r for r in runs if (r["workload"], r["codec"]) == (workload, codec)]
            right = [100 * run["accuracy"] for run in these]
            sent = sum(run["bytes"] for run in these)
            samples = sum(run["samples"] for run in these)
            updates = sum(run["updates"] for run in these)
            tensors = sum(sum(run["bytes_by_codec"].values()) for run in these)
            if not plain:
                plain, plain_per_sample = right, sent / samples
            print(
                f"| {workload} | {codec} | {statistics.fmean(right):.2f}"
                f" | {min(right):.2f} – {max(right):.2f}"
                f" | {against(right, plain)} | {sent / len(these) / 1e6:.2f}"
                f" | {plain_per_sample / (sent / samples):.1f} | {sent / samples:.2f}"
                f" | {tensors / updates:,.0f} | {updates // len(these):,} |"
            )


def codec(text: str) -> str:
    """As it stands, if there is one."""
    try:
        parse_codec(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    what = ("speeds", "accuracy", "virtual")
    parser.add_argument("what", nargs="?", default="speeds", choices=what)
    parser.add_argument("file", nargs="?", help="JSON file for all samples")
    parser.add_argument("--workload", action="append", choices=tuple(BUDGETS))
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seeds", type=int, help="so many; default: 5 of digits, 3 of the other")
    parser.add_argument("--samples", type=int, help=f"default: {BUDGETS}")
    parser.add_argument("--lr", type=float, help="default: the workload's own")
    parser.add_argument(
        "--codec",
        action="append",
        type=codec,
        help=f"besides fp32; default: {', '.join(CODECS[1:])}",
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, in virtual time")
    options = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{machine}, torch {torch.__version__}", file=sys.stderr)
    result: Any
    if options.what == "speeds":
        result = speeds()
        show_speeds(result)
    else:
        result = accuracy(options)
        show_accuracy(result)
    if options.file:
        Path(options.file).write_text(json.dumps({"machine": machine, "found": result}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
