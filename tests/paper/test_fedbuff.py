"""FedBuff (Nguyen et al., algorithm 1): K differences, scaled by their age, make an update."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.paper.hub_bench import HubBench

from murmurate.core.values.hub_settings import HubSettings, problems
from murmurate.errors import ConfigError
from murmurate_coordinator.solvers.effects import MemberPush, PushAccepted, Reason, Refused


def test_k_differences_make_an_update_each_scaled_by_its_age() -> None:
    """Against the formula, written out: w += 1/K sum of d / sqrt(1 + tau), with exact tau."""
    bench = HubBench("fedbuff", settings=HubSettings(gradients=2), members=3)
    generator = torch.Generator().manual_seed(1)
    expected, buffered, version = bench.centre(), torch.zeros(4, dtype=torch.float64), 0
    based_on = dict.fromkeys(bench.names, 0)
    ages = []
    for k, turn in enumerate([0, 1, 0, 0, 2, 1, 0, 2, 2, 0]):
        name = bench.names[turn]
        difference = torch.randn(4, dtype=torch.float64, generator=generator)
        accepted = bench.push(name, difference.clone(), steps=3)[0]
        assert isinstance(accepted, PushAccepted)
        age = version - based_on[name]
        assert accepted.staleness == age
        ages.append(age)
        buffered += difference / math.sqrt(1 + age)
        if k % 2:
            expected += buffered / 2
            buffered = torch.zeros(4, dtype=torch.float64)
            version += 1
        based_on[name] = version
        assert torch.allclose(bench.centre(), expected, rtol=0, atol=1e-14)
        assert torch.equal(bench.held(name), bench.centre())
    assert max(ages) >= 2  # or nothing was scaled
    told = bench.solver.more()["conservation"]
    assert told["staleness"] + told["residual"] + told["gradients"] >= told["presence"]


def test_with_k_1_and_nothing_between_the_weights_become_the_members() -> None:
    bench = HubBench("fedbuff", settings=HubSettings(gradients=1), members=1)
    mine = torch.arange(4, dtype=torch.float64)
    bench.push("node-0", mine - bench.held("node-0"), steps=7)
    assert torch.allclose(bench.centre(), mine, rtol=0, atol=1e-15)


def test_a_difference_of_no_step_is_refused() -> None:
    bench = HubBench("fedbuff", settings=HubSettings(gradients=1), members=1)
    before = bench.centre()
    good: MemberPush = bench.pushed("node-0", torch.ones(4, dtype=torch.float64), steps=1)
    [refused] = bench.solver.push(replace(good, steps=0))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.SHAPES
    assert "no step" in refused.sentence
    assert torch.equal(bench.centre(), before)


def test_k_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="gradients 0: must be at least 1"):
        HubSettings(gradients=0)
    assert problems("fedbuff", {"gradients": 5}, 4)["gradients"].startswith("at most 4")
    assert not problems("fedbuff", {"gradients": 4}, 4)
    assert "gradients" in problems("easgd", {"gradients": 2}, 4)
