"""Weights that may be only in some places stay there, though many peers move them."""

from __future__ import annotations

import pytest
import torch
from tests.integration.flock import Node, flock, same_weights, train_together
from torch import nn

CLAMP = 0.125


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)


def clamp(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.clamp_(-CLAMP, CLAMP)


def constrain(node: Node) -> None:
    node.swarm.constrain(lambda: clamp(node.model))


def beyond(weights: torch.Tensor) -> float:
    """By how much they are outside, at most."""
    return max(0.0, float(weights.abs().max()) - CLAMP)


@pytest.mark.parametrize(
    ("rule", "codec"),
    [
        ("shared", "fp32"),
        ("shared", "int8"),
        ("capped", "fp32"),
        ("sum", "fp32"),
        ("average", "fp32"),
    ],
)
def test_three_that_clamp_stay_inside(
    rule: str, codec: str, caplog: pytest.LogCaptureFixture
) -> None:
    with flock(3, rule=rule, codec=codec, optimizer=momentum) as nodes:
        for node in nodes:
            constrain(node)
        train_together(nodes, 400)
        if rule != "average":
            same_weights(nodes)
        weights = nodes[0].weights()
        at_the_edge = float((weights.abs() > 0.9 * CLAMP).float().mean())
        assert at_the_edge > 0.1, "they want to be outside"
        if rule != "sum":  # it swings: three times one node's steps, without a look ahead
            assert beyond(weights) < 0.5 * CLAMP
        for node in nodes:
            for value in node.swarm.state_dict().values():
                assert not beyond(value)
    for node in nodes:
        for parameter in node.model.parameters():
            assert not beyond(parameter.detach())
    assert "changed beside" not in caplog.text


def test_who_is_alone_is_never_beyond() -> None:
    with flock(1, rule="shared", every=1, optimizer=momentum) as (node,):
        constrain(node)
        for _ in range(20):
            node.step()
            assert beyond(node.weights()) < 1e-6
