"""The peer protocol: one node's part in a swarm that gossips updates.

Local steps and messages go in, effects come out; nothing here waits, sends or sleeps. Rules:

1. An update of mine is `prepare`d, logged by the driver, then `commit`ted: nothing leaves the
   machine that a crash could make me forget, so an id is never used twice.
2. Weights and clock change only in `commit` and `fold`, and always together. `receive` checks and
   answers; what changes weights comes back as `Deliver`, for the thread that owns the weights.
3. Pushes are sent once and may get lost. What is missing is noticed by comparing clocks (`Digest`),
   asked for (`Want`), and, where nobody has it one by one any more, taken by snapshot.
4. A sum that overlaps what I have is not applied; its missing updates are asked for one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from murmurate.core import topology
from murmurate.core.adoption import TooFarBehind, plan_adoption
from murmurate.core.agreement import Agreement, Vow
from murmurate.core.asking import Asking
from murmurate.core.baseline import Baseline
from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.effect import (
    Adopted,
    Applied,
    Deliver,
    Drop,
    Effect,
    Moved,
    Prune,
    Rejoin,
    Rng,
    Save,
    Send,
    Verdict,
    shuffled,
)
from murmurate.core.gate import Gate, payload_problem
from murmurate.core.knowledge import Knowledge
from murmurate.core.membership import Membership
from murmurate.core.message import (
    RANGES_MAX,
    STAMPS_MAX,
    SUSPECT,
    Accept,
    Accepted,
    Ack,
    Decided,
    Digest,
    Generation,
    Lack,
    Message,
    Part,
    Ping,
    PingRequest,
    Prepare,
    Promise,
    Push,
    Snapshot,
    SnapshotRequest,
    Stamp,
    Want,
)
from murmurate.core.outbox import Outbox
from murmurate.core.replica import Fresh, Replica
from murmurate.core.standing import Standing
from murmurate.core.store import Store
from murmurate.core.timing import Timing
from murmurate.core.transit import Transit
from murmurate.errors import LocalProtocolError, RemoteProtocolError

GIVE_UP_INTERVALS = 6
"""Digest intervals before an update that cannot be taken out of a sum is given up."""
KNOWN_MAX = 256
"""Beyond so many members only the neighbours' clocks are remembered: n clocks of n entries each
would take too much. Then nobody knows what all have, and little is let go of (docs/promises)."""
LAGS_S = 2.0
LOG_UPDATES_MAX = 16384
"""Beyond so many updates of mine, those who are dead for `forget_after_s` are no longer waited for:
two members cannot vote one of them out, and the log of the other would grow for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """How a peer behaves. The defaults suit a local network; nothing here must be guessed."""

    topology: str = "full"
    outbox_bytes_max: int = 64 * 2**20
    """Per path; what waits beyond it is summed up."""
    log_bytes_max: int = 64 * 2**20
    """Of my own updates that not all have answered; beyond it steps are added up (`Peer.room`), and
    what is kept for members that are away is summed up. One update is always kept."""
    leave_behind: bool = False
    """When half of the log is full, do not wait for one who takes nothing for 2 s (a long
    evaluation, say): it will take a snapshot, and the others, if they are a majority, go on
    exchanging updates."""
    store_bytes_max: int = 64 * 2**20
    """Updates of others, kept until everyone has them."""
    prune_applied: bool = False
    """When half of the log is full, let go of updates that everyone has applied, though a crash may
    still take them from somebody. For drivers that put log and store into each checkpoint instead
    of logging each update: what one crash takes the others give back, by snapshot."""
    pace_s: float = 0.0
    """Least time between two pushes on one path; 0: as fast as the link takes them. A driver may
    change `Peer.pace_s` as it goes."""
    waiting_max: int = 8
    """Updates that may wait on every path before local steps are added up instead."""
    coalesce: bool = False
    """A path takes all that waits as one sum, as it always does on acyclic topologies."""
    digest_interval_s: float = 0.5
    digest_fanout: int = 2
    snapshot_wait_s: float = 2.0
    """If nothing came of it until then, somebody else is asked for a snapshot."""
    forget_after_s: float = 600.0
    """Dead for this long: the others may vote the member out."""
    agree_interval_s: float = 2.0
    history_max: int = 8
    """Generations kept to understand clocks of peers that are behind."""
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a peer finds on its disk when it starts again."""

    log: tuple[Push, ...] = ()
    store: tuple[Push, ...] = ()
    """Updates of others, all of them in the checkpoint's weights."""
    vow: Vow | None = None
    history: tuple[Generation, ...] = ()
    met: tuple[str, ...] = ()
    """Members that were there and not on the roster yet: they may have what a crash took."""


class Peer:
    """One node of a swarm. A newcomer is not `synced` until it has adopted its first snapshot."""

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
        if epoch < 1:
            raise LocalProtocolError(f"epoch {epoch}: lives are numbered from 1")
        self.config = config = config or PeerConfig()
        past = past or Past()
        self.name = name
        self.epoch = epoch
        self.seq = 0
        self.replica = replica
        self.rng = rng
        self.synced = synced
        self.membership = Membership(name, epoch, rng=rng, timing=config.timing, address=address)
        self.baseline = Baseline(history, keep=config.history_max)
        voted = past.vow.history if past.vow is not None else ()
        self._behind = synced and not (self._catch_up(past.history) and self._catch_up(voted))
        self.agreement = Agreement(
            name,
            self.baseline.history[-1] if self.baseline.history else None,
            interval_s=config.agree_interval_s,
            vow=past.vow,
        )
        self.gate = Gate(name, epoch)
        self.log = Store()
        self.store = Store(config.store_bytes_max)
        self.outbox = Outbox(
            bytes_max=config.outbox_bytes_max,
            coalesce=config.coalesce or topology.acyclic(config.topology),
        )
        self.pace_s = config.pace_s
        self.transit = Transit()
        self.knowledge = Knowledge(replica.clock)
        self.standing = Standing(
            self.membership,
            epoch,
            replica,
            self.baseline,
            self.knowledge,
            forget_after_s=config.forget_after_s,
            met=past.met,
        )
        self._away: dict[str, int] = {}
        """Members that are not there, and the last update of mine they may have been sent."""
        self._waits: dict[str, float] = {}
        """Members for whom something is in the outbox, and since when, as seen when comparing."""
        self._taken_at: dict[str, float] = {}
        self._neighbours: tuple[str, ...] = ()
        self._neighbours_version = -1
        self._turn = 0
        self._tries = 0
        self._digest_due = 0.0
        self._asking = Asking(config.snapshot_wait_s)
        self._refused_since = math.inf
        self.void_log = self._replay(past.log)
        for push in past.store if synced else ():
            now_push = None if self.baseline.is_ahead(push) else self._as_of_now(push)
            if now_push is not None and all(dot in self.clock for dot in now_push.dots):
                self.store.add(now_push)

    def _catch_up(self, history: tuple[Generation, ...]) -> bool:
        """Move a checkpoint to the generation I voted after; False: I must take a snapshot."""
        for generation in history:
            if generation.number == self.baseline.number + 1:
                lifted = self.clock.lifted(generation.number, dict(generation.folds))
                if lifted.apart:
                    return False
                self.replica.clock = lifted
                self.baseline.extend((generation,))
        return not history or self.baseline.number >= history[-1].number

    def _replay(self, log: tuple[Push, ...]) -> tuple[Dot, ...]:
        """What was logged may have been sent; after the checkpoint, it is not in the weights.

        Returns what is void: its epoch is closed, or so long ago that its age cannot be told.
        """
        void: list[Dot] = []
        for logged in log:
            if self.synced and self.baseline.is_ahead(logged):
                # The checkpoint is older than the log: a snapshot will bring the generation.
                self._behind = True
                self.log.add(logged)
                continue
            push = self.baseline.lift_push(logged) if self.synced else logged
            if push is None or (
                self.synced and any(self.baseline.folded(dot) is not None for dot in push.dots)
            ):
                void += logged.dots
                continue
            self.log.add(push)
            if self.synced and not any(dot in self.clock for dot in push.dots):
                push.add_to(self.replica.weights)
                for dot in push.dots:
                    self.clock.add(dot)
        return tuple(void)

    # -- my own updates --------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self.replica.clock

    def context(self) -> Clock:
        """Take this when a batch is started."""
        return self.replica.context()

    def room(self, nbytes: int, *, sparing: bool = False) -> bool:
        """Whether an update of that size should be made now, or be added to the next one.

        Not while updates wait on the way to every neighbour: one more would only arrive later. And
        not while the log is full: so memory is bounded by what the links take, and the training
        never waits for them. `sparing`: not while one update waits on the way to most neighbours;
        two that are encoded take more bytes than the same steps in one. One of which the log holds
        no two: not while another is on its way, though the log be done with it.
        """
        if self.config.topology != "one-peer-exponential":  # its paths take turns, and may wait
            near = self._neighbour_names()
            waiting_max, free_min = self.config.waiting_max, 1
            if sparing:
                waiting_max, free_min = 1, (len(near) + 1) // 2
            large = 2 * nbytes > self.config.log_bytes_max
            if large:
                waiting_max = 1
            free = sum(
                self.outbox.updates(to) < waiting_max and not (large and self.transit.busy(to))
                for to in near
            )
            if near and free < free_min:
                return False
        limit = max(self.config.log_bytes_max, nbytes)
        if self._away:
            limit *= 2  # what is kept for them is summed up, once all the others have it
        return self.log.nbytes + nbytes <= limit

    def prepare(self, delta: torch.Tensor | Part, context: Clock) -> Push:
        """An update with its id, to be logged before it is `commit`ted. Changes nothing."""
        if not self.synced:
            raise LocalProtocolError("no snapshot yet: there is nothing to train on")
        coded = () if isinstance(delta, torch.Tensor) else (delta,)
        plain = delta if isinstance(delta, torch.Tensor) else None
        if problem := payload_problem(coded if plain is None else plain, self.replica.weights):
            raise LocalProtocolError(f"delta: {problem}")
        lifted = self.baseline.lift(context)
        if lifted is None:
            raise LocalProtocolError(f"a context of generation {context.generation}: too old")
        return Push((Stamp(Dot(self.name, self.epoch, self.seq + 1), lifted),), plain, coded)

    def commit(self, push: Push, *, in_weights: bool = False) -> list[Effect]:
        """Fold a logged update of mine in and pass it on.

        `in_weights`: the optimizer has changed the weights already; only the clock ticks.
        """
        lifted = self.baseline.lift_push(push)
        if lifted is None:
            self.seq += 1  # it is in the log: the id must not be given to another
            raise LocalProtocolError("its context is too old to be understood")
        push = lifted
        (stamp,) = push.stamps
        if stamp.dot != Dot(self.name, self.epoch, self.seq + 1):
            raise LocalProtocolError(f"{stamp.dot} is not my next update")
        staleness = self.replica.count((stamp,))
        if not in_weights:
            push.add_to(self.replica.weights)
        self.seq += 1
        self._turn += 1
        self.log.add(push)
        for to in self._neighbour_names():
            self.outbox.put(to, push)
        return [Applied((stamp.dot,), staleness)]

    # -- what the links take ---------------------------------------------------------------------

    def ready(self, now: float) -> list[str]:
        """Peers for which `take` has something now."""
        waiting = self.outbox.waiting()
        if waiting and self.config.topology == "one-peer-exponential":
            live = self.membership.live()
            chosen = topology.open_now(self.config.topology, self.name, live, self._turn)
            near = self._neighbour_names()
            waiting = [to for to in waiting if to in chosen or to not in near]
        if self.pace_s:
            before = now - self.pace_s
            waiting = [to for to in waiting if self._taken_at.get(to, -math.inf) <= before]
        return waiting

    def take(self, to: str, now: float) -> Push | None:
        """The next push for a peer, when its link can carry one."""
        while (push := self.outbox.take(to)) is not None:
            if not self.knowledge.has(to, push.dots):
                self._taken_at[to] = now
                self.transit.take_off(to, push.dots)
                return push
        return None

    def landed(self, to: str, push: Push) -> None:
        """A push that was taken is there, or its link cannot tell: ask again and get it again."""
        self.transit.land(to, push.dots)

    def lost(self, to: str, push: Push) -> None:
        """The link broke with it: it is sent again, unless the peer is gone or has it."""
        self.transit.land(to, push.dots)
        again = self._as_of_now(push)
        if again is not None and to in self._neighbour_names():
            self.outbox.put(to, again)

    def heard(self, sender: str, now: float, *, snapshot: bool = False) -> list[Effect]:
        """A sign of life that is not a message yet: a piece of a long one, maybe of a snapshot."""
        if snapshot:
            self._asking.began(sender)
        return self._verdicts(self.membership.heard(sender, now))

    def broke(self, sender: str, *, again: bool) -> None:
        """A snapshot that was coming will not; `again`: it may go on where it broke off."""
        self._asking.broke(sender, again=again)

    def wants_snapshot(self, sender: str, clock: Clock) -> bool:
        """Whether one with this clock, which is offered to me, should be sent."""
        if not self._asking.wants(sender):
            return False
        if not self._whole() or clock.generation != self.baseline.number:
            return True
        return bool(clock.missing(self.clock))

    def gives(self) -> bool:
        """Whether I have a snapshot to give."""
        return self._whole()

    # -- messages --------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, now: float) -> list[Effect]:
        """Check a message and answer it. `RemoteProtocolError`: nothing has changed."""
        if isinstance(message, Ping | PingRequest | Ack):
            return self._verdicts(self.membership.receive(sender, message, now))
        if isinstance(message, Push):
            self.gate.check_push(message, self.seq, self.replica.weights)
            self.transit.arrive(message.dots)
            effects: list[Effect] = [Deliver(sender, message)]
        elif isinstance(message, Digest):
            effects = self._on_digest(sender, message, now)
        elif isinstance(message, Want):
            effects = self._on_want(sender, message)
        elif isinstance(message, Lack):
            effects = self._on_lack(sender, message, now)
        elif isinstance(message, SnapshotRequest):
            effects = [Send(sender, self.snapshot())] if self._whole() else []
        elif isinstance(message, Snapshot):
            if problem := payload_problem(message.weights, self.replica.weights, message.norm):
                raise RemoteProtocolError("snapshot.weights", problem)
            self.gate.check_mine("snapshot.clock", message.clock, self.seq)
            effects = self._verdicts(self.membership.learn(message.members, now))
            effects.append(Deliver(sender, message))
        elif isinstance(message, Decided):
            effects = [Deliver(sender, message)]
        elif isinstance(message, Prepare | Promise | Accept | Accepted):
            effects = (
                self.agreement.receive(sender, message, now, self.standing) if self._whole() else []
            )
        else:
            raise RemoteProtocolError("message", f"{type(message).__name__} is not understood")
        if sender == self.name:
            return effects
        return self._verdicts(self.membership.heard(sender, now)) + effects

    def _whole(self) -> bool:
        """Whether I have what the baseline says I have."""
        return self.synced and not self._behind

    def fold(self, sender: str, message: Push | Snapshot | Decided, now: float) -> list[Effect]:
        """Let a delivered message change the weights, or say why it does not."""
        if isinstance(message, Snapshot):
            return self._adopt(sender, message, now)
        if isinstance(message, Decided):
            return self._on_decided(message, now)
        count = len(message.stamps)
        self.transit.fold(message.dots)
        if not self.synced:
            return [Drop(sender, "unsynced", count=count)]
        if message.stamps[0].context.generation > self.baseline.number:
            return [Drop(sender, "ahead", count=count), Send(sender, self._digest())]
        push = self.baseline.lift_push(message)
        if push is None:
            return [Drop(sender, "retired", "computed before the history I keep", count)]
        if any(self.baseline.folded(dot) is False for dot in push.dots):
            return [Drop(sender, "retired", "its epoch was closed without it", count)]
        new = [dot for dot in push.dots if self._is_new(dot)]
        if not new:
            return [Drop(sender, "duplicate", count=count)]
        if len(new) < count:
            live = self.membership.live()
            return [Drop(sender, "overlap", count=count), *self._ask_origins(Clock(new), live)]
        if any(self.agreement.frozen((dot.origin, dot.epoch), now) for dot in new):
            return [Drop(sender, "closing", "its epoch is being folded", count)]
        live = self.membership.live()
        awaits = self._asking.awaits(live, now)
        if awaits and not self.store.fits(push):
            # A snapshot that is on its way may lack it, and I could not fold it in again: with
            # every such update no snapshot could be taken as long as the others go on.
            return [Drop(sender, "awaiting", "a snapshot comes first", count)]
        outcome = self.replica.fold(push.stamps, push.parts or push.payload)
        if not isinstance(outcome, Fresh):
            raise LocalProtocolError(f"judged new, but {outcome}")
        third = any(name not in (self.name, sender) for name in live)
        if third or awaits or self.standing.awaited(now):
            self.store.add(push)  # a third may lack it
        last = push.stamps[-1]
        this_life = (sender, self.membership.epoch(sender))
        if (last.dot.origin, last.dot.epoch) == this_life and not last.context.apart:
            self.knowledge.note_push(sender, last.context, last.dot)
        if topology.relays(self.config.topology):
            for to in self._neighbour_names():
                if to != sender and to != last.dot.origin:
                    self.outbox.put(to, push)
        effects: list[Effect] = [Applied(push.dots, outcome.staleness)]
        if 2 * push.nbytes > self.config.log_bytes_max:
            effects.append(Send(sender, self._digest()))  # it makes no other until it knows
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Whatever is due: probes, digests, repairs, agreement."""
        effects: list[Effect] = []
        if now >= self.membership.due:
            effects += self._verdicts(self.membership.tick(now))
        if now >= self._digest_due:
            interval = self.config.digest_interval_s * (0.75 + 0.5 * self.rng.random())
            self._digest_due = now + interval
            effects += self._compare(now)
        if now >= self.agreement.due and self._whole():
            effects += self.agreement.tick(now, self.standing)
        return effects

    # -- coming and going ------------------------------------------------------------------------

    def join(self, names: Iterable[str], now: float) -> list[Effect]:
        """Get to know the seed peers, and whoever was there in my last life."""
        self._digest_due = now
        seed_peers = dict.fromkeys((*names, *self.baseline.roster, *self.standing.met()))
        seed_peers.pop(self.name, None)
        effects = self._verdicts(self.membership.join(seed_peers, now))
        return [Prune(self.void_log), *effects] if self.void_log else effects

    def leave(self, now: float) -> list[Effect]:
        """Say that I leave; keep driving me until `settled`, or as long as you can wait."""
        others = [name for name in self.membership.live() if name != self.name]
        digest = self._digest(ask=True)
        return self.membership.leave(now, self.seq) + [Send(to, digest) for to in others]

    def settled(self) -> bool:
        """Everyone alive has my updates, nobody counts on my vote, and nothing is only with me."""
        others = self.membership.live()
        if not others:
            return True
        clocks = [self.knowledge.of(name) for name in others]
        mine = Clock(dot for push in self.log for dot in push.dots)
        mine.generation = self.clock.generation
        return (
            self.name not in self.baseline.roster
            and all(clock is not None and clock.covers(mine) for clock in clocks)
            and any(clock is not None and clock.covers(self.clock) for clock in clocks)
        )

    def caught_up(self) -> bool:
        """I have all I heard of, and everyone alive is known to have what I made."""
        mine = Clock(generation=self.clock.generation, base=self.clock.base)
        runs = self.clock.runs((self.name, self.epoch))
        for first, last in zip(runs[::2], runs[1::2], strict=True):
            mine.add_range(Range(self.name, self.epoch, first, last))
        return (
            self._whole()
            and self.knowledge.nothing_new(self.clock)
            and all(
                clock is not None and clock.generation == mine.generation and clock.covers(mine)
                for clock in self._clocks_of_others()
            )
        )

    def even(self) -> bool:
        """Everyone alive was heard to have just what I have."""
        return self._whole() and all(clock == self.clock for clock in self._clocks_of_others())

    def _clocks_of_others(self) -> list[Clock | None]:
        others = (name for name in self.membership.live() if name != self.name)
        return [self.knowledge.of(name) for name in others]

    def snapshot(self) -> Snapshot:
        """Weights, clock and what is needed to understand it, of one instant."""
        weights, clock = self.replica.snapshot()
        return Snapshot(weights, clock, self.baseline.history, self.membership.rumours())

    def checkpointed(self, clock: Clock, *, kept: int = 1) -> None:
        """A checkpoint with this clock is durable, and `kept` are kept now, this one included.

        What the oldest of them has is what a crash cannot take. Never called: this peer keeps none,
        and comes back from a crash as a newcomer.
        """
        self.standing.checkpointed(clock, kept)

    # -- inside: generations ---------------------------------------------------------------------

    def _is_new(self, dot: Dot) -> bool:
        return dot not in self.clock and self.baseline.folded(dot) is None

    def _on_decided(self, message: Decided, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not self.synced:
            return effects
        for generation in message.generations:
            if generation.number > self.baseline.number + 1:
                self._behind = True
            elif generation.number == self.baseline.number + 1:
                if self._closes_my_life(generation):
                    return [*effects, Rejoin(f"voted out in generation {generation.number}")]
                lifted = self.clock.lifted(generation.number, dict(generation.folds))
                if lifted.apart:
                    self._behind = True
                else:
                    effects += self._move((generation,), lifted, now)
        return effects

    def _closes_my_life(self, generation: Generation) -> bool:
        mine = (self.name, self.epoch)
        return not self.standing.leaving(self.name) and any(
            key == mine for key, _ in generation.folds
        )

    def _move(self, generations: tuple[Generation, ...], clock: Clock, now: float) -> list[Effect]:
        """Change to a newer generation, with everything that refers to the old one."""
        new = tuple(g for g in generations if g.number > self.baseline.number)
        self.baseline.extend(new)
        self.replica.clock = clock
        self.knowledge.move(self.baseline, clock)
        self.standing.move()
        gone = self.log.change(self._as_of_now)
        self.store.change(self._as_of_now)
        self.outbox.change(self._as_of_now)
        self.gate.forget([key for generation in new for key, _ in generation.folds])
        self.agreement.advance(new[-1], now)
        self._forget_departed(now)
        effects: list[Effect] = [Save("history", self.baseline.history)]
        if self.standing.remember(new, now):
            effects.append(Save("met", self.standing.met()))
        effects += [Moved(generation) for generation in new]
        if gone:
            effects.append(Prune(tuple(gone)))
        return effects

    def _as_of_now(self, push: Push) -> Push | None:
        """A push in terms of my generation; None: all or part of it is in the baseline.

        So a push never holds an update that is folded at or before the generation of its contexts:
        whoever has forgotten that fold refuses it for its age.
        """
        if any(self.baseline.folded(dot) is not None for dot in push.dots):
            return None
        return push if self.baseline.is_ahead(push) else self.baseline.lift_push(push)

    def _forget_departed(self, now: float) -> None:
        """Members that are gone and left nothing in my clock need no record."""
        for name in self.standing.forget_departed(now):
            self.membership.forget(name)
            self.knowledge.forget(name)
            self._taken_at.pop(name, None)

    def _digest(self, *, ask: bool = False) -> Digest:
        return Digest(self.epoch, self.context(), self.standing.safe_clock().copy(), ask)

    # -- inside: comparing clocks ----------------------------------------------------------------

    def _compare(self, now: float) -> list[Effect]:
        """Ask for what is overdue, let go of what everyone has, tell a few what I have."""
        others = [name for name in self.membership.live() if name != self.name]
        if not others:
            return self._prune(others, now) if self._whole() else []
        if not self.synced or self._behind:
            return self._ask_snapshot(others, now)
        self._turn += 1
        effects: list[Effect] = []
        if not self._asking.comes(others):  # else most of what I lack is in the snapshot
            # Who has left may linger and be asked: it is heard of, though not a member any more.
            effects += self._repair(list({**dict.fromkeys(others), **self.knowledge.names()}), now)
        effects += self._prune(others, now)
        near = shuffled(list(self._neighbour_names()), self.rng)[:1]
        far = [name for name in shuffled(others, self.rng) if name not in near]
        digest = self._digest(ask=True)
        # Who leaves wants to hear from everyone, and soon.
        fanout = len(others) if self.standing.leaving(self.name) else self.config.digest_fanout
        effects += [Send(to, digest) for to in (near + far)[:fanout]]
        return effects

    def _prune(self, others: list[str], now: float) -> list[Effect]:
        """Let go of what everyone has for good, those included who are away and may come back.

        Were they not counted, two halves of a cut would have only sums of each other's updates when
        they meet again, and nobody could take those apart.
        """
        away = self.standing.awaited(now)
        if self.log.updates > LOG_UPDATES_MAX:
            away = [name for name in away if not self.standing.evictable(name, now)]
        self._away = {name: self._away.get(name, self.seq) for name in away}
        self._waits = {
            name: self._waits.get(name, now) for name in others if self.outbox.updates(name)
        }
        if self.config.leave_behind and 2 * self.log.nbytes > self.config.log_bytes_max:
            prompt = [name for name in others if not self._lags(name, now)]
            # Not by a minority: were both sides of a cut to let go of what they made while each
            # takes the other for slow, either would have what nobody can pass on, and no snapshot
            # of one side could be taken by the other.
            if len(prompt) + 1 > len(others) - len(prompt) + len(away):
                others = prompt
        stable = self.knowledge.everywhere(self.standing.safe_clock(), others)
        if self.config.prune_applied and 2 * self.log.nbytes > self.config.log_bytes_max:
            stable = self.knowledge.applied_everywhere(self.clock, others)
        if stable is None or self._asking.awaits(self.membership.live(), now):
            return []  # a snapshot that is on its way may lack what everyone has by now
        if not away:
            self.store.prune(stable)
            gone = self.log.prune(stable)
            return [Prune(tuple(gone))] if gone else []
        if self.log.nbytes > self.config.log_bytes_max:
            # Those who are away have none of what I made since: they can take it as one sum.
            since = max(self._away.values())
            self.log.squeeze(
                lambda push: all(
                    dot in stable and dot.epoch == self.epoch and dot.seq > since
                    for dot in push.dots
                )
            )
        return []

    def _lags(self, name: str, now: float) -> bool:
        """Whether a peer that is alive takes nothing: its training does not fold in what came.

        When it took the last one says little by itself: it may have been away since, or there was
        nothing to take.
        """
        since = self._taken_at.get(name, now)
        if not self.transit.busy(name):
            since = max(since, self._waits.get(name, now))
        return now - since > LAGS_S

    def _on_digest(self, sender: str, message: Digest, now: float) -> list[Effect]:
        clock = message.clock
        self.gate.check_mine("digest.durable", message.durable, self.seq)
        self.gate.check_clock("digest.clock", clock, self.seq, now)
        if not self.synced or message.epoch < (self.membership.epoch(sender) or 0):
            return []
        if clock.generation > self.baseline.number:
            return [Send(sender, self._digest())]  # it will tell me what was decided
        effects: list[Effect] = []
        if clock.generation < self.baseline.number:
            effects.append(Send(sender, Decided(self.baseline.since(clock.generation))))
        lifted, durable = self.baseline.lift(clock), self.baseline.lift(message.durable)
        if lifted is not None and durable is not None and not lifted.apart and not durable.apart:
            few = len(self.membership.live()) <= KNOWN_MAX
            remember = few or sender in self._neighbour_names()
            self.knowledge.note(sender, lifted, durable, remember=remember)
            # Of large updates the log holds one, and the next waits for this. Others have time.
            one = self.log.updates == 1 and 2 * self.log.nbytes > self.config.log_bytes_max
            if one and not self._away and self._whole():
                others = [name for name in self.membership.live() if name != self.name]
                effects += self._prune(others, now)
        if message.ask:
            effects.append(Send(sender, self._digest()))
        return effects

    # -- inside: repairing -----------------------------------------------------------------------

    def _repair(self, others: list[str], now: float) -> list[Effect]:
        """Ask one peer for all it has of what others had an interval ago and I still lack."""
        missing = [
            span
            for span in self.knowledge.overdue(self.transit.with_arrived(self.clock))
            if not self.agreement.frozen((span.origin, span.epoch), now)
        ]
        if not missing:
            self._refused_since = math.inf  # no snapshot is needed any more
            return []
        self._tries += 1
        lacking = Clock(generation=self.clock.generation, base=self.clock.base)
        for span in missing:
            lacking.add_range(span)
        # Sums can be passed on whole along a merging path; elsewhere the origin has each update.
        # Taking turns, one way or the other gets everything.
        if (self._tries % 2 == 0) != topology.acyclic(self.config.topology):
            return self._ask_origins(lacking, others)
        start = self.rng.randrange(len(others))
        asked = others[start:] + others[:start]
        if self._tries % 4 < 2:  # else anybody: the near may have it only in sums
            near = self._neighbour_names()
            asked.sort(key=lambda name: name not in near)
        for name in asked:
            known = self.knowledge.of(name)
            if known is not None and (wanted := lacking.intersection(known).ranges()):
                return [Send(name, Want(tuple(wanted[:RANGES_MAX])))]
        return self._ask_origins(lacking, others)

    def _ask_origins(self, lacking: Clock, live: Iterable[str]) -> list[Effect]:
        live = frozenset(live)
        wanted: dict[str, list[Range]] = {}
        for span in lacking.ranges():
            if span.origin in live and span.origin != self.name:
                wanted.setdefault(span.origin, []).append(span)
        return [Send(to, Want(tuple(spans[:RANGES_MAX]))) for to, spans in wanted.items()]

    def _on_want(self, sender: str, message: Want) -> list[Effect]:
        if not self.synced:
            return []
        # No more than the path takes: it is given up, with all that waits, where that is too much.
        most = STAMPS_MAX - self.outbox.updates(sender)
        pushes, lacking = self.log.serve(message.ranges, most)
        if lacking:
            looked_at = sum(len(push.stamps) for push in pushes) + len(lacking)
            asked = sum(span.last - span.first + 1 for span in message.ranges)
            more = self._whole_lives(lacking, cut=looked_at < asked)
            given = {dot for push in more for dot in push.dots}
            lacking = [dot for dot in lacking if dot not in given]
            pushes += more
        for push in pushes:
            if not self.transit.flies(sender, push.dots):
                self.outbox.put(sender, push)
        spans = Clock(dot for dot in lacking if dot in self.clock).ranges()
        return [Send(sender, Lack(tuple(spans[:RANGES_MAX])))] if spans else []

    def _whole_lives(self, wanted: list[Dot], *, cut: bool) -> list[Push]:
        """What the store has of these; of a life that goes on, all that is wanted, or nothing.

        What I let go of its origin has, maybe in a sum: who has a part of that from me could not
        take it, and with both sides of a cut in that position no snapshot could be taken either.
        `cut`: of the last one more may be wanted.
        """
        live = self.membership.live()

        def goes_on(dot: Dot) -> bool:
            return dot.origin in live and dot.epoch == self.membership.epoch(dot.origin)

        asked = dict.fromkeys(wanted)
        lacking = [wanted[-1]] if cut else []
        while True:
            short = {
                (dot.origin, dot.epoch) for dot in lacking if dot in self.clock and goes_on(dot)
            }
            asked = {dot: None for dot in asked if (dot.origin, dot.epoch) not in short}
            pushes, lacking = self.store.cover(asked)
            if not any(dot in self.clock and goes_on(dot) for dot in lacking):
                return pushes

    def _on_lack(self, sender: str, message: Lack, now: float) -> list[Effect]:
        """Ask the origin, unless it is gone, or said so itself: then take a snapshot."""
        live = self.membership.live()
        elsewhere = Clock()
        snapshot = False
        for span in message.ranges:
            first = Dot(span.origin, span.epoch, span.first)
            if not self._is_new(first):
                continue
            may_have = span.origin not in (sender, self.name) and not self._restarted_without(first)
            if span.origin in live and may_have:
                elsewhere.add_range(span)
            else:
                snapshot = True
        effects = self._ask_origins(elsewhere, live)
        return effects + self._ask_snapshot([sender], now) if snapshot else effects

    def _ask_snapshot(self, others: list[str], now: float) -> list[Effect]:
        giver = self._asking.whom(others, self.membership.live(), now, self.rng)
        return [Send(giver, SnapshotRequest())] if giver is not None else []

    def _adopt(self, sender: str, snapshot: Snapshot, now: float) -> list[Effect]:
        """Take over a snapshot, then fold in again what I have and it lacks: nothing is lost."""
        self._asking.came(sender)
        plan = plan_adoption(
            snapshot,
            self.clock if self.synced else None,
            self.log,
            self.store,
            life=None if self.standing.leaving(self.name) else (self.name, self.epoch),
        )
        if isinstance(plan, TooFarBehind):
            if self.standing.leaving(self.name):
                return [Drop(sender, "snapshot", "too late for one who leaves")]
            return [Rejoin(plan.reason)]
        if isinstance(plan, str):
            return [Drop(sender, "snapshot", plan)]
        theirs = snapshot.clock
        if plan.lacking and not self._may_give_up(sender, plan.lacking, theirs, now):
            self._refused_since = min(self._refused_since, now)
            detail = f"lacks {len(plan.lacking)} that only my weights have"
            return [Drop(sender, "snapshot", detail)]
        if not plan.brings_news and not self._behind:
            return [Drop(sender, "snapshot", "nothing new")]
        merged = theirs.copy()
        if snapshot.unshared and not self.synced:
            self.replica.weights = snapshot.weights  # nothing of mine is in the old ones
        else:
            self.replica.weights.copy_(snapshot.weights)
        for push in plan.again:
            push.add_to(self.replica.weights)
            for dot in push.dots:
                merged.add(dot)
        effects: list[Effect] = []
        if plan.lacking:
            self.standing.gave_up = True
            lost = frozenset(plan.lacking)  # in my log, if at all, in a sum with what they have
            void = self.log.change(lambda push: push if lost.isdisjoint(push.dots) else None)
            if void:
                effects.append(Prune(tuple(void)))
        else:
            self._refused_since = math.inf
        self._behind = False
        if not self.synced:
            self.synced = True
            self.replica.clock = merged
            self.baseline.extend(snapshot.history)
            self.knowledge.start(merged)
            void = self.log.change(self._as_of_now)
            if void:
                effects.append(Prune(tuple(void)))
            if snapshot.history:
                self.agreement.advance(snapshot.history[-1], now)
        elif theirs.generation > self.baseline.number:
            effects += self._move(snapshot.history, merged, now)
        else:
            self.replica.clock = merged
        return [
            Adopted(sender, snapshot, plan.kept, plan.retired, plan.lacking),
            *effects,
        ]

    def _may_give_up(self, sender: str, dots: tuple[Dot, ...], theirs: Clock, now: float) -> bool:
        """Whether updates that only my weights have must go, so that all can agree again.

        It takes three misfortunes at once: the origin is gone for long, or does not have the update
        by itself any more; nor does anybody who had it; and it is left in two different sums that
        overlap, or in the weights of two who each lack what the other has, which nobody can take
        apart. Then, after everyone had time to pass on what can be passed on, the set of lower rank
        gives way: all peers rank sets alike, so they end with the same one. Losses are counted.
        """
        wait_s = GIVE_UP_INTERVALS * self.config.digest_interval_s
        if now - self._refused_since < wait_s:
            return False
        known = self.knowledge.of(sender)
        if known is not None and any(dot in known for dot in dots):
            return False  # the snapshot was made too early: the next one will have it
        live = self.membership.live()
        # An origin that is there may have it by itself: it gets more time to pass it on, and if it
        # does so later, I get it again. One that logs each update has those of its earlier lives.
        late = now - self._refused_since >= 3 * wait_s
        for dot in dots:
            if dot.origin == self.name:
                continue  # it is not in my log by itself, nor in the one an earlier life left me
            life = self.membership.epoch(dot.origin) or 0
            may_come = life > dot.epoch and self.config.prune_applied
            may_come |= life == dot.epoch and dot.origin in live
            gone = self.standing.evictable(dot.origin, now) or self._restarted_without(dot)
            if not gone and not (late and may_come):
                return False
        if self._behind or theirs.rank() > self.clock.rank():
            return True
        # They cannot give way: who made an update that I lack is away, and may have it by itself.
        return self.config.prune_applied and any(
            span.origin not in live
            and not self.standing.evictable(span.origin, now)
            and span.epoch == self.membership.epoch(span.origin)
            for span in theirs.missing(self.clock)
        )

    def _restarted_without(self, dot: Dot) -> bool:
        """Whether its origin lives again and does not have it any more."""
        if dot.origin == self.name:
            return dot.epoch < self.epoch  # and not in the log that life left me
        known = self.knowledge.of(dot.origin)
        later = (self.membership.epoch(dot.origin) or 0) > dot.epoch
        return later and known is not None and dot not in known

    # -- inside: members -------------------------------------------------------------------------

    def _verdicts(self, effects: list[Effect]) -> list[Effect]:
        """What a member had in an earlier life says nothing about this one."""
        changed = False
        for effect in effects:
            if isinstance(effect, Verdict):
                self.knowledge.forget(effect.name)
                changed |= self.standing.note(effect)
                if effect.state != SUSPECT:
                    self.transit.forget(effect.name)
        # First: nothing is sent to it that a crash could take from me while I forget that it is.
        return [Save("met", self.standing.met()), *effects] if changed else effects

    def _neighbour_names(self) -> tuple[str, ...]:
        if self._neighbours_version != self.membership.version:
            self._neighbours_version = self.membership.version
            live = self.membership.live()
            self._neighbours = topology.neighbours(self.config.topology, self.name, live)
            self.knowledge.keep_only(live)
            for to in self.outbox.waiting():
                if to not in live:
                    self.outbox.forget(to)
        return self._neighbours
