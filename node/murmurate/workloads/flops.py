"""How much a model computes for one sample: half of the CC ratio of paper 003.

The ratio, operations per parameter, says how much computing there is for each number that is
exchanged: 003 finds that high ones (ResNet-50: 308) favour synchronous training. Here it is shown,
not acted on. Counting loads parts of torch that take a second, so it is done only for those who
serve their figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from murmurate.workloads import Workload


def flops_per_sample(
    workload: Workload, model: torch.nn.Module, batch: tuple[torch.Tensor, ...]
) -> float:
    """Forward; a multiplication and an addition are two. Leaves model and rng as they are."""
    from torch.utils.flop_counter import FlopCounterMode

    model.eval()
    with torch.random.fork_rng(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        workload.loss(model, batch)
    model.train()
    return float(counter.get_total_flops()) / workload.batch_size
