"""Gossip of weights, rule `average`: one node's part in a swarm that mixes its weights.

`Membership` says who is there, `Averager` holds model, weight and what is owed between partners;
here is when a share goes to whom. A driver talks to a `MixingPeer` as to a `Peer`
(docs/protocol.md). Rules:

1. A turn is due after each `publish`: one random partner on `full`, else all neighbours.
   Who makes no more updates takes turns with all of them, until the models are the same.
2. Stop and wait: a link gets its next share when a receipt says that the last one is in. So a link
   costs one vector, a crash takes little, and whoever is fast does not pour all its weight into
   whoever is slow. What is not confirmed is sent again as it was, also where the graph does not
   lead any more.
3. Every share is answered with a receipt, and that is repeated: it is small, a share is not.
4. Who is dead or has left gets nothing more; what was on its way is kept for `forget_after_s`, for
   it may not be dead: then it goes on. After that it is let go of, and the life leaves the clock.
5. Who comes back after that is told that it was too long apart (a receipt with number 0), and the
   smaller side starts again as newcomers (`Rejoin`).
6. Weights change in `publish` and when a share or the first snapshot is folded in, and never
   because of who comes or goes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from murmurate.core import buffers
from murmurate.core.admission import Gate, payload_problem
from murmurate.core.clock import Clock, Dot
from murmurate.core.effect import Adopted, Applied, Drop, Effect, Rng, Send
from murmurate.core.gossip.average.links import ShareLinks
from murmurate.core.gossip.average.lives import PartnerLives
from murmurate.core.gossip.average.partners import Partners
from murmurate.core.gossip.average.past_lives import PastLives
from murmurate.core.gossip.average.push_sum import FAR, TWICE, Merged, Receipt, Share
from murmurate.core.gossip.average.state import MixingState
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.gossip.past import Past
from murmurate.core.gossip.protocol import Account
from murmurate.core.gossip.sends_no_updates import SendsNoUpdates
from murmurate.core.gossip.snapshot_request import Asking
from murmurate.core.intervals import Runs
from murmurate.core.message import (
    Ack,
    Delta,
    Generation,
    Message,
    Ping,
    PingRequest,
    Snapshot,
    SnapshotRequest,
)
from murmurate.core.replica import Replica
from murmurate.errors import LocalProtocolError, RemoteProtocolError

WEIGHT_LIVES = 2
"""No share weighs more than all known members together, with so many lives of each."""


class MixingPeer(SendsNoUpdates):
    """One node of a swarm that mixes weights, as `protocol.GossipPeer` has it.

    A newcomer is not `synced` until it has its first snapshot.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        replica: Replica,
        *,
        rng: Rng,
        config: PeerConfig | None = None,
        history: tuple[Generation, ...] = (),
        past: Past | None = None,
        synced: bool = True,
        address: str = "",
    ) -> None:
        """`history`, `past`: as for a `Peer`; nothing is agreed on or kept here, so neither says
        anything."""
        self.name = name
        self.epoch = epoch
        self.replica = replica
        self.config = config = config or PeerConfig()
        self.state = state = MixingState(
            name, epoch, replica, rng=rng, config=config, synced=synced, address=address
        )
        self.membership = state.membership
        self.averager = state.averager
        self._gate = Gate(name, epoch)
        self.links = ShareLinks(state)
        self.others = self.partners = Partners(state, self.links)
        self.lives = PartnerLives(state, self.links, self.partners)
        self.past_lives = PastLives(state)
        self._upkeep_due = 0.0
        self._asking = Asking(config.snapshot_wait_s)

    @property
    def seq(self) -> int:
        """The number of the last update that this life has made."""
        return self.state.seq

    @property
    def synced(self) -> bool:
        """Whether the weights are the swarm's."""
        return self.state.synced

    # -- my own updates --------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self.replica.clock

    def context(self) -> Clock:
        """A copy of the clock, to be taken when a batch is started."""
        return self.replica.context()

    def publish(
        self, delta: Delta, context: Clock, batches: Runs = (), *, written: bool = False
    ) -> list[Effect]:
        """Put an update of mine in; a turn is due.

        The own model makes just this step (`Averager.local`).
        """
        if batches:
            raise LocalProtocolError("batches: a share of weights does not say whose they are")
        if written:
            raise LocalProtocolError("restored weights: where weights are mixed each loads its own")
        if not self.synced:
            raise LocalProtocolError("no snapshot yet: there is nothing to train on")
        if not isinstance(delta, torch.Tensor):
            raise LocalProtocolError("delta: encoded, where weights are exchanged as they are")
        if problem := payload_problem(delta, self.replica.weights):
            raise LocalProtocolError(f"delta: {problem}")
        dot, staleness = self.averager.local(delta, context)
        self.replica.weights = self.averager.model
        self.state.seq += 1
        self.partners.stepped()
        return [Applied((dot,), (staleness,))]

    # -- what the links take ---------------------------------------------------------------------

    def ready(self, now: float) -> list[str]:
        """The peers for which `take` has something now."""
        return self.links.ready(now)

    def take(self, to: str, now: float) -> Share | None:
        """A share for a peer whose link can carry one; then `landed` or `lost` must follow."""
        return self.links.take(to, now)

    def landed(self, to: str, message: object) -> None:
        """A share is there, folded or dropped; whether it is in, a receipt says."""
        self.links.ended(to, message, lost=False)

    def lost(self, to: str, message: object) -> None:
        """The link broke with a share, and it may be there or not: it is sent again."""
        self.links.ended(to, message, lost=True)

    def wants_push(self, dots: Iterable[Dot]) -> bool:
        """Whether a push of these should be sent: `receive` will say why it is refused."""
        return self.synced and not all(dot in self.clock for dot in dots)

    def wants_share(self, sender: str, seq: int, epoch: int, to_epoch: int) -> bool:
        """Whether an offered share would bring anything; if not, its receipt was lost."""
        last = self.averager.receipt(sender, epoch).seq
        if to_epoch == self.epoch and seq <= last:
            self.links.owe(sender)
        return to_epoch == self.epoch and seq > last

    # -- messages --------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message | Share | Receipt, now: float) -> list[Effect]:
        """Check a message and answer it. `RemoteProtocolError`: nothing has changed."""
        if sender == self.name:
            raise RemoteProtocolError("sender", f"{sender}: my id is used elsewhere")
        if isinstance(message, Ping | PingRequest | Ack):
            return self.lives.verdicts(self.membership.receive(sender, message, now), now)
        effects: list[Effect] = []
        if isinstance(message, Share):
            self._check_share(message, now)
            effects.append(self.state.deliver(sender, message))
        elif isinstance(message, Receipt):
            self.lives.on_receipt(sender, message, now)
        elif isinstance(message, SnapshotRequest):
            if self.synced:
                effects.append(Send(sender, self.snapshot()))
        elif isinstance(message, Snapshot):
            if problem := payload_problem(message.weights, self.replica.weights, message.norm):
                raise RemoteProtocolError("snapshot.weights", problem)
            self._check_clock("snapshot.clock", message.clock, now)
            effects += self.lives.verdicts(self.membership.learn(message.members, now), now)
            effects.append(self.state.deliver(sender, message))
        else:
            kind = type(message).__name__
            raise RemoteProtocolError("message", f"{kind}: the rule here is average, not sum")
        return effects + self.heard(sender, now)

    def heard(self, sender: str, now: float, *, snapshot: bool = False) -> list[Effect]:
        """A piece of a long message came, maybe of a snapshot: its sender is alive."""
        if snapshot:
            self._asking.began(sender)
        return self.lives.verdicts(self.membership.heard(sender, now), now)

    def broke(self, sender: str, *, again: bool) -> None:
        """A snapshot that was coming will not; `again`: it may go on where it broke off."""
        self._asking.broke(sender, again=again)

    def wants_snapshot(self, sender: str, _clock: Clock) -> bool:
        """Whether one that is offered to me should be sent."""
        return not self.synced and self._asking.wants(sender)

    def gives(self) -> bool:
        """Whether I have a snapshot to give."""
        return self.synced

    def fold(self, sender: str, message: Share | Snapshot, now: float) -> list[Effect]:
        """Let a delivered message change the weights, or say why it does not.

        `Applied` for a share: one merge has one staleness, the distance of the two clocks. Its dot
        is the sender's newest update in it (number 0: it has made none), for all that came with it
        is in there as a part only, and no single update is applied.
        """
        self.state.unfolded -= 1
        try:
            return self._fold(sender, message)
        finally:
            self.replica.weights = self.averager.model

    def _fold(self, sender: str, message: Share | Snapshot) -> list[Effect]:
        if isinstance(message, Snapshot):
            return self._adopt(sender, message)
        life = (sender, message.epoch)
        if self.state.leaving:
            # Else it would go with me, and the last receipts would not be the last.
            return [Drop(sender, "leaving"), *self.links.receipt(*life)]
        if self.state.apart.get(sender) == message.epoch:
            told = Send(sender, Receipt(0, self.epoch, message.epoch))
            return [Drop(sender, "stale", "it was away for too long"), told]
        outcome = self.averager.receive(sender, message, self.partners.spread.is_far)
        if not isinstance(outcome, Merged):
            reason = {TWICE: "duplicate", FAR: "far"}.get(outcome, "stale")
            return [Drop(sender, reason, outcome.reason), *self.links.receipt(*life)]
        self.links.owe(sender)
        self.partners.merged(sender, outcome)
        dot = Dot(*life, message.clock.last(*life))
        return [Applied((dot,), (outcome.staleness,)), *self.links.receipt(*life)]

    def tick(self, now: float) -> list[Effect]:
        """Whatever is due: probes, receipts again, the end of lives."""
        effects: list[Effect] = []
        if now >= self.membership.due:
            effects += self.lives.verdicts(self.membership.tick(now), now)
        if now >= self._upkeep_due:
            interval = self.config.digest_interval_s * (0.75 + 0.5 * self.state.rng.random())
            self._upkeep_due = now + interval
            effects += self._upkeep(now)
        return effects

    # -- coming and going ------------------------------------------------------------------------

    def join(self, names: Iterable[str], now: float) -> list[Effect]:
        """Get to know the seed peers."""
        self._upkeep_due = now
        seed_peers = [name for name in dict.fromkeys(names) if name != self.name]
        return self.lives.verdicts(self.membership.join(seed_peers, now), now)

    def leave(self, now: float) -> list[Effect]:
        """Say that I leave, and what I have of everyone; keep driving me until `others.settled`.

        What I hold goes with me, as a crash would take it: the others have the mean of the rest.
        """
        self.state.leaving = True
        self.links.nobody_due()
        return self.lives.verdicts(self.membership.leave(now, self.seq), now)

    # -- what outlives me, and what others are told ----------------------------------------------

    def account(self, now: float) -> Account:
        """What a checkpoint of this instant keeps beside the weights: no updates, they are mixed
        in."""
        return Account(
            epoch=self.epoch,
            seq=self.seq,
            clock=self.context(),
            members=self.membership.addresses(),
        )

    def weights_for_next_life(self) -> torch.Tensor:
        """A copy: the model itself may be in a share on its way."""
        return buffers.clone(self.replica.weights)

    def snapshot(self) -> Snapshot:
        """Weights and clock of one instant, and who is there."""
        rumours = self.membership.rumours()
        return Snapshot(self.averager.lend(), self.past_lives.told(), (), rumours)

    # -- inside: shares --------------------------------------------------------------------------

    def _check_share(self, share: Share, now: float) -> None:
        if problem := payload_problem(share.model, self.replica.weights, share.norm):
            raise RemoteProtocolError("share.model", problem)
        most = WEIGHT_LIVES * len(self.membership.rumours())
        if share.weight > most:
            raise RemoteProtocolError("share.weight", f"{share.weight:g}, all together have {most}")
        if share.epoch < 1:
            raise RemoteProtocolError("share.epoch", f"{share.epoch}: lives are numbered from 1")
        self._check_clock("share.clock", share.clock, now)

    def _check_clock(self, what: str, clock: Clock, now: float) -> None:
        if clock.generation or clock.base:
            raise RemoteProtocolError(what, "of a generation: the rule here is average, not sum")
        self._gate.check_clock(what, clock, self.seq, now)

    # -- inside: snapshots -----------------------------------------------------------------------

    def _adopt(self, sender: str, snapshot: Snapshot) -> list[Effect]:
        """Begin with another's weights, of weight 1; what came by shares before is in as well."""
        self._asking.came(sender)
        if self.synced or self.state.leaving:
            return [Drop(sender, "unwanted", "a snapshot: I have weights, or leave")]
        self.averager.put_in(snapshot.weights, 1.0)
        self.clock.merge(snapshot.clock)
        self.state.synced = True
        return [Adopted(sender, snapshot, (), (), ())]

    def _ask_snapshot(self, now: float) -> list[Effect]:
        live = self.membership.live()
        others = [name for name in live if name != self.name]
        giver = self._asking.whom(others, live, now, self.state.rng)
        return [Send(giver, SnapshotRequest())] if giver is not None else []

    # -- inside: upkeep --------------------------------------------------------------------------

    def _upkeep(self, now: float) -> list[Effect]:
        effects = [] if self.synced else self._ask_snapshot(now)
        self.partners.turn_if_idle()
        effects += self.links.repeat()
        self.past_lives.upkeep(now)
        return effects + self.lives.upkeep(now)
