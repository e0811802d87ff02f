"""Links: stop and wait. A link gets its next share when a receipt says that the last one is in.

What is not confirmed is sent again as it was, also where the graph does not lead any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from murmurate.core.gossip.average.push_sum import Receipt, Share
from murmurate.core.gossip.average.state import MixingState


@dataclass(slots=True)
class _Flight:
    """The last share of a link, from `take` until it is confirmed."""

    life: int
    seq: int
    flying: bool = True
    lost: bool = False
    void: bool = False
    """Nobody waits for it any more; only the link has to say that it is free again."""
    again_at: float = math.inf
    """When it is sent again: set when first asked for, for a link does not tell the time."""


class ShareLinks:
    """The links of one peer: who is due a share, and what became of the last one of each."""

    def __init__(self, state: MixingState) -> None:
        self._state = state
        self._due: dict[str, None] = {}
        """Who gets a share as soon as its link can take one."""
        self._flights: dict[str, _Flight] = {}
        self._taken_at: dict[str, float] = {}

    def names(self) -> frozenset[str]:
        """All members of whom anything is remembered here."""
        return frozenset((*self._due, *self._flights, *self._taken_at))

    # -- who is due ------------------------------------------------------------------------------

    def due(self) -> tuple[str, ...]:
        """Who gets a share as soon as its link can take one."""
        return tuple(self._due)

    def unconfirmed(self) -> tuple[str, ...]:
        """Whose last share is on its way, or there without a receipt."""
        return tuple(self._flights)

    def make_due(self, names: Iterable[str]) -> None:
        """Give each of these a share as soon as its link can take one."""
        self._due.update(dict.fromkeys(names))

    def nobody_due(self) -> None:
        """Give no shares but those that are under way."""
        self._due.clear()

    def idle(self) -> bool:
        """Whether no share is due, on its way or unconfirmed."""
        return not self._due and all(flight.void for flight in self._flights.values())

    # -- what the links take ---------------------------------------------------------------------

    def ready(self, now: float) -> list[str]:
        """The peers for which `take` has something now."""
        return [to for to in dict.fromkeys((*self._due, *self._flights)) if self._free(to, now)]

    def take(self, to: str, now: float) -> Share | None:
        """A share for a peer whose link can carry one.

        The links of one turn get equal parts, though they are served one after another.
        """
        if not self._free(to, now):
            return None
        state = self._state
        self._due.pop(to, None)
        part = 0.0 if state.leaving else 1.0 / (len(self._due) + 2)
        share = state.averager.assign(to, state.membership.epoch(to) or 0, part)
        if share is None:
            return None
        self._flights[to] = _Flight(share.to_epoch, share.seq)
        self._taken_at[to] = now
        return share

    def ended(self, to: str, message: object, *, lost: bool) -> None:
        """A share is not on its way any more; those of lives that are over, nobody waits for."""
        flight = self._flights.get(to)
        if flight is None or not isinstance(message, Share):
            return
        if (flight.life, flight.seq) == (message.to_epoch, message.seq):
            flight.flying, flight.lost = False, lost
            if flight.void:
                del self._flights[to]
            self._clear(to)

    def confirm(self, sender: str, receipt: Receipt) -> None:
        """A partner has put in what I gave it, up to a number."""
        self._state.averager.confirm(sender, receipt)
        self._clear(sender)

    def _clear(self, to: str) -> None:
        """What is confirmed is there, also when the link has not said so yet."""
        flight = self._flights.get(to)
        if flight is None or flight.void:
            return
        if self._state.averager.unconfirmed(to) is None:
            del self._flights[to]

    def _free(self, to: str, now: float) -> bool:
        """Whether a link may have its next share, or its last one again."""
        config = self._state.config
        flight = self._flights.get(to)
        if (flight is not None and flight.flying) or not self._state.shares(to):
            return False
        if now < self._taken_at.get(to, -math.inf) + config.pace_s:
            return False
        if flight is None:
            return True
        wait_s = config.digest_interval_s if flight.lost else config.snapshot_wait_s
        flight.again_at = min(flight.again_at, now + wait_s)
        return now >= flight.again_at

    # -- who is gone -----------------------------------------------------------------------------

    def of_another_life(self, name: str, life: int) -> bool:
        """Whether the last share of a link went to another life of that partner."""
        flight = self._flights.get(name)
        return flight is not None and flight.life != life

    def cut(self, name: str) -> None:
        """Nothing goes to it for now, and nothing that did is waited for."""
        self._due.pop(name, None)
        self._taken_at.pop(name, None)
        flight = self._flights.get(name)
        if flight is not None and flight.flying:
            flight.void = True
        elif flight is not None:
            del self._flights[name]
