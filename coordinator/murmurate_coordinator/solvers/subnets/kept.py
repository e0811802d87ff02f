"""One partition, kept as far as it can be while members come and go (once, async).

Units have a home (`unit_affinity`), what a member that is gone had is kept together for a newcomer,
and where units of two subnets meet that were never trained together, weights are zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from murmurate.core.partition.structure import Held, Indices
from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import FREE, Json, Lease
from murmurate_coordinator.solvers.subnets import unit_affinity
from murmurate_coordinator.solvers.subnets.moves import SubnetSolver
from murmurate_coordinator.solvers.subnets.unit_affinity import NOWHERE


class KeptSubnets(SubnetSolver):
    """When members come and go, as few units move as can be."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._home: Indices | None = None
        """Of each unit (unit_affinity); None: nothing was dealt yet."""
        self._pushed_in = np.full(self.structure.units + 1, NOWHERE, dtype=np.int64)
        """The lease under which each unit was pushed last."""
        self._vacant: dict[str, Held] = {}
        """What members that are gone had, kept for newcomers."""

    # -- what is kept for a newcomer ---------------------------------------------------------------

    def reserved(self) -> Held:
        """Units that are kept together for a newcomer: nobody else takes them."""
        out = self.structure.nothing()
        for held in self._vacant.values():
            out |= held
        return out

    def vacate(self, peer: str) -> None:
        """Nobody came for what that member had: the others may have it, at their next push or
        plan."""
        if self._vacant.pop(peer, None) is not None:
            self._changed = True

    def _ended(self, lease: Lease) -> None:
        self._vacant[lease.owner] = lease.held & self._in_dealt()

    def _grant(self, owner: str, held: Held) -> Lease:
        lease = super()._grant(owner, held)
        self._vacant = {n: v & ~held for n, v in self._vacant.items() if (v & ~held).any()}
        return lease

    # -- units and their homes ---------------------------------------------------------------------

    def _shares(self) -> Mapping[str, Held]:
        """Not what was drawn, but as much as possible of what was."""
        drawn = super()._shares()
        if self._home is None or not np.array_equal(self._home >= 0, self._in_dealt()):
            shares = [held for owner, held in drawn.items() if owner != FREE]
            self._home = unit_affinity.settle(self.structure, self._dealt, shares)
            return drawn
        before = {lease.owner: lease.held for lease in self.leases.values()}
        wanted = self._wanted()
        if before and self._vacant:  # these do not grow: who comes next gets it as it is
            for name in before.keys() & wanted.keys():
                have = [self._width(g, before[name]) for g in self._dealt]
                wanted[name] = [min(pair) for pair in zip(wanted[name], have, strict=True)]
        now = unit_affinity.rearrange(
            self.structure, self._dealt, before, wanted, self._home, self._rng
        )
        for name in sorted(now.keys() - before.keys() - {FREE}):
            unit_affinity.move_in(self._home, now[name], [h for n, h in now.items() if n != name])
        return now

    def _values(self, lease: Lease) -> dict[str, torch.Tensor]:
        values = super()._values(lease)
        if self._home is not None:
            unit_affinity.begin_at_zero(
                self.structure, lease.held, self._home, self.trained, values
            )
        return values

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        super()._fold(lease, push)
        self._pushed_in[lease.held] = lease.number

    def _used(self, name: str) -> torch.Tensor:
        """Not between units that were in one subnet once, and then no longer: both have been
        trained since as if there were zeros."""
        strange = unit_affinity.apart(self.structure.tensors[name], self._pushed_in)
        return self.trained[name] & ~torch.from_numpy(strange)

    # -- over a restart ----------------------------------------------------------------------------

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        tensors["pushed_in"] = torch.from_numpy(self._pushed_in.copy())
        if self._home is not None:
            tensors["home"] = torch.from_numpy(self._home.copy())

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self._home = tensors["home"].numpy().copy() if "home" in tensors else None
        if "pushed_in" in tensors:  # not in a checkpoint of an older version
            self._pushed_in = tensors["pushed_in"].numpy().copy()
