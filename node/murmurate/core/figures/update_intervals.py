"""Do members publish at very different intervals? It is allowed, and said once.

Every member's update is added as it is, so one that publishes every 64 steps is heard a sixteenth
as often as one that does so every fourth, each time with as many steps more. Rule `shared` measures
that (`core.publishing.company`). But who has said an interval may not know that others said none.
"""

from __future__ import annotations

from collections.abc import Iterable

from murmurate.core.figures.progress import Progress

ENOUGH = 16
"""Updates of another over which its interval is measured."""
UNLIKE = 2.0
"""So many times longer or shorter is worth a word."""


class UpdateIntervals:
    """Holds the interval that was asked for here against those that the others turn out to have."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        """Local steps in an update of this node."""
        self._first: dict[tuple[str, int], tuple[int, int]] = {}
        """What each life had told when it was first looked at: steps, and updates."""
        self._said = False

    def look(self, board: Iterable[Progress], mine: str) -> str:
        """What the board tells now: a sentence, once; empty: nothing to say."""
        found = {}
        for told in board:
            if self._said or told.name == mine:
                continue
            steps, updates = self._first.setdefault(
                (told.name, told.epoch), (told.steps, told.published)
            )
            if told.published >= updates + ENOUGH:
                found[told.name] = (told.steps - steps) / (told.published - updates)
        unlike = {
            name: each
            for name, each in found.items()
            if each and not 1 / UNLIKE < self._steps / each < UNLIKE
        }
        if not unlike:
            return ""
        self._said = True
        others = ", ".join(f"{each:.3g} of {name}" for name, each in sorted(unlike.items()))
        return (
            f"every {self._steps} was asked for here, and an update is of {others} local steps:"
            " that is allowed; who publishes rarely is heard later, with more steps each time"
        )
