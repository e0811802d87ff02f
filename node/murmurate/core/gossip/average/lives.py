"""Lives: what a birth, a death, a departure or a return means for the shares that were given.

Who is not there gets nothing, and is not waited for. It may not be dead: what it was given is kept
for `forget_after_s`, and goes again when it is there. Whoever comes back after that was too long
apart: its model is of another time. It is told so, by a receipt for nothing (number 0); where two
sides meet, the smaller one starts again as newcomers (`Rejoin`), and whoever does not is mixed with
again after a while.
"""

from __future__ import annotations

from murmurate.core.effect import Effect, Rejoin, Send, Verdict
from murmurate.core.gossip.average.links import ShareLinks
from murmurate.core.gossip.average.partners import Partners
from murmurate.core.gossip.average.push_sum import Receipt
from murmurate.core.gossip.average.state import MixingState
from murmurate.core.message import DEAD, LEFT
from murmurate.errors import RemoteProtocolError

APART_S = 10.0
"""So long two who were apart wait for one of them to start again; then they go on mixing."""
DEAD_MAX = 256
"""So many dead are probed in case they come back; then the one dead for longest is forgotten."""


class PartnerLives:
    """The lives of one peer's partners: which are over, for now or for good."""

    def __init__(self, state: MixingState, links: ShareLinks, partners: Partners) -> None:
        self._state = state
        self._links = links
        self._partners = partners
        self._long_dead: dict[str, int] = {}
        """Who was dead for `forget_after_s`, and in which life."""
        self._until: dict[str, tuple[int, float]] = {}
        """Which life of each was apart, and how long that is or was waited for."""
        self._over = False
        """Whether this life of mine has ended in a `Rejoin`."""

    # -- what is heard of them -------------------------------------------------------------------

    def verdicts(self, effects: list[Effect], now: float) -> list[Effect]:
        """These effects, and what each verdict among them means for what was given."""
        out = list(effects)
        state = self._state
        for verdict in effects:
            if not isinstance(verdict, Verdict) or verdict.name == state.name:
                continue
            name, life = verdict.name, verdict.epoch
            tie = state.averager.ties.get(name)
            if verdict.state == LEFT or (tie is not None and tie.epoch < life):
                state.averager.let_go(name)  # that life will not take it
                self._cut(name)
            elif verdict.state == DEAD:
                self._cut(name)
            elif self._long_dead.pop(name, None) == life:
                self._part(name, life, now)
                out.append(Send(name, Receipt(0, state.epoch, life)))
        return out

    def on_receipt(self, sender: str, receipt: Receipt, now: float) -> None:
        """A partner has what I gave it, or (number 0) says that we were too long apart."""
        state = self._state
        if receipt.seq < 0:
            raise RemoteProtocolError("receipt.seq", f"{receipt.seq} is negative")
        if receipt.seq:
            self._links.confirm(sender, receipt)
        elif (receipt.epoch, receipt.to_epoch) == (state.membership.epoch(sender), state.epoch):
            # Who waits a moment longer than I did says so still; else we would wait in turns.
            life, until = self._until.get(sender, (0, 0.0))
            if life != receipt.epoch or now >= until + APART_S:
                self._part(sender, receipt.epoch, now)

    def _part(self, name: str, life: int, now: float) -> None:
        """That life and I were too long apart."""
        self._state.apart[name] = life
        self._until[name] = (life, now + APART_S)
        self._cut(name)

    def _cut(self, name: str) -> None:
        """Nothing goes to it for now, and nothing is known of its model."""
        self._links.cut(name)
        self._partners.forget(name)

    # -- upkeep ----------------------------------------------------------------------------------

    def upkeep(self, now: float) -> list[Effect]:
        """Let go of what the long dead were given; begin again if I am on the smaller side."""
        state = self._state
        membership, averager = state.membership, state.averager
        dead: list[tuple[float, str]] = []
        for name, life, how in [(r.name, r.epoch, r.state) for r in membership.rumours()]:
            since = membership.since(name)
            gone = now >= since + state.config.forget_after_s
            if how == DEAD:
                dead.append((since, name))
                if gone:
                    self._long_dead[name] = life
                    averager.let_go(name)
            elif how == LEFT and gone and name != state.name:
                membership.forget(name)
        for _, name in sorted(dead)[:-DEAD_MAX]:
            averager.let_go(name)
            membership.forget(name)
            self._long_dead.pop(name, None)
        averager.forget(membership.live())
        effects = self._rejoin()
        for name, (life, until) in list(self._until.items()):
            if now >= until or membership.epoch(name) != life:
                state.apart.pop(name, None)
            if membership.epoch(name) != life:
                del self._until[name]
        return effects

    def _rejoin(self) -> list[Effect]:
        """Where two sides were apart, the smaller one starts again; of two equal ones, that without
        the first name."""
        state = self._state
        live = state.membership.live()
        apart = [name for name in live if state.apart.get(name) == state.membership.epoch(name)]
        mine = len(live) - len(apart)
        if not apart or state.leaving or self._over or not state.synced:
            return []
        if len(apart) < mine or (len(apart) == mine and live[0] not in apart):
            return []
        self._over = True
        return [Rejoin(f"{', '.join(apart[:3])} and I were apart for too long to go on as before")]
