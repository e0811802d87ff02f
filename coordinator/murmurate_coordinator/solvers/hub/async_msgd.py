"""`async-msgd`: `async` with one momentum for all, at the hub (002, 003's Async MSGD).

    v = μ v + g;   w -= lr · v          heavy-ball, which is what 002's code runs
    v = μ v + g;   w -= lr · (g + μ v)  Nesterov as torch has it, which is what its text says

Weight decay is in g, as in torch's SGD, after any correction for delay.

Asynchrony is a momentum of its own: with μ = 0.99 and five members 002 finds no convergence.
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.hub import HubSolver
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease


class AsyncMomentum(HubSolver):
    """Every gradient goes through the hub's momentum."""

    rule = "async-msgd"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        momentum = self.settings.momentum
        self._momentum = 0.9 if momentum is None else momentum
        self._velocity = {n: torch.zeros_like(self.weights[n]) for n in self._trained}

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        with torch.no_grad():
            for name in self._trained:
                if push.steps > 1:
                    push.values[name].div_(push.steps)
                self._corrected(lease, name, push.values[name])
                if decay := self.settings.weight_decay:
                    push.values[name].add_(self.weights[name], alpha=decay)
                v = self._velocity[name].mul_(self._momentum).add_(push.values[name])
                if self.settings.nesterov:
                    push.values[name].add_(v, alpha=self._momentum)
                else:
                    push.values[name].copy_(v)
        self._add(push.values, -self._lr)
        self._updated()

    def _adds_up(self) -> str:
        return "makes an update of every gradient"

    def _corrected(self, lease: Lease, name: str, gradient: torch.Tensor) -> None:
        """Before it goes into the momentum, in place."""

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        tensors.update({f"velocity/{name}": v.clone() for name, v in self._velocity.items()})

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        for name, value in self._velocity.items():
            value.copy_(tensors[f"velocity/{name}"])
