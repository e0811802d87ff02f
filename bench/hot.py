"""Where the time of a LeNet-5 pair goes: samples of both nodes, per thread.

    make profile              (python bench/hot.py [--seconds 15] [--native])

py-spy looks at both processes from outside, 200 times a second, while they train with an update in
every step. Printed are the functions a thread was in when it was seen running, its own time first.
Written are bench/results/profile.txt (node 0: one line for each stack, as flamegraph tools read it)
and bench/results/profile.svg (node 1, a flamegraph).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import contenders
import crew
from crew import Shared, Task

RESULTS = Path(__file__).with_name("results")
RATE_HZ = 200
SHOWN = 12
PR_SET_PTRACER, ANYBODY = 0x59616D61, ctypes.c_ulong(-1)
OUT = ("profile.txt", "profile.svg")
WAITING = ("EpollSelector.select", "Condition.wait", "Thread.run")
"""The last function of a thread that has nothing to do (gRPC's polls without Python frames)."""


def watched(shared: Shared, rank: int) -> dict[str, Any]:
    """The usual node of `train.py pair`, with py-spy beside it while it trains."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)  # else only a parent may look
    kind = "flamegraph" if rank else "raw"
    command = [str(Path(sys.executable).with_name("py-spy")), "record", "--threads"]
    command += ["--rate", str(RATE_HZ), "--format", kind, "--output", str(RESULTS / OUT[rank])]
    command += ["--native"] if shared.task.extra["native"] else []
    command += ["--pid", str(os.getpid())]
    timed = crew.timed

    def spied(*arguments: Any, **options: Any) -> dict[str, float]:
        spy = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        result = timed(*arguments, **options)
        spy.send_signal(signal.SIGINT)
        _, problem = spy.communicate(timeout=60)
        assert spy.returncode == 0, problem
        return result

    crew.timed = spied
    return {**contenders.murmurate(shared, rank), "weights": None}


def tops(stacks: str) -> dict[str, tuple[int, Counter[str], Counter[str]]]:
    """Of each thread: samples, those of a function itself, and those of it and what it calls."""
    seen: Counter[str] = Counter()
    own: dict[str, Counter[str]] = defaultdict(Counter)
    under: dict[str, Counter[str]] = defaultdict(Counter)
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if not frames or frames[-1].partition(" ")[0] in WAITING:
            continue
        names = [frame.rpartition(":")[0] + ")" if ":" in frame else frame for frame in frames]
        seen[thread] += int(count)
        own[thread][names[-1]] += int(count)
        for name in set(names):
            under[thread][name] += int(count)
    return {thread: (n, own[thread], under[thread]) for thread, n in seen.most_common()}


def show(stacks: str) -> None:
    found = tops(stacks)
    total = sum(samples for samples, *_ in found.values())
    for thread, (samples, own, under) in found.items():
        if samples < 0.01 * total:
            continue
        print(f"\n{thread}: {samples / total:.1%} of the samples")
        print(f"  {'own':>6} {'all':>6}")
        for name, count in own.most_common(SHOWN):
            print(f"  {count / samples:6.1%} {under[name] / samples:6.1%} {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--native", action="store_true", help="C and C++ frames, too")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    task = Task(contender="murmurate", seconds=options.seconds, extra={"native": options.native})
    ranks = crew.run(watched, Shared(task))
    show((RESULTS / OUT[0]).read_text())
    print(f"\n{sum(rank['samples_per_s'] for rank in ranks):.0f} samples/s while being watched")
    print(f"stacks: {RESULTS / OUT[0]}\nflamegraph: {RESULTS / OUT[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
