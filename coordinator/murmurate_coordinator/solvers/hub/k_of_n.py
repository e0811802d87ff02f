"""`k-of-n`: the mean of K gradients is an update, whoever sent them (paper 004).

    sum K arrivals, w -= lr · sum / K, M += 1

Every push is answered at once with the newest weights, whether or not it completed a group: so
nobody waits, and one member may have several gradients in a group. One who dies leaves what it has
pushed. With K = 1 it is `async`. Paper 004's synchronous formula sums without 1/n; the mean is
meant here.
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.batch import GradientBatch
from murmurate_coordinator.solvers.hub.hub import HubSolver
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease


class KOfN(HubSolver):
    """K gradients make an update."""

    rule = "k-of-n"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._batch = GradientBatch()

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        del lease
        self._batch.add(push, self._trained)

    def _close(self) -> None:
        if self._complete():
            self._step(self._batch.sum, 1.0 / self._batch.count)
            self._batch.take()
            self._updated()

    def _adds_up(self) -> str:
        k = self.settings.gradients
        all_of_them = k >= max(len(self.members), self._founders)
        of = "every push" if k == 1 else f"{k} pushes"
        return "" if all_of_them else f"makes an update of {of}"

    def _complete(self) -> bool:
        return self._batch.count >= self.settings.gradients

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["batch"] = self._batch.save(tensors)

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self._batch.load(tensors, about["batch"])
