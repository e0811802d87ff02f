"""What a step and a fold cost on this machine, measured in a few seconds of training.

Two nodes and more of a small world in virtual time train by the code that nodes run; what its
steps and folds take is looked at with a real clock. Medians, so that a busy machine disturbs less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from murmurate.study.virtual.costs import Costs
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.node import VirtualNode
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads import Workload

NODES = 4
BATCHES = (1, 4)
"""Times the workload's own batch: two points make the line a + b × batch."""
STEPS = 12
"""Of each node; the first of them are left out."""
WARM = 3


class _TimedWorld(GossipWorld):
    """A world whose steps and folds are timed."""

    def __init__(self, task: VirtualTraining) -> None:
        self.steps_s: list[float] = []
        self.folds_s: list[float] = []
        super().__init__(task)

    def _step(self, node: VirtualNode) -> None:
        took_s = _timed(lambda: super(_TimedWorld, self)._step(node))
        if node.figures.steps > WARM:
            self.steps_s.append(took_s)

    def fold(self, node: VirtualNode) -> int:
        began = time.perf_counter()
        count = super().fold(node)
        if count and node.figures.steps > WARM:
            self.folds_s.append((time.perf_counter() - began) / count)
        return count


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def calibrate(workload: Workload, *, rule: str = "sum") -> Costs:
    """By one thread, as nodes on a shared machine have one each."""
    threads, batch_size = torch.get_num_threads(), workload.batch_size
    torch.set_num_threads(1)
    try:
        found = []
        folds_s: list[float] = []
        for times in BATCHES:
            workload.batch_size = times * batch_size
            world = _TimedWorld(VirtualTraining(workload=workload, nodes=NODES, rule=rule))
            world.events.run_until(float(STEPS))
            found.append(statistics.median(world.steps_s))
            folds_s += world.folds_s
    finally:
        workload.batch_size = batch_size
        torch.set_num_threads(threads)
    return line(
        (BATCHES[0] * batch_size, found[0]),
        (BATCHES[1] * batch_size, found[1]),
        fold_s=statistics.median(folds_s),
    )


def line(one: tuple[int, float], other: tuple[int, float], *, fold_s: float = 0.0) -> Costs:
    """a + b × batch through two points; a step costs no less than nothing before its samples."""
    sample_s = max(0.0, (other[1] - one[1]) / (other[0] - one[0]))
    step_s = one[1] - sample_s * one[0]
    if step_s < 0:
        step_s, sample_s = 0.0, one[1] / one[0]
    return Costs(step_s=step_s, sample_s=sample_s, fold_s=fold_s)
