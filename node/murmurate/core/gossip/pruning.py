"""Pruning: when a peer may let go of the updates it keeps, and what it keeps for those away."""

from __future__ import annotations

from murmurate.core.clock import Clock
from murmurate.core.effect import Effect, Prune
from murmurate.core.gossip.delivery import PushDelivery
from murmurate.core.gossip.snapshots import Snapshots
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import Push

LOG_UPDATES_MAX = 16384
"""Beyond so many updates of mine, those who are dead for `forget_after_s` are no longer waited for:
two members cannot vote one of them out, and the log of the other would grow for ever."""


class Pruning:
    """What everyone has for good leaves log and store; the log stays within its bytes."""

    def __init__(self, state: PeerState, delivery: PushDelivery, snapshots: Snapshots) -> None:
        self._state = state
        self._delivery = delivery
        self._snapshots = snapshots
        self._away: dict[str, int] = {}
        """Members that are not there, and the last update of mine they may have been sent."""

    def has_room(self, nbytes: int) -> bool:
        """Whether the log takes an update of that size: one is always kept."""
        limit = max(self._state.config.log_bytes_max, nbytes)
        if self._away:
            limit *= 2  # what is kept for them is summed up, once all the others have it
        return self._state.log.nbytes + nbytes <= limit

    def prune_large(self, now: float) -> list[Effect]:
        """Prune at once where the log holds one large update: the next one waits for that."""
        state = self._state
        one = state.log.updates == 1 and self._is_half_full()
        if one and not self._away and state.whole:
            return self.prune(state.others(), now)
        return []

    def prune(self, others: list[str], now: float) -> list[Effect]:
        """Let go of what everyone has for good, those included who are away and may come back.

        Were they not counted, two halves of a cut would have only sums of each other's updates when
        they meet again, and nobody could take those apart.
        """
        state = self._state
        away = self._note_away(now)
        self._delivery.note_waiting(others, now)
        stable = self._let_go_of(self._waited_for(others, len(away), now))
        if stable is None or self._snapshots.awaits(now):
            return []  # a snapshot that is on its way may lack what everyone has by now
        if away:
            self._squeeze(stable)
            return []
        state.store.prune(stable)
        gone = state.log.prune(stable)
        return [Prune(tuple(gone))] if gone else []

    def _is_half_full(self) -> bool:
        return 2 * self._state.log.nbytes > self._state.config.log_bytes_max

    def _note_away(self, now: float) -> list[str]:
        """Who is not there and waited for, and what each of them may have been sent."""
        state = self._state
        away = state.standing.awaited(now)
        if state.log.updates > LOG_UPDATES_MAX:
            away = [name for name in away if not state.standing.evictable(name, now)]
        self._away = {name: self._away.get(name, state.seq) for name in away}
        return away

    def _waited_for(self, others: list[str], away: int, now: float) -> list[str]:
        """The members without whose word nothing goes: all, or those who keep up if they are most.

        Not by a minority: were both sides of a cut to let go of what they made while each takes the
        other for slow, either would have what nobody can pass on, and no snapshot of one side could
        be taken by the other.
        """
        if not self._state.config.leave_behind or not self._is_half_full():
            return others
        prompt = [name for name in others if not self._delivery.lags(name, now)]
        slow = len(others) - len(prompt)
        return prompt if len(prompt) + 1 > slow + away else others

    def _let_go_of(self, others: list[str]) -> Clock | None:
        """What I and these have: for good, or at all when the log fills up; None: one is silent."""
        state = self._state
        if state.config.prune_applied and self._is_half_full():
            return state.knowledge.applied_everywhere(state.clock, others)
        return state.knowledge.everywhere(state.standing.safe_clock(), others)

    def _squeeze(self, stable: Clock) -> None:
        """Sum up what all who are there have, where the log is full and some are away.

        Those who are away have none of what I made since: they can take it as one sum.
        """
        state = self._state
        if state.log.nbytes <= state.config.log_bytes_max:
            return
        since = max(self._away.values())

        def made_since(push: Push) -> bool:
            return all(
                dot in stable and dot.epoch == state.epoch and dot.seq > since for dot in push.dots
            )

        state.log.squeeze(made_since)
