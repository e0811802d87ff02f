"""Rules that assemble: the weights are Σ E_k x^k of what members pushed (paper 001).

Where a member holds a coordinate alone its value replaces the old one; where several hold it, the
change of each counts by E_k. Of such tensors a lease remembers what it was given or pushed last.
With disjoint shares that is independent subnet training, with everybody holding all of it federated
averaging.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from murmurate.core.partition.cover import Cover
from murmurate.core.partition.structure import Held
from murmurate.errors import PromiseBroken
from murmurate_coordinator.solvers.effects import GiveLease, MemberPush
from murmurate_coordinator.solvers.leases import LeasedSolver, Values
from murmurate_coordinator.solvers.protocol import Json, Lease
from murmurate_coordinator.solvers.subnets.assemble import covers, fold


class AssemblingSolver(LeasedSolver):
    """E_k of every lease that counts, and what is folded in by it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._order: list[int] = []
        self._parts: list[Held] = []
        """The leases that E_k counts, and their units; under a barrier also those that ended."""
        self._covers: dict[str, Cover] = {}
        self._shared: frozenset[str] = frozenset()

    @property
    def shared(self) -> frozenset[str]:
        """Tensors of which several members may hold the same coordinates."""
        return self._shared

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        fold(self.weights, self._covers, self._order.index(lease.number), lease.last, push.values)
        lease.last = self._common(push.values)

    def _give(self, lease: Lease) -> GiveLease:
        give = super()._give(lease)
        lease.last = {name: value.clone() for name, value in self._common(give.values).items()}
        return give

    def _common(self, values: Values) -> dict[str, torch.Tensor]:
        """What must be remembered of a subnet: tensors that others may hold too."""
        return {name: values[name] for name in self._shared}

    def _replaced(self, old: Lease, new: Lease) -> None:
        self._order[self._order.index(old.number)] = new.number

    def _renumbered(self, *, same: bool) -> None:
        """Other shares, other E_k."""
        self._order = list(self.leases)
        if not same:
            self._count([self.leases[number].held for number in self._order])

    def _count(self, parts: list[Held]) -> None:
        self._parts = parts
        self._covers = covers(self.structure, parts)

    def check(self) -> None:
        super().check()
        for number, part in zip(self._order, self._parts, strict=True):
            lease = self.leases.get(number)
            if lease is not None and not np.array_equal(part, lease.held):
                raise PromiseBroken("leases", f"lease {number} is folded in as another one's units")

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        tensors["parts"] = self._bits(self._parts)
        about["order"] = list(self._order)

    def _load(self, tensors: Mapping[str, torch.Tensor], about: Json) -> None:
        super()._load(tensors, about)
        self._order = [int(number) for number in about["order"]]
        self._count([part.copy() for part in tensors["parts"].numpy()])
