"""Rule `sync`: J steps, all wait for all, then a new partition (IST as it was published)."""

from __future__ import annotations

from collections.abc import Iterator

from murmurate.core.values.member_half import IST_RULES
from murmurate_coordinator.solvers.barrier import BarrierSolver
from murmurate_coordinator.solvers.effects import Effect
from murmurate_coordinator.solvers.subnets.moves import SubnetSolver


class SyncSubnets(SubnetSolver, BarrierSolver):
    """Every plan is drawn anew."""

    rule = "sync"
    half = IST_RULES[rule]

    def _once_more(self) -> Iterator[Effect]:
        """Whether somebody came or not: never the same partition twice."""
        yield from self._start()
