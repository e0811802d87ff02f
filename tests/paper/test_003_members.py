"""Paper 003, tables 5 and 6: with the global batch fixed, elastic averaging gets worse with the
number of members, and a synchronous mean does not.

One pass over 30,000 pictures of FashionMNIST in global batches of 256, MLP 784-128-10, rate 0.1,
momentum 0.9 (of all: of sync's optimizer, and of each member of ea-msgd), an exchange after each
step, a step takes one second whatever its batch.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import nn

from murmurate import workloads
from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.recipe import Recipe
from murmurate.study.virtual.synchronous import SynchronousMean
from murmurate.study.virtual.task import VirtualTraining
from murmurate_coordinator.virtual import VirtualSubnets
from murmurate_coordinator.virtual_setting import VirtualSetting

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(Path("/usr/share").glob("*/*fashion-mnist*")), reason="FashionMNIST is not here"
    ),
]

BATCH = 256
SECONDS = 117.5
SEEDS = range(2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def workload(members: int, momentum: float | None = None) -> workloads.Workload:
    made = workloads.load(
        "fashion-mnist-mlp", lr=0.1, batch_size=BATCH // members, recipe=Recipe(momentum=momentum)
    )
    made.model = mlp  # type: ignore[method-assign]
    return made


def sync(members: int) -> float:
    """In percent: the mean gradient of all, one optimizer."""
    torch.set_num_threads(1)
    found = []
    for seed in SEEDS:
        task = VirtualTraining(
            workload=workload(members, momentum=0.9), nodes=members, rule="flat", seed=seed
        )
        world = SynchronousMean(task)
        world.events.run_until(SECONDS)
        one = world.evaluate()
        assert one is not None
        found.append(100 * one.accuracy)
    return fmean(found)


def elastic(members: int) -> float:
    torch.set_num_threads(1)
    found = []
    for seed in SEEDS:
        setting = VirtualSetting(
            rule="ea-msgd",
            mode="hub",
            peers=members,
            seconds=SECONDS,
            steps=1,
            seed=seed,
            hub=HubSettings(lr=0.1),
        )
        accuracy = VirtualSubnets(workload(members), setting).run().evaluation.accuracy
        found.append(100 * accuracy)
    return fmean(found)


def test_ea_msgd_gets_worse_with_its_members_and_sync_does_not() -> None:
    steady = {members: sync(members) for members in (2, 16)}
    two, sixteen = elastic(2), elastic(16)
    print(steady, two, sixteen)
    assert abs(steady[2] - steady[16]) <= 3
    assert abs(two - steady[2]) <= 3
    assert sixteen <= steady[16] - 20
