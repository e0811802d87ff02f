"""What goes up and what is done with what comes down, for every half a rule can name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from murmurate.core.partition import analyse, weights_of
from murmurate.core.partition.structure import Structure
from murmurate.core.values.member_half import FREELY, TURNS, Down, MemberHalf, Up
from murmurate.training.member_values import MemberValues
from murmurate.training.trained_subnet import CurrentSubnet, TrainedSubnet

LR = 0.5


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()


X = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def copies(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in weights_of(model).items()}


def steps(model: nn.Module, values: MemberValues, count: int) -> dict[str, torch.Tensor]:
    """The sum of the gradients, counted by hand."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for _ in range(count):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        values.stepped(model)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            total[name] += parameter.grad
    return total


def test_weights_go_up_as_they_are_and_nothing_is_held() -> None:
    model, values = make(), MemberValues(TURNS)
    values.begin(model)
    steps(model, values, 2)
    up = values.up(model)
    assert up.keys() == weights_of(model).keys()
    assert all(torch.equal(up[name], value) for name, value in copies(model).items())
    kept = {name: value.clone() for name, value in up.items()}
    steps(model, values, 1)
    assert all(torch.equal(up[name], kept[name]) for name in up)  # copies
    assert not values._given
    assert not values._gradients


@pytest.mark.parametrize("down", Down)
def test_a_difference_counts_from_what_was_given_last(down: Down) -> None:
    model, values = make(), MemberValues(MemberHalf(up=Up.DIFFERENCE, down=down))
    values.begin(model)
    before = copies(model)
    for _ in range(2):  # a push without an answer: the next one has everything in it
        steps(model, values, 2)
        up, now = values.up(model), copies(model)
        assert all(torch.allclose(before[name] + up[name], now[name]) for name in up)
    assert any(up[name].abs().sum() > 0 for name in up)
    values.down(model, copies(make()))
    assert all(not value.any() for value in values.up(model).values())


def test_gradients_are_summed_and_buffers_go_as_differences() -> None:
    model, values = make(), MemberValues(MemberHalf(up=Up.GRADIENT))
    values.begin(model)
    before = copies(model)
    total = steps(model, values, 3)
    up = values.up(model)
    assert up.keys() == before.keys()
    for name, gradient in total.items():
        assert torch.allclose(up[name], gradient)
        assert torch.allclose(before[name] - LR * up[name], weights_of(model)[name])
    assert up["1.num_batches_tracked"] == 3
    values.down(model, before)
    assert all(not value.any() for value in values.up(model).values())
    total = steps(model, values, 1)
    assert torch.allclose(values.up(model)["0.weight"], total["0.weight"])


def test_what_comes_down_replaces_or_is_added() -> None:
    other = {name: torch.ones_like(value) for name, value in copies(make()).items()}
    for down in Down:
        model = make()
        before = copies(model)
        MemberValues(MemberHalf(down=down)).down(model, other)
        for name, value in weights_of(model).items():
            expected = other[name] if down is Down.REPLACE else before[name] + 1
            assert torch.equal(value, expected), (down, name)


def trained(model: nn.Module) -> tuple[TrainedSubnet, Structure, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    it = TrainedSubnet(model, optimizer, CurrentSubnet(lambda _: None, lambda _: None))
    it.structure = analyse(model, (X,))
    return it, it.structure, optimizer


@pytest.mark.parametrize("half", [TURNS, FREELY, MemberHalf(up=Up.GRADIENT, down=Down.ADD)])
def test_a_subnet_is_given_again_under_its_half(half: MemberHalf) -> None:
    """The first time values are the subnet; the next time they are what the half says. The
    optimizer follows, and its state starts anew."""
    it, structure, optimizer = trained(make())
    held, values = structure.everything(), copies(make())
    for lease in (1, 2):
        before = None if it.current.subnet is None else copies(it.current.subnet)
        it.adopt(half, held, {name: value.clone() for name, value in values.items()}, lease)
        assert it.current.subnet is not None
        for name, value in weights_of(it.current.subnet).items():
            added = half.down is Down.ADD and before is not None
            expected = before[name] + values[name] if added and before else values[name]
            assert torch.equal(value, expected)
        assert not optimizer.state
        mine = {id(p) for p in it.current.subnet.parameters()}
        assert {id(p) for group in optimizer.param_groups for p in group["params"]} == mine
        optimizer.zero_grad()
        it.current(X).square().mean().backward()
        optimizer.step()
        it.stepped()
        assert optimizer.state
        up = it.up()
        if half.up is Up.GRADIENT:
            assert up["0.weight"].any()
        else:
            assert torch.equal(up["0.weight"], weights_of(it.current.subnet)["0.weight"])
