"""Gossip of weights, rule `average`: one node's part in a swarm that mixes its weights.

`Membership` says who is there, `Averager` holds model, weight and shares; here is when a share goes
to whom, and what a death, a departure or a return means for it. A driver talks to a `MixingPeer` as
to a `Peer` (docs/protocol.md). Rules:

1. A turn is due after each `commit`: one random partner on `full`, else all neighbours.
   Who makes no more updates takes turns with all of them, until the models are the same.
2. Stop and wait: a link gets its next share when a receipt says that the last one is in. So a link
   costs one vector, a crash lets little count twice, and whoever is fast does not pour all its
   weight into whoever is slow. What is not confirmed is sent again as it was, also where the graph
   does not lead any more.
3. Every share is answered with a receipt, and that is repeated: it is small, a share is not.
4. Dead: take back what is unconfirmed, and keep it for `forget_after_s`, for it may not be dead:
   then it is given again. Left: the same after a time in which the last receipts arrive, for good.
5. What is forgotten cannot be taken up again. A life that outlived it is told so by a receipt for
   nothing, number 0, and the smaller side starts again as newcomers (`Rejoin`).

The clock never folds: there is no agreement here, so no generations. It keeps an entry for every
life there ever was, and the wire takes 4,096 of them or 64 KiB: some thousand lives in one run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from murmurate.core import topology
from murmurate.core.asking import Asking
from murmurate.core.averaging import GAP, TWICE, Averager, Merged, Receipt, Share
from murmurate.core.clock import Clock, Dot
from murmurate.core.effect import (
    Adopted,
    Applied,
    Deliver,
    Drop,
    Effect,
    Rejoin,
    Rng,
    Send,
    Verdict,
)
from murmurate.core.gate import Gate, payload_problem
from murmurate.core.membership import Membership
from murmurate.core.message import (
    ALIVE,
    DEAD,
    LEFT,
    SUSPECT,
    Ack,
    Generation,
    Message,
    Ping,
    PingRequest,
    Push,
    Snapshot,
    SnapshotRequest,
    Stamp,
)
from murmurate.core.peer import PeerConfig
from murmurate.core.replica import Replica
from murmurate.errors import LocalProtocolError, RemoteProtocolError

RECEIPTS = 3
"""A receipt is repeated this often, once in a digest interval."""
PARTING_INTERVALS = 4
"""Digest intervals in which the last receipts of one who has left arrive."""
EVEN = 1e-4
"""Two models this far apart, over their size, are taken for the same."""
EVEN_UPKEEPS = 16
"""Where all are the same and nobody trains, a turn is due once in so many digest intervals."""
DEAD_MAX = 256
"""So many dead are probed in case they come back; then the one dead for longest is forgotten."""


@dataclass(frozen=True, slots=True)
class Gone:
    """To myself, never to others: take back what that life of a partner has not confirmed.

    What comes back was given some time ago: it moves the model, and weights change in `fold`.
    """

    life: int
    forget: bool
    """For good."""


@dataclass(frozen=True, slots=True)
class Back:
    """To myself, never to others: that life is there after all; give it again what I took back."""

    life: int


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


class MixingPeer:
    """One node that mixes weights. A newcomer is not `synced` until it has its first snapshot."""

    def __init__(
        self,
        name: str,
        epoch: int,
        replica: Replica,
        *,
        rng: Rng,
        config: PeerConfig | None = None,
        history: tuple[Generation, ...] = (),
        synced: bool = True,
        address: str = "",
    ) -> None:
        """`history`: as for a `Peer`; there are no generations here, so it says nothing."""
        self.config = config = config or PeerConfig()
        self.name = name
        self.epoch = epoch
        self.replica = replica
        self.rng = rng
        self.synced = synced
        self.membership = Membership(name, epoch, rng=rng, timing=config.timing, address=address)
        self.gate = Gate(name, epoch)
        self.averager = Averager(replica.weights, name, epoch, replica.clock)
        if not synced:
            # Of no weight yet, it can take shares already: nothing waits for its snapshot.
            self.averager.weight = 0.0
        replica.clock = self.averager.clock
        self.seq = self.clock.last(name, epoch)
        self._leaving = self._over = False
        self._turn = 0
        self._neighbours: tuple[str, ...] = ()
        self._neighbours_version = -1
        self._due: dict[str, None] = {}
        """Who gets a share as soon as its link can take one."""
        self._flights: dict[str, _Flight] = {}
        self._taken_at: dict[str, float] = {}
        self._owed: dict[str, int] = {}
        """Whom to repeat a receipt, and how often."""
        self._dead: dict[str, tuple[float, int]] = {}
        self._parting: dict[str, tuple[float, int]] = {}
        self._returning: Counter[str] = Counter()
        """Of whom a `Gone` or `Back` was delivered and not folded yet: no shares meanwhile."""
        self._refused: dict[str, int] = {}
        """Lives that have forgotten what I gave them."""
        self._distance: dict[str, float] = {}
        """How far the models of partners were from mine when last seen, and since."""
        self._idle = 0
        """Upkeeps since my last update; `_gap`: how many there usually are."""
        self._gap = 0.0
        self._resting = self._told = False
        """Whether I make no more updates; and whether all have seen my model since it was even."""
        self._fresh = True
        """Whether my model changed since all were last due a share while I rest."""
        self._unfolded = 0
        """Delivered, and the driver has not folded it yet."""
        self._seq_seen = self.seq
        self._upkeep_due = 0.0
        self._asking = Asking(config.snapshot_wait_s)

    # -- my own updates --------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self.replica.clock

    def context(self) -> Clock:
        """Take this when a batch is started."""
        return self.replica.context()

    def room(self, nbytes: int) -> bool:
        """Nothing of an update is kept: there is always room for the next."""
        return True

    def prepare(self, delta: torch.Tensor, context: Clock) -> Push:
        """An update with its id, to be `commit`ted next. Changes nothing."""
        if not self.synced:
            raise LocalProtocolError("no snapshot yet: there is nothing to train on")
        if problem := payload_problem(delta, self.replica.weights):
            raise LocalProtocolError(f"delta: {problem}")
        return Push((Stamp(Dot(self.name, self.epoch, self.seq + 1), context),), delta)

    def commit(self, push: Push) -> list[Effect]:
        """Put an update of mine in; a turn is due.

        The own model makes just this step (`Averager.local`).
        """
        (stamp,) = push.stamps
        if stamp.dot != Dot(self.name, self.epoch, self.seq + 1):
            raise LocalProtocolError(f"{stamp.dot} is not my next update")
        dot, staleness = self.averager.local(push.payload, stamp.context)
        self.replica.weights = self.averager.model
        self.seq += 1
        self._distance.clear()
        self._resting, self._fresh = False, True
        self.turn()
        return [Applied((dot,), (staleness,))]

    def turn(self) -> None:
        """Partners are due a share."""
        if not self.synced or self._leaving:
            return
        self._turn += 1
        kind = self.config.topology
        if self._resting:
            chosen = list(self._near())
        elif kind == "full":
            free = [to for to in self._near() if to not in self._flights and self._shares(to)]
            chosen = [free[self.rng.randrange(len(free))]] if free else []
        else:
            chosen = list(topology.open_now(kind, self.name, self.membership.live(), self._turn))
        self._due.update(dict.fromkeys(to for to in chosen if self._shares(to)))

    # -- what the links take ---------------------------------------------------------------------

    def ready(self, now: float) -> list[str]:
        """Peers for which `take` has something now."""
        return [to for to in dict.fromkeys((*self._due, *self._flights)) if self._free(to, now)]

    def take(self, to: str, now: float) -> Share | None:
        """A share for a peer whose link can carry one; then `landed` or `lost` must follow.

        The links of one turn get equal parts, though they are served one after another.
        """
        if not self._free(to, now):
            return None
        self._due.pop(to, None)
        part = 0.0 if self._leaving else 1.0 / (len(self._due) + 2)
        share = self.averager.assign(to, self.membership.epoch(to) or 0, part)
        if share is None:
            return None
        self._flights[to] = _Flight(share.to_epoch, share.seq)
        self._taken_at[to] = now
        return share

    def landed(self, to: str, message: object) -> None:
        """It is there, folded or dropped; whether it is in, a receipt says."""
        self._ended(to, message, lost=False)

    def lost(self, to: str, message: object) -> None:
        """The link broke with it, and it may be there or not: it is sent again."""
        self._ended(to, message, lost=True)

    def wants(self, sender: str, seq: int, epoch: int, to_epoch: int) -> bool:
        """Whether an offered share would bring anything; if not, its receipt was lost."""
        last = self.averager.receipt(sender, epoch).seq
        if to_epoch == self.epoch and seq <= last:
            self._owed[sender] = RECEIPTS
        return to_epoch == self.epoch and seq > last and not self.averager.retired(sender, epoch)

    # -- messages --------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message | Share | Receipt, now: float) -> list[Effect]:
        """Check a message and answer it. `RemoteProtocolError`: nothing has changed."""
        if sender == self.name:
            raise RemoteProtocolError("sender", f"{sender}: my id is used elsewhere")
        if isinstance(message, Ping | PingRequest | Ack):
            return self._verdicts(self.membership.receive(sender, message, now), now)
        effects: list[Effect] = []
        if isinstance(message, Share):
            self._check_share(message, now)
            self._confirm(sender, Receipt(message.seen, message.epoch, message.to_epoch))
            effects.append(self._deliver(sender, message))
        elif isinstance(message, Receipt):
            effects += self._on_receipt(sender, message)
        elif isinstance(message, SnapshotRequest):
            if self.synced:
                effects.append(Send(sender, self.snapshot()))
        elif isinstance(message, Snapshot):
            if problem := payload_problem(message.weights, self.replica.weights, message.norm):
                raise RemoteProtocolError("snapshot.weights", problem)
            self._check_clock("snapshot.clock", message.clock, now)
            effects += self._verdicts(self.membership.learn(message.members, now), now)
            effects.append(self._deliver(sender, message))
        else:
            kind = type(message).__name__
            raise RemoteProtocolError("message", f"{kind}: the rule here is average, not sum")
        return effects + self.heard(sender, now)

    def heard(self, sender: str, now: float, *, snapshot: bool = False) -> list[Effect]:
        """A sign of life that is not a message yet: a piece of a long one, maybe of a snapshot."""
        if snapshot:
            self._asking.began(sender)
        return self._verdicts(self.membership.heard(sender, now), now)

    def broke(self, sender: str, *, again: bool) -> None:
        """A snapshot that was coming will not; `again`: it may go on where it broke off."""
        self._asking.broke(sender, again=again)

    def wants_snapshot(self, sender: str, _clock: Clock) -> bool:
        """Whether one that is offered to me should be sent."""
        return not self.synced and self._asking.wants(sender)

    def gives(self) -> bool:
        """Whether I have a snapshot to give."""
        return self.synced

    def _deliver(self, sender: str, message: Share | Snapshot | Gone | Back) -> Deliver:
        self._unfolded += 1
        return Deliver(sender, message)

    def fold(
        self, sender: str, message: Share | Snapshot | Gone | Back, now: float
    ) -> list[Effect]:
        """Let a delivered message change the weights, or say why it does not.

        `Applied` for a share: one merge has one staleness, the distance of the two clocks. Its dot
        is the sender's newest update in it (number 0: it has made none), for all that came with it
        is in there as a part only, and no single update is applied.
        """
        self._unfolded -= 1
        try:
            return self._fold(sender, message)
        finally:
            self.replica.weights = self.averager.model

    def _fold(self, sender: str, message: Share | Snapshot | Gone | Back) -> list[Effect]:
        if isinstance(message, Snapshot):
            return self._adopt(sender, message)
        if isinstance(message, Gone | Back):
            self._fresh = True
            changed = self._settle(sender, message)
            return [Applied((), ())] if changed else []  # no update, but other weights
        life = (sender, message.epoch)
        if self._leaving:
            # Else it would go with me, and the last receipts would not be the last.
            return [Drop(sender, "leaving"), *self._receipts(life)]
        forgotten = self.averager.retired(*life)
        outcome = GAP if forgotten else self.averager.receive(sender, message)
        if outcome is GAP:
            detail = "what it gave before is forgotten here"
            return [Drop(sender, "stale", detail), Send(sender, Receipt(0, self.epoch, life[1]))]
        if not isinstance(outcome, Merged):
            reason = "duplicate" if outcome is TWICE else "stale"
            return [Drop(sender, reason, outcome.reason), *self._receipts(life)]
        self._owed[sender] = RECEIPTS
        for name in self._distance:
            self._distance[name] += outcome.distance * outcome.moved
        self._distance[sender] = outcome.distance
        self._fresh = True
        if self._resting:
            self._rest()
        dot = Dot(*life, message.clock.last(*life))
        return [Applied((dot,), (outcome.staleness,)), *self._receipts(life)]

    def tick(self, now: float) -> list[Effect]:
        """Whatever is due: probes, receipts again, the end of lives."""
        effects: list[Effect] = []
        if now >= self.membership.due:
            effects += self._verdicts(self.membership.tick(now), now)
        if now >= self._upkeep_due:
            interval = self.config.digest_interval_s * (0.75 + 0.5 * self.rng.random())
            self._upkeep_due = now + interval
            effects += self._upkeep(now)
        return effects

    # -- coming and going ------------------------------------------------------------------------

    def join(self, names: Iterable[str], now: float) -> list[Effect]:
        """Get to know the seed peers."""
        self._upkeep_due = now
        seed_peers = [name for name in dict.fromkeys(names) if name != self.name]
        return self._verdicts(self.membership.join(seed_peers, now), now)

    def leave(self, now: float) -> list[Effect]:
        """Say that I leave, and what I have of everyone; keep driving me until `settled`.

        What I hold goes with me, as a crash would take it: the others have the mean of the rest.
        """
        self._leaving = True
        self._due.clear()
        givers = self.averager.givers()
        self._owed = dict.fromkeys(givers, RECEIPTS)
        effects = self._verdicts(self.membership.leave(now, self.seq), now)
        return effects + [e for life in givers.items() for e in self._receipts(life)]

    def settled(self) -> bool:
        """No share is due, on its way or unconfirmed."""
        waiting = any(not flight.void for flight in self._flights.values())
        return not self._due and not waiting and not self._returning

    def caught_up(self) -> bool:
        """Whether I am part of the swarm, and all I gave away is in."""
        return self.synced and self.settled()

    def even(self) -> bool:
        """Whether those who send to me were seen with nearly my model, unmoved since then."""
        senders = [name for name in self._senders() if self._shares(name)]
        return self.synced and all(self._distance.get(name, math.inf) <= EVEN for name in senders)

    def snapshot(self) -> Snapshot:
        """Weights and clock of one instant, and who is there."""
        return Snapshot(self.averager.lend(), self.clock.copy(), (), self.membership.rumours())

    # -- inside: shares --------------------------------------------------------------------------

    def _check_share(self, share: Share, now: float) -> None:
        if problem := payload_problem(share.model, self.replica.weights, share.norm):
            raise RemoteProtocolError("share.model", problem)
        if share.epoch < 1:
            raise RemoteProtocolError("share.epoch", f"{share.epoch}: lives are numbered from 1")
        self._check_clock("share.clock", share.clock, now)

    def _check_clock(self, what: str, clock: Clock, now: float) -> None:
        if clock.generation or clock.base:
            raise RemoteProtocolError(what, "of a generation: the rule here is average, not sum")
        self.gate.check_clock(what, clock, self.seq, now)

    def _receipts(self, life: tuple[str, int]) -> list[Effect]:
        """What I have of that life; of nothing I say nothing, for that would mean «forgotten»."""
        receipt = self.averager.receipt(*life)
        return [Send(life[0], receipt)] if receipt.seq else []

    def _on_receipt(self, sender: str, receipt: Receipt) -> list[Effect]:
        if receipt.seq < 0:
            raise RemoteProtocolError("receipt.seq", f"{receipt.seq} is negative")
        if receipt.seq:
            self._confirm(sender, receipt)
        elif (receipt.epoch, receipt.to_epoch) == (self.membership.epoch(sender), self.epoch):
            self._refused[sender] = receipt.epoch
            return self._end(sender, receipt.epoch, forget=False)
        return []

    def _confirm(self, sender: str, receipt: Receipt) -> None:
        self.averager.confirm(sender, receipt)
        self._clear(sender)

    def _clear(self, to: str) -> None:
        """What is confirmed is there, also when the link has not said so yet."""
        flight = self._flights.get(to)
        if flight is not None and not flight.void and self.averager.unconfirmed(to) is None:
            del self._flights[to]

    def _ended(self, to: str, message: object, *, lost: bool) -> None:
        """A share is not on its way any more; those of lives that are over, nobody waits for."""
        flight = self._flights.get(to)
        if flight is None or not isinstance(message, Share):
            return
        if (flight.life, flight.seq) == (message.to_epoch, message.seq):
            flight.flying, flight.lost = False, lost
            if flight.void:
                del self._flights[to]
            self._clear(to)

    def _free(self, to: str, now: float) -> bool:
        """Whether a link may have its next share, or its last one again."""
        flight = self._flights.get(to)
        if (flight is not None and flight.flying) or not self._shares(to):
            return False
        if now < self._taken_at.get(to, -math.inf) + self.config.pace_s:
            return False
        if flight is None:
            return True
        wait_s = self.config.digest_interval_s if flight.lost else self.config.snapshot_wait_s
        flight.again_at = min(flight.again_at, now + wait_s)
        return now >= flight.again_at

    def _shares(self, to: str) -> bool:
        """Whether it can get shares now."""
        if to in self._returning or self.averager.took_back(to):
            return False
        return self._is_there(to, self.membership.epoch(to) or 0)

    def _is_there(self, name: str, life: int) -> bool:
        """Whether that life is alive, met, and neither of us has forgotten the other."""
        if not life or name == self.name or self.membership.epoch(name) != life:
            return False
        return self.membership.state(name) in (ALIVE, SUSPECT) and not self._is_apart(name, life)

    def _is_apart(self, name: str, life: int) -> bool:
        """Whether it has forgotten what I gave it, or I what it gave me."""
        return self._refused.get(name) == life or self.averager.retired(name, life)

    def _near(self) -> tuple[str, ...]:
        if self._neighbours_version != self.membership.version:
            self._neighbours_version = self.membership.version
            live = self.membership.live()
            self._neighbours = topology.neighbours(self.config.topology, self.name, live)
        return self._neighbours

    def _senders(self) -> tuple[str, ...]:
        """Whose neighbour I am: my neighbours, but where edges go one way."""
        if "exponential" not in self.config.topology or self._leaving:
            return self._near()
        live = self.membership.live()
        me = live.index(self.name)
        return tuple(live[me - (1 << j)] for j in range((len(live) - 1).bit_length()))

    # -- inside: snapshots -----------------------------------------------------------------------

    def _adopt(self, sender: str, snapshot: Snapshot) -> list[Effect]:
        """Begin with another's weights, of weight 1; what came by shares before is in as well."""
        self._asking.came(sender)
        if self.synced or self._leaving:
            return [Drop(sender, "unwanted", "a snapshot: I have weights, or leave")]
        self.averager.put_in(snapshot.weights, 1.0)
        self.clock.merge(snapshot.clock)
        self.synced = True
        return [Adopted(sender, snapshot, (), (), ())]

    def _ask_snapshot(self, now: float) -> list[Effect]:
        live = self.membership.live()
        others = [name for name in live if name != self.name]
        giver = self._asking.whom(others, live, now, self.rng)
        return [Send(giver, SnapshotRequest())] if giver is not None else []

    # -- inside: members -------------------------------------------------------------------------

    def _verdicts(self, effects: list[Effect], now: float) -> list[Effect]:
        """What a birth, a death, a departure or a return means for what was given."""
        out = list(effects)
        for verdict in effects:
            if not isinstance(verdict, Verdict) or verdict.name == self.name:
                continue
            name, life = verdict.name, verdict.epoch
            if verdict.state == DEAD:
                out += self._end(name, life, forget=False)
                self._dead[name] = (now, life)
            elif verdict.state == LEFT:
                self._cut(name)
                self._dead.pop(name, None)
                interval_s = self.config.digest_interval_s
                self._parting[name] = (now + PARTING_INTERVALS * interval_s, life)
                out += self._receipts((name, life))
            else:
                flight = self._flights.get(name)
                if self.averager.outlived(name, life):
                    out += self._end(name, life - 1, forget=True)
                elif flight is not None and flight.life != life:
                    self._cut(name)
                if self.averager.retired(name, life):
                    out.append(Send(name, Receipt(0, self.epoch, life)))
                elif name in self._dead and not self._leaving and self.synced:
                    self._due[name] = None  # where its last share was left off
                self._dead.pop(name, None)
                self._parting.pop(name, None)
        return out

    def _end(self, name: str, life: int, *, forget: bool) -> list[Effect]:
        """No shares any more; what is unconfirmed comes back when weights may change."""
        self._cut(name)
        if self.averager.unconfirmed(name) is not None:
            self._returning[name] += 1
            return [self._deliver(name, Gone(life, forget))]
        if forget:
            self.averager.close(name, life)
        return []

    def _settle(self, name: str, message: Gone | Back) -> bool:
        """Take back, or give again what was; whether the weights have changed."""
        self._returning[name] -= 1
        self._returning = +self._returning
        there = self._is_there(name, message.life)
        if isinstance(message, Back):
            if not there or not self.averager.give_again(name):
                return False  # if too little would be left: at the next upkeep
            self._due[name] = None
            return True
        if message.forget:
            return self.averager.close(name, message.life) > 0.0
        return not there and self.averager.reclaim(name) > 0.0

    def _returned(self) -> list[Effect]:
        """Whom I took something back from, and who is there after all."""
        names = [
            (name, life)
            for name, life in self.averager.reclaimed().items()
            if name not in self._returning and self._is_there(name, life)
        ]
        self._returning.update(name for name, _ in names)
        return [self._deliver(name, Back(life)) for name, life in names]

    def _cut(self, name: str) -> None:
        """Nothing goes to it for now, and nothing that did is waited for."""
        self._due.pop(name, None)
        self._distance.pop(name, None)
        self._taken_at.pop(name, None)
        flight = self._flights.get(name)
        if flight is not None and flight.flying:
            flight.void = True
        elif flight is not None:
            del self._flights[name]

    def _upkeep(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not self.synced:
            effects += self._ask_snapshot(now)
        self._turn_if_idle()
        givers = self.averager.givers()
        for name, left in list(self._owed.items()):
            if name in givers:
                effects += self._receipts((name, givers[name]))
            self._owed[name] = left - 1
            if left <= 1:
                del self._owed[name]
        for name, (until, life) in list(self._parting.items()):
            if now >= until:
                del self._parting[name]
                effects += self._end(name, life, forget=True)
        for name, (since, life) in list(self._dead.items()):
            if now >= since + self.config.forget_after_s:
                effects += self._end(name, life, forget=True)
        self._forget_members(now)
        return effects + self._returned() + self._rejoin()

    def _turn_if_idle(self) -> None:
        """Notice that I make no more updates; a step may just take its time."""
        if self.seq != self._seq_seen:
            self._gap = (self._gap + self._idle) / 2
            self._idle, self._seq_seen = 0, self.seq
        else:
            self._idle += 1
        self._resting = self._idle > 2 + 4 * self._gap
        if self._resting:
            if self._idle % EVEN_UPKEEPS == 0:
                self._told, self._fresh = False, True
            self._rest()

    def _rest(self) -> None:
        """Draw the replicas together until they are the same; then let everyone see mine once.

        Not without news: who rests and does not fold would pour its weight into the others.
        """
        if self._unfolded or not self._fresh:
            return
        even = self.even()
        if not even or not self._told:
            self.turn()
            self._fresh = False
        self._told = even

    def _forget_members(self, now: float) -> None:
        """Who left needs no record after a while; of the dead, so many as can be probed."""
        gone: list[tuple[float, str]] = []
        for rumour in self.membership.rumours():
            since, name = self.membership.since(rumour.name), rumour.name
            if rumour.state == LEFT and name != self.name and name not in self._parting:
                if now >= since + self.config.forget_after_s:
                    self.membership.forget(name)
            elif rumour.state == DEAD:
                gone.append((since, name))
        for _, name in sorted(gone)[:-DEAD_MAX]:
            if name not in self._returning:
                _, life = self._dead.pop(name, (now, 0))
                self.averager.close(name, life)
                self.membership.forget(name)
        epoch = self.membership.epoch
        self._refused = {n: life for n, life in self._refused.items() if epoch(n) == life}

    def _rejoin(self) -> list[Effect]:
        """Where two sides have forgotten each other, the smaller one starts again; of two equal
        ones, that without the first name."""
        live = self.membership.live()
        life = self.membership.epoch
        known = [(n, epoch) for n in live if n != self.name and (epoch := life(n))]
        apart = [n for n, epoch in known if self._is_apart(n, epoch)]
        mine = len(live) - len(apart)
        if not apart or self._leaving or self._over or not self.synced:
            return []
        if len(apart) < mine or (len(apart) == mine and live[0] not in apart):
            return []
        self._over = True
        return [Rejoin(f"{', '.join(apart[:3])} and I were apart for too long to go on as before")]
