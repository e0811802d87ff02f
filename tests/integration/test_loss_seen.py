"""A loop with nothing but the README's three lines: where a loss is seen all the same, and where a
hint says how to tell it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import murmurate
from murmurate.training import loss_watch
from murmurate.training.swarm import Swarm


class Returns(nn.Module):
    """A model that makes its own loss, and gives it in some form."""

    def __init__(self, form: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        out = self.layer(x)
        return self.form(out, (out - 1.0).square().mean())


FORMS: dict[str, tuple[Callable[..., Any], Callable[[Any], torch.Tensor]]] = {
    "it alone": (lambda out, loss: loss, lambda given: given),
    "a pair, as nanoGPT": (lambda out, loss: (out, loss), lambda given: given[1]),
    "a dictionary": (lambda out, loss: {"logits": out, "loss": loss}, lambda given: given["loss"]),
    "an object, as transformers": (
        lambda out, loss: SimpleNamespace(logits=out, loss=loss),
        lambda given: given.loss,
    ),
}


@pytest.fixture
def at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_watch, "EVERY_S", 0.0)


def joined(model: nn.Module) -> tuple[torch.optim.Optimizer, Swarm]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return optimizer, murmurate.join(model, optimizer, run="seen")


def shown(swarm: Swarm) -> float:
    return swarm.progress().loss


@pytest.mark.usefixtures("at_every_step")
@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_loss_that_the_model_returns_is_shown(form: str) -> None:
    make, loss_of = FORMS[form]
    model = Returns(make)
    optimizer, swarm = joined(model)
    with swarm:
        for _ in range(5):
            optimizer.zero_grad()
            loss = loss_of(model(torch.randn(8, 4)))
            loss.backward()
            optimizer.step()
            assert shown(swarm) == pytest.approx(loss.item())
            model.eval()
            model(torch.randn(8, 4))
            model.train()
        copy.deepcopy(model)
    assert not model._forward_hooks


@pytest.mark.usefixtures("at_every_step")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("number", [False, True], ids=["a tensor", "a number"])
def test_the_loss_of_a_closure_is_shown(named: bool, number: bool) -> None:
    model = nn.Linear(4, 1)
    optimizer, swarm = joined(model)
    losses: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        losses.append(loss.item())
        return losses[-1] if number else loss

    with swarm:
        for _ in range(5):
            given: Any = optimizer.step(closure=closure) if named else optimizer.step(closure)
            assert float(given if number else given.detach()) == losses[-1]
            assert shown(swarm) == pytest.approx(losses[-1])
    assert len(losses) == 5, "called once a step"


@pytest.mark.usefixtures("at_every_step")
def test_what_is_no_loss_is_not_taken_for_one() -> None:
    """A score that is maximized, a scalar that no gradient is taken of, and a plain output."""
    score = Returns(lambda out, loss: out.mean())
    other = Returns(lambda out, loss: (out, loss))
    plain = nn.Linear(4, 1)
    losses: dict[nn.Module, Callable[[Any], torch.Tensor]] = {
        score: lambda given: -given,
        other: lambda given: given[0].square().mean(),
        plain: lambda given: given.square().mean(),
    }
    for model, loss_of in losses.items():
        optimizer, swarm = joined(model)
        with swarm:
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(model(torch.randn(8, 4))).backward()
                optimizer.step()
            assert shown(swarm) != shown(swarm), "no number: nothing was seen"


@pytest.mark.usefixtures("at_every_step")
def test_what_the_script_tells_counts() -> None:
    model = Returns(lambda out, loss: loss)
    optimizer, swarm = joined(model)
    with swarm:
        for told in (3.0, None, None):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).backward()
            optimizer.step()
            if told is not None:
                swarm.log(loss=told)
        assert shown(swarm) == 3.0


def test_it_is_read_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it makes an accelerator wait."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = loss_watch.LossWatch()
    read: list[float] = []
    for step in range(50):
        now[0] += 0.1
        loss = torch.tensor(float(step), requires_grad=True) * 1.0
        watch.returned(loss)
        loss.backward()
        if (seen := watch.stepped()) is not None:
            read.append(seen)
    assert len(read) == 5
    assert read[0] == 0.0
