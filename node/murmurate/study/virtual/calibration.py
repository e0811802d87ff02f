"""What a step, a fold and a message cost on this machine, measured in a few seconds of training.

Two nodes and more of a small world in virtual time train by the code that nodes run; what their
steps and folds take of the processor is looked at. A message is looked at between two real nodes of
this process. Processor time and medians, so that a busy machine disturbs less; what a step waits
for (a disk) is not in it.
"""

from __future__ import annotations

import logging
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from murmurate.study.virtual.costs import Costs
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.node import VirtualNode
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads import Workload

if TYPE_CHECKING:
    from murmurate import Swarm

NODES = 4
BATCHES = (1, 4)
"""Times the workload's own batch: two points make the line a + b × batch."""
STEPS = 12
"""Of each node; the first of them are left out."""
WARM = 3
LIMIT_S = 30.0
TURNS, TURN_S, PAUSE_S = 5, 0.3, 0.002
"""Messages are looked at in so many turns, so long; between two is a pause, as a step would be."""


class _TimedWorld(GossipWorld):
    """A world whose steps and folds are timed."""

    def __init__(self, task: VirtualTraining) -> None:
        self.steps_s: list[float] = []
        self.folds_s: list[float] = []
        self._began_s = 0.0
        super().__init__(task)

    def _step(self, node: VirtualNode) -> None:
        self._began_s = time.thread_time()
        super()._step(node)

    def published(self, node: VirtualNode) -> None:
        """A step ends with its update, which is made of it and written down."""
        super().published(node)
        if node.figures.steps > WARM:
            self.steps_s.append(time.thread_time() - self._began_s)

    def fold(self, node: VirtualNode) -> int:
        began = time.thread_time()
        count = super().fold(node)
        if count and node.figures.steps > WARM:
            self.folds_s.append((time.thread_time() - began) / count)
        return count


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


def message_s(workload: Workload) -> float:
    """Processor time of all threads but training's for a message with an update, both ends of it.

    One of two nodes publishes, the other folds; nothing is trained.
    """
    import murmurate

    log = logging.getLogger("murmurate")
    threads, level = torch.get_num_threads(), log.level
    log.setLevel(logging.ERROR)  # what it would say is meant for whoever trains
    torch.set_num_threads(1)
    run = f"calibration-{secrets.token_hex(4)}"
    nodes: list[Swarm] = []
    try:
        optimizers = []
        for name in ("sends", "takes"):
            model = workload.model()
            optimizers.append(torch.optim.SGD(model.parameters(), lr=1e-9))
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            nodes.append(
                murmurate.join(
                    model,
                    optimizers[-1],
                    run=run,
                    name=name,
                    rule="sum",
                    seed=0,
                    peers=[node.address for node in nodes],
                )
            )
        one, other = nodes
        one.follow(lambda: len(one.members) == len(other.members) == 2, LIMIT_S)
        nbytes = sum(4 * p.numel() for group in optimizers[0].param_groups for p in group["params"])
        found = []
        for _ in range(TURNS):
            quiet_s, _ = _others(nodes, lambda: None)
            sent = one.progress().bytes_sent
            took_s, turns = _others(nodes, optimizers[0].step)
            messages = (one.progress().bytes_sent - sent) / nbytes
            if messages >= 1:
                found.append(max(0.0, took_s - quiet_s) * turns / messages)
        return float(statistics.median(found)) if found else 0.0
    finally:
        for node in nodes:
            node.leave(0.0)
        log.setLevel(level)
        torch.set_num_threads(threads)


def _others(nodes: Sequence[Swarm], step: Callable[[], object]) -> tuple[float, int]:
    """A turn of this step: processor time of all threads but this one for each, and how many."""
    began_s = time.process_time() - time.thread_time()
    until, turns = time.monotonic() + TURN_S, 0
    while time.monotonic() < until:
        step()
        for node in nodes:
            node.follow(lambda: True, 0.0)
        time.sleep(PAUSE_S)
        turns += 1
    return (time.process_time() - time.thread_time() - began_s) / turns, turns


def line(one: tuple[int, float], other: tuple[int, float], *, fold_s: float = 0.0) -> Costs:
    """a + b × batch through two points; a step costs no less than nothing before its samples."""
    sample_s = max(0.0, (other[1] - one[1]) / (other[0] - one[0]))
    step_s = one[1] - sample_s * one[0]
    if step_s < 0:
        step_s, sample_s = 0.0, one[1] / one[0]
    return Costs(step_s=step_s, sample_s=sample_s, fold_s=fold_s)
