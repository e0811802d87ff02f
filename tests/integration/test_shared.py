"""Rule `shared` with real sockets: what a person sees, and that nothing is lost on the way."""

from __future__ import annotations

import atexit
import copy
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, flock, small, wait_for
from torch import nn

from murmurate.training import gossip


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def learn(nodes: list[Node], loss: float) -> None:
    """Train until the first of them is as good as that. How many steps an update is of, and so how
    many it takes, follows what this machine has time for."""

    def learned() -> bool:
        together(nodes, 20)
        for node in nodes:
            node.swarm.follow(lambda: True, 0.0)
        with torch.no_grad():
            return float(nodes[0].loss(torch.randn(256, 8))) < loss

    wait_for(learned, f"a loss of {loss:.3g}")


def together(nodes: list[Node], steps: int) -> None:
    for _ in range(steps):
        for node in nodes:
            node.step()


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_three_learn_and_end_with_the_same_weights(optimizer: Any, codec: str) -> None:
    with flock(3, rule="shared", optimizer=optimizer, codec=codec) as nodes:
        learn(nodes, nodes[0].step() / 4)
        wait_for(lambda: _same(nodes), "the same weights")
        assert all(torch.equal(flat(n.model), n.swarm.weights()) for n in nodes)


def _same(nodes: list[Node]) -> bool:
    for node in nodes:
        node.swarm.settle(0.1)
    weights = [node.swarm.weights() for node in nodes]
    return all(torch.allclose(w, weights[0], atol=1e-6) for w in weights)


def test_a_gradient_is_taken_ahead_and_everything_else_sees_the_weights() -> None:
    with flock(2, rule="shared", optimizer=momentum) as nodes:
        together(nodes, 12)
        node = nodes[0]
        weights = node.swarm.weights()
        assert torch.equal(flat(node.model), weights), "between two steps"
        node.optimizer.zero_grad()
        node.loss(torch.randn(16, 8)).backward()
        assert not torch.equal(flat(node.model), weights), "a gradient was taken elsewhere"
        gradient = node.model[0].weight.grad.clone()
        saved = torch.cat([v.reshape(-1) for v in node.model.state_dict().values()])
        assert torch.equal(saved, weights), "what is saved"
        node.loss(torch.randn(16, 8)).backward()  # accumulated
        assert not torch.equal(node.model[0].weight.grad, gradient)
        node.model.eval()
        with torch.no_grad():
            seen = node.model(torch.ones(1, 8))
        twin = small()
        torch.nn.utils.vector_to_parameters(weights, twin.parameters())
        assert torch.equal(seen, twin(torch.ones(1, 8)))
        node.model.train()
        node.optimizer.step()
        assert torch.equal(flat(node.model), node.swarm.weights())


def test_copies_of_a_model_are_not_watched() -> None:
    with flock(2, rule="shared") as nodes:
        together(nodes, 8)
        node = nodes[0]
        twins = [copy.deepcopy(node.model), pickle.loads(pickle.dumps(node.model))]
        before = [flat(twin).clone() for twin in twins]
        together(nodes, 8)
        for twin, was in zip(twins, before, strict=True):
            twin(torch.randn(4, 8))
            assert torch.equal(flat(twin), was)


def _loss_of_body(node: Node, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = ((node.model.body(x) - x.sum(1, keepdim=True)) ** 2).mean()
    return loss


def test_a_model_that_is_not_called_as_a_whole_learns_too() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small()

    with flock(0) as nodes:
        for name in ("a", "b"):
            peers = [nodes[0].swarm.address] if nodes else []
            more: dict[str, Any] = {"model": Parts(), "optimizer": momentum, "peers": peers}
            nodes.append(Node(name, rule="shared", **more))
        for node in nodes:
            node.loss = partial(_loss_of_body, node)  # type: ignore[method-assign]
        learn(nodes, nodes[0].step() / 4)
        wait_for(lambda: _same(nodes), "the same weights")
        assert torch.equal(flat(nodes[0].model), nodes[0].swarm.weights())


def test_a_change_by_hand_reaches_the_others() -> None:
    with flock(2, rule="shared") as nodes:
        together(nodes, 8)
        with torch.no_grad():
            nodes[0].model[2].bias.data.add_(100.0)
        together(nodes, 8)
        wait_for(lambda: _same(nodes), "the same weights")
        assert float(nodes[1].model[2].bias.detach()) > 90.0


def test_large_models_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "LARGE_BYTES", 0)
    with flock(2, rule="shared", optimizer=momentum) as nodes:
        learn(nodes, nodes[0].step() / 4)
        wait_for(lambda: _same(nodes), "the same weights")
        assert all(torch.equal(flat(n.model), n.swarm.weights()) for n in nodes)


def test_the_first_is_alone_then_in_company_and_then_alone_again() -> None:
    with flock(1, rule="shared", optimizer=momentum) as (first,):
        together([first], 10)
        plain = flat(first.model).clone()
        second = Node("late", peers=[first.swarm.address], rule="shared", optimizer=momentum)
        assert not torch.equal(plain, torch.zeros_like(plain))
        together([first, second], 40)
        wait_for(lambda: _same([first, second]), "the same weights")
        second.swarm.leave()
        wait_for(lambda: first.swarm.members.get("late") in ("left", None), "it left")
        learn([first], first.step() / 4)
        first.swarm.settle()
        torch.testing.assert_close(flat(first.model), first.swarm.weights())


def test_a_scripted_model_takes_no_hooks_and_learns_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is on its way out
        models = [torch.jit.script(small()) for _ in range(2)]
    with flock(0) as nodes:
        for name, model in zip("ab", models, strict=True):
            peers = [nodes[0].swarm.address] if nodes else []
            more: dict[str, Any] = {"model": model, "optimizer": momentum, "peers": peers}
            nodes.append(Node(name, rule="shared", **more))
        learn(nodes, nodes[0].step() / 4)
        wait_for(lambda: _same(nodes), "the same weights")
        assert torch.equal(flat(nodes[0].model), nodes[0].swarm.weights())


def test_who_comes_back_has_the_swarms_momentum_and_the_steps_it_had_not_published(
    tmp_path: Path,
) -> None:
    with flock(1, rule="shared") as (other,):
        kept: dict[str, Any] = {
            "rule": "shared",
            "checkpoint": tmp_path / "n1",
            "peers": [other.swarm.address],
        }
        node = Node("n1", seed=1, every=4, **kept)
        wait_for(lambda: len(other.swarm.members) == 2)
        together([node, other], 12)
        while not node.swarm.publisher.unpublished.steps:
            node.step()
        before = copy.deepcopy(node.swarm.publisher.state())
        assert before["steps"]
        assert bool(before["rule"]["sum"].any())
        node.swarm.runtime.stop()  # killed, as far as the others can tell
        node.swarm._checkpoints.take_last()
        atexit.unregister(node.swarm.leave)
        again = Node("n1", seed=2, every=4, **kept)
        try:
            after = again.swarm.publisher.state()
            assert (after["steps"], after["context"]) == (before["steps"], before["context"])
            torch.testing.assert_close(after["rule"]["gain"], before["rule"]["gain"])
            again.swarm.publish()
            assert not again.swarm.publisher.unpublished.steps
        finally:
            again.swarm.leave(timeout_s=0.2)
