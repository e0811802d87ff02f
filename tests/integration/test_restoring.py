"""Weights are restored for all members at once, and the run goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.integration.flock import (
    Node,
    flock,
    same_weights,
    small,
    train_together,
    wait_for,
)
from torch import nn

from murmurate.errors import ConfigError
from murmurate.training.swarm import Swarm


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(one - other))


def steps(nodes: list[Node], count: int) -> None:
    for _ in range(count):
        for node in nodes:
            node.step()


def settled(nodes: list[Node]) -> None:
    """Without a step: all have what was made."""
    for node in nodes:
        node.swarm.publish()

    def even() -> bool:
        for node in nodes:
            node.swarm.follow(lambda: True, 1.0)
        return all(torch.allclose(n.weights(), nodes[0].weights(), atol=1e-5) for n in nodes)

    wait_for(even, "the same everywhere")


@pytest.mark.parametrize("make", [small, normed])
@pytest.mark.parametrize(
    ("rule", "codec"), [("shared", "fp32"), ("shared", "int8"), ("capped", "fp32"), ("sum", "fp32")]
)
def test_three_that_restore_their_best_weights_go_on_from_there(
    rule: str, codec: str, make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    with flock(3, make, rule=rule, codec=codec, optimizer=momentum) as nodes:
        settled(nodes)
        best = nodes[0].swarm.state_dict()
        began = nodes[0].weights()
        steps(nodes, 60)
        settled(nodes)
        far = apart(nodes[0].weights(), began)
        counted = [node.swarm.restore(best) for node in nodes]
        assert counted == [True, False, False]
        settled(nodes)
        assert apart(nodes[1].weights(), began) < 0.02 * far, "all have them, once"
        steps(nodes, 2)
        settled(nodes)
        assert apart(nodes[2].weights(), began) < 0.35 * far, "and go on from there"
        train_together(nodes, 20)
        same_weights(nodes)
    assert caplog.text.count("restore() counts on one member, the chosen one: n0") == 2
    assert "changed beside" not in caplog.text


def test_two_that_both_think_they_are_chosen_restore_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with flock(3, normed, rule="shared", optimizer=momentum) as nodes:
        settled(nodes)
        best, began = nodes[0].swarm.state_dict(), nodes[0].weights()
        steps(nodes, 60)
        settled(nodes)
        far = apart(nodes[0].weights(), began)
        monkeypatch.setattr(Swarm, "chosen", True)
        with monkeypatch.context() as closed:
            for node in nodes:
                closed.setattr(node.swarm, "_take_in", lambda **_: None)  # none hears of another
            assert [node.swarm.restore(best) for node in nodes] == [True] * 3

        def heard() -> bool:
            even = [node.swarm.settle(0.1) for node in nodes]
            return all(even) and len({len(node.clock) for node in nodes}) == 1

        wait_for(heard, "all know of all")
        assert apart(nodes[1].weights(), began) < 0.02 * far, "as often as it should"
        steps(nodes, 2)
        train_together(nodes, 10)
        same_weights(nodes)
    assert caplog.text.count("is taken back, so that it counts once") == 2


def test_what_led_the_swarm_away_does_not_lead_it_on() -> None:
    with flock(3, rule="shared", optimizer=momentum) as nodes:
        settled(nodes)
        best, began = nodes[0].swarm.state_dict(), nodes[0].weights()
        steps(nodes, 40)
        settled(nodes)
        nodes[0].swarm.restore(best)
        settled(nodes)
        for node in nodes:
            rule: Any = node.swarm.publisher._rule
            assert not rule._sum.any(), node.swarm.name
            node.swarm.publisher.look.ahead()
            values = torch.cat([p.detach().reshape(-1) for p in node.model.parameters()])
            assert apart(values, began) < 1e-5, "the next gradient is taken at them"


def test_a_state_of_another_model_or_no_copy_is_said() -> None:
    with flock(1) as (node,):
        node.step()
        before = node.weights()
        with pytest.raises(ConfigError, match=r"the model's own tensor.*swarm\.state_dict"):
            node.swarm.restore(node.model.state_dict())
        state = node.swarm.state_dict()
        with pytest.raises(ConfigError, match=r"lacks 0\.bias"):
            node.swarm.restore({k: v for k, v in state.items() if k != "0.bias"})
        with pytest.raises(ConfigError, match="has more"):
            node.swarm.restore({**state, "more": torch.zeros(1)})
        with pytest.raises(ConfigError, match=r"0\.bias is \[9\], expected \[8\]"):
            node.swarm.restore({**state, "0.bias": torch.zeros(9)})
        with pytest.raises(ConfigError, match="cannot be restored"):
            node.swarm.restore({**state, "0.bias": torch.full((8,), torch.nan)})
        node.swarm.publish()
        torch.testing.assert_close(node.weights(), before, atol=1.0, rtol=0.0)
        assert node.swarm.restore({**state, "0.bias": torch.ones(8)})
        torch.testing.assert_close(node.model[0].bias.detach(), torch.ones(8))


def test_where_weights_are_mixed_each_loads_its_own() -> None:
    with flock(2, rule="average") as nodes:
        steps(nodes, 4)
        with pytest.raises(ConfigError, match="each loads its own"):
            nodes[0].swarm.restore(nodes[0].swarm.state_dict())
