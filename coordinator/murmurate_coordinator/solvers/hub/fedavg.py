"""Federated averaging: everybody holds all, J steps, then the mean of what came back.

Who leaves before its push leaves its share of the mean at what it was given.
"""

from __future__ import annotations

from collections.abc import Mapping

from murmurate.core.partition.structure import Held
from murmurate.core.values.member_half import IST_RULES
from murmurate_coordinator.solvers.assembling import AssemblingSolver
from murmurate_coordinator.solvers.barrier import BarrierSolver
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Capacity, Json
from murmurate_coordinator.solvers.subnets.plan import check_memory


class FedAvg(AssemblingSolver, BarrierSolver):
    """E_k = 1/M for each of M members."""

    rule = "fedavg"
    half = IST_RULES[rule]
    follows_speed = False

    def check_room(self, members: Mapping[str, Capacity]) -> None:
        """ConfigError unless each can hold the whole model."""
        for name, capacity in members.items():
            check_memory(self.structure, self.structure.everything(), name, capacity)

    def _shares(self) -> Mapping[str, Held]:
        self.check_room(self.members)
        self._shared = frozenset(self.structure.tensors)
        return {name: self.structure.everything() for name in self.members}

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self._shared = frozenset(self.structure.tensors)


class HubFedAvg(FedAvg):
    """The same as a rule of mode hub, for models of which nothing can be dealt."""

    mode = "hub"
