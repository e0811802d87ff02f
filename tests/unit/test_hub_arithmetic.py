"""What a hub does to the weights, number by number, against a twin that is as simple as can be.

The twin is written from the formulas of the papers with Python's own numbers, and keeps whole
copies of everything; it knows no lease, no tensor and no version.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from tests.paper.hub_bench import HubBench
from tests.unit.test_hub_journal import reborn
from tests.unit.test_solver_conformance import J, Members, kind, made, same, weights

from murmurate.core.values.hub_settings import HubSettings
from murmurate_coordinator.checkpoint import save
from murmurate_coordinator.journal import Journal, JournaledSolver
from murmurate_coordinator.solvers.protocol import LIFE

LR = 0.3
Numbers = list[float]


@dataclass
class Twin:
    """A hub that a child could check: four numbers, and what each member was given."""

    w: Numbers
    momentum: float = 0.0
    nesterov: bool = False
    lam: float = 0.0
    adaptive: bool = False
    v: Numbers = field(default_factory=lambda: [0.0] * 4)
    given: dict[str, Numbers] = field(default_factory=dict)
    squares: dict[str, Numbers] = field(default_factory=dict)

    def give(self, name: str) -> None:
        self.given[name] = list(self.w)

    def push(self, name: str, sum_of_gradients: Numbers, steps: int) -> None:
        mean_square = self.squares.setdefault(name, [0.0] * 4)
        for i in range(4):
            g = sum_of_gradients[i] / steps
            lam = self.lam
            if self.adaptive:
                mean_square[i] = 0.95 * mean_square[i] + 0.05 * g * g
                lam = self.lam / math.sqrt(mean_square[i] + 1e-7)
            g = g + lam * g * g * (self.w[i] - self.given[name][i])
            self.v[i] = self.momentum * self.v[i] + g
            step = g + self.momentum * self.v[i] if self.nesterov else self.v[i]
            self.w[i] -= LR * step
        self.give(name)


CASES = [
    ("async-msgd", {}, {"momentum": 0.9}),
    ("async-msgd", {"momentum": 0.0}, {}),
    ("async-msgd", {"momentum": 0.5, "nesterov": True}, {"momentum": 0.5, "nesterov": True}),
    ("dc", {}, {"lam": 0.04}),
    ("dc", {"dc_lambda": 2.0}, {"lam": 2.0}),
    ("dc", {"dc_lambda": 0.0}, {}),
    ("dc", {"dc_adaptive": True}, {"lam": 2.0, "adaptive": True}),
    (
        "dc",
        {"dc_adaptive": True, "dc_lambda": 0.5, "momentum": 0.9},
        {"lam": 0.5, "adaptive": True, "momentum": 0.9},
    ),
    (
        "dc",
        {"dc_lambda": 1.0, "momentum": 0.9, "nesterov": True},
        {"lam": 1.0, "momentum": 0.9, "nesterov": True},
    ),
]


@pytest.mark.parametrize(("rule", "told", "twins"), CASES)
def test_every_number_is_the_twins(
    rule: str, told: dict[str, object], twins: dict[str, object]
) -> None:
    """Four members in any order, pushes of one to three steps; weights and gradients in fp64."""
    settings = HubSettings(lr=LR, **told)  # type: ignore[arg-type]
    bench = HubBench(rule, settings=settings, members=4)
    twin = Twin(bench.centre().tolist(), **twins)  # type: ignore[arg-type]
    for name in bench.names:
        twin.give(name)
    rng = random.Random(f"{rule}{told}")
    for _ in range(60):
        name, steps = rng.choice(bench.names), rng.choice((1, 1, 2, 3))
        gradient = [rng.gauss(0.0, 0.3) for _ in range(4)]
        bench.push(name, torch.tensor(gradient, dtype=torch.float64), steps=steps)
        twin.push(name, gradient, steps)
        assert bench.centre().tolist() == pytest.approx(twin.w, abs=1e-12)
        assert bench.held(name).tolist() == pytest.approx(twin.given[name], abs=1e-12)


TORCHS = [
    ("async", {}, {}),
    ("sync", {}, {}),
    ("k-of-n", {}, {}),
    ("ssp", {}, {}),
    ("scaled", {}, {}),
    ("dc", {"momentum": 0.9}, {"momentum": 0.9}),
    ("async-msgd", {}, {"momentum": 0.9}),
    ("async-msgd", {"nesterov": True}, {"momentum": 0.9, "nesterov": True}),
]


@pytest.mark.parametrize(("rule", "told", "torchs"), TORCHS)
def test_with_one_member_it_is_torchs_sgd_weight_decay_too(
    rule: str, told: dict[str, object], torchs: dict[str, object]
) -> None:
    settings = HubSettings(lr=LR, weight_decay=0.1, **told)  # type: ignore[arg-type]
    bench = HubBench(rule, settings=settings, members=1)
    own = torch.nn.Parameter(bench.centre().clone())
    sgd = torch.optim.SGD([own], lr=LR, weight_decay=0.1, **torchs)  # type: ignore[arg-type]
    rng = random.Random(rule)
    for _ in range(20):
        gradient = torch.tensor([rng.gauss(0.0, 0.3) for _ in range(4)], dtype=torch.float64)
        own.grad = gradient.clone()
        sgd.step()
        bench.push("node-0", gradient)
        assert torch.allclose(bench.centre(), own.detach(), rtol=0, atol=1e-12)


def test_the_backup_of_a_member_is_a_copy_of_its_own() -> None:
    """002's code kept references to the live weights, so nothing was ever compensated (F5)."""
    bench = HubBench("dc", settings=HubSettings(lr=LR, dc_lambda=1.0), members=2)
    one = torch.ones(4, dtype=torch.float64)
    start = bench.centre()
    bench.push("node-0", one.clone())
    moved = bench.centre() - start
    bench.push("node-1", one.clone())  # what it was given is one update old
    assert torch.allclose(bench.centre(), start + moved - LR * (one + one * one * moved))


def test_what_a_member_that_left_had_is_forgotten() -> None:
    settings = HubSettings(lr=LR, dc_adaptive=True)
    bench = HubBench("dc", settings=settings, members=2)
    bench.push("node-0", torch.full((4,), 9.0, dtype=torch.float64))
    bench.take(bench.solver.leave("node-0"))
    bench.take(bench.solver.join("node-0"))
    before = bench.centre()
    twin = Twin(before.tolist(), lam=2.0, adaptive=True)
    twin.give("node-0")
    twin.given["node-1"] = bench.held("node-1").tolist()
    for name in ("node-1", "node-0"):  # so that there is something to compensate
        bench.push(name, torch.ones(4, dtype=torch.float64))
        twin.push(name, [1.0] * 4, 1)
    assert bench.centre().tolist() == pytest.approx(twin.w, abs=1e-12)


@pytest.mark.parametrize("rule", ["async", "k-of-n", "sync", "ssp", "async-msgd", "dc", "scaled"])
def test_a_gradient_moves_the_weights_by_the_rate_of_now(rule: str) -> None:
    bench = HubBench(rule, settings=HubSettings(lr=LR), members=1)
    one = torch.ones(4, dtype=torch.float64)
    moved = []
    for factor in (1.0, 0.1, 0.0):
        bench.solver.at_rate(factor)
        before = bench.centre()
        bench.push("node-0", one.clone())
        moved.append((before - bench.centre())[0].item() / LR)
    momentum = [1.0, 1.9, 2.71] if rule == "async-msgd" else [1.0] * 3
    rates = (1.0, 0.1, 0.0)
    assert moved == pytest.approx([m * rate for m, rate in zip(momentum, rates, strict=True)])


def test_a_hub_that_was_killed_comes_back_at_the_rate_it_had(tmp_path: Path) -> None:
    case = "hub async request-reply"
    journal = Journal(tmp_path, made(case).structure)
    members = Members(JournaledSolver(made(case, founders=2, first_lease=LIFE + 1), journal))
    members.join("a", "b")
    members.solver.at_rate(0.5)
    saved = save(members.solver)
    saved.about["journal"] = journal.next_file()
    members.everybody_pushes()
    members.solver.at_rate(0.25)
    members.everybody_pushes()
    journal.close()
    again = reborn(case, members.solver, saved, tmp_path)
    assert same(weights(members.solver), weights(again))
    members.solver = again
    before = weights(again)["0.weight"]
    push = members.train("a")
    again.push(push)
    lost = before - weights(again)["0.weight"]
    lr = kind(case)["settings"].lr
    assert torch.allclose(lost, 0.25 * lr * push.values["0.weight"] / J, atol=1e-6)
