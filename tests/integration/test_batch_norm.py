"""Running statistics over real sockets: merged for whoever looks, the own ones in training."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, flock, wait_for
from torch import nn

from murmurate.training import gossip


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))


class Instances(nn.Module):
    """Statistics of instance-norm, which are of the same kind."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(1, 4, 3, padding=1)
        self.norm = nn.InstanceNorm1d(4, track_running_stats=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.norm(self.body(x.unsqueeze(1))).flatten(1))
        return out


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def norm_of(model: nn.Module) -> Any:
    return next(m for m in model.modules() if getattr(m, "running_mean", None) is not None)


def statistics(model: nn.Module) -> torch.Tensor:
    norm = norm_of(model)
    return torch.cat((norm.running_mean, norm.running_var))


def shifted(node: Node, by: float) -> None:
    """Its data are others than those of the rest: so are its own statistics."""
    draw = node.loss
    node.loss = lambda x: draw(x + by)  # type: ignore[method-assign]


def together(nodes: list[Node], steps: int) -> None:
    for _ in range(steps):
        for node in nodes:
            node.step()


def same(nodes: list[Node]) -> bool:
    for node in nodes:
        node.swarm.settle(0.1)
    weights = [node.swarm.weights() for node in nodes]
    return all(torch.allclose(w, weights[0], atol=1e-5) for w in weights)


def near_the_mean_of_their_own(nodes: list[Node], by: float = 0.35) -> None:
    """All show the same, which is far nearer to the mean than each node's own are."""
    own = torch.stack([node.swarm.publisher.statistics.merged.own for node in nodes])
    tail = nodes[0].swarm.weights()[-own.shape[1] :]
    for node in nodes:
        torch.testing.assert_close(statistics(node.model), tail, atol=1e-5, rtol=1e-5)
    apart = float((own - own.mean(0)).norm(dim=1).mean())
    assert float((tail - own.mean(0)).norm()) < by * apart


@pytest.mark.parametrize("codec", ["fp32", "int8", "topk"])
@pytest.mark.parametrize(
    ("make", "rule"), [(normed, "shared"), (normed, "sum"), (Instances, "shared")]
)
def test_all_end_with_the_same_statistics(make: Any, rule: str, codec: str) -> None:
    with flock(3, make, rule=rule, codec=codec) as nodes:
        for index, node in enumerate(nodes):
            shifted(node, index - 1.0)
        together(nodes, 120)
        wait_for(lambda: same(nodes), "the same weights")
        near_the_mean_of_their_own(nodes)


@pytest.mark.parametrize("rule", ["shared", "average"])
def test_a_late_one_gets_the_statistics(rule: str) -> None:
    with flock(2, normed, rule=rule, optimizer=momentum) as nodes:
        together(nodes, 80)
        for node in nodes:
            node.swarm.publish()  # how many steps an update is of follows the machine
        wait_for(lambda: rule == "average" or same(nodes), "the same weights")
        late = Node("late", model=normed(), rule=rule, peers=[nodes[0].swarm.address])
        nodes.append(late)
        if rule == "shared":  # the snapshot may be an old one: updates follow it
            wait_for(lambda: same(nodes), "the same weights")
            own = late.swarm.publisher.statistics.merged.own
            torch.testing.assert_close(own, late.swarm.weights()[-32:])
        else:
            first = torch.zeros(16)
            wait_for(
                lambda: (
                    late.swarm.follow(lambda: True, 0.0)
                    and nodes[0].swarm.follow(lambda: True, 0.0)
                    and not torch.allclose(statistics(late.model)[:16], first)
                ),
                "mixed",
            )
        seen = statistics(late.model)
        assert not torch.allclose(seen[:16], torch.zeros(16)), "its own were zeros"
        torch.testing.assert_close(seen, late.swarm.weights()[-32:])
        if rule == "shared":
            torch.testing.assert_close(seen, statistics(nodes[0].model), atol=1e-5, rtol=1e-5)


def test_averaging_mixes_them() -> None:
    with flock(3, normed, rule="average", optimizer=momentum) as nodes:
        for index, node in enumerate(nodes):
            shifted(node, index - 1.0)
        together(nodes, 60)
        for node in nodes:
            node.train(steps=node.steps)
        for node in nodes:
            node.end()
        seen = [statistics(node.model) for node in nodes]
        own = [node.swarm.publisher.statistics.merged.own for node in nodes]
        between = max(float((a - b).norm()) for a in seen for b in seen)
        assert between < 0.05 * max(float((a - b).norm()) for a in own for b in own)


def test_a_call_in_training_has_the_own_ones_and_all_else_sees_the_swarms() -> None:
    with flock(2, normed, rule="shared", optimizer=momentum) as nodes:
        node = nodes[0]
        for index, each in enumerate(nodes):
            shifted(each, 2.0 * index)
        together(nodes, 40)
        own = node.swarm.publisher.statistics.merged.own.clone()
        tail = node.swarm.weights()[-32:]
        assert not torch.allclose(own, tail, atol=0.05), "the other's data are others"
        assert statistics(node.model).equal(tail), "between two steps"
        x = torch.randn(16, 8)
        loss = node.loss(x)
        inputs = node.model[0](x).detach()
        wanted = 0.9 * own[:16] + 0.1 * inputs.mean(0)
        torch.testing.assert_close(norm_of(node.model).running_mean, wanted, atol=1e-4, rtol=1e-4)
        assert statistics(copy.deepcopy(node.model)).numel() == 32
        assert torch.cat(
            [node.model.state_dict()[f"1.running_{w}"] for w in ("mean", "var")]
        ).equal(tail), "what is saved"
        node.model.eval()
        with torch.no_grad():
            node.model(x)
        assert statistics(node.model).equal(tail), "evaluating leaves them as they are"
        node.model.train()
        loss.backward()
        node.optimizer.step()
        torch.testing.assert_close(
            node.swarm.publisher.statistics.merged.own[:16], wanted, atol=1e-4, rtol=1e-4
        )


def test_without_a_gradient_a_training_call_writes_the_own_ones() -> None:
    """As `torch.optim.swa_utils.update_bn` does."""
    with flock(2, normed, rule="shared", optimizer=momentum) as nodes:
        together(nodes, 20)
        node = nodes[0]
        own = node.swarm.publisher.statistics.merged.own.clone()
        with torch.no_grad():
            node.model(torch.full((4, 8), 3.0))
        assert float((statistics(node.model) - own)[:16].norm()) > 0
        tail = node.swarm.weights()[-32:]
        node.model.eval()
        node.model(torch.zeros(1, 8))
        assert statistics(node.model).equal(tail)


def test_frozen_ones_are_left_alone() -> None:
    with flock(2, normed, rule="shared", optimizer=momentum) as nodes:
        for node in nodes:
            norm_of(node.model).eval()
        before = statistics(nodes[0].model).clone()
        together(nodes, 40)
        wait_for(lambda: same(nodes), "the same weights")
        assert all(statistics(node.model).equal(before) for node in nodes)
        assert nodes[0].swarm.weights()[-32:].equal(before)


def test_alone_nothing_is_changed() -> None:
    torch.manual_seed(0)
    twin = normed()
    optimizer = momentum(twin)
    with flock(0) as nodes:
        nodes.append(Node("only", model=copy.deepcopy(twin), optimizer=momentum, rule="shared"))
        data = torch.Generator().manual_seed(0)
        for _ in range(10):
            x = torch.randn(16, 8, generator=data)
            optimizer.zero_grad()
            ((twin(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
            optimizer.step()
            nodes[0].step()
        assert statistics(nodes[0].model).equal(statistics(twin))
        nodes[0].swarm.settle()
        torch.testing.assert_close(nodes[0].swarm.weights()[-32:], statistics(twin))


def test_a_large_model_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "LARGE_BYTES", 0)
    with flock(3, normed, rule="shared", optimizer=momentum) as nodes:
        for index, node in enumerate(nodes):
            shifted(node, index - 1.0)
        together(nodes, 160)
        wait_for(lambda: same(nodes), "the same weights")
        near_the_mean_of_their_own(nodes)


def test_a_restart_goes_on_with_them(tmp_path: Path) -> None:
    more: dict[str, Any] = {"optimizer": momentum, "rule": "shared", "checkpoint": tmp_path}
    with flock(0) as nodes:
        nodes.append(Node("kept", model=normed(), **more))
        together(nodes, 30)
        nodes[0].swarm.leave()
        before = statistics(nodes[0].model).clone()
        batches = int(norm_of(nodes[0].model).num_batches_tracked)
    with flock(0) as nodes:
        nodes.append(Node("kept", model=normed(), **more))
        torch.testing.assert_close(statistics(nodes[0].model), before)
        assert int(norm_of(nodes[0].model).num_batches_tracked) == batches
        torch.testing.assert_close(nodes[0].swarm.weights()[-32:], before)


class Parts(nn.Module):
    """Never called as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body = normed()


def _loss_of_body(node: Node, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = ((node.model.body(x) - x.sum(1, keepdim=True)) ** 2).mean()
    return loss


def test_a_model_that_is_not_called_as_a_whole() -> None:
    with flock(2, Parts, rule="shared", optimizer=momentum) as nodes:
        for index, node in enumerate(nodes):
            node.loss = partial(_loss_of_body, node)  # type: ignore[method-assign]
            shifted(node, 2.0 * index)
        together(nodes, 40)
        wait_for(lambda: same(nodes), "what both see")  # on a busy machine little came by now
        node = nodes[0]
        own = node.swarm.publisher.statistics.merged.own.clone()
        node.model.eval()
        with torch.no_grad():
            node.model.body(torch.zeros(1, 8))
        assert statistics(node.model).equal(node.swarm.weights()[-32:]), "evaluated in parts"
        node.model.train()
        inputs: list[torch.Tensor] = []
        hook = norm_of(node.model).register_forward_hook(lambda *seen: inputs.append(seen[1][0]))
        node.step()
        hook.remove()
        wanted = 0.9 * own[:16] + 0.1 * inputs[0].detach().mean(0)
        now = node.swarm.publisher.statistics.merged.own
        torch.testing.assert_close(now[:16], wanted, atol=1e-4, rtol=1e-4)
        wait_for(lambda: same(nodes), "the same weights")
        assert statistics(node.model).equal(node.swarm.weights()[-32:])


def test_a_scripted_model_takes_no_hooks_and_has_them_merged_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is on its way out
        models = [torch.jit.script(normed()) for _ in range(2)]
    with flock(2, models.pop, rule="shared", optimizer=momentum) as nodes:
        together(nodes, 40)
        wait_for(lambda: same(nodes), "the same weights")
        for node in nodes:
            torch.testing.assert_close(statistics(node.model), node.swarm.weights()[-32:])


def test_what_is_loaded_by_hand_reaches_the_others() -> None:
    with flock(2, normed, rule="shared", optimizer=momentum) as nodes:
        together(nodes, 10)
        for node in nodes:
            norm_of(node.model).eval()  # so that training does not write over it
            norm_of(node.model).running_mean.fill_(7.0)
        together(nodes, 60)
        wait_for(lambda: same(nodes), "the same weights")
        assert float((statistics(nodes[1].model)[:16] - 7.0).abs().max()) < 0.5


def test_a_batch_that_is_no_numbers_is_not_kept() -> None:
    with flock(2, normed, rule="shared", optimizer=momentum) as nodes:
        together(nodes, 10)
        node = nodes[0]
        node.optimizer.zero_grad()
        node.loss(torch.full((16, 8), float("nan"))).backward()
        node.optimizer.step()
        node.swarm.publish()
        together(nodes, 10)
        wait_for(lambda: same(nodes), "the same weights")
        assert all(bool(statistics(n.model).isfinite().all()) for n in nodes)
        assert bool(node.swarm.publisher.statistics.merged.own.isfinite().all())
