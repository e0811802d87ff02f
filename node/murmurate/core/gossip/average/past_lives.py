"""Past lives: the clock of weights that are mixed loses the lives that are over, by time alone.

No update is applied singly here: a clock says whose work has some part in the weights, and
staleness compares two of them. So nobody need agree on what may leave. A life that has been over
here for half of `forget_after_s` is not counted in any distance, whichever of the two clocks has
it; after the whole it leaves this clock, and others' clocks do not bring it back. All learn of an
end within less than that half: so none of them counts as a difference what another has dropped.
"""

from __future__ import annotations

from murmurate.core.clock import Clock, Key
from murmurate.core.gossip.average.state import MixingState

REMEMBERED = 4
"""So many times `forget_after_s` a life is kept in mind, in case others still tell of it."""


class PastLives:
    """Which lives in one peer's clock are over, and since when."""

    def __init__(self, state: MixingState) -> None:
        self._state = state
        self._since: dict[Key, float] = {}

    def upkeep(self, now: float) -> None:
        """Notice who is over, or there after all, and drop what has been over for long."""
        state, since = self._state, self._since
        membership, averager = state.membership, state.averager
        there = {(name, membership.epoch(name) or 0) for name in membership.live()}
        there.add((state.name, state.epoch))
        for life in state.clock.keys():
            if life not in there:
                since.setdefault(life, now)
        after_s = state.config.forget_after_s
        for life, at in list(since.items()):
            if life in there or now >= at + REMEMBERED * after_s:
                del since[life]
        averager.uncounted = {life for life, at in since.items() if now >= at + after_s / 2}
        averager.dropped = {life for life, at in since.items() if now >= at + after_s}
        state.clock.drop(averager.dropped)

    def told(self) -> Clock:
        """The clock that a newcomer is given: without those that will soon be dropped here."""
        return self._state.clock.without(self._state.averager.uncounted).copy()
