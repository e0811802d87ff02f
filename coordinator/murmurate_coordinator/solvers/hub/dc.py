"""`dc`: DC-ASGD; a gradient is corrected for what the weights did since it was asked for.

    g' = g + λ · g ⊙ g ⊙ (w − w_bak[m]);   w -= lr · g'
    adaptive: MS[m] = 0.95 MS[m] + 0.05 g ⊙ g;   λ = λ0 / sqrt(MS[m] + 1e-7)

w_bak[m] is what member m was given: a copy of its own. 002's code keeps references to the live
weights, so its difference is 0 and its compensation never did anything (F5). MS is per member, as
in Multiverso. With momentum the gradient is corrected first. It costs a copy of the weights each,
adaptive two. It has request-reply only: what a pipelined gradient was computed on is not kept.
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate_coordinator.solvers.effects import GiveLease
from murmurate_coordinator.solvers.hub.async_msgd import AsyncMomentum
from murmurate_coordinator.solvers.hub.owned_tensors import put, taken
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease

DECAY, EPS = 0.95, 1e-7


class DelayCompensated(AsyncMomentum):
    """With a backup of what each member has."""

    rule = "dc"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        it = self.settings
        self._momentum = 0.0 if it.momentum is None else it.momentum
        usual = 2.0 if it.dc_adaptive else 0.04
        self._lambda = usual if it.dc_lambda is None else it.dc_lambda
        self._squares: dict[str, dict[str, torch.Tensor]] = {}

    def _give(self, lease: Lease) -> GiveLease:
        give = super()._give(lease)
        lease.last = {name: self.weights[name].clone() for name in self._trained}
        return give

    def _corrected(self, lease: Lease, name: str, gradient: torch.Tensor) -> None:
        moved = self.weights[name] - lease.last[name]
        if self.settings.dc_adaptive:
            own = self._squares.setdefault(lease.owner, {})
            if name not in own:
                own[name] = torch.zeros_like(gradient)
            mean = own[name].mul_(DECAY).addcmul_(gradient, gradient, value=1 - DECAY)
            moved.div_((mean + EPS).sqrt_())
        gradient.addcmul_(gradient * gradient, moved, value=self._lambda)

    def _ended(self, lease: Lease) -> None:
        super()._ended(lease)
        self._squares.pop(lease.owner, None)

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["squares"] = put(tensors, "square", dict(sorted(self._squares.items())))

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self._squares.update(taken(tensors, "square", about["squares"]))
