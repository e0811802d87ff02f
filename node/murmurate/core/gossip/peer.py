"""The peer protocol: one node's part in a swarm that gossips updates.

Local steps and messages go in, effects come out; nothing here waits, sends or sleeps. Rules:

1. The number of my life is durable before its first message, and larger than that of every life
   before: so an id is never used twice, though a crash makes me forget updates that I made.
2. Weights and clock change only in `publish` and `fold`, and always together. `receive` checks and
   answers; what changes weights comes back as `Deliver`, for the thread that owns the weights.
3. Pushes are sent once and may get lost. What is missing is noticed by comparing clocks (`Digest`),
   asked for (`Want`), and, where nobody has it one by one any more, taken by snapshot.
4. A sum that overlaps what I have is not applied; its missing updates are asked for one by one.

Here is what a driver calls. The work is done over one `state` by parts that each have their own
file: `delivery`, `folding`, `comparison`, `repair`, `pruning`, `snapshots` and `generations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from murmurate.core.admission import Gate, payload_problem
from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.effect import (
    Applied,
    Deliver,
    Effect,
    Rng,
    Save,
    Send,
    Verdict,
)
from murmurate.core.gossip.comparison import Comparison
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.gossip.delivery import PushDelivery
from murmurate.core.gossip.folding import Folding
from murmurate.core.gossip.generations import Generations
from murmurate.core.gossip.past import Past, take_up
from murmurate.core.gossip.protocol import Account
from murmurate.core.gossip.pruning import Pruning
from murmurate.core.gossip.repair import Repair
from murmurate.core.gossip.snapshots import Snapshots
from murmurate.core.gossip.state import PeerState
from murmurate.core.intervals import Runs
from murmurate.core.message import (
    SUSPECT,
    Accept,
    Accepted,
    Ack,
    Decided,
    Delta,
    Digest,
    Generation,
    Lack,
    Message,
    Ping,
    PingRequest,
    Prepare,
    Promise,
    Push,
    Snapshot,
    SnapshotRequest,
    Stamp,
    Want,
    parts_of,
)
from murmurate.core.receiving.rule import ReceivingRule
from murmurate.core.replica import Replica
from murmurate.errors import LocalProtocolError, RemoteProtocolError


class Peer:
    """One node of a swarm that gossips updates, as `protocol.GossipPeer` has it.

    A newcomer is not `synced` until it has adopted its first snapshot.
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
        receiving: Callable[[float], ReceivingRule] | None = None,
    ) -> None:
        """`receiving`: makes the rule by which updates of others are folded in; None: each as it
        is, which keeps replicas equal."""
        if epoch < 1:
            raise LocalProtocolError(f"epoch {epoch}: lives are numbered from 1")
        self.name = name
        self.epoch = epoch
        self.replica = replica
        self.config = config = config or PeerConfig()
        past = past or Past()
        self.state = state = PeerState(
            name,
            epoch,
            replica,
            rng=rng,
            config=config,
            history=history,
            past=past,
            synced=synced,
            address=address,
        )
        state.receiving = receiving(config.strength) if receiving is not None else None
        self.membership = state.membership
        self.baseline = state.baseline
        self.standing = state.standing
        self.log = state.log
        self.store = state.store
        self._gate = Gate(name, epoch)
        self.links = PushDelivery(state)
        self.outbox = self.links.outbox
        self._generations = Generations(state, self.links, self._gate)
        self._snapshots = Snapshots(state, self._generations)
        self._repair = Repair(state, self.links, self._snapshots)
        self._pruning = Pruning(state, self.links, self._snapshots)
        self._folding = Folding(state, self.links, self._snapshots, self._repair)
        self.others = Comparison(
            state, self._gate, self.links, self._snapshots, self._repair, self._pruning
        )
        self._digest_due = 0.0
        take_up(state, past)

    @classmethod
    def found(
        cls,
        name: str,
        weights: torch.Tensor,
        *,
        rng: Rng,
        epoch: int = 1,
        config: PeerConfig | None = None,
        address: str = "",
    ) -> Peer:
        """The first peer of a swarm: alone on the roster, with the weights that all will have.

        Others begin as newcomers (`synced=False`) and take its snapshot.
        """
        founding = (Generation(0, (name,), memories=(epoch,)),)
        return cls(
            name,
            epoch,
            Replica(weights),
            rng=rng,
            config=config,
            history=founding,
            past=Past(memory=epoch),
            address=address,
        )

    @property
    def seq(self) -> int:
        """The number of the last update that this life has made."""
        return self.state.seq

    @property
    def synced(self) -> bool:
        """Whether the weights are the swarm's."""
        return self.state.synced

    @property
    def clock(self) -> Clock:
        return self.replica.clock

    # -- my own updates --------------------------------------------------------------------------

    def context(self) -> Clock:
        """A copy of the clock, to be taken when a batch is started."""
        return self.replica.context()

    def room(self, nbytes: int, *, sparing: bool = False, fresh: bool = False) -> bool:
        """Whether an update of that size should be made now, or be added to the next one.

        Not while updates wait on every path, nor while the log is full: so memory is bounded by
        what the links take, and the training never waits for them. `sparing`: not while one waits
        on most paths; two that are encoded take more bytes than the same steps in one. `fresh`: not
        while on most paths one waits for a link that is still busy with another.
        """
        free = self.links.has_free_path(nbytes, sparing=sparing, fresh=fresh)
        return free and self._pruning.has_room(nbytes)

    def publish(
        self, delta: Delta, context: Clock, batches: Runs = (), *, written: bool = False
    ) -> list[Effect]:
        """Make an update: it gets my next id, goes into the weights and is passed on.

        `batches`: those of a generator that it was computed on; `written`: no step made it.
        `LocalProtocolError`: it cannot be used, nothing has changed.
        """
        if not self.synced:
            raise LocalProtocolError("no snapshot yet: there is nothing to train on")
        if written and self.state.receiving is not None:
            raise LocalProtocolError(
                "restored weights: by this rule each receiver would change them"
            )
        plain = delta if isinstance(delta, torch.Tensor) else None
        coded = () if isinstance(delta, torch.Tensor) else parts_of(delta)
        if problem := payload_problem(coded if plain is None else plain, self.replica.weights):
            raise LocalProtocolError(f"delta: {problem}")
        lifted = self.baseline.lift(context)
        if lifted is None:
            raise LocalProtocolError(f"a context of generation {context.generation}: too old")
        stamp = Stamp(Dot(self.name, self.epoch, self.seq + 1), lifted, batches, written)
        push = Push((stamp,), plain, coded)
        staleness = self.replica.count((stamp,))
        push.add_to(self.replica.weights)
        if self.state.receiving is not None:
            self.state.receiving.made(push)
        self.state.seq += 1
        self.log.add(push)
        self.links.next_turn()
        self.links.pass_on(push)
        return [Applied((stamp.dot,), staleness)]

    # -- what the links take ---------------------------------------------------------------------

    def ready(self, now: float) -> list[str]:
        """The peers for which `take` has something now."""
        return self.links.ready(now)

    def take(self, to: str, now: float) -> Push | None:
        """The next push for a peer, when its link can carry one."""
        return self.links.take(to, now)

    def landed(self, to: str, push: Push) -> None:
        """A push that was taken is there, or its link cannot tell: ask again and get it again."""
        self.links.landed(to, push)

    def lost(self, to: str, push: Push) -> None:
        """The link broke with a push: it is sent again, unless the peer is gone or has it."""
        self.links.lost(to, push)

    def arrived(self) -> Clock:
        """The clock there will be when all that is here is folded in."""
        return self.links.transit.with_arrived(self.clock)

    def wants_push(self, dots: Iterable[Dot]) -> bool:
        """Whether a push of these, which is offered to me, should be sent.

        Before the first snapshot it could not be folded in; afterwards I ask for it.
        """
        return self.synced and not all(dot in self.clock for dot in dots)

    def wants_share(self, sender: str, seq: int, epoch: int, to_epoch: int) -> bool:
        """No share of weights is of use here: updates are."""
        return False

    # -- messages --------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, now: float) -> list[Effect]:
        """Check a message and answer it. `RemoteProtocolError`: nothing has changed."""
        if isinstance(message, Ping | PingRequest | Ack):
            return self._verdicts(self.membership.receive(sender, message, now))
        effects = self._answer(sender, message, now)
        if sender == self.name:
            return effects
        return self._verdicts(self.membership.heard(sender, now)) + effects

    def _answer(self, sender: str, message: Message, now: float) -> list[Effect]:
        match message:
            case Push():
                self._gate.check_push(message, self.seq, self.replica.weights)
                self.links.transit.arrive(message.dots)
                return [Deliver(sender, message)]
            case Digest():
                return self.others.on_digest(sender, message, now)
            case Want():
                return self._repair.on_want(sender, message)
            case Lack():
                return self._repair.on_lack(sender, message, now)
            case SnapshotRequest():
                return [Send(sender, self.snapshot())] if self.gives() else []
            case Snapshot():
                if problem := payload_problem(message.weights, self.replica.weights, message.norm):
                    raise RemoteProtocolError("snapshot.weights", problem)
                self._gate.check_mine("snapshot.clock", message.clock, self.seq)
                effects = self._verdicts(self.membership.learn(message.members, now))
                return [*effects, Deliver(sender, message)]
            case Decided():
                self._generations.check(message)
                return [Deliver(sender, message)]
            case Prepare() | Promise() | Accept() | Accepted():
                if not self.state.whole:
                    return []
                return self.state.agreement.receive(sender, message, now, self.standing)
            case _:
                kind = type(message).__name__
                raise RemoteProtocolError("message", f"{kind} is not understood")

    def fold(self, sender: str, message: Push | Snapshot | Decided, now: float) -> list[Effect]:
        """Let a delivered message change the weights, or say why it does not."""
        if isinstance(message, Snapshot):
            return self._snapshots.adopt(sender, message, now)
        if isinstance(message, Decided):
            return self._generations.on_decided(message, now)
        return self._folding.fold(sender, message, now)

    def beside(self, waiting: Sequence[Any], new: Any) -> Push | None:
        """How a push may wait beside others of its sender (`Folding.beside`)."""
        return self._folding.beside(waiting, new)

    def tick(self, now: float) -> list[Effect]:
        """Do whatever is due: probes, digests, repairs, agreement."""
        effects: list[Effect] = []
        if now >= self.membership.due:
            effects += self._verdicts(self.membership.tick(now))
        if now >= self._digest_due:
            interval = self.config.digest_interval_s * (0.75 + 0.5 * self.state.rng.random())
            self._digest_due = now + interval
            effects += self.others.compare(now)
        agreement = self.state.agreement
        if now >= agreement.due and self.state.whole:
            effects += agreement.tick(now, self.standing)
        return effects

    def heard(self, sender: str, now: float, *, snapshot: bool = False) -> list[Effect]:
        """A piece of a long message came, maybe of a snapshot: its sender is alive."""
        if snapshot:
            self._snapshots.began(sender)
        return self._verdicts(self.membership.heard(sender, now))

    def broke(self, sender: str, *, again: bool) -> None:
        """A snapshot that was coming will not; `again`: it may go on where it broke off."""
        self._snapshots.broke(sender, again=again)

    def wants_snapshot(self, sender: str, clock: Clock) -> bool:
        """Whether a snapshot with this clock, which is offered to me, should be sent."""
        return self._snapshots.wants(sender, clock)

    def gives(self) -> bool:
        """Whether I have a snapshot to give."""
        return self.state.whole

    def snapshot(self) -> Snapshot:
        """Weights, clock and what is needed to understand it, of one instant."""
        weights, clock = self.replica.snapshot()
        return Snapshot(
            weights,
            clock,
            self.baseline.history,
            self.membership.rumours(),
            batches=self.replica.batches,
        )

    # -- coming and going ------------------------------------------------------------------------

    def join(self, names: Iterable[str], now: float) -> list[Effect]:
        """Get to know the seed peers, and whoever was there in my last life."""
        self._digest_due = now
        seed_peers = dict.fromkeys((*names, *self.baseline.roster, *self.standing.met()))
        seed_peers.pop(self.name, None)
        return self._verdicts(self.membership.join(seed_peers, now))

    def leave(self, now: float) -> list[Effect]:
        """Say that I leave; keep driving me until `others.settled`, or as long as you can wait."""
        others = self.state.others()
        digest = self.state.digest(ask=True)
        return self.membership.leave(now, self.seq) + [Send(to, digest) for to in others]

    # -- what outlives me, and what others are told ----------------------------------------------

    def account(self, now: float) -> Account:
        """What a checkpoint of this instant keeps beside the weights.

        Updates only where somebody is there, or may come back, who could lack them.
        """
        needed = bool(self.state.others() or self.standing.awaited(now))
        self.state.durable.begun(self.clock)
        return Account(
            epoch=self.epoch,
            seq=self.seq,
            clock=self.context(),
            batches=self.replica.batches,
            members=self.membership.addresses(),
            history=self.baseline.history,
            log=tuple(self.log) if needed else (),
            store=tuple(self.store) if needed else (),
        )

    def checkpointed(self, clock: Clock, *, kept: int = 1) -> None:
        """A checkpoint with this clock is durable, and `kept` are kept now, this one included.

        What the oldest of them has is what a crash cannot take. Never called: this peer keeps none,
        and comes back from a crash as a newcomer.
        """
        self.state.durable.checkpointed(clock, kept)

    def past(self) -> Past:
        """What my next life must know, though nothing is on a disk: my vow binds it."""
        return Past(vow=self.state.agreement.vow, memory=self.state.memory)

    def weights_for_next_life(self) -> torch.Tensor:
        """My weights: what is on its way are updates, none of which refers to them."""
        return self.replica.weights

    def folds(self) -> tuple[tuple[Key, Runs], ...]:
        """The lives that are folded into the baseline, and what of each is in it."""
        return tuple(fold for generation in self.baseline.history for fold in generation.folds)

    # -- inside: members -------------------------------------------------------------------------

    def _verdicts(self, effects: list[Effect]) -> list[Effect]:
        """What a member had in an earlier life says nothing about this one."""
        changed = False
        for effect in effects:
            if isinstance(effect, Verdict):
                self.state.knowledge.forget(effect.name)
                changed |= self.standing.note(effect)
                if effect.state != SUSPECT:
                    self.links.transit.forget(effect.name)
        # First: nothing is sent to it that a crash could take from me while I forget that it is.
        return [Save("met", self.standing.met()), *effects] if changed else effects
