"""Paper 002 at the production hub, in virtual time, on its own data: momentum, delay compensation
and label splits. FashionMNIST as it is; updates are fewer than the paper's."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
import torch

from murmurate import workloads
from murmurate.core.values.hub_settings import HubSettings
from murmurate_coordinator.virtual import VirtualSubnets
from murmurate_coordinator.virtual_setting import VirtualSetting

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(Path("/usr/share").glob("*/*fashion-mnist*")), reason="FashionMNIST is not here"
    ),
]

BATCH = 32
UPDATES = 1125


def accuracy(workload: str, rule: str, members: int, **more: object) -> float:
    """In percent, of 1,125 updates unless a time is said."""
    torch.set_num_threads(1)
    hub = {name: more.pop(name) for name in list(more) if name in HubSettings.__slots__}
    usual = {"seconds": UPDATES / members + 0.5, "split": "dataset", "seed": 0}
    setting = VirtualSetting(
        rule=rule,
        mode="hub",
        peers=members,
        steps=1,
        batch_size=BATCH,
        hub=HubSettings(**hub),  # type: ignore[arg-type]
        **{**usual, **more},  # type: ignore[arg-type]
    )
    found = VirtualSubnets(workloads.load(workload), setting).run().evaluation.accuracy
    assert found is not None
    return 100 * found


def test_table_3_momentum_099_does_not_converge() -> None:
    """LeNet-5, rate 0.005. Measured: 79.0 with one member, 10.0 with 5, 7.9 with 10."""
    told = {"lr": 0.005, "momentum": 0.99}
    assert accuracy("fashion-mnist", "async-msgd", 1, **told) >= 70
    for members in (5, 10):
        assert accuracy("fashion-mnist", "async-msgd", members, **told) <= 20


def test_table_4_compensation_that_really_runs() -> None:
    """n = 10, momentum 0.9, rate 0.02. Measured, seeds 0 to 2: none 16.6, 12.6, 17.7; adaptive
    42.4, 32.3, 31.8; constant λ = 2 19.9, diverges, 16.6."""
    told = {"lr": 0.02, "momentum": 0.9}
    mlp = "fashion-mnist-mlp"
    none = fmean(accuracy(mlp, "dc", 10, seed=seed, dc_lambda=0.0, **told) for seed in range(2))
    adaptive = fmean(
        accuracy(mlp, "dc", 10, seed=seed, dc_adaptive=True, **told) for seed in range(2)
    )
    assert adaptive >= none + 10


def test_label_split_and_one_slow_worker_is_the_stop_rule() -> None:
    """002's headline (F4): n = 5, one half as fast, labels split. With a budget of all together
    nothing is lost; where each makes as many passes as the others the slow one is alone at the end,
    and the others' labels are forgotten."""
    told = {"lr": 0.005, "momentum": 0.9, "split": "labels", "speeds": {"node-0": 0.5}}
    own = UPDATES / 5
    leaves = tuple((own + 0.25, f"node-{k}") for k in range(1, 5))
    shared, alone = (
        fmean(
            accuracy("fashion-mnist-mlp", "async-msgd", 5, seed=seed, **told, **stop)
            for seed in range(3)
        )
        for stop in (
            {"seconds": UPDATES / 4.5 + 0.5},
            {"seconds": 2 * own + 0.5, "leaves": leaves},
        )
    )
    assert shared >= 75
    assert alone <= shared - 20
