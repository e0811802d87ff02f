"""Snapshots: whom a peer asks for one, and how it takes one over without losing an update.

A snapshot replaces weights and clock together. What I have and it lacks is folded in again; what
only my weights have is given up only where everything else has failed, and is counted.
"""

from __future__ import annotations

import math

from murmurate.core.clock import Clock, Dot
from murmurate.core.effect import Adopted, Drop, Effect, Prune, Rejoin, Send
from murmurate.core.gossip.generations import Generations
from murmurate.core.gossip.snapshot_adoption import Plan, TooFarBehind, plan_adoption
from murmurate.core.gossip.snapshot_request import Asking
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import Snapshot, SnapshotRequest

GIVE_UP_INTERVALS = 6
"""Digest intervals before an update that cannot be taken out of a sum is given up."""


class Snapshots:
    """One peer's requests for snapshots, and its taking them over."""

    def __init__(self, state: PeerState, generations: Generations) -> None:
        self.state = state
        self._generations = generations
        self._asking = Asking(state.config.snapshot_wait_s)
        self._refused_since = math.inf
        """Since when I refuse snapshots that lack what only my weights have."""

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, others: list[str], now: float) -> list[Effect]:
        """Ask one of these for a snapshot, unless one is on its way."""
        live = self.state.membership.live()
        giver = self._asking.whom(others, live, now, self.state.rng)
        return [Send(giver, SnapshotRequest())] if giver is not None else []

    def not_needed(self) -> None:
        """Nothing is missing that only a snapshot could bring."""
        self._refused_since = math.inf

    def awaits(self, now: float) -> bool:
        """Whether one is on its way, or most likely is."""
        return self._asking.awaits(self.state.membership.live(), now)

    def comes(self) -> bool:
        """Whether a part of one is here, and the rest may follow."""
        return self._asking.comes(self.state.others())

    def wants(self, sender: str, clock: Clock) -> bool:
        """Whether one with this clock, which is offered to me, should be sent."""
        state = self.state
        if not self._asking.wants(sender):
            return False
        if not state.whole or clock.generation != state.baseline.number:
            return True
        return bool(clock.missing(state.clock))

    def began(self, sender: str) -> None:
        """A part of one is here."""
        self._asking.began(sender)

    def broke(self, sender: str, *, again: bool) -> None:
        """One that was coming will not; `again`: it may go on where it broke off."""
        self._asking.broke(sender, again=again)

    # -- taking over -----------------------------------------------------------------------------

    def adopt(self, sender: str, snapshot: Snapshot, now: float) -> list[Effect]:
        """Take over a snapshot, then fold in again what I have and it lacks: nothing is lost."""
        state = self.state
        self._asking.came(sender)
        leaving = state.standing.leaving(state.name)
        plan = plan_adoption(
            snapshot,
            state.clock if state.synced else None,
            state.log,
            state.store,
            life=None if leaving else (state.name, state.epoch),
        )
        if isinstance(plan, TooFarBehind):
            if leaving:
                return [Drop(sender, "snapshot", "too late for one who leaves")]
            return [Rejoin(plan.reason)]
        if isinstance(plan, str):
            return [Drop(sender, "snapshot", plan)]
        if plan.lacking and not self._may_give_up(sender, plan.lacking, snapshot.clock, now):
            self._refused_since = min(self._refused_since, now)
            detail = f"lacks {len(plan.lacking)} that only my weights have"
            return [Drop(sender, "snapshot", detail)]
        if not plan.brings_news and not state.behind:
            return [Drop(sender, "snapshot", "nothing new")]
        clock = self._replace_weights(snapshot, plan)
        effects = self._give_up(plan.lacking)
        state.behind = False
        if not state.synced:
            effects += self._begin(snapshot, clock, now)
        elif snapshot.clock.generation > state.baseline.number:
            effects += self._generations.move(snapshot.history, clock, now)
        else:
            state.replica.clock = clock
        return [Adopted(sender, snapshot, plan.kept, plan.retired, plan.lacking), *effects]

    def _replace_weights(self, snapshot: Snapshot, plan: Plan) -> Clock:
        """Put the snapshot's weights in, and what I keep on top; returns the clock of both."""
        replica = self.state.replica
        clock = snapshot.clock.copy()
        if snapshot.unshared and not self.state.synced:
            replica.weights = snapshot.weights  # nothing of mine is in the old ones
        else:
            replica.weights.copy_(snapshot.weights)
        replica.batches = snapshot.batches
        for push in plan.again:
            push.add_to(replica.weights)
            for stamp in push.stamps:
                clock.add(stamp.dot)
                replica.batches = replica.batches.add(stamp.batches)
        return clock

    def _give_up(self, lacking: tuple[Dot, ...]) -> list[Effect]:
        """Let these go, which only my old weights had; in my log they are in sums, if at all."""
        if not lacking:
            self._refused_since = math.inf
            return []
        self.state.standing.gave_up = True
        lost = frozenset(lacking)
        void = self.state.log.change(lambda push: push if lost.isdisjoint(push.dots) else None)
        return [Prune(tuple(void))] if void else []

    def _begin(self, snapshot: Snapshot, clock: Clock, now: float) -> list[Effect]:
        """A newcomer becomes a member: it starts from the snapshot's clock and generation."""
        state = self.state
        state.synced = True
        state.replica.clock = clock
        state.baseline.extend(snapshot.history)
        state.knowledge.start(clock)
        void = state.log.change(state.as_of_now)
        if snapshot.history:
            state.agreement.advance(snapshot.history[-1], now)
        return [Prune(tuple(void))] if void else []

    # -- giving up -------------------------------------------------------------------------------

    def _may_give_up(self, sender: str, dots: tuple[Dot, ...], theirs: Clock, now: float) -> bool:
        """Whether updates that only my weights have must go, so that all can agree again.

        It takes three misfortunes at once: the origin is gone for long, or does not have the update
        by itself any more; nor does anybody who had it; and it is left in two different sums that
        overlap, or in the weights of two who each lack what the other has, which nobody can take
        apart. Then, after everyone had time to pass on what can be passed on, the set of lower rank
        gives way: all peers rank sets alike, so they end with the same one. Losses are counted.
        """
        state = self.state
        wait_s = GIVE_UP_INTERVALS * state.config.digest_interval_s
        if now - self._refused_since < wait_s:
            return False
        known = state.knowledge.of(sender)
        if known is not None and any(dot in known for dot in dots):
            return False  # the snapshot was made too early: the next one will have it
        # An origin that is there may have it by itself: it gets more time to pass it on, and if it
        # does so later, I get it again. One that logs each update has those of its earlier lives.
        late = now - self._refused_since >= 3 * wait_s
        if any(self._may_still_come(dot, late, now) for dot in dots):
            return False
        return state.behind or theirs.rank() > state.clock.rank() or self._they_wait(theirs, now)

    def _may_still_come(self, dot: Dot, late: bool, now: float) -> bool:
        """Whether an update that only my weights have may yet be passed on by its origin."""
        state = self.state
        if dot.origin == state.name:
            return False  # it is not in my log by itself, nor in the one an earlier life left me
        if state.standing.evictable(dot.origin, now) or state.restarted_without(dot):
            return False
        life = state.membership.epoch(dot.origin) or 0
        there = life == dot.epoch and dot.origin in state.membership.live()
        restarted = life > dot.epoch and state.config.prune_applied
        return not (late and (there or restarted))

    def _they_wait(self, theirs: Clock, now: float) -> bool:
        """Whether they cannot give way: who made an update that I lack is away, and may have it by
        itself."""
        state = self.state
        live = state.membership.live()
        return state.config.prune_applied and any(
            span.origin not in live
            and not state.standing.evictable(span.origin, now)
            and span.epoch == state.membership.epoch(span.origin)
            for span in theirs.missing(state.clock)
        )
