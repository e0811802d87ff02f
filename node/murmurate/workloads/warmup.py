"""The first step before the first step: what torch loads and allocates only when it is used.

A first forward and backward pass takes up to a second where every core is busy. In a node whose
peers train already that second is one of stale updates for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from murmurate.workloads import Workload

PASSES = 2
"""The first one loads and allocates, the next one finds it."""


def warm_up(workload: Workload, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> None:
    """Compute a batch's gradients and drop them. Leaves weights, buffers and rng as they are."""
    before = [buffer.clone() for buffer in model.buffers()]
    with torch.random.fork_rng(devices=()):
        for _ in range(PASSES):
            workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.grad = None
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
