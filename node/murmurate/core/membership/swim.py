"""Who is there: SWIM with Lifeguard's lessons, as a pure state machine.

Everybody probes one member after another, asks others when it gets no answer, and says «suspect»
before «dead», so that the accused can object. News travels on the probes and their answers.

What is believed is the newest rumour, and `newer` is a total order: members that heard the same
believe the same, in whatever order they heard it. Only a member itself raises its incarnation.

Beyond SWIM:
- Every message carries the sender's own rumour, then what is said against the receiver (it can
  object at once), then news, then one record in rotation: what was lost while a link was cut is
  repaired without a further kind of message.
- News does not wait for the next probe; it goes at once to a few others (an `Ack` number 0).
- Whoever slept adds its sleep to its deadlines: its own pause accuses nobody.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace

from murmurate.core.effect import Drop, Effect, Rng, Send, Verdict
from murmurate.core.membership.beliefs import LIVE, Beliefs, MemberRecord, evidence, reason_of
from murmurate.core.membership.graves import Graves
from murmurate.core.membership.probe_order import ProbeOrder
from murmurate.core.membership.relays import Relays
from murmurate.core.membership.rumours import News, newer, retransmissions
from murmurate.core.membership.timing import Timing, suspicion_timeout
from murmurate.core.message import (
    ALIVE,
    DEAD,
    LEFT,
    SUSPECT,
    Ack,
    Ping,
    PingRequest,
    Rumour,
    Swim,
)
from murmurate.errors import LocalProtocolError, RemoteProtocolError

MEMBERS_MAX = 16384
INCARNATION_MAX = 2**31
VERIFIERS = 8
"""About so many members, of however many, probe a suspect next: confirmations come at once."""
NACK_SHARE = 0.8
"""Of the probe timeout: a helper's «no answer» must arrive before the asker gives up."""

_ACCUSED = frozenset((SUSPECT, DEAD))
_LAN = Timing()


@dataclass(slots=True, eq=False)
class _Probe:
    number: int
    started: float
    deadline: float
    indirect: bool = False
    asked: int = 0
    nacks: int = 0


class Membership(Beliefs):
    """Finds out who is there and changes the beliefs. Call `tick` whenever `due` has come."""

    # fmt: off
    __slots__ = (
        "_count", "_dead_at", "_gossip_at", "_graves", "_news", "_now", "_number", "_order", "_out",
        "_probe_at", "_probes", "_relays", "_rng", "_roll", "_suspects", "_timing", "due", "health",
    )
    # fmt: on

    def __init__(
        self, name: str, epoch: int, *, rng: Rng, timing: Timing = _LAN, address: str = ""
    ) -> None:
        if epoch < 1:
            raise LocalProtocolError(f"epoch {epoch}: 0 means «not known yet», count from 1")
        super().__init__(name, epoch, address)
        self.due = math.inf
        """`tick` has nothing to do before this."""
        self.health = 0
        """0: fine; more: it seems to be me who is slow, so I give others more time (Lifeguard)."""
        self._now = 0.0
        self._out: list[Effect] = []
        self._rng = rng
        self._timing = timing
        self._count = 1  # of live()
        self._suspects: dict[str, MemberRecord] = {}
        self._graves = Graves()
        self._order = ProbeOrder(rng)
        self._roll: Iterator[str] = iter(())  # in which records are repeated
        self._news = News()
        self._news.put(name)
        self._number = 0
        self._probes: dict[str, _Probe] = {}
        self._relays = Relays()
        self._probe_at = self._gossip_at = self._dead_at = -math.inf

    # -- what happens ----------------------------------------------------------------------------

    def join(self, names: Iterable[str], now: float) -> list[Effect]:
        """Take seed peers for alive until they fail to answer; the next ticks talk to them."""
        out = self._begin(now)
        for name in names:
            if name not in self._members:
                self._meet(Rumour(name, 0, 0, ALIVE), "a seed peer")
        self._probe_at = now + self._rng.random() * self._timing.probe_interval_s
        return out

    def learn(self, rumours: Iterable[Rumour], now: float) -> list[Effect]:
        """Take over what a snapshot says, the dead and the departed included."""
        rumours = tuple(rumours)
        self._check(rumours)
        out = self._begin(now)
        for rumour in rumours:
            self._apply(rumour, bury=False)
        return out

    def receive(self, sender: str, message: Swim, now: float) -> list[Effect]:
        """Believe what is newer, and answer. `RemoteProtocolError`: nothing has changed."""
        if sender == self.name:
            raise RemoteProtocolError("sender", f"{sender}: my id is used elsewhere")
        self._check(message.rumours)
        out = self._begin(now)
        for rumour in message.rumours:
            self._apply(rumour)
        if isinstance(message, Ping):
            self._say(sender, message.number, self.name)
        elif isinstance(message, PingRequest):
            self._relay(sender, message)
        elif message.about != sender:
            probe = self._probes.get(message.about)
            if probe is not None and probe.number == message.number:
                if message.nack:
                    probe.nacks += 1
                else:
                    self._answered(message.about)
        self._proof(sender)
        return out

    def heard(self, sender: str, now: float) -> list[Effect]:
        """Some other message came from `sender`: it lives, and learns what is said against it."""
        out = self._begin(now)
        self._proof(sender)
        return out

    def leave(self, now: float, last: int = 0) -> list[Effect]:
        """Tell so many at once as a rumour is told to. I watch the others for as long as I tick.

        `last`: the number of my last update, so that others know when they have them all.
        """
        out = self._begin(now)
        if self._me.rumour.state != LEFT:
            rumour = replace(self._me.rumour, state=LEFT, last=last)
            self._set(self._me, rumour, "I said that I leave")
            copies = retransmissions(self._count + 1, self._timing.retransmit_factor)
            for name in self._some(copies):
                self._say(name, 0, self.name)
        return out

    def forget(self, name: str) -> None:
        """Drop the record of a dead or departed member. Old rumours do not bring it back."""
        member = self._members.get(name)
        if member is None:
            return
        if member is self._me or member.rumour.state in LIVE:
            raise LocalProtocolError(f"{name} is {member.rumour.state}: it cannot be forgotten")
        del self._members[name]
        self._dead.pop(name, None)
        self._news.drop(name)
        self._graves.add(member.rumour)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due: give up probes, judge suspects, answer askers, probe, gossip."""
        if now < self.due:
            return []
        out = self._begin(now)
        timing = self._timing
        if now - self.due > 2 * timing.probe_interval_s:
            self._overslept(now - self.due)
        for name, probe in list(self._probes.items()):
            if now >= probe.deadline:
                if probe.indirect:
                    self._missed(name, probe)
                else:
                    self._ask_others(name, probe)
        for member in list(self._suspects.values()):
            if now >= member.deadline:
                self._set(member, self._saying(member, DEAD), evidence(member, now))
        for target, asker, number in self._relays.expired(now):
            self._say(asker, number, target, nack=True)
        if self._dead and now >= self._dead_at:
            name = next(iter(self._dead))
            self._dead[name] = self._dead.pop(name)
            self._ping(name)
            self._dead_at = now + timing.dead_interval_s
        if self._others():
            if now >= self._probe_at:
                self._probe()
                self._probe_at = now + timing.probe_interval_s * (self.health + 1)
            if self._news and now >= self._gossip_at:
                self._gossip()
        self.due = self._earliest()
        return out

    # -- inside: beliefs -------------------------------------------------------------------------

    def _check(self, rumours: tuple[Rumour, ...]) -> None:
        """What only I can say of me must not come from others."""
        me = self._me.rumour
        for rumour in rumours:
            if rumour.incarnation > INCARNATION_MAX:
                raise RemoteProtocolError("rumour.incarnation", f"{rumour.incarnation}")
            if rumour.name == self.name and me.state != LEFT:
                if rumour.epoch > me.epoch:
                    problem = f"{rumour.epoch}, mine is {me.epoch}: my id is used elsewhere"
                    raise RemoteProtocolError("rumour.epoch", problem)
                if rumour.epoch == me.epoch and rumour.state == LEFT:
                    problem = "I have not left: my id is used elsewhere"
                    raise RemoteProtocolError("rumour.state", problem)

    def _apply(self, rumour: Rumour, bury: bool = True) -> None:
        """Believe a rumour if it is newer; `bury`: of a stranger's end keep only the last word."""
        member = self._members.get(rumour.name)
        if member is None:
            grave = self._graves.last_word(rumour.name)
            if grave is not None and not newer(rumour, grave):
                return
            if bury and rumour.state not in LIVE:
                self._graves.add(rumour)
            elif len(self._members) >= MEMBERS_MAX:
                self._out.append(Drop(rumour.source, "members", rumour.name))
            else:
                self._meet(rumour)
        elif member is self._me:
            self._refute(rumour)
        elif newer(rumour, member.rumour):
            self._set(member, rumour)
        elif rumour.state == SUSPECT:
            self._confirm(member, rumour)

    def _meet(self, rumour: Rumour, why: str = "") -> None:
        self._graves.open(rumour.name)
        member = self._members[rumour.name] = MemberRecord(replace(rumour, epoch=0, state=LEFT))
        self._set(member, rumour, why)

    def _set(self, member: MemberRecord, rumour: Rumour, why: str = "") -> None:
        """The only place where a state changes."""
        old, name, state = member.rumour, rumour.name, rumour.state
        member.rumour = rumour
        live = state in LIVE
        if live != (old.state in LIVE):
            self._live = None
            self.version += 1
            self._count += 1 if live else -1
            if live:
                self._order.anywhere(name, 2 * len(self._members))
                self._wake(self._probe_at)
        self._suspects.pop(name, None)
        self._dead.pop(name, None)
        if state == SUSPECT:
            self._suspects[name] = member
            member.suspecters = []
            member.started = self._now
            self._confirm(member, rumour)
            if self._rng.randrange(self._count) < VERIFIERS:
                self._order.next(name, 2 * len(self._members))
        elif state == ALIVE:
            member.missed = 0
        else:
            self._probes.pop(name, None)
        if state == DEAD:
            if not self._dead:
                self._dead_at = self._now + self._rng.random() * self._timing.dead_interval_s
                self._wake(self._dead_at)
            self._dead[name] = member
        if state != old.state or rumour.epoch != old.epoch:
            member.since = self._now
            member.reason = why or reason_of(member, old, self._now)
            self._out.append(Verdict(name, rumour.epoch, state, member.reason))
        self._spread(rumour)

    def _confirm(self, member: MemberRecord, rumour: Rumour) -> None:
        """One more suspects the same: each shortens the time left, up to a number."""
        known, timing, count = member.rumour, self._timing, self._count
        if (
            known.state != SUSPECT
            or rumour.incarnation != known.incarnation
            or rumour.epoch != known.epoch
            or rumour.source in member.suspecters
            or len(member.suspecters) > timing.confirmations
        ):
            return
        member.suspecters.append(rumour.source)
        member.rumour = rumour
        shortest_s = timing.suspicion_s * max(1.0, math.log10(count))
        longest_s = timing.suspicion_factor * shortest_s
        confirmed, expected = len(member.suspecters) - 1, min(timing.confirmations, count - 2)
        timeout_s = suspicion_timeout(confirmed, expected, shortest_s, longest_s)
        member.deadline = member.started + timeout_s
        self._wake(member.deadline)
        self._spread(rumour)

    def _refute(self, rumour: Rumour) -> None:
        """I am here. That others doubted it says something of my health as well."""
        me = self._me.rumour
        if rumour.epoch != me.epoch or rumour.incarnation < me.incarnation or me.state == LEFT:
            return
        if rumour.state == ALIVE and rumour.incarnation == me.incarnation:
            return
        self._me.rumour = replace(me, incarnation=rumour.incarnation + 1)
        self._ail(1)
        self._spread(me)
        self._gossip()
        if rumour.source in self._members and rumour.source != self.name:
            self._say(rumour.source, 0, self.name)  # its clock runs out first

    def _saying(self, member: MemberRecord, state: str) -> Rumour:
        return replace(member.rumour, state=state, source=self.name)

    # -- inside: probes --------------------------------------------------------------------------

    def _probe(self) -> None:
        """Probe the next whose turn it is, unless its answer is still awaited."""
        for _ in range(2):
            for name in self._order.rest():
                if name not in self._probes and self.state(name) in LIVE:
                    self._ping(name)
                    self._probes[name] = _Probe(self._number, self._now, self._patience())
                    return
            self._order.shuffle([n for n in self.live() if n != self.name])

    def _ping(self, name: str) -> None:
        self._number += 1
        self._out.append(Send(name, Ping(self._number, self._load(name))))

    def _ask_others(self, name: str, probe: _Probe) -> None:
        self._ping(name)
        probe.indirect = True
        probe.deadline = self._patience()
        for helper in self._some(self._timing.indirect, {name, *self._suspects}):
            probe.asked += 1
            self._out.append(Send(helper, PingRequest(probe.number, name, self._load(helper))))

    def _missed(self, name: str, probe: _Probe) -> None:
        """Nobody could reach it. If not even the helpers answered, it may well be me."""
        del self._probes[name]
        member = self._members[name]
        if member.rumour.epoch:  # a seed peer that was never there says nothing of me
            self._ail(probe.asked - probe.nacks if probe.asked else 1)
        if not member.missed:
            member.silent_since = probe.started
        member.missed += 2 + probe.asked
        self._apply(self._saying(member, SUSPECT))

    def _answered(self, name: str) -> None:
        probe = self._probes.pop(name)
        if not probe.indirect and self.health:
            self.health -= 1

    def _proof(self, sender: str) -> None:
        """A sign of life. O(1), for it comes with every message."""
        if sender in self._probes:
            self._answered(sender)
        for asker, number in self._relays.answered(sender):
            self._say(asker, number, sender)
        member = self._members.get(sender)
        if member is None:
            return
        member.missed = 0
        tell_at = member.told + self._timing.probe_interval_s
        if member.rumour.state in _ACCUSED and self._now >= tell_at:
            self._say(sender, 0, self.name)

    def _relay(self, asker: str, request: PingRequest) -> None:
        target = request.target
        if target == self.name:
            self._say(asker, request.number, target)
        elif target not in self._members or self._relays.full(target):
            self._say(asker, request.number, target, nack=True)
        else:
            self._ping(target)
            deadline = self._now + self._timing.probe_timeout_s * NACK_SHARE
            self._relays.add(target, deadline, asker, request.number)
            self._wake(deadline)

    # -- inside: news ----------------------------------------------------------------------------

    def _spread(self, rumour: Rumour) -> None:
        """To be passed on. Of an epoch that is not known there is nothing to tell."""
        if rumour.epoch:
            self._news.put(rumour.name)
            self._wake(self._gossip_at)

    def _load(self, to: str) -> tuple[Rumour, ...]:
        """What a message carries: me, what is said against the receiver, news, one in rotation."""
        out = [self._me.rumour]
        member = self._members.get(to)
        if member is None:
            grave = self._graves.last_word(to)
            if grave is not None and grave.state == DEAD:
                out.append(grave)
        elif member.rumour.state in _ACCUSED:
            member.told = self._now
            out.append(member.rumour)
        if self._news:
            limit = retransmissions(self._count, self._timing.retransmit_factor)
            for name in self._news.take(self._timing.news_max, limit):
                if name != to and name != self.name:
                    out.append(self._members[name].rumour)
        name = next(self._roll, "")
        if not name:
            self._roll = iter(tuple(self._members))
        member = self._members.get(name)
        if member is not None and member.rumour.epoch and name != to and name != self.name:
            out.append(member.rumour)
        return tuple(out)

    def _say(self, to: str, number: int, about: str, nack: bool = False) -> None:
        self._out.append(Send(to, Ack(number, about, nack, self._load(to))))

    def _gossip(self) -> None:
        for name in self._some(self._timing.gossip_fanout):
            self._say(name, 0, self.name)
        self._gossip_at = self._now + self._timing.gossip_interval_s

    def _some(self, count: int, avoid: Container[str] = ()) -> list[str]:
        """A few others, at random."""
        pool, out = list(self.live()), list[str]()
        while pool and len(out) < count:
            i = self._rng.randrange(len(pool))
            name, pool[i] = pool[i], pool[-1]
            pool.pop()
            if name != self.name and name not in avoid:
                out.append(name)
        return out

    # -- inside: time ----------------------------------------------------------------------------

    def _begin(self, now: float) -> list[Effect]:
        self._now = now
        self._out = []
        return self._out

    def _others(self) -> bool:
        return self._count > (self._me.rumour.state != LEFT)

    def _ail(self, points: int) -> None:
        self.health = min(self._timing.health_max, self.health + points)

    def _patience(self) -> float:
        return self._now + self._timing.probe_timeout_s * (self.health + 1)

    def _wake(self, at: float) -> None:
        self.due = min(self.due, max(at, self._now))

    def _overslept(self, late_s: float) -> None:
        """While I slept nobody could answer me: that time is nobody's silence."""
        self._ail(1)
        for probe in self._probes.values():
            probe.deadline += late_s
        for member in self._suspects.values():
            member.started += late_s
            member.deadline += late_s

    def _earliest(self) -> float:
        due = self._dead_at if self._dead else math.inf
        if self._others():
            due = min(due, self._probe_at, self._gossip_at if self._news else math.inf)
        waiting = [self._relays.earliest()]
        waiting += [probe.deadline for probe in self._probes.values()]
        waiting += [member.deadline for member in self._suspects.values()]
        return min([due, *waiting])
