"""Rule `bound`: an update that is staler than s where it arrives is refused, and counted.

Not SSP, which lets the fast wait for the slow and refuses nothing; that needs somebody to wait for,
and is a hub's.

What it gives up: replicas are no longer equal (`core.receiving.rule`), and what is refused is
lost to this replica. With peers whose data differ that is the slow ones' data, so never use it
there. A sum in which one update is too stale is refused whole: it cannot be taken apart.
"""

from __future__ import annotations

import torch

from murmurate.core.clock import Clock
from murmurate.core.message import Push

STALE = "stale"


class BoundedStaleness:
    """Refuses beyond a bound, and applies all else as it is."""

    def __init__(self, bound: float) -> None:
        self._bound = bound

    def made(self, push: Push) -> None:
        """As it is."""

    def fold(
        self, weights: torch.Tensor, push: Push, staleness: tuple[int, ...], clock: Clock
    ) -> str:
        if max(staleness) > self._bound:
            return STALE
        push.add_to(weights)
        return ""
