"""Every optimizer of torch: with it two members are not worse than one (docs/convergence.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import pytest
import torch
from torch import nn, optim

from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.task import VirtualTraining
from murmurate.training.gain import OptimizerGain, without_bound
from murmurate.workloads import load

STEPS = 150
"""Before some fifty a momentum of the swarm has not yet made up for the steps it waits with."""
Makes: TypeAlias = Callable[[Iterable[nn.Parameter]], optim.Optimizer]
READ: dict[str, Makes] = {
    "SGD": lambda p: optim.SGD(p, 0.2),
    "SGD, momentum": lambda p: optim.SGD(p, 0.02, momentum=0.9),
    "SGD, Nesterov": lambda p: optim.SGD(p, 0.02, momentum=0.9, nesterov=True),
    "SGD, decay": lambda p: optim.SGD(p, 0.02, momentum=0.9, weight_decay=1e-3),
    "SGD, dampening": lambda p: optim.SGD(p, 0.04, momentum=0.9, dampening=0.5),
    "Adam": lambda p: optim.Adam(p, 3e-3),
    "Adam, amsgrad": lambda p: optim.Adam(p, 3e-3, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, 3e-3),
    "NAdam": lambda p: optim.NAdam(p, 3e-3),
    "RAdam": lambda p: optim.RAdam(p, 3e-3),
    "Adamax": lambda p: optim.Adamax(p, 5e-3),
    "Adagrad": lambda p: optim.Adagrad(p, 0.02),
    "RMSprop": lambda p: optim.RMSprop(p, 1e-3),
    "RMSprop, centred": lambda p: optim.RMSprop(p, 1e-3, centered=True),
    "RMSprop, momentum": lambda p: optim.RMSprop(p, 3e-4, momentum=0.9),
}
OTHERS: dict[str, Makes] = {
    "Adadelta": lambda p: optim.Adadelta(p, 1.0),
    "Adafactor": lambda p: optim.Adafactor(p, 0.02),
    "ASGD": lambda p: optim.ASGD(p, 0.2),
}


def loss(makes: Makes, nodes: int) -> float:
    workload = load("digits")
    workload.batch_size = 32
    workload.optimizer = lambda model: makes(model.parameters())  # type: ignore[method-assign]
    world = GossipWorld(VirtualTraining(workload=workload, nodes=nodes, rule="shared"))
    world.events.run_until(STEPS)
    world.settle()
    found = world.evaluate()
    assert found is not None
    return found.test_loss


@pytest.mark.parametrize("name", [*READ, *OTHERS])
def test_two_are_not_worse_than_one(name: str) -> None:
    makes = {**READ, **OTHERS}[name]
    parameter = nn.Parameter(torch.zeros(3))
    assert OptimizerGain(makes([parameter]), [parameter]).known == (name in READ)
    assert loss(makes, 2) < 1.02 * loss(makes, 1)  # ASGD: 0.0713 and 0.0712; the others 0.4 to 0.8


def test_all_of_torchs_optimizers_are_accounted_for() -> None:
    """Those that are new get a row of the table, and a place here."""
    torchs = {
        name
        for name, kind in vars(optim).items()
        if isinstance(kind, type)
        and issubclass(kind, optim.Optimizer)
        and kind is not optim.Optimizer
    }
    here = {name.partition(",")[0] for name in (*READ, *OTHERS)}
    beside = {"Optimizer", "LBFGS", "Muon", "Rprop", "SparseAdam"}
    assert torchs - here <= beside, torchs - here - beside
    parameter = nn.Parameter(torch.zeros(3))
    assert without_bound(optim.LBFGS([parameter]))
