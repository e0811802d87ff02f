"""Giving up: when an update that only my weights have must go, so that all can agree again.

It takes three misfortunes at once: the origin is gone for long, or does not have the update by
itself any more; nor does anybody who had it; and it is left in two different sums that overlap, or
in the weights of two who each lack what the other has, which nobody can take apart. Then, after
everyone had time to pass on what can be passed on, the set of lower rank gives way: all peers rank
sets alike, so they end with the same one. Losses are counted.
"""

from __future__ import annotations

import math
from enum import Enum

from murmurate.core.clock import Clock, Dot
from murmurate.core.gossip.state import PeerState


class Situation(Enum):
    """Where an update stands that only my weights have, and a snapshot lacks."""

    TOO_EARLY = "who made the snapshot has it by now: the next one will"
    MINE = "an earlier life of mine made it, and left it in no log by itself"
    GONE = "its origin is gone for long"
    WITHOUT = "its origin lives again, or gave it up itself, and is known to lack it"
    THERE = "its origin is there, and may have it by itself"
    AGAIN = "its origin lives again, and may have it by itself"
    AWAY = "its origin is away, and may come back with it"


WAIT_INTERVALS = {
    Situation.TOO_EARLY: math.inf,
    Situation.MINE: 6,
    Situation.GONE: 6,
    Situation.WITHOUT: 6,
    Situation.THERE: 18,
    Situation.AGAIN: 18,
    Situation.AWAY: math.inf,
}
"""For how many digest intervals snapshots without it are refused. An origin that may have it gets
more time to pass it on; if it does so later, I get it again."""


class GivingUp:
    """How long one peer has refused snapshots that lack what only its weights have."""

    def __init__(self, state: PeerState) -> None:
        self._state = state
        self._refused_since = math.inf

    def not_needed(self) -> None:
        """Nothing is missing that only a snapshot could bring, or it has been taken."""
        self._refused_since = math.inf

    def may(self, sender: str, dots: tuple[Dot, ...], theirs: Clock, now: float) -> bool:
        """Whether I give these up now, for a snapshot with that clock; if not, the wait begins."""
        self._refused_since = min(self._refused_since, now)
        refused_s = now - self._refused_since
        wait = max(WAIT_INTERVALS[self.situation(sender, dot, now)] for dot in dots)
        waited = refused_s >= wait * self._state.config.digest_interval_s
        return waited and self._gives_way(theirs, now)

    def situation(self, sender: str, dot: Dot, now: float) -> Situation:
        """Where one of them stands, as far as I know."""
        state = self._state
        known = state.knowledge.of(sender)
        if known is not None and dot in known:
            return Situation.TOO_EARLY
        if dot.origin == state.name:
            return Situation.MINE
        if state.standing.evictable(dot.origin, now):
            return Situation.GONE
        if state.origin_lacks(dot):
            return Situation.WITHOUT
        life = state.membership.epoch(dot.origin) or 0
        if life > dot.epoch:
            return Situation.AGAIN
        there = life == dot.epoch and dot.origin in state.membership.live()
        return Situation.THERE if there else Situation.AWAY

    def _gives_way(self, theirs: Clock, now: float) -> bool:
        """Whether it is I who gives way: of two sets the lower, unless the other side cannot."""
        state = self._state
        return state.behind or theirs.rank() > state.clock.rank() or self._they_wait(theirs, now)

    def _they_wait(self, theirs: Clock, now: float) -> bool:
        """Whether they cannot give way: who made an update that I lack is away, and may have it by
        itself."""
        state = self._state
        live = state.membership.live()
        return any(
            span.origin not in live
            and not state.standing.evictable(span.origin, now)
            and span.epoch == state.membership.epoch(span.origin)
            for span in theirs.missing(state.clock)
        )
