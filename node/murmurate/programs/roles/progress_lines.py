"""A line now and then about how a node does, for whoever started it by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from murmurate.training.run_view import RunView

FIRST_S, MOST_S = 2.0, 60.0
"""The first line comes soon, each next one twice as late, until they are a minute apart."""


class ProgressLines:
    def __init__(self, say: Callable[[str], None], *, shown: bool) -> None:
        self._say = say
        self._shown = shown
        self._every_s = FIRST_S
        self._at: float | None = None

    def due(self, now: float) -> bool:
        if not self._shown:
            return False
        if self._at is None:
            self._at = now + self._every_s
        if now < self._at:
            return False
        self._every_s = min(2 * self._every_s, MOST_S)
        self._at = now + self._every_s
        return True

    def look(self, now: float, swarm: RunView, budget: int | None) -> None:
        """Say how far the swarm is, if it is time to."""
        if self.due(now):
            mine = swarm.progress()
            self._say(
                line(
                    mine.name,
                    swarm.samples,
                    budget,
                    mine.samples_per_s,
                    mine.loss,
                    mine.accuracy,
                    f"{len(alive(swarm))} of {len(swarm.members)} members alive",
                )
            )


def alive(swarm: RunView) -> set[str]:
    """The names of those who are there, this node's included."""
    return {name for name, state in swarm.members.items() if state == "alive"}


def line(
    name: str,
    samples: int,
    budget: int | None,
    samples_per_s: float,
    loss: float,
    accuracy: float,
    more: str,
) -> str:
    parts = [f"{name}: {samples:,}{f' of {budget:,}' if budget else ''} samples"]
    parts.append(f"{samples_per_s:,.0f}/s here")
    parts += [f"loss {loss:.4g}"] if math.isfinite(loss) else []
    parts += [f"accuracy {accuracy:.1%}"] if math.isfinite(accuracy) else []
    return ", ".join([*parts, more])
