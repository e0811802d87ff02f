"""`training/gain.py`: what a step gained without momentum, against each optimizer's own step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from murmurate.core.gossip.ways import WAYS
from murmurate.training.gain import OptimizerGain, without_bound

PLAIN: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.3}),
    (torch.optim.SGD, {"lr": 0.1, "maximize": True, "weight_decay": 0.3}),
    (torch.optim.Adam, {"betas": (0.0, 0.9), "weight_decay": 0.1}),
    (torch.optim.Adam, {"betas": (0.0, 0.9), "amsgrad": True}),
    (torch.optim.AdamW, {"betas": (0.0, 0.9), "weight_decay": 0.1}),
    (torch.optim.RAdam, {"betas": (0.0, 0.9), "weight_decay": 0.1}),
    (torch.optim.RAdam, {"betas": (0.0, 0.9), "weight_decay": 0.1, "decoupled_weight_decay": True}),
    (torch.optim.Adamax, {"betas": (0.0, 0.9), "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"weight_decay": 0.1}),
    (torch.optim.RMSprop, {"centered": True}),
    (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
]
"""Without a momentum an optimizer's own step is the gain."""


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(3)
    return [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(5))]


def flat(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parameters])


@pytest.mark.parametrize(("kind", "words"), PLAIN, ids=lambda v: getattr(v, "__name__", str(v)))
def test_without_momentum_the_gain_is_what_the_optimizer_changed(
    kind: type[torch.optim.Optimizer], words: dict[str, Any]
) -> None:
    ours = parameters()
    optimizer = kind(ours, **words)
    gain = OptimizerGain(optimizer, ours)
    assert gain.known
    for step in range(12):
        for number, parameter in enumerate(ours):
            parameter.grad = torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(100 * step + number)
            )
        before = flat(ours)
        optimizer.step()
        found = torch.zeros(17)
        gain.add_to(found, before.clone)
        torch.testing.assert_close(found, flat(ours) - before, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "dampening": 0.3}),
        (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.0}),
        (torch.optim.NAdam, {"lr": 0.01}),
        (torch.optim.RAdam, {"lr": 0.01}),
        (torch.optim.Adamax, {"lr": 0.01}),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_under_a_constant_gradient_a_momentum_comes_to_the_gain(
    kind: type[torch.optim.Optimizer], words: dict[str, Any]
) -> None:
    ours = parameters()
    optimizer = kind(ours, **words)
    gain = OptimizerGain(optimizer, ours)
    for parameter in ours:
        parameter.grad = torch.full_like(parameter, 0.5)
    for _ in range(400):
        before = flat(ours)
        optimizer.step()
    found = torch.zeros(17)
    gain.add_to(found, before.clone)
    torch.testing.assert_close(found, flat(ours) - before, rtol=0.02, atol=1e-6)


def test_groups_have_rates_of_their_own_and_what_has_no_gradient_gains_nothing() -> None:
    first, second = parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": [second], "lr": 0.1}])
    first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
    optimizer.step()
    found = torch.zeros(17)
    OptimizerGain(optimizer, [first, second]).add_to(found, flat([first, second]).clone)
    assert found[:12].tolist() == [-1.0] * 12
    assert found[12:].tolist() == pytest.approx([-0.1] * 5)
    second.grad = None
    found.zero_()
    OptimizerGain(optimizer, [first, second]).add_to(found, flat([first, second]).clone)
    assert found[12:].tolist() == [0.0] * 5


def test_any_other_optimizer_is_not_known() -> None:
    class Mine(torch.optim.SGD):
        pass

    ours = parameters()
    assert not OptimizerGain(Mine(ours, lr=0.1), ours).known
    assert not OptimizerGain(torch.optim.Rprop(ours), ours).known


def test_steps_without_bound_are_those_that_take_a_closure_and_nothing_else() -> None:
    ours = [torch.nn.Parameter(torch.zeros(2, 2))]
    found = [
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and kind is not torch.optim.Optimizer
        and without_bound(kind(ours, lr=0.1))  # type: ignore[call-arg]
    ]
    assert found == ["LBFGS"]
    optimizer = torch.optim.LBFGS(ours)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # which wraps step()
    assert without_bound(optimizer)


def test_parameters_of_another_optimizer_are_known_by_their_place() -> None:
    first, second = parameters()
    optimizer = torch.optim.SGD([first], lr=0.1)
    gain = OptimizerGain(optimizer, [first, second])
    assert gain.others() == [slice(12, 17)]
    optimizer.add_param_group({"params": [second]})
    assert gain.others() == []


@pytest.mark.parametrize(
    ("optimizer", "kind", "every"),
    [
        (torch.optim.SGD, "plain", 4),
        (torch.optim.Adam, "normalized", 2),
        (torch.optim.AdamW, "normalized", 2),
        (torch.optim.RMSprop, "normalized", 2),
        (torch.optim.Rprop, "unread", 16),
    ],
)
def test_how_many_steps_an_update_is_of_follows_the_kind_of_gain(
    optimizer: Any, kind: str, every: int
) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    gain = OptimizerGain(optimizer([parameter]), [parameter])
    assert gain.kind == kind
    assert WAYS["shared"].steps("same", kind) == every
    assert WAYS["shared"].steps("own", kind) == 1
    assert WAYS["sum"].steps("same", kind) == 1
