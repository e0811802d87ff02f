"""Groups in virtual time (003, section 3.1): in step inside a group, asynchronous across.

To what is across, a group is one node: its gradient is the mean over its members' batches, its step
takes as long as its slowest member's and one sum inside. So what runs across are the same objects
as everywhere: the gossip of `study.virtual.gossip`, or a hub's solver of rule `ea-wild`. Groups are
drawn anew by the same function as in real nodes (`core.synchronous.draws`), which costs no time
here; neither does the death of the member that speaks for its group.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from murmurate.core.layout import Layout
from murmurate.core.staleness import Summary
from murmurate.core.synchronous.draws import FIXED, Draw, group_by
from murmurate.core.synchronous.rules import GROUPS_EA_WILD
from murmurate.core.values.slowness import Chance, Slowness
from murmurate.errors import ConfigError
from murmurate.study.virtual.task import Engine, Figures, VirtualTraining
from murmurate.workloads import DataShare, Evaluation, parse_split

KILLED = "killed"
Batch = tuple[torch.Tensor, ...]


class Groups:
    """All groups of one run. Implements `task.Engine`."""

    def __init__(
        self, task: VirtualTraining, engine: Callable[[str], Callable[[VirtualTraining], Engine]]
    ) -> None:
        """`engine`: what trains in a mode."""
        if task.joins_s or task.leaves_s or task.own_samples:
            raise ConfigError("groups: nobody comes or goes")
        if task.recipe.batch_warmup:
            raise ConfigError("groups: batches stay as large as they are")
        self.task = task
        self._size = task.group
        self._draw = FIXED
        self._chance = random.Random(f"groups/{task.seed}")
        self._since_draw = 0
        self._pace = task.paces()
        self._members = {name: Figures(name, role="member") for name in task.names}
        self._batches = {name: self._batches_of(number) for number, name in enumerate(task.names)}
        count = len({group_by(FIXED, name, self._size) for name in task.names})
        self._nbytes = Layout.of(task.workload.model())[0].nbytes
        self._took: dict[int, dict[str, float]] = {}
        wild = task.rule == GROUPS_EA_WILD
        across = replace(
            task,
            workload=_OfGroups(self),
            nodes=count,
            mode="hub" if wild else "gossip",
            rule="ea-wild" if wild else "shared",
            speeds={},
            slow_s={f"node-{group}": _InStep(self, group) for group in range(count)},
            delays_s=self._of_first(task.delays_s),
            links_bytes_s=self._of_first(task.links_bytes_s),
            every=None,
        )
        self._across = engine(across.mode)(across)
        self.events = self._across.events

    def _of_first(self, values: Any) -> dict[str, float]:
        """A group's link is that of its first member."""
        said = {name: values.get(f"node-{int(name[5:]) * self._size}") for name in self.task.names}
        return {name: value for name, value in said.items() if value is not None}

    def _batches_of(self, number: int) -> Iterator[Batch]:
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

    # -- a group's step ----------------------------------------------------------------------------

    def members_of(self, group: int) -> list[Figures]:
        """Those of a group that live."""
        return [
            one
            for name, one in self._members.items()
            if one.state != KILLED and group_by(self._draw, name, self._size) == group
        ]

    def step_s(self, group: int) -> float:
        """Of the next step of a group: its slowest member's, and a sum inside."""
        took = {one.name: self._pace(one.name) for one in self.members_of(group)}
        self._took[group] = took
        return max(took.values(), default=1.0) + self._sum_s(list(took))

    def _sum_s(self, names: list[str]) -> float:
        if len(names) < 2:
            return 0.0
        task, count = self.task, len(names)
        delay_s = max([task.delay_s, *(task.delays_s.get(name, 0.0) for name in names)])
        links = [task.links_bytes_s.get(name, task.link_bytes_s) for name in names]
        narrow = [each for each in links if each is not None]
        sent = 2 * (count - 1) / count * self._nbytes
        return delay_s + (sent / min(narrow) if narrow else 0.0)

    def loss(self, group: int, model: torch.nn.Module) -> torch.Tensor:
        """The mean over a group's members, each with its own batch."""
        task, there = self.task, self.members_of(group)
        slowest_s = max(self._took.get(group, {}).values(), default=0.0)
        total = torch.zeros(())
        for one in there:
            loss = task.workload.loss(model, next(self._batches[one.name]))
            total = total + loss / len(there)
            one.loss = float(loss.detach())
            one.steps += 1
            one.samples += task.workload.batch_size
            one.published += 1
            one.applied += len(there)
            one.staleness.merge(Summary([0] * len(there)))  # nothing is stale inside
            one.wait_s += slowest_s - self._took.get(group, {}).get(one.name, slowest_s)
        if there and there[0].name == next(iter(self._members)):
            self._since_draw += 1
            self._draw_when_due()
        return total

    def _draw_when_due(self) -> None:
        if self.task.regroup is not None and self._since_draw >= self.task.regroup:
            self._since_draw = 0
            key = self._chance.randrange(10**9)
            self._draw = Draw(self._draw.number + 1, self.task.nodes, key)

    # -- for whoever watches -----------------------------------------------------------------------

    def figures(self) -> list[Figures]:
        """Members, then groups, and the hub, if there is one."""
        across = self._across.figures()
        return [*self._members.values(), *map(_of_a_group, across)]

    def samples(self) -> int:
        return sum(one.samples for one in self._members.values())

    def kill(self, name: str) -> None:
        """The others of its group make their steps without it."""
        group = group_by(self._draw, name, self._size)
        self._members[name].state = KILLED
        if group is not None and not self.members_of(group):
            self._across.kill(f"node-{group}")

    def evaluate(self, *, validation: bool = False) -> Figures | None:
        one = self._across.evaluate(validation=validation)
        return None if one is None else _of_a_group(one)

    def weights(self) -> tuple[str, Layout, torch.Tensor] | None:
        return self._across.weights()

    def news(self) -> list[str]:
        return self._across.news()

    def finish(self) -> dict[str, Any]:
        more = self._across.finish()
        whole = self._across.figures()
        centre = next((one for one in whole if one.role == "coordinator"), None)
        for name, one in self._members.items():
            group = group_by(self._draw, name, self._size)
            found = centre if centre is not None else whole[group or 0]
            if one.state != KILLED:
                one.state = "done"
                one.test_loss, one.accuracy = found.test_loss, found.accuracy
        return more | {"draws": self._draw.number}


def _of_a_group(one: Figures) -> Figures:
    """As it is shown: samples are its members'."""
    if one.role == "coordinator":
        return one
    return replace(one, name=f"group-{one.name.removeprefix('node-')}", role="group", samples=0)


class _InStep(Slowness):
    """What a group waits: until its step takes as long as it does."""

    def __init__(self, groups: Groups, group: int) -> None:
        object.__setattr__(self, "_groups", groups)
        object.__setattr__(self, "_group", group)

    def seconds(self, step_s: float, rng: Chance) -> float:
        del rng
        return self._groups.step_s(self._group) - step_s  # type: ignore[attr-defined,no-any-return]


class _OfGroups:
    """The workload as groups have it: a batch is the number of a group."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        inner = groups.task.workload
        self.name, self.lr, self.samples = inner.name, inner.lr, inner.samples
        self.batch_size = inner.batch_size * groups.task.group

    def model(self) -> torch.nn.Module:
        return self._groups.task.workload.model()

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return self._groups.task.workload.optimizer(model)

    def batches(self, share: DataShare) -> Iterator[Batch]:
        while True:
            yield (torch.tensor(share.index),)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return self._groups.loss(int(batch[0]), model)

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        return self._groups.task.workload.evaluate(model)

    def validate(self, model: torch.nn.Module) -> Evaluation:
        found: Evaluation = self._groups.task.workload.validate(model)  # type: ignore[attr-defined]
        return found
