"""The core's costs: distance of two clocks, and a fold against the bare in-place add.

    make bench

CPU time of one thread, so that other load on the machine counts less. Ratios are taken in one
interleaved run (A, B, A, B, …): median and spread of all samples.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Stamp
from murmurate.core.replica import Fresh, Replica

ORIGINS = 64
PARAMETERS = 25_000_000
PAIRS = 15


def clocks() -> tuple[Clock, Clock, Clock]:
    """Two all-prefix clocks that differ everywhere, and one with holes."""
    a, b, holes = Clock(), Clock(), Clock()
    for i in range(ORIGINS):
        for seq in range(1, 101 + i):
            a.add(Dot(f"node-{i}", 1, seq))
            if seq < 98 + i:
                b.add(Dot(f"node-{i}", 1, seq))
            if seq % 17:
                holes.add(Dot(f"node-{i}", 1, seq))
    return a, b, holes


def timed(act: Callable[[], object], times: int = 1) -> float:
    start = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - start) / times


def distance_s() -> dict[str, float]:
    a, b, holes = clocks()
    assert a.distance(b) == 3 * ORIGINS
    prefix = [timed(lambda: a.distance(b), 200) for _ in range(PAIRS)]
    holey = [timed(lambda: a.distance(holes), 50) for _ in range(PAIRS)]
    return {
        "distance_us_median": statistics.median(prefix) * 1e6,
        "distance_with_holes_us_median": statistics.median(holey) * 1e6,
        "clock_bytes": len(a.to_bytes()),
    }


def fold_ratio() -> dict[str, float]:
    torch.set_num_threads(1)
    replica = Replica(torch.zeros(PARAMETERS), clocks()[0])
    payload = torch.full((PARAMETERS,), 1e-3)
    weights = torch.zeros(PARAMETERS)
    context = replica.context()
    adds, folds = [], []
    for seq in range(1, PAIRS + 1):
        adds.append(timed(lambda: weights.add_(payload)))
        stamps = (Stamp(Dot("bench", 1, seq), context),)
        outcome: list[object] = []
        folds.append(timed(lambda s=stamps, o=outcome: o.append(replica.fold(s, payload))))
        assert isinstance(outcome[0], Fresh)
    assert torch.allclose(replica.weights, weights)  # it did what the bare add did
    ratios = [fold / add for fold, add in zip(folds, adds, strict=True)]
    return {
        "add_ms_median": statistics.median(adds) * 1e3,
        "fold_ms_median": statistics.median(folds) * 1e3,
        "fold_over_add_median": statistics.median(folds) / statistics.median(adds),
        "fold_over_add_min": min(ratios),
        "fold_over_add_max": max(ratios),
    }


def main() -> int:
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "torch": torch.__version__,
        **distance_s(),
        **fold_ratio(),
    }
    for key, value in result.items():
        print(f"{key:32} {value if isinstance(value, str) else f'{value:.3g}'}")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(result, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
