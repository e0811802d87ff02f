"""Everybody's second moments over real sockets: in updates of every form, late and again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, flock, small, wait_for
from torch import nn

from murmurate.core import second_moments
from murmurate.errors import SchemaMismatch
from murmurate.training import gossip


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.003)


OWN: dict[str, Any] = {"rule": "shared", "data": "own", "optimizer": adam}


def normed() -> nn.Sequential:
    """Running statistics lie before them."""
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))


def together(nodes: list[Node], steps: int) -> None:
    for _ in range(steps):
        for node in nodes:
            node.step()


def same(nodes: list[Node]) -> bool:
    for node in nodes:
        node.swarm.settle(0.1)
    weights = [node.swarm.weights() for node in nodes]
    return all(torch.allclose(w, weights[0], atol=1e-4, rtol=1e-4) for w in weights)


def everybodys(node: Node) -> torch.Tensor:
    return node.swarm.weights()[node.swarm.publisher.moments._place]


def unlike(nodes: list[Node]) -> None:
    """What one has is ten times what the next has: their second moments are far apart."""
    for index, node in enumerate(nodes):
        draw = node.loss
        node.loss = partial(_times, draw, 10.0**index)  # type: ignore[method-assign]


def _times(draw: Any, by: float, x: torch.Tensor) -> Any:
    return by * draw(x)


@pytest.mark.parametrize(
    ("make", "codec"), [(small, "fp32"), (normed, "fp32"), (normed, "int8"), (normed, "parts")]
)
def test_all_have_the_mean_of_what_all_have(
    make: Any, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if codec == "parts":
        monkeypatch.setattr(gossip, "LARGE_BYTES", 0)
        monkeypatch.setattr(second_moments, "WHOLE_MAX", 0)
    with flock(3, make, codec=codec.replace("parts", "fp32"), **OWN) as nodes:
        unlike(nodes)
        together(nodes, 40)

        def near_the_mean() -> bool:
            """What began with different beliefs of who is there is mended step by step."""
            together(nodes, 5)
            own = torch.stack([node.swarm.publisher.moments.merged.own for node in nodes])
            assert float(own[0].norm()) < 0.1 * float(own[2].norm())
            off = float((everybodys(nodes[0]) - own.mean(0)).norm())
            return off < 0.2 * float(own.mean(0).norm())

        wait_for(near_the_mean, "the mean")
        wait_for(lambda: same(nodes), "the same weights")


def test_a_late_one_has_them_from_its_first_step_on() -> None:
    with flock(2, **OWN) as nodes:
        together(nodes, 30)
        late = Node("late", seed=7, peers=[nodes[0].swarm.address], **OWN)
        nodes.append(late)
        wait_for(lambda: same(nodes), "the same weights")  # an old snapshot, and updates
        before = everybodys(late)
        assert before.any()
        late.step()
        late.swarm.publish()
        own = late.swarm.publisher.moments.merged.own
        torch.testing.assert_close(everybodys(late), before + (own - before) / 3, rtol=0.2, atol=1)
        together(nodes, 5)
        wait_for(lambda: same(nodes), "the same weights")


def test_a_restart_goes_on_with_them(tmp_path: Path) -> None:
    with flock(0) as nodes:
        nodes.append(Node("kept", checkpoint=tmp_path, **OWN))
        together(nodes, 20)
        nodes[0].swarm.leave()
        before = everybodys(nodes[0])
        assert before.any()
    with flock(0) as nodes:
        nodes.append(Node("kept", checkpoint=tmp_path, **OWN))
        torch.testing.assert_close(everybodys(nodes[0]), before)
        together(nodes, 3)


def test_who_says_another_word_for_data_hears_why_it_cannot_join() -> None:
    why = "has everybody's second moments in it and this node has not"
    with flock(1, **OWN) as nodes, pytest.raises(SchemaMismatch, match=why):
        Node("other", peers=[nodes[0].swarm.address], **{**OWN, "data": "same"})
