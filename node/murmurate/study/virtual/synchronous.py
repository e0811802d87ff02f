"""The contender every asynchronous rule is held against: a synchronous mean with a barrier.

All gradients are taken at one point and averaged, and one optimizer makes one step. A step takes as
long as the slowest node's, plus what the exchange takes: one delay, and the bytes of a ring's
all-reduce, 2 (n - 1) / n models out and in, over the narrowest link. That is the least any
all-reduce takes. As all replicas are the same, one is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from murmurate.core.layout import Layout
from murmurate.core.staleness import Summary
from murmurate.errors import ConfigError
from murmurate.study.sim.events import Events
from murmurate.study.virtual.kept import kept_whole
from murmurate.study.virtual.links import VirtualLinks
from murmurate.study.virtual.task import Figures, VirtualTraining
from murmurate.training.recipes import RateSchedule
from murmurate.workloads import DataShare, parse_split
from murmurate.workloads.measuring import measured

KILLED = "killed"


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
        self._pace = task.paces()
        self._figures = [Figures(name) for name in task.names]
        self._nbytes = Layout.of(self.model)[0].nbytes
        self._links = VirtualLinks(task.network(), task.link_bytes_s, task.links_bytes_s)
        self._group = 0
        """The number of this group; a step of an earlier one is not made."""
        self._form()

    @property
    def alive(self) -> list[Figures]:
        """Those who are in the group."""
        return [one for one in self._figures if one.state != KILLED]

    def _form(self) -> None:
        """A group of those who are there, and its next step."""
        task, names = self.task, [one.name for one in self.alive]
        count = len(names)
        self._group += 1
        if not names:
            return
        self._exchanged = round(2 * (count - 1) / count * self._nbytes)
        delays = [task.delay_s, *(task.delays_s.get(name, 0.0) for name in names)]
        delay_s = max(delays) if count > 1 else 0.0
        self._exchange_s = delay_s + self._links.slowest_s(self._exchanged, names)
        self._begin()

    def _begin(self) -> None:
        """The next step of all takes as long as the slowest one's."""
        self._took = {one.name: self._pace(one.name) for one in self.alive}
        self.compute_s = max(self._took.values())
        self.step_s = self.compute_s + self._exchange_s
        self.events.after(self.step_s, partial(self._step, self._group))

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

    def _step(self, group: int) -> None:
        if group != self._group:
            return  # one of it died meanwhile: the others make it anew
        alive = self.alive
        self._rates.at(self.task.part(self.samples(), self.events.time))
        self.optimizer.zero_grad()
        for figures, batches in zip(self._figures, self._batches, strict=True):
            if figures.state == KILLED:
                continue
            loss = self.task.workload.loss(self.model, next(batches))
            (loss / len(alive)).backward()  # type: ignore[no-untyped-call]
            figures.loss = float(loss.detach())
            figures.steps += 1
            figures.samples += self.task.workload.batch_size
            figures.published += 1
            figures.applied += len(alive)
            figures.staleness.merge(Summary([0] * len(alive)))  # nothing is stale here
            figures.bytes_sent += self._exchanged
            figures.wait_s += self.step_s - self._took[figures.name]
        self.optimizer.step()
        self._begin()

    # -- for whoever watches -----------------------------------------------------------------------

    def figures(self) -> list[Figures]:
        return self._figures

    def samples(self) -> int:
        return sum(one.samples for one in self._figures)

    def kill(self, name: str) -> None:
        """It breaks the step at hand, and the others make it without it."""
        for one in self.alive:
            if one.name == name:
                one.state = KILLED
                self._form()

    def evaluate(self, *, validation: bool = False) -> Figures | None:
        found = measured(self.task.workload, copy.deepcopy(self.model), validation=validation)
        for one in self.alive:
            one.evaluated(found, validation=validation)
        return self.alive[0] if self.alive else None

    def weights(self) -> tuple[str, Layout, torch.Tensor] | None:
        layout, weights = kept_whole(self.model)
        return (self.alive[0].name, layout, weights) if self.alive else None

    def news(self) -> list[str]:
        return []

    def finish(self) -> dict[str, Any]:
        self.evaluate()
        for one in self.alive:
            one.state = "done"
        return {"replica_distance_max": 0.0}
