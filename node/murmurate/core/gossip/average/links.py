"""Links: stop and wait. A link gets its next share when a receipt says that the last one is in.

What is not confirmed is sent again as it was, also where the graph does not lead any more. What I
have of everyone is said, and repeated: a receipt is small, a share is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from murmurate.core.effect import Effect, Send
from murmurate.core.gossip.average.push_sum import Receipt, Share
from murmurate.core.gossip.average.state import MixingState

RECEIPTS = 3
"""A receipt is repeated this often, once in a digest interval."""


@dataclass(slots=True)
class _Link:
    """What goes to one partner, and when."""

    due: bool = False
    """It gets a share as soon as its link can take one."""
    flying: Share | None = None
    """On its way there."""
    lost: bool = False
    """The last one did not arrive, as far as its link can tell."""
    again_at: float = math.inf
    """When an unconfirmed one is sent again: set when first asked for, for a link does not tell the
    time."""
    receipts: int = 0
    """So often its receipt is still to be repeated."""

    @property
    def idle(self) -> bool:
        return not self.due and self.flying is None and not self.receipts


class ShareLinks:
    """The links of one peer: who is due a share or a receipt, and what became of the last ones."""

    def __init__(self, state: MixingState) -> None:
        self._state = state
        self._links: dict[str, _Link] = {}

    def _link(self, name: str) -> _Link:
        return self._links.setdefault(name, _Link())

    def names(self) -> frozenset[str]:
        """All members of whom anything is remembered here."""
        return frozenset(self._links)

    # -- who is due ------------------------------------------------------------------------------

    def due(self) -> list[str]:
        """Who gets a share as soon as its link can take one."""
        return [name for name, link in self._links.items() if link.due]

    def unconfirmed(self) -> list[str]:
        """Whose last share is on its way, or there without a receipt."""
        averager = self._state.averager
        return [name for name in averager.ties if averager.unconfirmed(name) is not None]

    def make_due(self, names: Iterable[str]) -> None:
        """Give each of these a share as soon as its link can take one."""
        for name in names:
            self._link(name).due = True

    def nobody_due(self) -> None:
        """Give no shares but those that are under way."""
        for link in self._links.values():
            link.due = False

    def idle(self) -> bool:
        """Whether no share is due, or unconfirmed by anybody who is there."""
        there = self._state.is_there
        ties = self._state.averager.ties
        waiting = (name for name in self.unconfirmed() if there(name, ties[name].epoch))
        return not self.due() and not any(waiting)

    # -- what the links take ---------------------------------------------------------------------

    def ready(self, now: float) -> list[str]:
        """The peers for which `take` has something now."""
        return [
            to for to in dict.fromkeys((*self.due(), *self.unconfirmed())) if self._free(to, now)
        ]

    def has_waiting(self, now: float) -> bool:
        """Whether a share is to go out now."""
        return bool(self.ready(now))

    def outbox_bytes(self) -> int:
        """Nothing waits: a share is made when its link can take it."""
        return 0

    def keep_pause(self, pause_s: float) -> bool:
        """Links are paced by their receipts: no pause is added."""
        return False

    def under_way(self, number: int) -> bool:
        """Updates are sent to nobody."""
        return False

    def take(self, to: str, now: float) -> Share | None:
        """A share for a peer whose link can carry one.

        The links of one turn get equal parts, though they are served one after another.
        """
        if not self._free(to, now):
            return None
        state, link = self._state, self._link(to)
        link.due = False
        part = 0.0 if state.leaving else 1.0 / (len(self.due()) + 2)
        share = state.averager.assign(to, state.membership.epoch(to) or 0, part)
        link.flying, link.again_at = share, math.inf
        return share

    def ended(self, to: str, message: object, *, lost: bool) -> None:
        """A share is not on its way any more."""
        link = self._links.get(to)
        if link is not None and link.flying is message:
            link.flying, link.lost = None, lost

    def confirm(self, sender: str, receipt: Receipt) -> None:
        """A partner has put in what I gave it, up to a number. What is confirmed is there, also
        when its link has not said so yet."""
        averager = self._state.averager
        averager.confirm(sender, receipt)
        tie, link = averager.ties.get(sender), self._links.get(sender)
        if link is not None and tie is not None and tie.share is None:
            link.flying, link.again_at = None, math.inf

    def _free(self, to: str, now: float) -> bool:
        """Whether a link may have its next share, or its last one again."""
        state, link = self._state, self._link(to)
        if link.flying is not None or not state.shares(to):
            return False
        if state.averager.unconfirmed(to) is None:
            return True
        wait_s = state.config.digest_interval_s if link.lost else state.config.snapshot_wait_s
        link.again_at = min(link.again_at, now + wait_s)
        return now >= link.again_at

    def cut(self, name: str) -> None:
        """Nothing goes to it for now, and nothing that did is waited for."""
        link = self._link(name)
        link.due, link.again_at = False, math.inf

    # -- receipts --------------------------------------------------------------------------------

    def owe(self, name: str) -> None:
        """Repeat the receipt of a partner from now on, as often as is usual."""
        self._link(name).receipts = RECEIPTS

    def receipt(self, name: str, life: int) -> list[Effect]:
        """What I have of that life; of nothing I say nothing, for that would mean «forgotten»."""
        receipt = self._state.averager.receipt(name, life)
        return [Send(name, receipt)] if receipt.seq else []

    def repeat(self) -> list[Effect]:
        """Send once more the receipts that are owed. Of a link with nothing to do nothing stays."""
        effects: list[Effect] = []
        for name, link in list(self._links.items()):
            tie = self._state.averager.ties.get(name)
            if link.receipts and tie is not None:
                effects += self.receipt(name, tie.epoch)
            link.receipts = max(0, link.receipts - 1)
            if link.idle and (tie is None or tie.share is None):
                del self._links[name]
        return effects
