"""What a receiver makes of an update that comes: the seam between such a rule and a peer.

The other rules decide at the origin (`core.publishing`), and what is applied is a function of the
message alone. These decide where an update arrives, from how stale it is *there*. So the same
update changes two replicas by two amounts: **replicas with the same clock are no longer equal**.
What still holds: no update is decided twice, none is forgotten, staleness is exact, and a newcomer
has the weights of whoever it took its snapshot from.

A rule is a pure object, one for each life of a peer. Own updates are always applied as they are.
A sum of several updates has one payload: it is treated as a whole.
"""

from __future__ import annotations

from typing import Protocol

import torch

from murmurate.core.clock import Clock
from murmurate.core.message import Push


class ReceivingRule(Protocol):
    """Folds updates of others into the weights, in its own way."""

    def made(self, push: Push) -> None:
        """An own update is in the weights from now on."""

    def fold(
        self, weights: torch.Tensor, push: Push, staleness: tuple[int, ...], clock: Clock
    ) -> str:
        """Change the weights by what this rule makes of an update; or why it was refused.

        `clock` has the push already, applied or refused: it is not asked for again.
        """


def times(weights: torch.Tensor, push: Push, factor: float) -> None:
    """Add a push so many times."""
    if factor == 1.0:
        push.add_to(weights)
    else:
        weights.add_(push.payload.to(weights.dtype), alpha=factor)
