"""Rule `shared` in loops as people write them: closures, accumulated gradients, AMP, two models.

In each, gradients are taken at the view, nothing the optimizer does is lost, and all end alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, flock, small, wait_for
from torch import nn

import murmurate
from murmurate.errors import ConfigError

Step = Callable[[Node], None]


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def fused(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, fused=True)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


class Twice(torch.optim.Optimizer):
    """Asks for two gradients in a step, the second a little way up the first, and looks once at the
    loss without one; then goes down the second."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})
        self.jumps: list[float] = []
        """How far the parameters moved by themselves while it was asking."""

    def step(self, closure: Any = None) -> Any:
        ours = [p for group in self.param_groups for p in group["params"]]
        with torch.enable_grad():
            loss = closure()
        before = [p.detach().clone() for p in ours]
        with torch.no_grad():
            for p in ours:
                p.add_(p.grad, alpha=0.01)
            up = [p.detach().clone() for p in ours]
            closure(look=True)
        with torch.enable_grad():
            closure()
        self.jumps += [
            float((p - was).detach().abs().max()) for p, was in zip(ours, up, strict=True)
        ]
        with torch.no_grad():
            for p, was in zip(ours, before, strict=True):
                p.copy_(was).sub_(p.grad, alpha=self.param_groups[0]["lr"])
        return loss


def loss_of(node: Node, rows: int = 16) -> torch.Tensor:
    return node.loss(torch.randn(rows, 8, generator=node.data))


def with_closure(node: Node) -> None:
    x = torch.randn(16, 8, generator=node.data)

    def closure(look: bool = False) -> torch.Tensor:
        if look:
            return node.loss(x)
        node.optimizer.zero_grad()
        loss = node.loss(x)
        loss.backward()
        return loss

    node.optimizer.step(closure)  # type: ignore[arg-type]


def accumulating(node: Node) -> None:
    node.optimizer.zero_grad()
    places = []
    for _ in range(3):
        (loss_of(node) / 3).backward()
        places.append(flat(node.model).clone())
    assert all(torch.equal(place, places[0]) for place in places), "gradients of one place"
    node.optimizer.step()


def looking_between(node: Node) -> None:
    """A validation between two halves of a batch."""
    node.optimizer.zero_grad()
    (loss_of(node) / 2).backward()
    place = flat(node.model).clone()
    node.model.eval()
    with torch.no_grad():
        node.model(torch.randn(4, 8))
    assert torch.equal(flat(node.model), node.swarm.weights())
    node.model.train()
    (loss_of(node) / 2).backward()
    assert torch.equal(flat(node.model), place)
    node.optimizer.step()


def clipping(node: Node) -> None:
    node.optimizer.zero_grad()
    loss_of(node).backward()
    nn.utils.clip_grad_norm_(node.model.parameters(), 0.5)
    node.optimizer.step()


class Scaling:
    """One scaler for each node, as AMP has it; every seventh gradient is infinite."""

    def __init__(self) -> None:
        self._scalers: dict[str, Any] = {}
        self._count = 0

    def __call__(self, node: Node) -> None:
        made = lambda: torch.amp.GradScaler("cpu", init_scale=1024.0)  # noqa: E731
        scaler = self._scalers.setdefault(node.swarm.name, made())
        node.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(node)
        self._count += 1
        scaler.scale(loss * (float("inf") if self._count % 7 == 0 else 1.0)).backward()
        scaler.step(node.optimizer)
        scaler.update()


LOOPS: list[tuple[Any, Callable[[], Step]]] = [
    (momentum, lambda: with_closure),
    (adam, lambda: with_closure),
    (lambda model: Twice(model.parameters()), lambda: with_closure),
    (momentum, lambda: accumulating),
    (adam, lambda: looking_between),
    (momentum, lambda: clipping),
    (adam, Scaling),
    (fused, Scaling),
]


def same(nodes: list[Node]) -> bool:
    for node in nodes:
        node.swarm.settle(0.1)
    weights = [node.swarm.weights() for node in nodes]
    return all(torch.allclose(w, weights[0], atol=1e-6) for w in weights)


@pytest.mark.parametrize(
    ("optimizer", "loop"),
    LOOPS,
    ids=["closure-sgd", "closure-adam", "twice", "accumulate", "look", "clip", "amp", "amp-fused"],
)
def test_a_loop_learns_and_all_end_alike(optimizer: Any, loop: Callable[[], Step]) -> None:
    step = loop()
    with flock(2, rule="shared", optimizer=optimizer) as nodes:
        before = float(nodes[0].loss(torch.ones(1, 8)).detach())
        assert before > 1.0

        def learned() -> bool:
            for _ in range(10):
                for node in nodes:
                    step(node)
            with torch.no_grad():
                return float(nodes[0].loss(torch.randn(256, 8))) < 1.5

        wait_for(learned, "a loss of 1.5")
        wait_for(lambda: same(nodes), "the same weights")
        for node in nodes:
            assert torch.equal(flat(node.model), node.swarm.weights())
            assert not node.swarm.runtime.look(lambda state: state.tally.rejected["own_step"])
            if isinstance(node.optimizer, Twice):
                assert max(node.optimizer.jumps) == 0.0, "nobody moves them within a step"


# -- two models, two optimizers --------------------------------------------------------------------


class Pair:
    """One that makes numbers and one that tells them from others, each in a run of its own."""

    def __init__(self, name: str, peers: list[list[str]]) -> None:
        torch.manual_seed(0)
        self.maker, self.judge = nn.Linear(8, 8), small()
        self.models = (self.maker, self.judge)
        self.optimizers = tuple(torch.optim.Adam(m.parameters(), lr=0.01) for m in self.models)
        self.swarms = tuple(
            murmurate.join(model, optimizer, run=run, name=name, peers=each)
            for model, optimizer, run, each in zip(
                self.models, self.optimizers, ("maker", "judge"), peers, strict=True
            )
        )

    def step(self) -> None:
        for_maker, for_judge = self.optimizers
        real, made = torch.randn(16, 8) + 2.0, self.maker(torch.randn(16, 8))
        for_judge.zero_grad()
        (self.judge(made.detach()).exp() + (-self.judge(real)).exp()).clamp(
            max=50
        ).mean().backward()
        for_judge.step()
        for_maker.zero_grad()
        (-self.judge(self.maker(torch.randn(16, 8)))).mean().backward()
        for_maker.step()


@contextmanager
def pairs(count: int) -> Iterator[list[Pair]]:
    found: list[Pair] = []
    try:
        for number in range(count):
            peers = [[s.address] for s in found[0].swarms] if found else [[], []]
            found.append(Pair(f"n{number}", peers))
        yield found
    finally:
        for pair in found:
            for swarm in pair.swarms:
                swarm.leave(timeout_s=0.2)


def test_two_models_of_one_loop_are_two_runs() -> None:
    with pairs(2) as both:
        for _ in range(40):
            for pair in both:
                pair.step()

        def alike() -> bool:
            for swarm in [s for pair in both for s in pair.swarms]:
                swarm.settle(0.1)
            return all(
                torch.allclose(mine.weights(), theirs.weights(), atol=1e-6)
                for mine, theirs in zip(both[0].swarms, both[1].swarms, strict=True)
            )

        wait_for(alike, "the same weights")
        for pair in both:
            for model, swarm in zip(pair.models, pair.swarms, strict=True):
                assert torch.equal(flat(model), swarm.weights())
                assert bool(torch.isfinite(swarm.weights()).all())


def test_what_a_second_optimizer_does_to_the_model_is_passed_on() -> None:
    """It has parameters that the one which joined has not."""

    def of_body(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[0].parameters(), lr=0.02)  # type: ignore[index]

    with flock(2, rule="shared", optimizer=of_body) as nodes:
        heads = [torch.optim.SGD(node.model[2].parameters(), lr=0.02) for node in nodes]
        before = nodes[1].model[2].weight.detach().clone()

        def learned() -> bool:
            for node, head in zip(nodes, heads, strict=True):
                node.optimizer.zero_grad()
                head.zero_grad()
                loss_of(node).backward()
                head.step()
                node.optimizer.step()
            with torch.no_grad():
                return float(nodes[0].loss(torch.randn(256, 8))) < 2.0

        wait_for(learned, "a loss of 2")
        wait_for(lambda: same(nodes), "the same weights")
        assert not torch.allclose(nodes[1].model[2].weight, before, atol=0.01)


# -- optimizers whose gain cannot be read ----------------------------------------------------------


@pytest.mark.parametrize("rule", ["shared", "sum", "capped", "average"])
def test_steps_without_bound_are_refused_by_name(rule: str) -> None:
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ConfigError, match="LBFGS: its steps have no bound"):
        murmurate.join(model, optimizer, run="test", rule=rule)


@pytest.mark.parametrize(
    ("optimizer", "rule", "asked", "every"),
    [
        (adam, "shared", None, 2),
        (torch.optim.Rprop, "shared", None, 16),
        (torch.optim.Rprop, "shared", 2, 2),
        (torch.optim.Rprop, "sum", None, 1),
    ],
)
def test_an_update_is_of_more_steps_where_their_gain_cannot_be_read(
    optimizer: Any, rule: str, asked: int | None, every: int
) -> None:
    made = optimizer if optimizer is adam else lambda model: optimizer(model.parameters())
    with flock(1, rule=rule, optimizer=made, every=asked) as (node,):
        assert node.swarm.publisher.every == every
