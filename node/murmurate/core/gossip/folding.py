"""Folding: a push from another peer changes the weights once, or it is said why it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from murmurate.core import topology
from murmurate.core.clock import Clock
from murmurate.core.codecs.codec import places_of
from murmurate.core.effect import Applied, Drop, Effect, Send
from murmurate.core.gossip.delivery import PushDelivery
from murmurate.core.gossip.repair import Repair
from murmurate.core.gossip.snapshots import Snapshots
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import STAMPS_MAX, Push, summed
from murmurate.core.replica import Fresh
from murmurate.errors import LocalProtocolError

APART_MAX, APART_BYTES = 64, 4 << 20
"""So many pushes of one sender, and so many bytes, wait each by itself: one that is folded in
before what it was computed on is counted as older by that."""
SUMS_MAX = 4
"""So many sums wait beside them; more is for the sender to keep."""


class Folding:
    """One peer's way to take in what others made."""

    def __init__(
        self, state: PeerState, delivery: PushDelivery, snapshots: Snapshots, repair: Repair
    ) -> None:
        self._state = state
        self._delivery = delivery
        self._snapshots = snapshots
        self._repair = repair

    def fold(self, sender: str, message: Push, now: float) -> list[Effect]:
        """Apply a push that is new in all its parts, keep it for others and pass it on."""
        state = self._state
        self._delivery.transit.fold(message.dots)
        push = self._as_new(sender, message, now)
        if not isinstance(push, Push):
            return push
        live = state.membership.live()
        awaits = self._snapshots.awaits(now)
        if awaits and not state.store.fits(push):
            # A snapshot that is on its way may lack it, and I could not fold it in again: with
            # every such update no snapshot could be taken as long as the others go on.
            return [Drop(sender, "awaiting", "a snapshot comes first", len(push.stamps))]
        staleness, refused = self._into_weights(push)
        third = any(name not in (state.name, sender) for name in live)
        if third or awaits or state.standing.awaited(now):
            state.store.add(push)  # a third may lack it
        last = push.stamps[-1]
        this_life = (sender, state.membership.epoch(sender))
        if (last.dot.origin, last.dot.epoch) == this_life and not last.context.apart:
            state.knowledge.note_push(sender, last.context, last.dot)
        if topology.relays(state.config.topology):
            self._delivery.pass_on(push, without=(sender, last.dot.origin))
        effects: list[Effect] = [Applied(push.dots, staleness)]
        if refused:
            beyond = f"staleness {max(staleness)}"
            effects = [Drop(sender, refused, beyond, len(push.stamps))]
        if 2 * push.nbytes > state.config.log_bytes_max:
            effects.append(Send(sender, state.digest()))  # it makes no other until it knows
        return effects

    def beside(self, waiting: Sequence[Any], new: Any) -> Push | None:
        """How a push may wait beside others of its sender: by itself while there are few and they
        are small, else added to the last of them; None: as its sender's link has room for it."""
        if not isinstance(new, Push) or not self._state.synced:
            return None
        before = [push for push in waiting if isinstance(push, Push)]
        if len(before) < APART_MAX and sum(p.nbytes for p in before) + new.nbytes < APART_BYTES:
            return new
        if not before or len(before) > APART_MAX + SUMS_MAX:
            return None
        return self._added_up(before[-1], new) if before[-1] is waiting[-1] else None

    def _added_up(self, first: Push, second: Push) -> Push | None:
        """Two pushes that wait, as one. Not where one of the two might be folded in and not the
        other: a sum is taken whole, or not at all."""
        state = self._state
        one_frame = first.stamps[0].context.generation == second.stamps[0].context.generation
        in_places = any(places_of(push.parts) is not None for push in (first, second) if push.parts)
        if (
            state.receiving is not None  # it looks at each by itself
            or len(first.stamps) + len(second.stamps) > STAMPS_MAX
            or not one_frame
            or in_places  # whoever owns the weights may have looked where they change
            or not all(self._is_here_once(push) for push in (first, second))
        ):
            return None
        return summed([first, second])

    def _is_here_once(self, push: Push) -> bool:
        """Whether all of it is new, and in no other message that waits."""
        once = self._delivery.transit.waits_once
        return all(once(dot) and self._state.is_new(dot) for dot in push.dots)

    def _into_weights(self, push: Push) -> tuple[tuple[int, ...], str]:
        """Change weights and clock; each update's staleness, and why the weights did not change.

        What a rule refuses is in the clock all the same: it is decided here, once.
        """
        replica, rule = self._state.replica, self._state.receiving
        if rule is not None:
            if (verdict := replica.judge(push.dots)) is not None:
                raise LocalProtocolError(f"judged new, but {verdict}")
            staleness = replica.count(push.stamps)
            return staleness, rule.fold(replica.weights, push, staleness, replica.clock)
        outcome = replica.fold(push.stamps, push.parts or push.payload)
        if not isinstance(outcome, Fresh):
            raise LocalProtocolError(f"judged new, but {outcome}")
        return outcome.staleness, ""

    def _as_new(self, sender: str, message: Push, now: float) -> Push | list[Effect]:
        """The push as of my generation, if all of it is new; else what there is to say."""
        state, count = self._state, len(message.stamps)
        if not state.synced:
            return [Drop(sender, "unsynced", count=count)]
        if message.stamps[0].context.generation > state.baseline.number:
            return [Drop(sender, "ahead", count=count), Send(sender, state.digest())]
        push = state.baseline.lift_push(message)
        if push is None:
            return [Drop(sender, "retired", "computed before the history I keep", count)]
        if any(state.baseline.folded(dot) is False for dot in push.dots):
            return [Drop(sender, "retired", "its epoch was closed without it", count)]
        new = [dot for dot in push.dots if state.is_new(dot)]
        if not new:
            return [Drop(sender, "duplicate", count=count)]
        if len(new) < count:
            asked = self._repair.ask_origins(Clock(new), state.membership.live())
            return [Drop(sender, "overlap", count=count), *asked]
        if any(state.agreement.frozen((dot.origin, dot.epoch), now) for dot in new):
            return [Drop(sender, "closing", "its epoch is being folded", count)]
        return push
