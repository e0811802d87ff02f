"""What a peer answers to questions about updates that wait, travel or are kept: here are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from murmurate.core.clock import Clock, Key
from murmurate.core.gossip.past import Past
from murmurate.core.intervals import Runs


class SendsNoUpdates:
    """The part of `protocol.GossipPeer` that concerns updates alone, for a peer that mixes weights:
    an update is in the model at once, and kept nowhere else."""

    def room(self, nbytes: int, *, sparing: bool = False, fresh: bool = False) -> bool:
        """Nothing of an update is kept: there is always room for the next."""
        return True

    def beside(self, waiting: Sequence[Any], new: Any) -> None:
        """A share waits where it is: its giver sends no other before it is in."""

    def checkpointed(self, clock: Clock, *, kept: int = 1) -> None:
        """Nothing here waits for a checkpoint."""

    def past(self) -> Past:
        """My next life is bound by nothing."""
        return Past()

    def folds(self) -> tuple[tuple[Key, Runs], ...]:
        """Nothing is ever folded into a baseline."""
        return ()

    def arrived(self) -> Clock | None:
        """It cannot be told: what a share brings depends on when it is folded in."""
        return None
