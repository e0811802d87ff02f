"""Pruning: when a peer may let go of the updates it keeps, and what it keeps for those away."""

from __future__ import annotations

from murmurate.core.clock import Clock
from murmurate.core.gossip.delivery import PushDelivery
from murmurate.core.gossip.pieces import Pieces
from murmurate.core.gossip.snapshots import Snapshots
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import Push

LOG_UPDATES_MAX = 16384
"""Beyond so many updates of mine, those who are dead for `forget_after_s` are no longer waited for:
two members cannot vote one of them out, and the log of the other would grow for ever."""

AWAY_PUSHES_MAX = 128
"""So many pushes of mine are kept for those away before what they all lack is summed up: it is in
every checkpoint."""


class Pruning:
    """What everyone has for good leaves log and store; the log stays within its bytes."""

    def __init__(self, state: PeerState, delivery: PushDelivery, snapshots: Snapshots) -> None:
        self._state = state
        self._delivery = delivery
        self._snapshots = snapshots
        self._pieces = Pieces(state)
        self._away: dict[str, int] = {}
        """Members that are not there, and the last update of mine they may have been sent."""

    def has_room(self, nbytes: int) -> bool:
        """Whether the log takes an update of that size: one is always kept."""
        limit = max(self._state.config.log_bytes_max, nbytes)
        if self._away:
            limit *= 2  # what is kept for them is summed up, once all the others have it
        return self._state.log.nbytes + nbytes <= limit

    def prune_large(self, now: float) -> None:
        """Prune at once where the log holds one large update: the next one waits for that."""
        state = self._state
        one = state.log.updates == 1 and self._is_half_full()
        if one and not self._away and state.whole:
            self.prune(state.others(), now)

    def prune(self, others: list[str], now: float) -> None:
        """Let go of what need not be kept, by the policy that fits."""
        away = self._note_away(now)
        self._delivery.note_waiting(others, now)
        if self._snapshots.awaits(now):
            return  # one that is on its way may lack what everyone has by now
        if self._is_half_full():
            stable = self._applied_by_all_who_keep_up(others, len(away), now)
        else:
            stable = self._durable_everywhere(others)
        if stable is None:
            return  # one was not heard of
        if away:
            self._sum_up_for_those_away(stable)
        else:
            self._let_go(stable)
            self._pieces.sum_up(others)

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

    # -- the policies ----------------------------------------------------------------------------

    def _durable_everywhere(self, others: list[str]) -> Clock | None:
        """While there is room: what I and all others have for good, so that no crash can take it
        from somebody and leave nobody to give it back."""
        state = self._state
        return state.knowledge.everywhere(state.durable.clock(), others)

    def _applied_by_all_who_keep_up(self, others: list[str], away: int, now: float) -> Clock | None:
        """When the log fills up: what I and all others have, those left out who take nothing (a
        long evaluation, say): they will take a snapshot. A crash may take it from somebody, who
        gets it back by snapshot as well.

        Nobody is left out by a minority: were both sides of a cut to let go of what they made while
        each takes the other for slow, either would have what nobody can pass on, and no snapshot of
        one side could be taken by the other.
        """
        state = self._state
        prompt = [name for name in others if not self._delivery.lags(name, now)]
        slow = len(others) - len(prompt)
        waited_for = prompt if len(prompt) + 1 > slow + away else others
        return state.knowledge.applied_everywhere(state.clock, waited_for)

    def _let_go(self, stable: Clock) -> None:
        """While nobody is away: keep none of this."""
        self._state.store.prune(stable)
        self._state.log.prune(stable)

    def _sum_up_for_those_away(self, stable: Clock) -> None:
        """While somebody is away, nothing goes; where the log is full or long, what all who are
        there have is summed up.

        Were those away not counted, two halves of a cut would have only sums of each other's
        updates when they meet again, and nobody could take those apart. But they have none of what
        I made since they went: they can take it as one sum.
        """
        state = self._state
        full = state.log.nbytes > state.config.log_bytes_max
        if not full and len(state.log) <= AWAY_PUSHES_MAX:
            return
        since = max(self._away.values())

        def made_since(push: Push) -> bool:
            return all(
                dot in stable and dot.epoch == state.epoch and dot.seq > since for dot in push.dots
            )

        state.log.squeeze(made_since)
