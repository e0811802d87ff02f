"""Evaluating in the middle of training, without a trace: looking does not change what is seen.

A workload's `evaluate` may draw random numbers, and puts all of the model into training mode when
it is done, layers that were frozen among them; one that forgets `model.eval()` would have the test
data in the statistics of batch-norm. Here all that is put back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from murmurate.errors import ConfigError

if TYPE_CHECKING:
    from murmurate.workloads import Evaluation, Workload


def measured(workload: Workload, model: torch.nn.Module, *, validation: bool = False) -> Evaluation:
    """On the test set, or on the part of the training data that was held out (`hold_out`). Leaves
    parameters, buffers, modes and all random numbers to come as they are."""
    judge = getattr(workload, "validate", None) if validation else workload.evaluate
    if judge is None:
        raise ConfigError(f"workload {workload.name}: lacks validate()")
    with _as_it_was(model):
        found: Evaluation = judge(model)
    return found


@contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    chance, numbers = random.getstate(), np.random.get_state()
    devices = sorted({each.device.index for each in model.parameters() if each.is_cuda})
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(chance)
            np.random.set_state(numbers)
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, value in buffers:
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)
