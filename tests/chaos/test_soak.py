"""Minutes of ordinary training: memory does not grow, nor threads or open files."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.chaos.conftest import Figure, size
from tests.chaos.figures import slope
from tests.chaos.lab import Lab

NODES = 8
WARM_S, LOOK_S = 30.0, 2.0
SLOPE_MIB = 1.0


def test_nothing_grows(lab: Callable[..., Lab], figure: Figure) -> None:
    minutes = size("SOAK_MIN", 1, 10)
    here = lab(60 * minutes + 300)
    nodes = here.swarm(NODES, slow_s=size("SOAK_SLOW_S", 0.05, 0.05))
    here.rest(WARM_S)
    began = time.monotonic()
    memory: list[list[tuple[float, float]]] = [[] for _ in nodes]
    threads: list[list[int]] = [[] for _ in nodes]
    files: list[list[int]] = [[] for _ in nodes]
    while (now := time.monotonic()) < began + 60 * minutes:
        for i, node in enumerate(nodes):
            mib, running, opened = node.usage()
            memory[i].append((now / 60, mib))
            threads[i].append(running)
            files[i].append(opened)
        here.rest(LOOK_S)
    slopes = [slope(points) for points in memory]
    grown = [_late(counts) for counts in (*threads, *files)]
    updates = sum(line["mine"][1] for n in nodes if (line := n.last("steps")))
    figure(
        "soak",
        f"{NODES} nodes, {minutes:g} min, {updates:,} updates: memory"
        f" {min(slopes):+.2f} to {max(slopes):+.2f} MiB/min per node, now"
        f" {max(points[-1][1] for points in memory):.0f} MiB; threads"
        f" {min(map(min, threads))} to {max(map(max, threads))}, files"
        f" {min(map(min, files))} to {max(map(max, files))}",
        minutes=minutes,
        slopes_mib_per_min=slopes,
        memory_mib=[points[-1][1] for points in memory],
        threads=[(t[0], t[-1]) for t in threads],
        files=[(f[0], f[-1]) for f in files],
        updates=updates,
    )
    assert not here.broken()
    assert max(slopes) <= SLOPE_MIB
    assert max(grown) <= 0, "more threads or files at the end than at the beginning"


def _late(counts: list[int]) -> int:
    """How many more stay: the fewest of the last third less the most of the first. (gRPC's pool of
    threads takes one more when all are busy, and lets it go when it is idle for a while.)"""
    third = len(counts) // 3
    return min(counts[-third:]) - max(counts[:third])
