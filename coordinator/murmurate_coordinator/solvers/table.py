"""The solvers by name: one line each. Names and members' halves: `murmurate.core.values`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from murmurate.core.partition.structure import Structure
from murmurate.errors import ConfigError
from murmurate_coordinator.solvers.hub.fedavg import FedAvg
from murmurate_coordinator.solvers.leases import LeasedSolver
from murmurate_coordinator.solvers.protocol import Solver
from murmurate_coordinator.solvers.subnets.async_ import AsyncSubnets
from murmurate_coordinator.solvers.subnets.lease import LeaseSubnets
from murmurate_coordinator.solvers.subnets.once import OnceSubnets
from murmurate_coordinator.solvers.subnets.sync import SyncSubnets

SOLVERS: Mapping[str, type[LeasedSolver]] = {
    solver.rule: solver
    for solver in (
        SyncSubnets,
        OnceSubnets,
        AsyncSubnets,
        LeaseSubnets,
        FedAvg,
    )
}


def new_solver(
    rule: str,
    structure: Structure,
    weights: Mapping[str, torch.Tensor],
    rng: np.random.Generator,
    *,
    steps: int = 10,
    founders: int = 1,
    first_lease: int = 1,
) -> Solver:
    """The solver of that rule, at the beginning of a run (`LeasedSolver.__init__`)."""
    if rule not in SOLVERS:
        raise ConfigError(f"rule {rule!r}: expected one of {', '.join(SOLVERS)}")
    return SOLVERS[rule](
        structure, weights, rng, steps=steps, founders=founders, first_lease=first_lease
    )
