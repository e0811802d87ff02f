"""The solvers by name: one line each. Names and members' halves: `murmurate.core.values`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from murmurate.core.partition.structure import Structure
from murmurate.core.values.hub_settings import HubSettings
from murmurate.errors import ConfigError
from murmurate_coordinator.solvers.batches.dealing import BatchDealing
from murmurate_coordinator.solvers.hub.async_ import AsyncHub
from murmurate_coordinator.solvers.hub.async_msgd import AsyncMomentum
from murmurate_coordinator.solvers.hub.dc import DelayCompensated
from murmurate_coordinator.solvers.hub.downpour import Downpour
from murmurate_coordinator.solvers.hub.ea_msgd import EaMsgd
from murmurate_coordinator.solvers.hub.ea_wild import EaWild
from murmurate_coordinator.solvers.hub.easgd import Easgd
from murmurate_coordinator.solvers.hub.fedavg import FedAvg, HubFedAvg
from murmurate_coordinator.solvers.hub.fedavg_async import AsyncFedAvg
from murmurate_coordinator.solvers.hub.fedbuff import FedBuff
from murmurate_coordinator.solvers.hub.hub import HubSolver
from murmurate_coordinator.solvers.hub.k_of_n import KOfN
from murmurate_coordinator.solvers.hub.scaled import ScaledHub
from murmurate_coordinator.solvers.hub.ssp import StaleSynchronous
from murmurate_coordinator.solvers.hub.sync import SyncHub
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

"""Of mode ist."""

HUB_SOLVERS: Mapping[str, type[LeasedSolver]] = {
    solver.rule: solver
    for solver in (
        AsyncHub,
        SyncHub,
        KOfN,
        StaleSynchronous,
        ScaledHub,
        DelayCompensated,
        AsyncMomentum,
        HubFedAvg,
        AsyncFedAvg,
        FedBuff,
        Downpour,
        Easgd,
        EaWild,
        EaMsgd,
    )
}
"""Of mode hub."""

SOLVERS_OF: Mapping[str, Mapping[str, type[LeasedSolver]]] = {
    "ist": SOLVERS,
    "hub": HUB_SOLVERS,
    BatchDealing.mode: {BatchDealing.rule: BatchDealing},
}


def new_solver(
    rule: str,
    structure: Structure,
    weights: Mapping[str, torch.Tensor],
    rng: np.random.Generator,
    *,
    mode: str = "ist",
    steps: int = 10,
    founders: int = 1,
    first_lease: int = 1,
    settings: HubSettings | None = None,
) -> Solver:
    """The solver of that rule, at the beginning of a run (`LeasedSolver.__init__`). `settings`: of
    a hub's rule."""
    solvers = SOLVERS_OF[mode]
    if rule not in solvers:
        raise ConfigError(f"rule {rule!r}: mode {mode} has {', '.join(solvers)}")
    kind = solvers[rule]
    more = {"settings": settings} if issubclass(kind, HubSolver) else {}
    return kind(
        structure,
        weights,
        rng,
        steps=steps,
        founders=founders,
        first_lease=first_lease,
        **more,
    )
