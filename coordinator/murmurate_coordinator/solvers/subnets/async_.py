"""Rule `async` (paper 001): one partition, members train without end and push when they like.

Nothing goes back to who pushes, unless units move: for a newcomer, or after measured speeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from murmurate.core.partition.structure import Held, Indices
from murmurate.core.values.member_half import IST_RULES
from murmurate_coordinator.solvers.protocol import Lease
from murmurate_coordinator.solvers.subnets import unit_affinity
from murmurate_coordinator.solvers.subnets.kept import KeptSubnets
from murmurate_coordinator.solvers.subnets.moves import MovingSubnets


class AsyncSubnets(KeptSubnets, MovingSubnets):
    """Nobody waits, and as few units move as can be."""

    rule = "async"
    half = IST_RULES[rule]
    plan_wants_checkpoint = True
    """A restart would give back the units that moved since; without that it costs nothing, for a
    push under this rule has everything in it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._away: set[str] = set()
        self._uneven = False
        """Speeds were measured since members came or went: shares follow them to the unit."""

    def away(self, peer: str, *, gone: bool = True) -> None:
        """As long as a member is away nobody gives up units for a newcomer, who may well have come
        in its place."""
        if gone and peer in self.members:
            self._away.add(peer)
        else:
            self._away.discard(peer)

    def _members_changed(self) -> None:
        super()._members_changed()
        self._uneven = False

    def _speeds_changed(self) -> None:
        super()._speeds_changed()
        self._uneven = True

    def _redrawn(
        self, lease: Lease, at: int, wanted: Mapping[str, list[int]], mine: Indices, pool: Indices
    ) -> Indices:
        size = wanted[lease.owner][at]
        kept = self._keeps(lease.owner, at, wanted, len(mine))
        if len(mine) > kept:
            return self._some(mine, kept, lease.held)
        if len(mine) < size and len(pool):
            return np.concatenate([mine, self._some(pool, size - len(mine), lease.held)])
        return mine

    def _keeps(self, owner: str, at: int, wanted: Mapping[str, list[int]], have: int) -> int:
        """How many of the units it has of a dealt group a member keeps at its push.

        A subnet that loses some of its units is worth little for a while. So nobody gives up any
        before another has less than half of what it should. And for a newcomer one member alone,
        the fullest, shares what it has, instead of all.
        """
        g, size = self._dealt[at], wanted[owner][at]
        enough = 1.0 if self._uneven else 0.5
        widths = {one.owner: self._width(g, one.held) for one in self.leases.values()}
        if any(width < enough * wanted[name][at] for name, width in widths.items()):
            return min(have, size)
        waiting = self._waiting[len(self._away) :]  # the first ones may be in another's place
        if not waiting or self._fullest(wanted) != owner:
            return have
        part = size / (size + wanted[waiting[0]][at])
        return min(have, max(1, (size + 1) // 2, round(have * part)))

    def _fullest(self, wanted: Mapping[str, list[int]]) -> str:
        """Of those who have a lease and are not away."""
        fill = {
            one.owner: float((one.held & self._in_dealt()).sum()) / sum(wanted[one.owner])
            for one in self.leases.values()
            if one.owner not in self._away
        }
        return max(fill, key=lambda name: fill[name], default="")

    def _some(self, units: Indices, size: int, beside: Held) -> Indices:
        """So many of these: those that belong together, and to the units they are beside."""
        if self._home is None:
            return super()._some(units, size, beside)
        favourite = unit_affinity.home_of(self._home, beside)
        return unit_affinity.to_keep(units, size, self._home, favourite, self._rng)

    def _moved_in(self, held: Held) -> None:
        if self._home is not None:
            unit_affinity.move_in(self._home, held, [one.held for one in self.leases.values()])
