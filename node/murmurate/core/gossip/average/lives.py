"""Lives: what a birth, a death, a departure or a return means for the shares that were given.

Who is not there gets nothing, and is not waited for. It may not be dead: what it was given is kept,
and goes again when it is there. Whoever has been dead or away for `forget_after_s` is forgotten,
and that cannot be taken up again: a life that outlived it is told so by a receipt for nothing,
number 0, and the smaller side starts again as newcomers (`Rejoin`).
"""

from __future__ import annotations

from murmurate.core import topology
from murmurate.core.effect import Effect, Rejoin, Send, Verdict
from murmurate.core.gossip.average.links import ShareLinks
from murmurate.core.gossip.average.partners import Partners
from murmurate.core.gossip.average.push_sum import Receipt
from murmurate.core.gossip.average.state import MixingState
from murmurate.core.message import DEAD, LEFT
from murmurate.errors import RemoteProtocolError

DEAD_MAX = 256
"""So many dead are probed in case they come back; then the one dead for longest is forgotten."""


class PartnerLives:
    """The lives of one peer's partners: which are over, for now or for good."""

    def __init__(self, state: MixingState, links: ShareLinks, partners: Partners) -> None:
        self._state = state
        self._links = links
        self._partners = partners
        self._over = False
        """Whether this life of mine has ended in a `Rejoin`."""

    # -- what is heard of them -------------------------------------------------------------------

    def verdicts(self, effects: list[Effect]) -> list[Effect]:
        """These effects, and what each verdict among them means for what was given."""
        out = list(effects)
        state = self._state
        for verdict in effects:
            if not isinstance(verdict, Verdict) or verdict.name == state.name:
                continue
            name, life = verdict.name, verdict.epoch
            tie = state.averager.ties.get(name)
            if tie is not None and (verdict.state == LEFT or tie.epoch < life):
                tie.share = None  # that life will not take it
                self._cut(name)
            elif verdict.state in (DEAD, LEFT):
                self._cut(name)
            elif state.averager.retired(name, life):
                out.append(Send(name, Receipt(0, state.epoch, life)))
        return out

    def on_receipt(self, sender: str, receipt: Receipt) -> None:
        """A partner has what I gave it, or (number 0) has forgotten all of it."""
        state = self._state
        if receipt.seq < 0:
            raise RemoteProtocolError("receipt.seq", f"{receipt.seq} is negative")
        if receipt.seq:
            self._links.confirm(sender, receipt)
        elif (receipt.epoch, receipt.to_epoch) == (state.membership.epoch(sender), state.epoch):
            state.refused[sender] = receipt.epoch
            self._cut(sender)

    def _cut(self, name: str) -> None:
        """Nothing goes to it for now, and nothing is known of its model."""
        self._links.cut(name)
        self._partners.forget(name)

    # -- upkeep ----------------------------------------------------------------------------------

    def upkeep(self, now: float) -> list[Effect]:
        """Forget the lives whose time is over; begin again if I am on the smaller side."""
        state = self._state
        membership, averager = state.membership, state.averager
        dead: list[tuple[float, str]] = []
        for name, life, how in [(r.name, r.epoch, r.state) for r in membership.rumours()]:
            since = membership.since(name)
            tie = averager.ties.get(name)
            gone = how in (DEAD, LEFT) and now >= since + state.config.forget_after_s
            if tie is not None and (tie.epoch < life or (gone and tie.epoch == life)):
                averager.close(name, tie.epoch)
            if how == DEAD:
                dead.append((since, name))
            elif how == LEFT and gone and name != state.name:
                membership.forget(name)
        for _, name in sorted(dead)[:-DEAD_MAX]:
            averager.close(name, membership.epoch(name) or 0)
            membership.forget(name)
        state.refused = {
            name: life for name, life in state.refused.items() if membership.epoch(name) == life
        }
        return self._rejoin()

    def _rejoin(self) -> list[Effect]:
        """Where two sides have forgotten each other, the smaller one starts again; of two equal
        ones, that without the first name."""
        state = self._state
        live = state.membership.live()
        life = state.membership.epoch
        known = [(n, epoch) for n in live if n != state.name and (epoch := life(n))]
        apart = [n for n, epoch in known if state.is_apart(n, epoch)]
        if not apart or state.leaving or self._over or not state.synced:
            return []
        beyond = self._beyond(live, apart)
        if not _are_more(apart, live) and not _are_more(beyond, live):
            return []
        self._over = True
        return [Rejoin(f"{', '.join(apart[:3])} and I were apart for too long to go on as before")]

    def _beyond(self, live: tuple[str, ...], apart: list[str]) -> list[str]:
        """Those whom no path leads to any more but over a link of mine that is closed for good: on
        a tree one such link parts the swarm, and only its two ends know of it."""
        state = self._state
        near: dict[str, set[str]] = {name: set() for name in live}
        for name in live:
            for other in topology.neighbours(state.config.topology, name, live):
                if not (name == state.name and other in apart) and not (
                    other == state.name and name in apart
                ):
                    near[name].add(other)
                    near[other].add(name)
        reached, to_see = {state.name}, [state.name]
        while to_see:
            new = near[to_see.pop()] - reached
            reached |= new
            to_see += sorted(new)
        return [name for name in live if name not in reached]


def _are_more(those: list[str], live: tuple[str, ...]) -> bool:
    """Whether these are more than the others; of two equal sides, that with the first name is."""
    mine = len(live) - len(those)
    return len(those) > mine or (len(those) == mine and live[0] in those)
