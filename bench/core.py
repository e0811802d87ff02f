"""The core's costs: distance of two clocks, and a fold against the bare in-place add.

CPU time of one thread, so that other load on the machine counts less. Ratios are taken in one
interleaved run (A, B, A, B, …): median and spread of all samples.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from report import Effort, Goal, Report, Scenario, ratios

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


def distance(report: Report, effort: Effort) -> None:
    a, b, holes = clocks()
    assert a.distance(b) == 3 * ORIGINS
    pairs = 1 if effort.quick else PAIRS
    prefix = [timed(lambda: a.distance(b), 200) * 1e6 for _ in range(pairs)]
    holey = [timed(lambda: a.distance(holes), 50) * 1e6 for _ in range(pairs)]
    report.add("distance of two clocks, 64 origins", prefix, unit="µs")
    report.add("distance of two clocks, with holes", holey, unit="µs")
    report.add("clock on the wire", [len(a.to_bytes())], unit="B")
    report.keep("distance", {"prefix_us": prefix, "holes_us": holey})


def fold(report: Report, effort: Effort) -> None:
    """An update of 25 million parameters, against the bare add of as many."""
    torch.set_num_threads(1)
    parameters = 1_000_000 if effort.quick else PARAMETERS
    replica = Replica(torch.zeros(parameters), clocks()[0])
    payload = torch.full((parameters,), 1e-3)
    weights = torch.zeros(parameters)
    context = replica.context()
    adds, folds = [], []
    for seq in range(1, (2 if effort.quick else PAIRS) + 1):
        adds.append(timed(lambda: weights.add_(payload)) * 1e3)
        stamps = (Stamp(Dot("bench", 1, seq), context),)
        outcome: list[object] = []
        folds.append(timed(lambda s=stamps, o=outcome: o.append(replica.fold(s, payload))) * 1e3)
        assert isinstance(outcome[0], Fresh)
    assert torch.allclose(replica.weights, weights)  # it did what the bare add did
    report.add("bare in-place add, 100 MB", adds, unit="ms")
    report.add("fold, 100 MB", folds, unit="ms")
    report.add("fold / add", ratios(folds, adds), unit="x", goal=Goal(value=1.18, at_most=True))
    report.keep("fold", {"add_ms": adds, "fold_ms": folds})


def core(report: Report, effort: Effort) -> None:
    distance(report, effort)
    fold(report, effort)


SCENARIOS: dict[str, Scenario] = {"core": core}


if __name__ == "__main__":
    import run

    sys.exit(run.main(SCENARIOS, __doc__))
