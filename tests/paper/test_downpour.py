"""Downpour SGD (Dean et al., algorithm 7.1; 003's parameter server): push every p, pull every q."""

from __future__ import annotations

import pytest
import torch
from tests.paper.hub_bench import HubBench
from torch import nn

from murmurate.core.partition import weights_of
from murmurate.core.values.hub_settings import HubSettings, problems
from murmurate.core.values.member_half import HUB_RULES
from murmurate.errors import ConfigError
from murmurate.training.member_values import MemberValues
from murmurate_coordinator.solvers.effects import Effect, GiveLease, PushAccepted


def gradient(weights: torch.Tensor, k: int) -> torch.Tensor:
    """Of some bowl, another one at each step."""
    return weights - torch.arange(4, dtype=torch.float64) * ((k % 3) - 1)


class Replica:
    """Algorithm 7.1, as the paper has it but for the order of its two ifs."""

    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights.clone()
        self.accrued = torch.zeros_like(weights)
        self.steps = 0


@pytest.mark.parametrize(("p", "q"), [(1, 1), (3, 3), (2, 6), (6, 2), (3, 2), (5, 4), (1, 7)])
def test_against_the_papers_algorithm(p: int, q: int) -> None:
    """Two members by turns, against a dumb twin that pushes and pulls apart."""
    bench = HubBench("downpour", settings=HubSettings(pull=q), members=2, steps=p)
    every = bench.solver.steps
    centre = bench.centre()
    twins = {name: Replica(centre) for name in bench.names}
    pushed_to = {name: bench.held(name).clone() for name in bench.names}
    updates = 0
    for k in range(60):
        for name, twin in twins.items():
            change = -0.05 * gradient(twin.weights, k)
            twin.weights = twin.weights + change
            twin.accrued += change
            twin.steps += 1
            if twin.steps % p == 0:
                centre = centre + twin.accrued
                twin.accrued.zero_()
                updates += 1
            if twin.steps % q == 0:
                twin.weights = centre.clone()

            bench.move(name, -0.05 * gradient(bench.held(name), k))
            if twin.steps % every == 0:
                difference = bench.held(name) - pushed_to[name]
                effects = bench.push(name, difference, steps=every)
                assert isinstance(effects[0], PushAccepted)
                pulled = any(isinstance(effect, GiveLease) for effect in effects)
                assert pulled == (twin.steps % q == 0)
                pushed_to[name] = bench.held(name).clone()
            assert torch.allclose(bench.centre(), centre, rtol=0, atol=1e-12)
            assert torch.allclose(bench.held(name), twin.weights, rtol=0, atol=1e-12)
    assert updates == 2 * (60 // p)
    assert bench.solver.more()["version"] == updates


def test_staleness_counts_from_the_last_pull() -> None:
    bench = HubBench("downpour", settings=HubSettings(pull=2), members=2, steps=1)

    def age(name: str) -> int | None:
        accepted = bench.push(name, torch.ones(4, dtype=torch.float64))[0]
        assert isinstance(accepted, PushAccepted)
        return accepted.staleness

    assert [age("node-0"), age("node-0"), age("node-0")] == [0, 1, 0]
    assert age("node-1") == 3


def test_what_is_not_p_steps_yet_is_in_when_its_member_is_gone() -> None:
    bench = HubBench("downpour", settings=HubSettings(pull=1), members=2, steps=3)
    before = bench.centre()
    bench.push("node-0", torch.ones(4, dtype=torch.float64))
    assert torch.equal(bench.centre(), before)
    gone: list[Effect] = bench.take(bench.solver.leave("node-0"))
    assert not gone  # node-1 pulls when it is time
    assert torch.equal(bench.centre(), before + 1)


def test_changes_that_are_not_pushed_stay_on_top_of_what_is_pulled() -> None:
    model = nn.Linear(4, 1, bias=False).double()
    values = MemberValues(HUB_RULES["downpour"])
    given = {"weight": torch.zeros(1, 4, dtype=torch.float64)}
    values.replace(model, given)
    with torch.no_grad():
        model.weight.add_(1.0)
    assert torch.equal(values.up(model)["weight"], torch.ones(1, 4, dtype=torch.float64))
    with torch.no_grad():
        model.weight.add_(0.5)
    values.down(model, {"weight": torch.full((1, 4), 10.0, dtype=torch.float64)})
    assert torch.equal(weights_of(model)["weight"].detach(), given["weight"] + 10.5)
    assert torch.equal(values.up(model)["weight"], given["weight"] + 0.5)
    assert not values.up(model)["weight"].any()


def test_p_and_q_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="pull 0: must be at least 1"):
        HubSettings(pull=0)
    with pytest.raises(ConfigError, match="steps 0: must be at least 1"):
        HubBench("downpour", steps=0)
    assert "pull" in problems("async", {"pull": 2}, 4)
    assert not problems("downpour", {"pull": 2, "protocol": "pipelined"}, 4)
    wrong = problems("downpour", {"protocol": "request-reply"}, 4)
    assert wrong == {"protocol": "rule downpour is always pipelined"}
