"""Snapshots: whom a peer asks for one, and how it takes one over without losing an update.

A snapshot replaces weights and clock together. What I have and it lacks is folded in again; what
only my weights have is given up only where everything else has failed, and is counted.
"""

from __future__ import annotations

from murmurate.core.clock import Clock, Dot
from murmurate.core.effect import Adopted, Drop, Effect, Rejoin, Send
from murmurate.core.gossip.generations import Generations
from murmurate.core.gossip.giving_up import GivingUp
from murmurate.core.gossip.snapshot_adoption import Plan, TooFarBehind, plan_adoption
from murmurate.core.gossip.snapshot_request import Asking
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import Snapshot, SnapshotRequest


class Snapshots:
    """One peer's requests for snapshots, and its taking them over."""

    def __init__(self, state: PeerState, generations: Generations) -> None:
        self.state = state
        self._generations = generations
        self._asking = Asking(state.config.snapshot_wait_s)
        self._giving_up = GivingUp(state)

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, others: list[str], now: float) -> list[Effect]:
        """Ask one of these for a snapshot, unless one is on its way."""
        live = self.state.membership.live()
        giver = self._asking.whom(others, live, now, self.state.rng)
        return [Send(giver, SnapshotRequest())] if giver is not None else []

    def not_needed(self) -> None:
        """Nothing is missing that only a snapshot could bring."""
        self._giving_up.not_needed()

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
        if plan.lacking and not self._giving_up.may(sender, plan.lacking, snapshot.clock, now):
            detail = f"lacks {len(plan.lacking)} that only my weights have"
            return [Drop(sender, "snapshot", detail)]
        if not plan.brings_news and not state.behind:
            return [Drop(sender, "snapshot", "nothing new")]
        clock = self._replace_weights(snapshot, plan)
        self._give_up(plan.lacking)
        state.behind = False
        effects: list[Effect] = []
        if not state.synced:
            self._begin(snapshot, clock, now)
        elif snapshot.clock.generation > state.baseline.number:
            effects = self._generations.move(snapshot.history, clock, now)
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

    def _give_up(self, lacking: tuple[Dot, ...]) -> None:
        """Let these go, which only my old weights had; in my log they are in sums, if at all."""
        if not lacking:
            self._giving_up.not_needed()
            return
        self.state.durable.gave_up = True
        lost = frozenset(lacking)
        self.state.log.change(lambda push: push if lost.isdisjoint(push.dots) else None)

    def _begin(self, snapshot: Snapshot, clock: Clock, now: float) -> None:
        """A newcomer becomes a member: it starts from the snapshot's clock and generation."""
        state = self.state
        state.synced = True
        state.replica.clock = clock
        state.baseline.extend(snapshot.history)
        state.knowledge.start(clock)
        if snapshot.history:
            state.agreement.advance(snapshot.history[-1], now)
