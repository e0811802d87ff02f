"""Rule `once`: one partition, J steps, all wait for all, then the next J steps."""

from __future__ import annotations

from murmurate.core.values.member_half import IST_RULES
from murmurate_coordinator.solvers.barrier import BarrierSolver
from murmurate_coordinator.solvers.subnets.kept import KeptSubnets


class OnceSubnets(KeptSubnets, BarrierSolver):
    """The partition changes only when members come and go, and then as little as it can."""

    rule = "once"
    half = IST_RULES[rule]
