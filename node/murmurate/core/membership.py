"""Who is there: SWIM with Lifeguard's lessons, as a pure state machine.

Everybody probes one member after another, asks others when it gets no answer, and says «suspect»
before «dead», so that the accused can object. All news travels on the probes and their answers.

What is believed is the newest rumour, and `newer` is a total order, so members that heard the same
believe the same, in whatever order they heard it. Only a member itself raises its incarnation.

Beyond SWIM, each because a test or a measurement asked for it:
- every message carries the sender's own rumour first, then what is said against the receiver (it
  can object at once), then news, then one record in rotation: what was lost while a link was cut
  is repaired without any further kind of message;
- news does not wait for the next probe: it goes at once to a few others (an `Ack` number 0);
- whoever slept extends its deadlines by its sleep: its own pause accuses nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import islice

from murmurate.core.effect import Drop, Effect, Rng, Send, Verdict, shuffled
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
from murmurate.errors import ConfigError, LocalProtocolError, RemoteProtocolError

MEMBERS_MAX = 16384
GRAVES_MAX = 1024
RELAYS_MAX = 16
INCARNATION_MAX = 2**31
VERIFIERS = 8
"""About so many probe a suspect next: confirmations come at once, however many members."""
NACK_SHARE = 0.8
"""A helper says «no answer» before the asker gives up, or its silence would count against it."""

_SEVERITY = {ALIVE: 0, SUSPECT: 1, DEAD: 2, LEFT: 3}
_LIVE = frozenset((ALIVE, SUSPECT))
_ACCUSED = frozenset((SUSPECT, DEAD))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long to wait. The defaults suit a local network and a pause of a second.

    With 8 members: suspected no sooner than 0.5 s, dead no sooner than 1.7 s after falling silent;
    a second's pause leaves 0.7 s to object.
    """

    probe_interval_s: float = 0.2
    """One probe is started this often; times 1 + local health."""
    probe_timeout_s: float = 0.25
    """Wait for a direct answer, and once more for the helpers'; times 1 + local health."""
    indirect: int = 3
    """Helpers asked when there is no direct answer."""
    gossip_interval_s: float = 0.2
    """Least time between two bursts of news; the first goes at once."""
    gossip_fanout: int = 3
    suspicion_s: float = 1.2
    """Shortest suspicion with up to 10 members; grows with log10 of their number."""
    suspicion_factor: float = 3.0
    """Longest suspicion, while nobody confirms it, over the shortest."""
    confirmations: int = 3
    """So many others who suspect the same bring it down to the shortest."""
    retransmit_factor: float = 2.0
    """A rumour is passed on this × log2(members + 1) times."""
    rumours_max: int = 8
    """Per message."""
    dead_interval_s: float = 5.0
    """One of the dead is probed this often: it finds the other half of a healed cut."""
    health_max: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = {"indirect": 0, "confirmations": 0, "rumours_max": 4}.get(field.name)
            if not (value > 0 if least is None else value >= least):
                raise ConfigError(f"timing.{field.name}: {value}, at least {least or 'above 0'}")

    @staticmethod
    def lan() -> Timing:
        return Timing()

    @staticmethod
    def wan() -> Timing:
        """Answers take up to a second, pauses up to five."""
        return Timing(
            probe_interval_s=1.0,
            probe_timeout_s=1.0,
            gossip_interval_s=0.5,
            suspicion_s=5.0,
            dead_interval_s=15.0,
        )


_LAN = Timing()


def newer(a: Rumour, b: Rumour) -> bool:
    """Whether `a` replaces `b`: epoch, then `left`, then incarnation, then the worse state."""
    if a.epoch != b.epoch:
        return a.epoch > b.epoch
    if a.state == LEFT or b.state == LEFT:
        return b.state != LEFT
    if a.incarnation != b.incarnation:
        return a.incarnation > b.incarnation
    return _SEVERITY[a.state] > _SEVERITY[b.state]


def suspicion_timeout(confirmed: int, expected: int, shortest_s: float, longest_s: float) -> float:
    """Seconds from suspicion to death: the log of independent confirmations (Lifeguard IV-B).

    When nobody else could confirm (`expected` < 1) there is nothing to wait for.
    """
    if expected < 1:
        return shortest_s
    share = math.log(confirmed + 1) / math.log(expected + 1)
    return max(shortest_s, longest_s - (longest_s - shortest_s) * share)


def retransmissions(members: int, factor: float) -> int:
    """How often a rumour is passed on before it is old news."""
    return math.ceil(factor * math.log2(members + 1))


class _Member:
    """One member. `rumour` is the belief, in the form in which it is passed on."""

    __slots__ = (
        "deadline", "missed", "reason", "rumour", "sent", "silent_since", "since", "started",
        "suspecters", "told",
    )  # fmt: skip

    def __init__(self, rumour: Rumour, since: float) -> None:
        self.rumour = rumour
        self.since = since
        self.reason = ""
        self.sent = -1  # times passed on; -1: not in the queue
        self.missed = 0  # messages without an answer, since `silent_since`
        self.silent_since = 0.0
        self.told = -math.inf
        self.suspecters: list[str] = []
        self.started = 0.0
        self.deadline = math.inf


class _Probe:
    """A question to one member: first direct, then again and through `asked` helpers."""

    __slots__ = ("asked", "deadline", "indirect", "nacks", "number", "started")

    def __init__(self, number: int, started: float, deadline: float) -> None:
        self.number = number
        self.started = started
        self.deadline = deadline
        self.indirect = False
        self.asked = 0
        self.nacks = 0


class Membership:
    """Who is believed alive, and why the others are not. Drive `tick` whenever `due` has come."""

    __slots__ = (
        "_count", "_dead", "_dead_at", "_due", "_gossip_at", "_graves", "_health", "_live", "_me",
        "_members", "_next", "_number", "_order", "_probe_at", "_probes", "_queue", "_queued",
        "_relays", "_rng", "_roll", "_suspects", "_timing", "_turn", "name", "version",
    )  # fmt: skip

    def __init__(
        self, name: str, epoch: int, *, rng: Rng, timing: Timing = _LAN, address: str = ""
    ) -> None:
        if epoch < 1:
            raise LocalProtocolError(f"epoch {epoch}: 0 means «not known yet», count from 1")
        self.name = name
        self.version = 0
        """Grows whenever `live()` changes."""
        self._rng = rng
        self._timing = timing
        self._me = _Member(Rumour(name, epoch, 0, ALIVE, address, name), 0.0)
        self._members = {name: self._me}
        self._count = 1  # of live()
        self._live: tuple[str, ...] | None = None
        self._graves: dict[str, Rumour] = {}  # what was last believed of those without a record
        self._dead: dict[str, _Member] = {}
        self._suspects: dict[str, _Member] = {}
        self._probes: dict[str, _Probe] = {}
        self._relays: dict[str, list[tuple[str, int, float]]] = {}
        self._order: list[str] = []  # in which members are probed; from `_next` on
        self._next = 0
        self._roll: list[str] = []  # in which records are repeated; from `_turn` on
        self._turn = 0
        self._queue: list[dict[str, _Member]] = [{}]  # news, by how often it was passed on
        self._queued = 0
        self._health = 0
        self._number = 0
        self._probe_at = self._gossip_at = self._dead_at = -math.inf
        self._due = math.inf
        self._spread(self._me, math.inf)

    # -- what is believed ------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """Nothing happens in `tick` before this."""
        return self._due

    @property
    def health(self) -> int:
        """0: fine; up to `health_max`: it seems to be me who is slow (Lifeguard IV-A)."""
        return self._health

    def live(self) -> tuple[str, ...]:
        """Sorted names of those alive or suspect, myself included unless I left."""
        if self._live is None:
            members = self._members.items()
            self._live = tuple(sorted(n for n, m in members if m.rumour.state in _LIVE))
        return self._live

    def state(self, name: str) -> str | None:
        member = self._members.get(name)
        return None if member is None else member.rumour.state

    def epoch(self, name: str) -> int | None:
        """0: a seed peer that was not met yet."""
        member = self._members.get(name)
        return None if member is None else member.rumour.epoch

    def address(self, name: str) -> str:
        member = self._members.get(name)
        return "" if member is None else member.rumour.address

    def reason(self, name: str) -> str:
        member = self._members.get(name)
        return "" if member is None else member.reason

    def since(self, name: str) -> float:
        """When the present state began; never, if there is no such member."""
        member = self._members.get(name)
        return math.inf if member is None else member.since

    def rumours(self) -> tuple[Rumour, ...]:
        """All I know, for a newcomer; seed peers that I never met are not knowledge."""
        return tuple(m.rumour for m in self._members.values() if m.rumour.epoch)

    # -- what happens ----------------------------------------------------------------------------

    def join(self, names: Iterable[str], now: float) -> list[Effect]:
        """Take seed peers for alive until they fail to answer, and ask a few of them at once."""
        out: list[Effect] = []
        fresh = [name for name in dict.fromkeys(names) if name not in self._members]
        for name in fresh:
            self._meet(Rumour(name, 0, 0, ALIVE), now, out, "seed peer")
        for name in shuffled(fresh, self._rng)[: self._timing.gossip_fanout]:
            self._probe(name, now, out)
        self._probe_at = now + self._rng.random() * self._timing.probe_interval_s
        self._wake(self._probe_at)
        return out

    def learn(self, rumours: Iterable[Rumour], now: float) -> list[Effect]:
        """Take over what a snapshot says, the dead and the departed included."""
        rumours = tuple(rumours)
        self._check(rumours)
        out: list[Effect] = []
        for rumour in rumours:
            self._apply(rumour, now, out, bury=False)
        return out

    def receive(self, sender: str, message: Swim, now: float) -> list[Effect]:
        """Believe what is newer, answer. `RemoteProtocolError`: nothing has changed."""
        if sender == self.name:
            raise RemoteProtocolError("sender", f"{sender}: my id is used elsewhere")
        self._check(message.rumours)
        out: list[Effect] = []
        for rumour in message.rumours:
            self._apply(rumour, now, out)
        if type(message) is Ping:
            self._say(sender, message.number, self.name, now, out)
        elif type(message) is Ack:
            if message.about != sender:
                probe = self._probes.get(message.about)
                if probe is not None and probe.number == message.number:
                    if message.nack:
                        probe.nacks += 1
                    else:
                        self._answered(message.about)
        else:
            assert type(message) is PingRequest
            self._relay(sender, message, now, out)
        self._proof(sender, now, out)
        return out

    def heard(self, sender: str, now: float) -> list[Effect]:
        """Some other message came from `sender`: it lives, and learns what is said against it."""
        out: list[Effect] = []
        self._proof(sender, now, out)
        return out

    def leave(self, now: float) -> list[Effect]:
        """Tell as many as a rumour is told to. I go on watching the others while I am driven."""
        me = self._me.rumour
        out: list[Effect] = []
        if me.state != LEFT:
            rumour = Rumour(self.name, me.epoch, me.incarnation, LEFT, me.address, self.name)
            self._set(self._me, rumour, now, out, "I said that I leave")
            copies = retransmissions(self._count + 1, self._timing.retransmit_factor)
            for name in self._some(copies, self.name):
                self._say(name, 0, self.name, now, out)
        return out

    def forget(self, name: str) -> None:
        """Drop the record of a dead or departed member. Old rumours do not bring it back."""
        member = self._members.get(name)
        if member is None:
            return
        if member is self._me or member.rumour.state in _LIVE:
            raise LocalProtocolError(f"{name} is {member.rumour.state} and cannot be forgotten")
        if member.sent >= 0:
            del self._queue[member.sent][name]
            self._queued -= 1
        del self._members[name]
        self._dead.pop(name, None)
        self._bury(member.rumour)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due: give up probes, judge suspects, answer for helpers, probe, gossip."""
        out: list[Effect] = []
        if now < self._due:
            return out
        timing = self._timing
        if now - self._due > 2 * timing.probe_interval_s:
            self._overslept(now - self._due)
        for name, probe in list(self._probes.items()):
            if now >= probe.deadline:
                if probe.indirect:
                    self._missed(name, probe, now, out)
                else:
                    self._ask_others(name, probe, now, out)
        for member in list(self._suspects.values()):
            if now >= member.deadline:
                self._condemn(member, now, out)
        for target, waiting in list(self._relays.items()):
            if now >= waiting[0][2]:
                self._give_up(target, waiting, now, out)
        others = self._others()
        if others and now >= self._probe_at:
            name = self._target()
            if name:
                self._probe(name, now, out)
            step = timing.probe_interval_s * (self._health + 1)
            self._probe_at = max(self._probe_at + step, now)
        if self._dead and now >= self._dead_at:
            name = next(iter(self._dead))
            self._dead[name] = self._dead.pop(name)
            self._ping(name, now, out)
            self._dead_at = now + timing.dead_interval_s
        if others and self._queued and now >= self._gossip_at:
            self._gossip(now, out)
        self._due = self._earliest()
        return out

    # -- inside: beliefs -------------------------------------------------------------------------

    def _check(self, rumours: tuple[Rumour, ...]) -> None:
        """What nobody but I can know of me must not come from others."""
        me = self._me.rumour
        for rumour in rumours:
            if rumour.incarnation > INCARNATION_MAX:
                raise RemoteProtocolError("rumour.incarnation", f"{rumour.incarnation} of a member")
            if rumour.name == self.name and me.state != LEFT:
                if rumour.epoch > me.epoch:
                    problem = f"{rumour.epoch}, mine is {me.epoch}: my id is used elsewhere"
                    raise RemoteProtocolError("rumour.epoch", problem)
                if rumour.epoch == me.epoch and rumour.state == LEFT:
                    problem = "I have not left: my id is used elsewhere"
                    raise RemoteProtocolError("rumour.state", problem)

    def _apply(self, rumour: Rumour, now: float, out: list[Effect], bury: bool = True) -> None:
        member = self._members.get(rumour.name)
        if member is None:
            grave = self._graves.get(rumour.name)
            if grave is not None and not newer(rumour, grave):
                return
            if bury and rumour.state not in _LIVE:
                self._bury(rumour)
            elif len(self._members) >= MEMBERS_MAX:
                out.append(Drop(rumour.source, "members", rumour.name))
            else:
                self._meet(rumour, now, out)
            return
        known = member.rumour
        if rumour is known:
            return
        if member is self._me:
            accused = rumour.incarnation == known.incarnation and rumour.state != ALIVE
            if rumour.epoch == known.epoch and known.state != LEFT:
                if accused or rumour.incarnation > known.incarnation:
                    self._refute(rumour.incarnation + 1, now, out)
        elif newer(rumour, known):
            self._set(member, rumour, now, out)
        elif (
            rumour.state == SUSPECT == known.state
            and rumour.incarnation == known.incarnation
            and rumour.epoch == known.epoch
            and rumour.source not in member.suspecters
            and len(member.suspecters) <= self._timing.confirmations
        ):
            member.suspecters.append(rumour.source)
            member.rumour = rumour
            self._time(member)
            self._spread(member, now)

    def _meet(self, rumour: Rumour, now: float, out: list[Effect], why: str = "") -> None:
        member = _Member(Rumour(rumour.name, 0, 0, DEAD), now)
        self._members[rumour.name] = member
        self._graves.pop(rumour.name, None)
        self._set(member, rumour, now, out, why or "first heard of")

    def _set(
        self, member: _Member, rumour: Rumour, now: float, out: list[Effect], why: str = ""
    ) -> None:
        """Believe it: the only place where a state changes."""
        old, name, state = member.rumour, rumour.name, rumour.state
        member.rumour = rumour
        if state == SUSPECT:
            member.suspecters = [rumour.source]
            member.started = now
            self._suspects[name] = member
            self._time(member)
            if self._rng.randrange(self._count + 1) < VERIFIERS:
                self._order.insert(self._next, name)
        else:
            self._suspects.pop(name, None)
            if state == ALIVE:
                member.missed = 0
        live = state in _LIVE
        if live != (old.state in _LIVE):
            self._live = None
            self.version += 1
            self._count += 1 if live else -1
            if live:
                rest = len(self._order) - self._next
                self._order.insert(self._next + self._rng.randrange(rest + 1), name)
                self._wake(max(self._probe_at, now))
            else:
                self._probes.pop(name, None)
        if state == DEAD:
            if not self._dead:
                self._dead_at = now + self._rng.random() * self._timing.dead_interval_s
            self._dead[name] = member
            self._wake(self._dead_at)
        else:
            self._dead.pop(name, None)
        if state != old.state or rumour.epoch != old.epoch:
            member.since = now
            member.reason = why or _why(member, old, now)
            out.append(Verdict(name, rumour.epoch, state, member.reason))
        self._spread(member, now)

    def _refute(self, incarnation: int, now: float, out: list[Effect]) -> None:
        """I am here. That others doubted it says something of my health as well."""
        me = self._me.rumour
        self._me.rumour = Rumour(self.name, me.epoch, incarnation, ALIVE, me.address, self.name)
        self._ail(1)
        self._spread(self._me, now)
        self._gossip(now, out)

    def _time(self, member: _Member) -> None:
        """Set the deadline of a suspicion from its confirmations."""
        timing, count = self._timing, self._count
        shortest = timing.suspicion_s * max(1.0, math.log10(max(1, count)))
        member.deadline = member.started + suspicion_timeout(
            len(member.suspecters) - 1,
            min(timing.confirmations, count - 2),
            shortest,
            shortest * timing.suspicion_factor,
        )
        self._wake(member.deadline)

    def _condemn(self, member: _Member, now: float, out: list[Effect]) -> None:
        known = member.rumour
        why = _evidence(member, now)
        if not member.missed:
            why = f"no objection in {now - member.started:.1f} s, {why}"
        rumour = Rumour(known.name, known.epoch, known.incarnation, DEAD, known.address, self.name)
        self._set(member, rumour, now, out, why)

    def _bury(self, rumour: Rumour) -> None:
        self._graves.pop(rumour.name, None)
        self._graves[rumour.name] = rumour
        if len(self._graves) > GRAVES_MAX:
            del self._graves[next(iter(self._graves))]

    # -- inside: probes --------------------------------------------------------------------------

    def _target(self) -> str:
        """The next in a shuffled list: everybody's turn comes, in an order nobody can foresee."""
        for _ in range(2):
            while self._next < len(self._order):
                name = self._order[self._next]
                self._next += 1
                if name not in self._probes and self.state(name) in _LIVE:
                    return name
            self._order = shuffled([n for n in self.live() if n != self.name], self._rng)
            self._next = 0
        return ""

    def _ping(self, name: str, now: float, out: list[Effect]) -> None:
        self._number += 1
        out.append(Send(name, Ping(self._number, self._load(name, now))))

    def _probe(self, name: str, now: float, out: list[Effect]) -> None:
        self._ping(name, now, out)
        deadline = now + self._timing.probe_timeout_s * (self._health + 1)
        self._probes[name] = _Probe(self._number, now, deadline)
        self._wake(deadline)

    def _ask_others(self, name: str, probe: _Probe, now: float, out: list[Effect]) -> None:
        helpers = self._some(self._timing.indirect, name, alive=True)
        probe.indirect = True
        probe.asked = len(helpers)
        probe.deadline = now + self._timing.probe_timeout_s * (self._health + 1)
        self._ping(name, now, out)
        for helper in helpers:
            out.append(Send(helper, PingRequest(probe.number, name, self._load(helper, now))))

    def _missed(self, name: str, probe: _Probe, now: float, out: list[Effect]) -> None:
        """Nobody could reach it. If not even the helpers answered, it may well be me."""
        del self._probes[name]
        member = self._members[name]
        known = member.rumour
        if known.epoch:  # a seed peer that was never there says nothing about me
            self._ail(probe.asked - probe.nacks if probe.asked else 1)
        if not member.missed:
            member.silent_since = probe.started
        member.missed += 2 + probe.asked
        rumour = Rumour(name, known.epoch, known.incarnation, SUSPECT, known.address, self.name)
        self._apply(rumour, now, out)

    def _answered(self, name: str) -> None:
        probe = self._probes.pop(name)
        self._members[name].missed = 0
        if not probe.indirect and self._health:
            self._health -= 1

    def _proof(self, sender: str, now: float, out: list[Effect]) -> None:
        """A sign of life: O(1), for it comes with every message."""
        if sender in self._probes:
            self._answered(sender)
        if sender in self._relays:
            for asker, number, _ in self._relays.pop(sender):
                self._say(asker, number, sender, now, out)
        member = self._members.get(sender)
        if (
            member is not None
            and member.rumour.state in _ACCUSED
            and now >= member.told + self._timing.probe_interval_s
        ):
            self._say(sender, 0, self.name, now, out)

    def _relay(self, asker: str, request: PingRequest, now: float, out: list[Effect]) -> None:
        target = request.target
        waiting = self._relays.get(target, [])
        if target == self.name:
            self._say(asker, request.number, self.name, now, out)
        elif target not in self._members or len(waiting) >= RELAYS_MAX:
            self._say(asker, request.number, target, now, out, nack=True)
        else:
            self._ping(target, now, out)
            deadline = now + self._timing.probe_timeout_s * NACK_SHARE
            waiting.append((asker, request.number, deadline))
            self._relays[target] = waiting
            self._wake(deadline)

    def _give_up(
        self, target: str, waiting: list[tuple[str, int, float]], now: float, out: list[Effect]
    ) -> None:
        while waiting and now >= waiting[0][2]:
            asker, number, _ = waiting.pop(0)
            self._say(asker, number, target, now, out, nack=True)
        if not waiting:
            del self._relays[target]

    # -- inside: news ----------------------------------------------------------------------------

    def _spread(self, member: _Member, now: float) -> None:
        """Put it first among the news. Of an epoch not known there is nothing to tell."""
        name = member.rumour.name
        if not member.rumour.epoch:
            return
        if member.sent >= 0:
            del self._queue[member.sent][name]
            self._queued -= 1
        member.sent = 0
        self._queue[0][name] = member
        self._queued += 1
        self._wake(max(self._gossip_at, now))

    def _load(self, to: str, now: float) -> tuple[Rumour, ...]:
        """What a message to `to` carries: me, what is said against it, news, one in rotation."""
        me = self._me
        out = [me.rumour]
        member = self._members.get(to)
        if member is None:
            grave = self._graves.get(to)
            if grave is not None and grave.state == DEAD:
                out.append(grave)
        elif member.rumour.state in _ACCUSED:
            member.told = now
            if member.rumour.epoch:
                out.append(member.rumour)
        if self._queued:
            self._load_news(out, to)
        if self._turn >= len(self._roll):
            self._roll = list(self._members)
            self._turn = 0
        name = self._roll[self._turn]
        self._turn += 1
        if name != to and name != self.name:
            member = self._members.get(name)
            if member is not None and member.rumour.epoch:
                out.append(member.rumour)
        return tuple(out)

    def _load_news(self, out: list[Rumour], to: str) -> None:
        """The least passed on first; each a bounded number of times."""
        room = self._timing.rumours_max - len(out) - 1
        limit = retransmissions(self._count, self._timing.retransmit_factor)
        moved: list[_Member] = []
        for bucket in self._queue:
            for name in list(islice(bucket, room - len(moved))):
                member = bucket.pop(name)
                moved.append(member)
                if name != to and name != self.name:  # those two are in it already
                    out.append(member.rumour)
            if len(moved) >= room:
                break
        for member in moved:
            member.sent += 1
            if member.sent >= limit:
                member.sent = -1
                self._queued -= 1
                continue
            if member.sent == len(self._queue):
                self._queue.append({})
            self._queue[member.sent][member.rumour.name] = member

    def _gossip(self, now: float, out: list[Effect]) -> None:
        for name in self._some(self._timing.gossip_fanout, self.name):
            self._say(name, 0, self.name, now, out)
        self._gossip_at = now + self._timing.gossip_interval_s

    def _say(
        self, to: str, number: int, about: str, now: float, out: list[Effect], nack: bool = False
    ) -> None:
        out.append(Send(to, Ack(number, about, nack, self._load(to, now))))

    def _some(self, count: int, avoid: str, alive: bool = False) -> list[str]:
        """A few others at random; `alive`: none that is suspected itself."""
        pool, out = list(self.live()), list[str]()
        while pool and len(out) < count:
            i = self._rng.randrange(len(pool))
            name, pool[i] = pool[i], pool[-1]
            pool.pop()
            if name not in (avoid, self.name) and not (alive and name in self._suspects):
                out.append(name)
        return out

    # -- inside: time ----------------------------------------------------------------------------

    def _ail(self, points: int) -> None:
        self._health = min(self._timing.health_max, self._health + points)

    def _others(self) -> bool:
        return self._count > (self._me.rumour.state != LEFT)

    def _wake(self, at: float) -> None:
        if at < self._due:
            self._due = at

    def _overslept(self, late_s: float) -> None:
        """While I slept nobody could answer me, so that time is nobody's silence."""
        self._ail(1)
        for probe in self._probes.values():
            probe.deadline += late_s
        for member in self._suspects.values():
            member.started += late_s
            member.deadline += late_s

    def _earliest(self) -> float:
        due = math.inf
        if self._others():
            due = min(self._probe_at, self._gossip_at) if self._queued else self._probe_at
        if self._dead:
            due = min(due, self._dead_at)
        for probe in self._probes.values():
            due = min(due, probe.deadline)
        for member in self._suspects.values():
            due = min(due, member.deadline)
        for waiting in self._relays.values():
            due = min(due, waiting[0][2])
        return due


def _evidence(member: _Member, now: float) -> str:
    said = f"suspected by {', '.join(member.suspecters)}"
    if not member.missed:
        return said
    return f"no answer to {member.missed} probes in {now - member.silent_since:.1f} s, {said}"


def _why(member: _Member, old: Rumour, now: float) -> str:
    """The sentence that goes with a belief taken over from others."""
    rumour = member.rumour
    if rumour.state == SUSPECT:
        return _evidence(member, now)
    if rumour.state == DEAD:
        return f"declared dead by {rumour.source}"
    if rumour.state == LEFT:
        return "it said that it leaves"
    if rumour.epoch != old.epoch:
        return f"started as epoch {rumour.epoch}"
    return f"it objected: incarnation {rumour.incarnation}"
