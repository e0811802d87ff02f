"""How many local steps an update is of, where the user has not said it: as few as cost little.

An update costs its origin the time to make it, and every other member the time to fold it in. If
all keep the same rhythm, a member pays for one own update and one of each of the others in so many
steps; they should take no more than a small part of them. What a link cannot take is another
matter: there an update waits for room, and is of more steps by that (`Publisher.has_room`).
"""

from __future__ import annotations

SHARE = 0.03
"""Of the time of a step, for making and folding in updates."""
STEPS_MAX = 64
"""Beyond it learning would suffer more than the time saved is worth."""
SMOOTH = 0.05


class Rhythm:
    """Measures what updates cost one node, and how long its steps are; all in seconds."""

    def __init__(self, least: int) -> None:
        """`least`: steps of an update where it costs next to nothing."""
        self.least = least
        self._step_s = self._made_s = self._folded_s = 0.0

    def stepped(self, seconds: float) -> None:
        """A local step took so long, without what is done here beside it."""
        self._step_s = _towards(self._step_s, seconds, SMOOTH)

    def made(self, seconds: float) -> None:
        """Making one update, and handing it over, took so long."""
        self._made_s = _towards(self._made_s, seconds, SMOOTH)

    def folded(self, seconds: float, count: int) -> None:
        """Folding in so many updates of others took so long."""
        self._folded_s = _towards(self._folded_s, seconds / count, SMOOTH)

    def steps(self, members: int) -> int:
        """Local steps per update, among so many members."""
        cost_s = self._made_s + self._folded_s * (members - 1)
        if not self._step_s:
            return self.least
        return max(self.least, min(STEPS_MAX, round(cost_s / (SHARE * self._step_s))))


def _towards(mean: float, value: float, part: float) -> float:
    return mean + part * (value - mean) if mean else value
