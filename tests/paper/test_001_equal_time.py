"""Paper 001, section 6: at equal time, asynchronous subnets against synchronous ones.

In virtual time, on FashionMNIST with the paper's kind of model (784-512-512-10, batch-norm without
running statistics). Only unequal speeds make a difference, as it must be.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from murmurate.errors import ConfigError
from murmurate.study.reproduce.wide_mlp import WideMlp
from murmurate_coordinator.virtual import VirtualSubnets
from murmurate_coordinator.virtual_setting import VirtualSetting

SEEDS = (0, 1, 2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def points(workload: WideMlp, rule: str, speeds: dict[str, float]) -> float:
    """Mean accuracy of the assembled model, in points. Each run is printed as it ends."""
    found = []
    for seed in SEEDS:
        setting = VirtualSetting(rule=rule, peers=8, seconds=240, speeds=speeds, seed=seed)
        run = VirtualSubnets(workload, setting).run()
        plain, masked = 100 * run.evaluation.accuracy, 100 * run.masked.accuracy
        print(f"{rule} {speeds} seed {seed}: {plain:.2f}, masked {masked:.2f}", flush=True)
        found.append(plain)
    return sum(found) / len(found)


@pytest.mark.slow
def test_asynchrony_pays_when_speeds_differ() -> None:
    try:
        workload = WideMlp()
    except ConfigError as error:
        pytest.skip(str(error))
    slow = {"node-0": 0.25}  # the coordinator, which trains a subnet too
    sync, once, free = (points(workload, rule, slow) for rule in ("sync", "once", "async"))
    assert free - once >= 2
    assert once >= sync
    once, free = (points(workload, rule, {}) for rule in ("once", "async"))
    assert abs(free - once) <= 1
    once, free = (points(workload, rule, {"node-3": 0.1}) for rule in ("once", "async"))
    assert free - once >= 3
