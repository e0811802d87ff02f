"""Delivery: how updates get from a peer's outbox onto its links, and what is on its way there.

A push is sent once and may get lost; who lacks it asks for it (`repair`). A link that broke gives
back what it carried, and only then is that sent again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from murmurate.core import topology
from murmurate.core.clock import Dot
from murmurate.core.gossip.in_flight import Transit
from murmurate.core.gossip.outbox import Outbox
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import Push

NARROW_UPDATES = 16
"""So many updates long a path counts as narrow once one had to wait behind another there."""
LAGS_S = 2.0
"""A member that is alive and takes or folds in nothing for so long is slow, and not just busy."""
TAKES_TURNS = "one-peer-exponential"
"""The topology on which a peer's paths are open one after another."""


class PushDelivery:
    """The paths to a peer's neighbours, what waits for each of them and what is on its way."""

    def __init__(self, state: PeerState) -> None:
        self._state = state
        config = state.config
        self.outbox = Outbox(bytes_max=config.outbox_bytes_max)
        self.transit = Transit()
        self.pause_s = config.pace_s
        self._taken_at: dict[str, float] = {}
        self._narrow: dict[str, int] = {}
        """Paths on which one update had to wait behind another, for so many updates to come."""
        self._landed: set[str] = set()
        """Paths that have carried something to its end."""
        self._waits: dict[str, float] = {}
        """Members for whom something is in the outbox, and since when, as seen when comparing."""
        self._folded: dict[str, tuple[int, float]] = {}
        """The last of my updates that each member was heard to have, and since when it is that."""
        self._neighbours: tuple[str, ...] = ()
        self._neighbours_version = -1
        self._turn = 0

    def neighbours(self) -> tuple[str, ...]:
        """Those the topology leads to now. Nothing is kept for members that are gone."""
        state = self._state
        if self._neighbours_version != state.membership.version:
            self._neighbours_version = state.membership.version
            live = state.membership.live()
            self._neighbours = topology.neighbours(state.config.topology, state.name, live)
            state.knowledge.keep_only(live)
            for to in self.outbox.waiting():
                if to not in live:
                    self.outbox.forget(to)
        return self._neighbours

    def next_turn(self) -> None:
        """Open the next path, where paths take turns."""
        self._turn += 1
        self._narrow = {to: left - 1 for to, left in self._narrow.items() if left > 1}

    # -- putting in ------------------------------------------------------------------------------

    def pass_on(self, push: Push, *, without: Iterable[str] = ()) -> None:
        """Queue a push for every neighbour but these."""
        for to in self.neighbours():
            if to not in without:
                self.outbox.put(to, push)

    def answer(self, to: str, push: Push) -> None:
        """Queue a push that a peer asked for, unless it is on its way to it."""
        if not self.transit.flies(to, push.dots):
            self.outbox.put(to, push)

    def has_free_path(self, nbytes: int, *, sparing: bool, fresh: bool) -> bool:
        """Whether one more update of that size would soon be sent to anybody.

        Not while updates wait on the way to every neighbour: one more would only arrive later.
        `sparing`: not while one waits on the way to most neighbours. `fresh`: not while it would
        wait there behind another (`_would_wait`). One of which the log holds no two: not while
        another is on its way, though the log be done with it.
        """
        config = self._state.config
        if config.topology == TAKES_TURNS:  # what waits there waits for its turn
            return True
        near = self.neighbours()
        waiting_max, free_min = config.waiting_max, 1
        if sparing or fresh:
            free_min = (len(near) + 1) // 2
        if sparing:
            waiting_max = 1
        large = 2 * nbytes > config.log_bytes_max
        if large:
            waiting_max = 1
        free = sum(
            self.outbox.updates(to) < waiting_max
            and not (large and self.transit.busy(to))
            and not (fresh and self._would_wait(to))
            for to in near
        )
        return not near or free >= free_min

    def under_way(self, number: int) -> bool:
        """Whether one of my updates is still to get to most neighbours: it waits or flies."""
        dot = Dot(self._state.name, self._state.epoch, number)
        near = self.neighbours()
        left = sum(self.outbox.holds(to, dot) or self.transit.flies(to, (dot,)) for to in near)
        return 2 * left > len(near)

    def _would_wait(self, to: str) -> bool:
        """Whether an update made now would wait for a link that is busy with another.

        A link that is only long takes one after another, though the first has not landed; on one
        that is narrow the second waits. Which of both it is, is known once one was seen to wait; so
        the second update of all waits for the first to land, wherever that goes. An update that
        waits for nothing but a pause between two messages does not wait for its link.
        """
        busy = self.transit.busy(to)
        if busy and self.outbox.updates(to):
            self._narrow[to] = NARROW_UPDATES
        return busy and (to in self._narrow or to not in self._landed)

    # -- taking out ------------------------------------------------------------------------------

    def ready(self, now: float) -> list[str]:
        """The peers for which `take` has something now."""
        state = self._state
        waiting = self.outbox.waiting()
        if waiting and state.config.topology == TAKES_TURNS:
            live = state.membership.live()
            chosen = topology.open_now(state.config.topology, state.name, live, self._turn)
            near = self.neighbours()
            waiting = [to for to in waiting if to in chosen or to not in near]
        if self.pause_s:
            before = now - self.pause_s
            waiting = [to for to in waiting if self._taken_at.get(to, -math.inf) <= before]
        return waiting

    def take(self, to: str, now: float) -> Push | None:
        """The next push for a peer that does not have all of it yet."""
        while (push := self.outbox.take(to)) is not None:
            if not self._state.knowledge.has(to, push.dots):
                self._taken_at[to] = now
                self.transit.take_off(to, push.dots)
                return push
        return None

    def landed(self, to: str, push: Push) -> None:
        """A push is there, or its link cannot tell: who asks for it gets it again."""
        self.transit.land(to, push.dots)
        self._landed.add(to)

    def lost(self, to: str, push: Push) -> None:
        """The link broke with a push: it is sent again, unless the peer is gone or has it."""
        self.transit.land(to, push.dots)
        again = self._state.as_of_now(push)
        if again is not None and to in self.neighbours():
            self.outbox.put(to, again)

    # -- what waits ------------------------------------------------------------------------------

    def has_waiting(self, now: float) -> bool:
        """Whether anything is to go out, now or after a pause."""
        return bool(self.outbox.waiting())

    def keep_pause(self, pause_s: float) -> bool:
        """Leave so long between two pushes on one link; whether links pause at all now."""
        self.pause_s = pause_s
        return pause_s > 0.0

    def outbox_bytes(self) -> int:
        """The bytes of updates that wait for slow links, before they are summed."""
        return sum(self.outbox.nbytes(to) for to in self.outbox.waiting())

    # -- who is slow -----------------------------------------------------------------------------

    def note_waiting(self, others: Iterable[str], now: float) -> None:
        """Remember for whom something waits, and who has folded in what; each since when."""
        state, before = self._state, self._folded
        others = list(others)
        self._waits = {
            name: self._waits.get(name, now) for name in others if self.outbox.updates(name)
        }
        self._folded = {}
        for name in others:
            known = state.knowledge.of(name)
            last = known.last(state.name, state.epoch) if known is not None else 0
            seen, since = before.get(name, (last, now))
            self._folded[name] = (last, since if seen == last < state.seq else now)

    def lags(self, name: str, now: float) -> bool:
        """Whether a peer that is alive takes nothing, or takes it and folds in nothing: its
        training does not get to it.

        When it took the last one says little by itself: it may have been away since, or there was
        nothing to take.
        """
        since = self._taken_at.get(name, now)
        if not self.transit.busy(name):
            since = max(since, self._waits.get(name, now))
        _, folded_since = self._folded.get(name, (0, now))
        return now - min(since, folded_since) > LAGS_S

    def forget(self, name: str) -> None:
        """Of this member there is no record any more."""
        self._taken_at.pop(name, None)
        self._narrow.pop(name, None)
        self._landed.discard(name)
