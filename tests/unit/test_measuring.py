"""An evaluation in the middle of training leaves no trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from murmurate.workloads import Evaluation
from murmurate.workloads.measuring import measured
from murmurate.workloads.synthetic import Synthetic


class Careless(Synthetic):
    """Draws at random, forgets `eval()`, and puts all of the model into training mode."""

    def model(self) -> nn.Module:
        frozen = nn.BatchNorm1d(16).eval()
        layers = (nn.Linear(64, 16), nn.BatchNorm1d(16), frozen, nn.Dropout(), nn.Linear(16, 10))
        return nn.Sequential(*layers)

    def evaluate(self, model: nn.Module) -> Evaluation:
        model.train()
        model(torch.randn(8, 64))
        random.random()
        np.random.random()
        if self.lr == 0:
            raise RuntimeError("cannot")
        return Evaluation(1.5, 0.25)


@pytest.mark.parametrize("fails", [False, True])
def test_all_is_as_it_was(fails: bool) -> None:
    workload = Careless("2000")
    model = workload.model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    chance = (torch.get_rng_state(), random.getstate(), str(np.random.get_state(legacy=False)))
    if fails:
        workload.lr = 0
        with pytest.raises(RuntimeError, match="cannot"):
            measured(workload, model)
    else:
        assert measured(workload, model) == Evaluation(1.5, 0.25)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert False in modes
    assert torch.equal(torch.get_rng_state(), chance[0])
    assert random.getstate() == chance[1]
    assert str(np.random.get_state(legacy=False)) == chance[2]
