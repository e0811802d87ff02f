"""Accuracy class by class: what one slow or lost peer costs shows there first (002, Table I)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from murmurate.core.figures.progress import SKETCH_BYTES, Neighbour, Progress
from murmurate.errors import RemoteProtocolError
from murmurate.workloads.classification import Classification
from murmurate.workloads.flops import flops_per_sample


class Always(nn.Module):
    """Says the same class whatever it is shown, except that it knows `sure`."""

    def __init__(self, says: int, sure: int) -> None:
        super().__init__()
        self.says, self.sure = says, sure

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = torch.where(x[:, 0] == self.sure, self.sure, self.says)
        return nn.functional.one_hot(answer.long(), 5).float()


class Dense(Classification):
    batch_size = 2

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 7), nn.Dropout(0.5), nn.Linear(7, 2))


def data(labels: list[int], width: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs that are their own label."""
    numbers = torch.tensor(labels)
    return numbers.float()[:, None].expand(-1, width), numbers


def test_each_class_has_its_own() -> None:
    workload = Classification(data([0, 1, 2, 3, 4]), data([0] * 30 + [1] * 10 + [3] * 1960))
    result = workload.evaluate(Always(says=0, sure=3))
    assert result.accuracy_of[0] == 1.0
    assert result.accuracy_of[1] == 0.0
    assert math.isnan(result.accuracy_of[2]), "none of it in the test set"
    assert result.accuracy_of[3] == 1.0, "over more than one batch of the evaluation"
    assert len(result.accuracy_of) == 5
    assert result.accuracy == pytest.approx(1990 / 2000)


def test_operations_are_counted_and_nothing_is_changed() -> None:
    workload = Dense(data([0, 1], 3), data([0, 1], 3))
    model = workload.model()
    before = torch.random.get_rng_state()
    flops = flops_per_sample(workload, model, data([0, 1], 3))
    assert flops == 2 * (3 * 7 + 7 * 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.training


@pytest.mark.parametrize(
    "told",
    [
        {"sketch": b"x" * (SKETCH_BYTES - 1)},
        {"neighbours": (Neighbour("b"), Neighbour("a"))},
        {"neighbours": (Neighbour("b"), Neighbour("b"))},
        {"neighbours": tuple(Neighbour(f"{n:03}") for n in range(81))},
        {"neighbours": (Neighbour("a", sent_bytes=-1),)},
        {"neighbours": (Neighbour(""),)},
        {"made_at": (math.nan,)},
        {"made_at": (1.0,) * 257},
        {"lag": -1},
    ],
)
def test_a_word_that_cannot_be_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="progress"):
        Progress(name="a", epoch=1, version=1, **told)
