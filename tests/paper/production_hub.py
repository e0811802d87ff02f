"""The production hub's solvers, with members that only take time: papers 002 and 004."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from murmurate.core.partition.subnet import weights_of
from murmurate.core.partition.whole import whole_structure
from murmurate.core.values.hub_settings import HubSettings
from murmurate.study.sim.events import Events
from murmurate_coordinator.solvers.effects import Effect, GiveLease, MemberPush, PushAccepted
from murmurate_coordinator.solvers.hub.hub import HubSolver
from murmurate_coordinator.solvers.table import new_solver

MODEL = nn.Linear(1, 1, bias=False)


class SolverSwarm:
    """n members of one solver, in virtual time. `draw(name)` is how long one computes; a message
    takes half of `transfer_s`."""

    def __init__(
        self,
        settings: HubSettings,
        draw: Callable[[str], float],
        *,
        n: int,
        rule: str = "k-of-n",
        transfer_s: float = 0.0,
    ) -> None:
        solver = new_solver(
            rule,
            whole_structure(MODEL),
            weights_of(MODEL),
            np.random.default_rng(0),
            mode="hub",
            steps=1,
            founders=n,
            settings=settings,
        )
        assert isinstance(solver, HubSolver)
        self.solver = solver
        self.events = Events()
        self.staleness: list[int] = []
        self.order: list[str] = []
        """Who pushed, in the order in which it was folded in."""
        self._draw = draw
        self._way_s = transfer_s / 2
        self._newest: dict[str, GiveLease] = {}
        self._put: dict[str, int] = {}
        for k in range(n):
            self.take(solver.join(f"m{k}"))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GiveLease):
                self.events.after(self._way_s, self._given, effect)
            elif isinstance(effect, PushAccepted):
                assert effect.staleness is not None
                self.staleness.append(effect.staleness)
                self.order.append(effect.peer)

    def _given(self, give: GiveLease) -> None:
        old = self._newest.get(give.peer)
        self._newest[give.peer] = give
        if old is None or old.lease != give.lease:
            self._put[give.peer] = 0
            self._begin(give.peer)

    def _begin(self, name: str) -> None:
        self.events.after(self._draw(name), self._computed, name, self._newest[name])

    def _computed(self, name: str, basis: GiveLease) -> None:
        if name not in self.solver.members or self._newest[name].lease != basis.lease:
            return
        self._put[name] += 1
        gradient = {n: torch.zeros_like(value) for n, value in basis.values.items()}
        push = MemberPush(name, basis.plan, basis.lease, self._put[name], 1, 1, gradient)
        self.events.after(self._way_s, lambda: self.take(self.solver.push(push)))
        if self.solver.half.pipelined:
            self._begin(name)

    def run(self, pushes: int) -> None:
        while len(self.staleness) < pushes:
            self.events.step()
