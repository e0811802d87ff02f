"""The contender every asynchronous rule is held against: a synchronous mean with a barrier.

All gradients are taken at one point and averaged, and one optimizer makes one step. A step takes as
long as the slowest node's, plus what the exchange takes: one delay, and the bytes of a ring's
all-reduce, 2 (n - 1) / n models out and in, over the narrowest link. That is the least any
all-reduce takes. As all replicas are the same, one is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from murmurate.core.layout import Layout
from murmurate.errors import ConfigError
from murmurate.study.sim.events import Events
from murmurate.study.virtual.links import VirtualLinks
from murmurate.study.virtual.task import Figures, VirtualTraining
from murmurate.training.recipes import RateSchedule
from murmurate.workloads import DataShare, parse_split
from murmurate.workloads.measuring import measured


class SynchronousMean:
    """All nodes of one run, in step. Implements `task.Engine`."""

    def __init__(self, task: VirtualTraining) -> None:
        if task.joins_s or task.leaves_s:
            raise ConfigError("synchronous: nobody comes or goes")
        if task.recipe.batch_warmup:
            raise ConfigError("synchronous: batches stay as large as they are")
        self.task = task
        self.events = Events()
        torch.manual_seed(task.seed)
        self.model = task.workload.model()
        self.optimizer = task.workload.optimizer(self.model)
        self._rates = RateSchedule(self.optimizer, task.recipe)
        self._batches = [self._batches_of(number) for number in range(task.nodes)]
        self._figures = [Figures(name) for name in task.names]
        nbytes = Layout.of(self.model)[0].nbytes
        self._exchanged = round(2 * (task.nodes - 1) / task.nodes * nbytes)
        links = VirtualLinks(task.network(), task.link_bytes_s, task.links_bytes_s)
        delay_s = max([task.delay_s, *task.delays_s.values()]) if task.nodes > 1 else 0.0
        self.compute_s = max(task.step_s(name) for name in task.names)
        self.step_s = self.compute_s + delay_s + links.slowest_s(self._exchanged, task.names)
        self.events.after(self.step_s, self._step)

    def _batches_of(self, number: int) -> Iterator[tuple[torch.Tensor, ...]]:
        task = self.task
        return task.workload.batches(
            DataShare(
                index=number,
                count=task.nodes,
                split=parse_split(task.split),
                seed=task.seed,
                batch_size=task.workload.batch_size,
            )
        )

    def _step(self) -> None:
        self._rates.at(self.task.part(self.samples(), self.events.time))
        self.optimizer.zero_grad()
        for figures, batches in zip(self._figures, self._batches, strict=True):
            loss = self.task.workload.loss(self.model, next(batches))
            (loss / self.task.nodes).backward()  # type: ignore[no-untyped-call]
            figures.loss = float(loss.detach())
            figures.steps += 1
            figures.samples += self.task.workload.batch_size
            figures.published += 1
            figures.bytes_sent += self._exchanged
            figures.wait_s += self.step_s - self.task.step_s(figures.name)
        self.optimizer.step()
        self.events.after(self.step_s, self._step)

    # -- for whoever watches -----------------------------------------------------------------------

    def figures(self) -> list[Figures]:
        return self._figures

    def samples(self) -> int:
        return sum(one.samples for one in self._figures)

    def kill(self, name: str) -> None:
        raise ConfigError(f"synchronous: without {name} all the others would wait for ever")

    def evaluate(self, *, validation: bool = False) -> Figures | None:
        found = measured(self.task.workload, copy.deepcopy(self.model), validation=validation)
        for one in self._figures:
            one.evaluated(found, validation=validation)
        return self._figures[0]

    def news(self) -> list[str]:
        return []

    def finish(self) -> dict[str, Any]:
        self.evaluate()
        for one in self._figures:
            one.state = "done"
        return {"replica_distance_max": 0.0}
