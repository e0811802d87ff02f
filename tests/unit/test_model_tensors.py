"""Tensors that are found once are those that a walk through the model finds, at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from murmurate.core.partition.subnet import weights_of
from murmurate.training.model_tensors import ModelTensors


def make() -> Any:
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4)))
    model.append(nn.Linear(4, 4))
    model[3].weight = model[2][0].weight  # tied
    return model


def same(found: ModelTensors, model: nn.Module) -> bool:
    mine, walked = found(model), weights_of(model)
    return list(mine) == list(walked) and all(mine[name] is walked[name] for name in walked)


def new_parameter(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.zeros(4, 3))


def new_module(model: Any) -> None:
    model[2][0] = nn.Linear(4, 4)


def another_module(model: Any) -> None:
    model.append(nn.Linear(4, 2))


def another_parameter(model: Any) -> None:
    model[0].register_parameter("more", nn.Parameter(torch.ones(1)))


def new_buffer(model: Any) -> None:
    model[1].running_mean = torch.ones(4)


def not_saved(model: Any) -> None:
    model[0].register_buffer("table", torch.ones(2), persistent=False)


def none_any_more(model: Any) -> None:
    model[0].bias = None


def converted(model: Any) -> None:
    model.double()


CHANGES = [
    new_parameter,
    new_module,
    another_module,
    another_parameter,
    new_buffer,
    not_saved,
    none_any_more,
    converted,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_loop_changes_is_found(change: Callable[[Any], None]) -> None:
    model, found = make(), ModelTensors()
    assert same(found, model)
    change(model)
    assert same(found, model)
    assert same(found, model)
    assert same(found, make())
