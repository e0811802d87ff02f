"""A replica's promise, `weights == w0 + sum of the updates in clock`, as one number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from murmurate.core.clock import Dot
from murmurate.core.replica import Replica


def audit(
    replica: Replica,
    w0: torch.Tensor,
    updates: Mapping[Dot, torch.Tensor],
    dots: Iterable[Dot] | None = None,
) -> float:
    """How far a replica's weights are from `w0 + sum of updates(clock)`: the largest difference.

    `dots`: the whole set when part of the clock is folded into the baseline.
    """
    wide = torch.float64 if w0.is_floating_point() else torch.int64
    total = w0.to(wide).clone()
    for dot in replica.clock if dots is None else dots:
        total += updates[dot].to(wide)
    return float((total - replica.weights.to(wide)).abs().max())
