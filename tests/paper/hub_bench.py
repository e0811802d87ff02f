"""A hub's solver with a model of four numbers in fp64, and members that are told what to push."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from murmurate.core.partition import weights_of
from murmurate.core.partition.whole import whole_structure
from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.member_half import Down
from murmurate_coordinator.solvers.effects import Effect, GiveLease, MemberPush
from murmurate_coordinator.solvers.table import new_solver

WEIGHT = "weight"


class HubBench:
    """Members hold what they were given, and push what the test says."""

    def __init__(
        self, rule: str, *, settings: HubSettings | None = None, members: int = 2, steps: int = 1
    ) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1, bias=False).double()
        self.solver = new_solver(
            rule,
            whole_structure(model),
            weights_of(model),
            np.random.default_rng(0),
            mode="hub",
            steps=steps,
            founders=members,
            settings=settings,
        )
        self.names = [f"node-{k}" for k in range(members)]
        self.gives: dict[str, GiveLease] = {}
        self._held: dict[str, torch.Tensor] = {}
        self.moved: dict[str, torch.Tensor] = {}
        for name in self.names:
            self.take(self.solver.join(name))

    def centre(self) -> torch.Tensor:
        return self.solver.weights[WEIGHT].flatten().clone()

    def held(self, name: str) -> torch.Tensor:
        return self._held[name]

    def move(self, name: str, by: torch.Tensor) -> None:
        """It trains."""
        self._held[name] = self._held[name] + by

    def take(self, effects: list[Effect]) -> list[Effect]:
        adds = self.solver.half.down is Down.ADD
        for effect in effects:
            if isinstance(effect, GiveLease):
                old, name = self.gives.get(effect.peer), effect.peer
                values = effect.values[WEIGHT].flatten().clone()
                same = adds and old is not None and old.lease == effect.lease
                self._held[name] = self._held[name] + values if same else values
                self.gives[name] = effect
        self.solver.check()
        return effects

    def pushed(self, name: str, values: torch.Tensor, *, steps: int = 1) -> MemberPush:
        """Such a push, not made yet."""
        give = self.gives[name]
        lease = self.solver.leases[give.lease]
        shaped = {WEIGHT: values.reshape(1, 4)}
        return MemberPush(name, give.plan, give.lease, lease.version + 1, steps, 8 * steps, shaped)

    def push(self, name: str, values: torch.Tensor, *, steps: int = 1) -> list[Effect]:
        return self.take(self.solver.push(self.pushed(name, values, steps=steps)))
