"""Receipts: what I have of everyone is said, and repeated. A receipt is small, a share is not."""

from __future__ import annotations

from murmurate.core.effect import Effect, Send
from murmurate.core.gossip.average.state import MixingState

RECEIPTS = 3
"""A receipt is repeated this often, once in a digest interval."""


class Receipts:
    """The receipts that one peer owes its partners."""

    def __init__(self, state: MixingState) -> None:
        self._state = state
        self._owed: dict[str, int] = {}
        """Whom to repeat a receipt, and how often."""

    def names(self) -> frozenset[str]:
        """The partners to whom a receipt is owed."""
        return frozenset(self._owed)

    def owe(self, name: str) -> None:
        """Repeat the receipt of a partner from now on, as often as is usual."""
        self._owed[name] = RECEIPTS

    def of(self, life: tuple[str, int]) -> list[Effect]:
        """What I have of that life; of nothing I say nothing, for that would mean «forgotten»."""
        receipt = self._state.averager.receipt(*life)
        return [Send(life[0], receipt)] if receipt.seq else []

    def repeat(self) -> list[Effect]:
        """Send once more what is owed."""
        effects: list[Effect] = []
        givers = self._state.averager.givers()
        for name, left in list(self._owed.items()):
            if name in givers:
                effects += self.of((name, givers[name]))
            self._owed[name] = left - 1
            if left <= 1:
                del self._owed[name]
        return effects

    def last_words(self) -> list[Effect]:
        """Say to all what I have of them, and repeat it: I leave."""
        givers = self._state.averager.givers()
        self._owed = dict.fromkeys(givers, RECEIPTS)
        return [effect for life in givers.items() for effect in self.of(life)]
