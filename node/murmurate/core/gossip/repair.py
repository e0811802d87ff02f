"""Repair: what got lost is noticed by comparing clocks, asked for, and given one by one.

Who has an update only in a sum, or in its weights, says that it lacks it. Then the origin is asked,
and where that is gone too, a snapshot is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from murmurate.core import topology
from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.effect import Effect, Send
from murmurate.core.gossip.delivery import PushDelivery
from murmurate.core.gossip.snapshots import Snapshots
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import RANGES_MAX, STAMPS_MAX, Lack, Push, Want


class Repair:
    """One peer's questions for what it lacks, and its answers to those of others."""

    def __init__(self, state: PeerState, delivery: PushDelivery, snapshots: Snapshots) -> None:
        self._state = state
        self._delivery = delivery
        self._snapshots = snapshots
        self._tries = 0

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, others: list[str], now: float) -> list[Effect]:
        """Ask one peer for all it has of what others had an interval ago and I still lack."""
        state = self._state
        missing = [
            span
            for span in state.knowledge.overdue(self._delivery.transit.with_arrived(state.clock))
            if not state.agreement.frozen((span.origin, span.epoch), now)
        ]
        if not missing:
            self._snapshots.not_needed()
            return []
        self._tries += 1
        lacking = Clock(generation=state.clock.generation, base=state.clock.base)
        for span in missing:
            lacking.add_range(span)
        # Sums can be passed on whole along a merging path; elsewhere the origin has each update.
        # Taking turns, one way or the other gets everything.
        if (self._tries % 2 == 0) != topology.acyclic(state.config.topology):
            return self.ask_origins(lacking, others)
        start = state.rng.randrange(len(others))
        asked = others[start:] + others[:start]
        if self._tries % 4 < 2:  # else anybody: the near may have it only in sums
            near = self._delivery.neighbours()
            asked.sort(key=lambda name: name not in near)
        for name in asked:
            known = state.knowledge.of(name)
            if known is not None and (wanted := lacking.intersection(known).ranges()):
                return [Send(name, Want(tuple(wanted[:RANGES_MAX])))]
        return self.ask_origins(lacking, others)

    def ask_origins(self, lacking: Clock, live: Iterable[str]) -> list[Effect]:
        """Ask each origin that is there for those of its own updates that I lack."""
        live = frozenset(live)
        wanted: dict[str, list[Range]] = {}
        for span in lacking.ranges():
            if span.origin in live and span.origin != self._state.name:
                wanted.setdefault(span.origin, []).append(span)
        return [Send(to, Want(tuple(spans[:RANGES_MAX]))) for to, spans in wanted.items()]

    def on_lack(self, sender: str, message: Lack, now: float) -> list[Effect]:
        """Ask the origin, unless it is gone, or said so itself: then take a snapshot."""
        state = self._state
        live = state.membership.live()
        elsewhere = Clock()
        snapshot = False
        for span in message.ranges:
            first = Dot(span.origin, span.epoch, span.first)
            if not state.is_new(first):
                continue
            other = span.origin not in (sender, state.name)
            may_have = other and not state.origin_lacks(first)
            if span.origin in live and may_have:
                elsewhere.add_range(span)
            else:
                snapshot = True
        effects = self.ask_origins(elsewhere, live)
        return effects + self._snapshots.ask([sender], now) if snapshot else effects

    # -- answering -------------------------------------------------------------------------------

    def on_want(self, sender: str, message: Want) -> list[Effect]:
        """Queue what a peer asked for, and say what of it I have in sums or weights only."""
        state = self._state
        if not state.synced:
            return []
        # No more than the path takes: it is given up, with all that waits, where that is too much.
        most = STAMPS_MAX - self._delivery.outbox.updates(sender)
        pushes, lacking = state.log.serve(message.ranges, most)
        if lacking:
            looked_at = sum(len(push.stamps) for push in pushes) + len(lacking)
            asked = sum(span.last - span.first + 1 for span in message.ranges)
            more = self._whole_lives(lacking, cut=looked_at < asked)
            given = {dot for push in more for dot in push.dots}
            lacking = [dot for dot in lacking if dot not in given]
            pushes += more
        for push in pushes:
            self._delivery.answer(sender, push)
        spans = Clock(dot for dot in lacking if dot in state.clock).ranges()
        return [Send(sender, Lack(tuple(spans[:RANGES_MAX])))] if spans else []

    def _whole_lives(self, wanted: list[Dot], *, cut: bool) -> list[Push]:
        """What the store has of these; of a life that goes on, all that is wanted, or nothing.

        What I let go of its origin has, maybe in a sum: who has a part of that from me could not
        take it, and with both sides of a cut in that position no snapshot could be taken either.
        `cut`: of the last one more may be wanted.
        """
        state = self._state
        live = state.membership.live()

        def goes_on(dot: Dot) -> bool:
            return dot.origin in live and dot.epoch == state.membership.epoch(dot.origin)

        asked = dict.fromkeys(wanted)
        lacking = [wanted[-1]] if cut else []
        while True:
            short = {
                (dot.origin, dot.epoch) for dot in lacking if dot in state.clock and goes_on(dot)
            }
            asked = {dot: None for dot in asked if (dot.origin, dot.epoch) not in short}
            pushes, lacking = state.store.cover(asked)
            if not any(dot in state.clock and goes_on(dot) for dot in lacking):
                return pushes
