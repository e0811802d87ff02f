"""Rule `scaled`: an update counts the less, the staler it is where it arrives.

    w += u / (1 + τ)^power        power 1: 1 / (1 + τ); ½: FedBuff's 1 / √(1 + τ); 0: rule `sum`

What it gives up: replicas are no longer equal (`core.receiving.rule`), and since in gossip
everybody's staleness is about the number of peers, it mostly makes the rate smaller: by what, rule
`capped` decides at the origin and keeps replicas equal. A slow peer's data count less, too.
"""

from __future__ import annotations

import torch

from murmurate.core.clock import Clock
from murmurate.core.message import Push
from murmurate.core.receiving.rule import times


class ScaledByStaleness:
    """A power law of staleness; of a sum the mean of its updates' weights."""

    def __init__(self, power: float) -> None:
        self._power = power

    def made(self, push: Push) -> None:
        """As it is."""

    def fold(
        self, weights: torch.Tensor, push: Push, staleness: tuple[int, ...], clock: Clock
    ) -> str:
        parts = [(1.0 + each) ** -self._power for each in staleness]
        times(weights, push, sum(parts) / len(parts))
        return ""
