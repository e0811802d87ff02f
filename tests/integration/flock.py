"""Nodes that train a small model, each in a thread of its own, over real gRPC on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import murmurate
from murmurate.core.clock import Range
from murmurate.training.swarm import Swarm

WAIT_S = 30.0
Make = Callable[[], nn.Module]


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)


def wait_for(true: Callable[[], bool], what: str = "it", timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what}: not in {timeout_s} s"
        time.sleep(0.005)


class Node:
    """One node: a model, an optimizer, its swarm, and steps on data of its own."""

    def __init__(
        self,
        name: str,
        *,
        model: nn.Module | None = None,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
        seed: int = 0,
        **join: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.model: Any = model if model is not None else small()
        self.optimizer = optimizer(self.model)
        self.data = torch.Generator().manual_seed(seed)
        self.steps = 0
        self.error: BaseException | None = None
        self.swarm: Swarm = murmurate.join(
            self.model, self.optimizer, name=name, **{"run": "test", "rule": "sum", **join}
        )
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        return loss

    def step(self) -> float:
        x = torch.randn(16, 8, generator=self.data)
        self.optimizer.zero_grad()
        loss = self.loss(x)
        loss.backward()
        self.optimizer.step()
        self.swarm.log(samples=16, loss=loss.item())
        self.steps += 1
        return loss.item()

    def train(self, *, steps: int | None = None, pause_s: float = 0.0) -> Node:
        """In a thread: so many steps, or until `end()`; then `finish()`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._train, args=(steps, pause_s))
        self._thread.start()
        return self

    def _train(self, steps: int | None, pause_s: float) -> None:
        try:
            while not self._stop.is_set() and (steps is None or self.steps < steps):
                self.step()
                if pause_s:
                    self._stop.wait(pause_s)
            self.swarm.finish(WAIT_S)
        except BaseException as error:
            self.error = error
            raise

    def stop(self) -> None:
        self._stop.set()

    def end(self) -> None:
        """Wait until its training is over."""
        self.stop()
        if self._thread is not None:
            self._thread.join(2 * WAIT_S)
            assert not self._thread.is_alive()
            self._thread = None

    @property
    def clock(self) -> Any:
        return self.swarm.clock

    def weights(self) -> torch.Tensor:
        return self.swarm.weights()


@contextmanager
def flock(count: int, make: Make | None = None, **join: Any) -> Iterator[list[Node]]:
    """So many nodes in one run, whose models `make` makes; all have left at the end."""
    nodes: list[Node] = []
    try:
        for index in range(count):
            peers = [nodes[0].swarm.address] if nodes else []
            model = make() if make is not None else None
            nodes.append(Node(f"n{index}", model=model, seed=index, peers=peers, **join))
        yield nodes
    finally:
        for node in nodes:
            node.stop()
        for node in nodes:
            node.end()
        for node in nodes:
            node.swarm.leave(timeout_s=0.2)


def train_together(nodes: list[Node], steps: int) -> None:
    """Each its steps at its own pace, until all have the same."""
    for node in nodes:
        node.train(steps=node.steps + steps)
    for node in nodes:
        wait_for(lambda node=node: not node._thread.is_alive(), node.swarm.name)  # type: ignore[misc]
        if node.error is not None:
            raise node.error


def same_weights(nodes: list[Node]) -> None:
    """The same updates everywhere, and so the same weights. What the members agreed to leave out of
    their clocks may reach one of them a moment after another."""

    def updates() -> list[tuple[int, list[Range]]]:
        return [(clock.base, clock.ranges()) for clock in (node.clock for node in nodes)]

    wait_for(lambda: all(each == updates()[0] for each in updates()), f"one set, not {updates()}")
    first = nodes[0].weights()
    for node in nodes[1:]:
        torch.testing.assert_close(node.weights(), first, rtol=1e-5, atol=1e-6)
