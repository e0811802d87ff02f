"""Lives: what a birth, a death, a departure or a return means for the shares that were given.

Dead: take back what is unconfirmed, and keep it for `forget_after_s`, for it may not be dead: then
it is given again. Left: the same after a time in which the last receipts arrive, for good. What is
forgotten cannot be taken up again: a life that outlived it is told so by a receipt for nothing,
number 0, and the smaller side starts again as newcomers (`Rejoin`).
"""

from __future__ import annotations

from murmurate.core import topology
from murmurate.core.effect import Effect, Rejoin, Send, Verdict
from murmurate.core.gossip.average.links import ShareLinks
from murmurate.core.gossip.average.partners import Partners
from murmurate.core.gossip.average.push_sum import Receipt
from murmurate.core.gossip.average.receipts import Receipts
from murmurate.core.gossip.average.state import MixingState
from murmurate.core.gossip.average.to_myself import Back, Gone
from murmurate.core.message import DEAD, LEFT
from murmurate.errors import RemoteProtocolError

PARTING_INTERVALS = 4
"""Digest intervals in which the last receipts of one who has left arrive."""
DEAD_MAX = 256
"""So many dead are probed in case they come back; then the one dead for longest is forgotten."""


class PartnerLives:
    """The lives of one peer's partners: which are over, for now or for good."""

    def __init__(
        self, state: MixingState, links: ShareLinks, receipts: Receipts, partners: Partners
    ) -> None:
        self._state = state
        self._links = links
        self._receipts = receipts
        self._partners = partners
        self._dead: dict[str, tuple[float, int]] = {}
        """Who died when, and in which life."""
        self._parting: dict[str, tuple[float, int]] = {}
        """Who left, until when its last receipts may arrive, and its life."""
        self._over = False
        """Whether this life of mine has ended in a `Rejoin`."""

    def dead(self) -> frozenset[str]:
        """The dead of whom something is kept in case they come back."""
        return frozenset(self._dead)

    def parting(self) -> frozenset[str]:
        """Those who left, and whose last receipts may still arrive."""
        return frozenset(self._parting)

    # -- what is heard of them -------------------------------------------------------------------

    def verdicts(self, effects: list[Effect], now: float) -> list[Effect]:
        """These effects, and what each verdict among them means for what was given."""
        out = list(effects)
        for verdict in effects:
            if not isinstance(verdict, Verdict) or verdict.name == self._state.name:
                continue
            name, life = verdict.name, verdict.epoch
            if verdict.state == DEAD:
                out += self._end(name, life, forget=False)
                self._dead[name] = (now, life)
                self._partners.look_around()
            elif verdict.state == LEFT:
                out += self._left(name, life, now)
            else:
                out += self._lives(name, life)
        return out

    def _left(self, name: str, life: int, now: float) -> list[Effect]:
        """A partner left in order: its last receipts may be on their way, and mine are due."""
        self._cut(name)
        self._dead.pop(name, None)
        until = now + PARTING_INTERVALS * self._state.config.digest_interval_s
        self._parting[name] = (until, life)
        return self._receipts.of((name, life))

    def _lives(self, name: str, life: int) -> list[Effect]:
        """A partner is there, maybe in a new life, maybe though it was thought dead."""
        state = self._state
        effects: list[Effect] = []
        if state.averager.outlived(name, life):
            effects += self._end(name, life - 1, forget=True)
        elif self._links.of_another_life(name, life):
            self._cut(name)
        if state.averager.retired(name, life):
            effects.append(Send(name, Receipt(0, state.epoch, life)))
        elif name in self._dead and not state.leaving and state.synced:
            self._links.make_due((name,))  # where its last share was left off
        self._dead.pop(name, None)
        self._parting.pop(name, None)
        return effects

    def on_receipt(self, sender: str, receipt: Receipt) -> list[Effect]:
        """A partner has what I gave it, or (number 0) has forgotten all of it."""
        state = self._state
        if receipt.seq < 0:
            raise RemoteProtocolError("receipt.seq", f"{receipt.seq} is negative")
        if receipt.seq:
            self._links.confirm(sender, receipt)
        elif (receipt.epoch, receipt.to_epoch) == (state.membership.epoch(sender), state.epoch):
            state.refused[sender] = receipt.epoch
            return self._end(sender, receipt.epoch, forget=False)
        return []

    # -- taking back and giving again ------------------------------------------------------------

    def _end(self, name: str, life: int, *, forget: bool) -> list[Effect]:
        """No shares any more; what is unconfirmed comes back when weights may change."""
        state = self._state
        self._cut(name)
        if state.averager.unconfirmed(name) is not None:
            state.returning[name] += 1
            return [state.deliver(name, Gone(life, forget))]
        if forget:
            state.averager.close(name, life)
        return []

    def _cut(self, name: str) -> None:
        """Nothing goes to it for now, and nothing that did is waited for."""
        self._links.cut(name)
        self._partners.forget(name)

    def fold(self, name: str, message: Gone | Back) -> bool:
        """Take back, or give again what was; whether the weights have changed."""
        changed = self._settle(name, message)
        if changed:
            self._partners.moved()
        else:
            self._partners.look_around()
        return changed

    def _settle(self, name: str, message: Gone | Back) -> bool:
        state = self._state
        state.returning[name] -= 1
        state.returning = +state.returning
        there = state.is_there(name, message.life)
        if isinstance(message, Back):
            if not there or not state.averager.give_again(name):
                return False  # if too little would be left: at the next upkeep
            self._links.make_due((name,))
            return True
        if message.forget:
            return state.averager.close(name, message.life) > 0.0
        return not there and state.averager.reclaim(name) > 0.0

    # -- upkeep ----------------------------------------------------------------------------------

    def upkeep(self, now: float) -> list[Effect]:
        """End the lives whose time is over, and take up those that are there after all."""
        effects: list[Effect] = []
        for name, (until, life) in list(self._parting.items()):
            if now >= until:
                del self._parting[name]
                effects += self._end(name, life, forget=True)
        for name, (since, life) in list(self._dead.items()):
            if now >= since + self._state.config.forget_after_s:
                effects += self._end(name, life, forget=True)
        self._forget_members(now)
        return effects + self._returned() + self._rejoin()

    def _forget_members(self, now: float) -> None:
        """Who left needs no record after a while; of the dead, so many as can be probed."""
        state = self._state
        membership = state.membership
        gone: list[tuple[float, str]] = []
        for rumour in membership.rumours():
            since, name = membership.since(rumour.name), rumour.name
            if rumour.state == LEFT and name != state.name and name not in self._parting:
                if now >= since + state.config.forget_after_s:
                    membership.forget(name)
            elif rumour.state == DEAD:
                gone.append((since, name))
        for _, name in sorted(gone)[:-DEAD_MAX]:
            if name not in state.returning:
                _, life = self._dead.pop(name, (now, 0))
                state.averager.close(name, life)
                membership.forget(name)
        state.refused = {
            name: life for name, life in state.refused.items() if membership.epoch(name) == life
        }

    def _returned(self) -> list[Effect]:
        """Whom I took something back from, and who is there after all."""
        state = self._state
        names = [
            (name, life)
            for name, life in state.averager.reclaimed().items()
            if name not in state.returning and state.is_there(name, life)
        ]
        state.returning.update(name for name, _ in names)
        return [state.deliver(name, Back(life)) for name, life in names]

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
