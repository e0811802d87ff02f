"""Two swarms of one run: seen, said, and which of them a newcomer prefers.

A founder that is killed and started again without its checkpoints begins a second swarm under the
same name at the same address. Two swarms cannot become one, for they began with different weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from murmurate.core.figures.learning import LearningWarning
from murmurate.core.intervals import runs_size
from murmurate.core.message import ALIVE, SUSPECT

if TYPE_CHECKING:
    from murmurate.edge.net.wire import Description

REASON = "two_swarms"
TWO = "two swarms of run"
"""How every sentence about it begins: a peer that refuses for this reason is understood."""
SHOWN_S = 60.0
"""A second swarm of which nothing was heard for so long is not shown any more."""
TO_DO = (
    "end the smaller one and start its nodes again with --peers of the larger (murmurate status"
    " ADDRESS shows each)"
)


def sentence(run: str, name: str, where: str) -> str:
    """What every side says of it."""
    return f"{TWO} {run!r}: {name} at {where} is in another one than this node; {TO_DO}"


class OtherSwarms:
    """What one node has seen of other swarms of its run. Lock held."""

    def __init__(self) -> None:
        self.callers: dict[str, str] = {}
        """Before this node is in a swarm: address and name of those who called it, and are."""
        self._seen: tuple[str, float] | None = None

    def note(self, text: str, now: float) -> None:
        self._seen = text, now

    def warnings(self, now: float) -> tuple[LearningWarning, ...]:
        if self._seen is None or now > self._seen[1] + SHOWN_S:
            return ()
        return (LearningWarning(REASON, self._seen[0]),)


def preferred(synced: Sequence[Description]) -> tuple[list[Description], str]:
    """Those of one swarm: the one with the most updates, then with the most members; and, if there
    are others, a line about it."""
    swarms: dict[str, list[Description]] = {}
    for each in synced:
        swarms.setdefault(each.swarm, []).append(each)
    ranked = sorted(swarms.values(), key=_size, reverse=True)
    if len(ranked) < 2:
        return ranked[0], ""
    told = "; ".join(
        f"{others[0].address} knows {_size(others)[0]:,} updates of {_size(others)[1]} live members"
        for others in ranked
    )
    return ranked[0], f"{TWO} {synced[0].run!r}: {told}. Joining the first; {TO_DO}"


def _size(swarm: Sequence[Description]) -> tuple[int, int]:
    def alive(each: Description) -> int:
        return sum(member.state in (ALIVE, SUSPECT) for member in each.members)

    held = (len(each.clock) + sum(runs_size(runs) for _, runs in each.folds) for each in swarm)
    return max(held), max(alive(each) for each in swarm)
