"""`downpour`: push every p steps, pull every q (Dean et al., Downpour SGD; 003's parameter server).

    at the member: w_j -= lr g at each step; after p steps the sum of its changes goes up
    at the hub:    w += that sum, M += 1; of every q steps of a member it is given w

Nobody waits: a member trains on its own replica, and changes that are not pushed yet stay on top of
the weights it pulls. A push counts whole, not as a mean: with n members the weights move n times as
far as one member would, so the rate wants to be smaller. A push names the version that was pulled
last.

Members write after the greatest common divisor of p and q steps, and the hub counts: so one message
serves both, and any p and q can be. What a member has sent of its p steps waits here, and is added
when they are complete or the member is gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from murmurate_coordinator.solvers.effects import Effect, MemberPush
from murmurate_coordinator.solvers.hub.hub import HubSolver
from murmurate_coordinator.solvers.hub.owned_tensors import put, taken
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease


class Downpour(HubSolver):
    """One lease for as long as a member stays; pulled weights come under it."""

    rule = "downpour"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.push_every = self.steps
        self.pull_every = self.settings.pull or self.push_every
        self.steps = math.gcd(self.push_every, self.pull_every)
        self._accrued: dict[str, dict[str, torch.Tensor]] = {}
        """Of each member: changes that are not p steps yet, summed."""
        self._count: dict[str, int] = {}
        """… and of how many steps they are."""
        self._pulled: dict[int, int] = {}
        """Of each lease: its steps at the last pull."""

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        owner = lease.owner
        sum_ = self._accrued.get(owner)
        if sum_ is None:
            self._accrued[owner] = dict(push.values)
        else:
            for name, value in push.values.items():
                sum_[name].add_(value)
        self._count[owner] = self._count.get(owner, 0) + push.steps
        if self._count[owner] >= self.push_every:
            self._apply(owner)

    def _apply(self, owner: str) -> None:
        change = self._accrued.pop(owner, None)
        if change is not None:
            del self._count[owner]
            self._add(change, 1.0)
            self._updated()

    def _pushed(self, lease: Lease) -> Iterator[Effect]:
        if lease.steps - self._pulled.get(lease.number, 0) >= self.pull_every:
            self._pulled[lease.number] = lease.steps
            yield self._give(lease)
            self._copy = None

    def _answers(self) -> Iterator[Effect]:
        """Others' updates are pulled, not told."""
        yield from ()

    def _ended(self, lease: Lease) -> None:
        super()._ended(lease)
        self._pulled.pop(lease.number, None)
        self._apply(lease.owner)

    def _replaced(self, old: Lease, new: Lease) -> None:
        super()._replaced(old, new)
        self._pulled.pop(old.number, None)

    def _adds_up(self) -> str:
        return "adds every push"

    def more(self) -> Json:
        return super().more() | {"push_every": self.push_every, "pull_every": self.pull_every}

    # -- over a restart ----------------------------------------------------------------------------

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["pulled"] = list(self._pulled.items())
        owners = put(tensors, "accrued", self._accrued)
        about["accrued"] = [[name, self._count[name]] for name in owners]

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self._pulled = {int(number): int(steps) for number, steps in about["pulled"]}
        self._accrued.update(taken(tensors, "accrued", [name for name, _ in about["accrued"]]))
        self._count.update({str(name): int(count) for name, count in about["accrued"]})
