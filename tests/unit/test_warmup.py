"""What is loaded before the first step leaves no trace in the model."""

from __future__ import annotations

import torch
from torch import nn

from murmurate import workloads
from murmurate.workloads.warmup import warm_up


class Moody(workloads.load("digits", data=None).__class__):  # type: ignore[misc]
    """With statistics and dropout, which a pass would change."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 10))


def test_weights_statistics_and_rng_stay() -> None:
    workload = Moody()
    torch.manual_seed(1)
    model = workload.model()
    share = workloads.DataShare(0, 1, workloads.parse_split("none"), 0, 32)
    batch = next(workload.batches(share))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    warm_up(workload, model, batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
