"""The spread of partners' models: what one share of one partner may cost at most.

Checks of numbers and norm do not see a model that has nothing to do with this one. Who trains one
model with others is never its own size away from them, and if it is, others are as well: after a
long cut, or where all began with different weights. So a share is not put in that is further away
than that, and far further than what any other partner gave of late. With one partner there is
nobody to compare it with: two members must trust each other.
"""

from __future__ import annotations

FAR = 1.0
"""Another network altogether: a random one of this size is 1.4 away, the negative of this one 2."""
TIMES = 4.0
"""So many times further away than the others."""
KEPT = 0.99
"""Of what a partner's distance was, its next share leaves so much: it was that far of late."""


class ModelSpread:
    """How far partners' models were from this one, over its size, when they were put in."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def is_far(self, sender: str, distance: float) -> bool:
        """Whether a model that far away is refused; else it is seen."""
        others = [seen for name, seen in self._seen.items() if name != sender]
        far = bool(others) and distance > max(FAR, TIMES * max(others))
        if not far:
            self._seen[sender] = max(distance, KEPT * self._seen.get(sender, 0.0))
        return far

    def forget(self, name: str) -> None:
        """That partner is gone, and no measure for others."""
        self._seen.pop(name, None)
