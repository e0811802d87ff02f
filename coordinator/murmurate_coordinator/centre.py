"""Members, their leases and their time, as one state machine: words come in, words go out. Pure.

`rules.Partitioner` decides who trains what. Here that is put between streams that break and come
back: who is who, which of two processes of one name is heard, whether a lease still holds, when a
member that is silent loses it. No sockets, no threads, and time is an argument.

What is said to a stream that is gone is dropped: the next hello and welcome set it right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from murmurate.core.partition.structure import Held, Structure
from murmurate.core.staleness import Summary
from murmurate.errors import (
    ConfigError,
    PeerExists,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.io import coordinator_wire as wire
from murmurate.io.coordinator_values import (
    Incoming,
    Outgoing,
    Unwanted,
    encode_held,
    structure_digest,
    value_size,
)
from murmurate_coordinator.advisor import Advice, Advisor
from murmurate_coordinator.plan import Capacity
from murmurate_coordinator.roll import GRACE_S, RESTART_S, VACANT_S, Roll, Seat
from murmurate_coordinator.rules import (
    DUPLICATE,
    NOT_FINITE,
    OVER,
    SHAPES,
    Accepted,
    Effect,
    Give,
    Partitioner,
    Push,
    Refused,
    Waits,
)

ADVISE_S = 2.0
SILENT_S = 3.0
"""A busy machine holds a process up for a second or two: that is no silence."""
ADVICE_S = 60.0
"""The same thing is not said again before."""


class NoRoom(PeerUnavailable):
    """There is no place for that member, now or at all; counted by the rules."""


@dataclass(frozen=True, slots=True, eq=False)
class Out:
    """To one stream. A give has its values beside it; `task` None: end it."""

    stream: int
    task: wire.Task | None
    values: Outgoing | None = None


@dataclass(slots=True, eq=False)
class Coming:
    """A push that was announced: where its values go, or what is answered instead."""

    head: wire.Return
    into: Incoming | Unwanted
    answer: wire.Task | None = None


@dataclass(slots=True)
class Lines:
    """What people should hear of."""

    news: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Centre:
    """The coordinator without its network."""

    def __init__(self, rules: Partitioner, *, run: str, instance: str, now: float) -> None:
        self.rules = rules
        self.run = run
        self.roll = Roll()
        self.out: list[Out] = []
        """What is to be sent, in order; whoever sends it takes it away."""
        self.lines = Lines()
        self.stopping = ""
        """Why it ends."""
        self.staleness = Summary()
        self.late = 0
        """Leases that were revoked because their owner was gone or frozen."""
        self._instance = instance
        self.digest = structure_digest(rules.structure)
        self._full_bytes = value_size(rules.structure, rules.structure.everything())
        self._advisor = Advisor(rules, now, silent_s=SILENT_S)
        self._advise_at = now
        self._advised: dict[tuple[str, str], float] = {}
        self._checked = 0
        self._vacant_until: dict[str, float] = {}
        for name, capacity in rules.members.items():  # from a checkpoint: they will come back
            seat = Seat(name, "", capacity.speed, capacity.memory_bytes or 0, grace_s=RESTART_S)
            seat.away_s = now
            self.roll.seats[name] = seat

    @property
    def structure(self) -> Structure:
        return self.rules.structure

    # -- streams begin and end -------------------------------------------------------------------

    def hello(self, stream: int, hello: wire.WorkHello, now: float) -> wire.WorkWelcome:
        """Somebody is there. A MurmurateError refuses it."""
        self._judge(hello)
        seat = self.roll.seats.get(hello.name)
        if seat is not None and seat.instance and seat.instance != hello.instance:
            if seat.stream:
                raise PeerExists(f"{hello.name} is here already: another process has that name")
            self._leave(seat, now)  # it died, and this is its next life
            seat = None
        if seat is None:
            if self.stopping:
                raise NoRoom(f"the run is over: {self.stopping}")
            seat = Seat(hello.name, hello.instance, hello.width, hello.memory_bytes)
            effects = self._join(seat)
        else:
            if seat.stream:
                self.out.append(Out(seat.stream, None))  # the newest counts
            if not seat.instance:  # known from a checkpoint only
                seat.width, seat.memory_bytes = hello.width, hello.memory_bytes
            effects = self._back(seat, hello)
        seat.instance, seat.stream, seat.revoked = hello.instance, stream, False
        self.roll.seats[seat.name] = seat
        self.rules.away(seat.name, gone=False)
        lease = self.rules.lease_of(seat.name)
        holds = lease is not None and lease.number == hello.lease
        if holds and seat.since_s is None:
            seat.given(now, self.rules.totals.pushes)
            seat.seconds = math.inf  # what it has trained is not known: its next push tells
        welcome = wire.WorkWelcome(
            run=self.run,
            instance=self._instance,
            rule=self.rules.rule,
            steps=0 if self.rules.rule == "async" else self.rules.steps,
            lease_holds=holds,
            lease_version=lease.version if lease is not None and holds else 0,
            plan=self.rules.plan,
        )
        self._carry_out(effects, now)
        if self.stopping:
            self.out.append(Out(stream, wire.Task(stop=self.stopping)))
        return welcome

    def _judge(self, hello: wire.WorkHello) -> None:
        if hello.run != self.run:
            raise SchemaMismatch(f"run {hello.run!r}, this coordinator has {self.run!r}")
        if hello.structure != self.digest:
            raise SchemaMismatch(
                f"{hello.name} has found another structure in its model: other layers, other sizes"
                " or another version of this program"
            )

    def _join(self, seat: Seat) -> list[Effect]:
        try:
            capacity = Capacity(speed=seat.width or 1.0, memory_bytes=seat.memory_bytes or None)
        except ConfigError as error:
            raise RemoteProtocolError("hello", str(error)) from None
        effects = self.rules.join(seat.name, capacity)
        if isinstance(effects[0], Refused):
            raise NoRoom(effects[0].sentence)
        seat.since_s = None
        return effects

    def _back(self, seat: Seat, hello: wire.WorkHello) -> list[Effect]:
        """The same process again: on with its lease, or what it lacks."""
        if seat.name not in self.rules.members:
            return self._join(seat)
        lease = self.rules.lease_of(seat.name)
        if lease is None:
            return [Waits(seat.name, "no unit is free yet")]
        if lease.number == hello.lease:
            return []
        if lease.done:
            return [Waits(seat.name, f"plan {self.rules.plan} is running: units at the next one")]
        return self.rules.again(seat.name)

    def gone(self, name: str, stream: int, now: float) -> None:
        """Its stream broke: it may come back."""
        seat = self.roll.at(name, stream)
        if seat is None:
            return
        seat.stream, seat.away_s, seat.grace_s = 0, now, GRACE_S
        self.rules.away(name)
        if seat.revoked:
            del self.roll.seats[name]

    def bye(self, name: str, stream: int, now: float) -> None:
        """It leaves: what it has pushed stays, its units are free."""
        seat = self.roll.at(name, stream)
        if seat is not None:
            self._leave(seat, now)
            self.out.append(Out(stream, None))

    def _leave(self, seat: Seat, now: float) -> None:
        self.roll.seats.pop(seat.name, None)
        self._part(seat.name, now)

    def _part(self, name: str, now: float) -> None:
        """Its lease ends; its units wait a while for a newcomer, where that matters."""
        self._carry_out(self.rules.leave(name), now)
        self._vacant_until[name] = now + VACANT_S

    # -- pushes ----------------------------------------------------------------------------------

    def announce(self, name: str, stream: int, head: wire.Return) -> Coming:
        """Before its values are taken in: whether they are of use, and how many they must be."""
        if head.value_bytes > self._full_bytes:  # not even to be skipped
            raise RemoteProtocolError(
                "push.value_bytes", f"{head.value_bytes}, the whole model has {self._full_bytes}"
            )
        refused = self.rules.admits(name, head.plan, head.lease, head.version)
        if refused is None:
            held = self.rules.leases[head.lease].held
            if head.value_bytes == value_size(self.structure, held):
                into = Incoming("push", self.structure, held, head.value_bytes, head.checksum)
                return Coming(head, into)
            refused = self.rules.refuse(
                name,
                SHAPES,
                f"{head.value_bytes} bytes, these units have {value_size(self.structure, held)}",
            )
        return Coming(head, Unwanted("push", head.value_bytes), self._answer(head, refused))

    def push(self, name: str, stream: int, coming: Coming, now: float) -> None:
        """All its values are here."""
        seat = self.roll.at(name, stream)
        if seat is None:
            return  # it has another stream by now, and pushes there
        head = coming.head
        if coming.answer is not None:
            self._refused(seat, coming.answer, now)
            return
        assert isinstance(coming.into, Incoming)
        lease = self.rules.leases.get(head.lease)
        steps, samples = (lease.steps, lease.samples) if lease is not None else (0, 0)
        push = Push(
            name,
            head.plan,
            head.lease,
            head.version,
            head.steps - steps,
            head.samples - samples,
            coming.into.values,
        )
        effects = self.rules.push(push)
        first = effects[0]
        if isinstance(first, Refused):
            self._refused(seat, self._answer(head, first), now)
            return
        assert lease is not None
        self._count(seat, push, head, lease.held, now)
        self._carry_out(effects, now)

    def _count(self, seat: Seat, push: Push, head: wire.Return, held: Held, now: float) -> None:
        tally = self.roll.tally(seat.name)
        seat.pushed(now, self.rules.totals.pushes)
        tally.staleness.add(seat.staleness)
        self.staleness.add(seat.staleness)
        tally.pushes += 1
        tally.steps += push.steps
        tally.samples += push.samples
        tally.loss = head.loss
        seat.trains(self.part(held), push.steps, head.seconds)
        if not seat.width and self.rules.rule != "fedavg":
            self._follow_speeds()

    def _follow_speeds(self) -> None:
        speeds = self.roll.speeds()
        for name, speed in speeds.items():
            known = self.rules.members.get(name)
            if known is not None and not 0.9 < speed / known.speed < 1.1:
                self.rules.measured(name, speed)

    def _answer(self, head: wire.Return, refused: Refused) -> wire.Task:
        lease = self.rules.leases.get(head.lease)
        if refused.reason == DUPLICATE and lease is not None and head.version <= lease.version:
            return wire.Task(taken=wire.Taken(lease=head.lease, version=lease.version))
        return wire.Task(
            not_taken=wire.NotTaken(
                lease=head.lease,
                version=head.version,
                reason=refused.reason,
                sentence=refused.sentence,
            )
        )

    def _refused(self, seat: Seat, answer: wire.Task, now: float) -> None:
        """It hears why, and gets something better to do."""
        self.out.append(Out(seat.stream, answer))
        if answer.not_taken is None:
            return
        self.roll.tally(seat.name).refused += 1
        reason = answer.not_taken.reason
        if self.stopping:
            return
        if reason == OVER and seat.revoked:  # it was frozen, and woke up
            self._again(seat, now)
        elif reason == NOT_FINITE:  # it will not get well by itself
            self._carry_out(self.rules.again(seat.name), now)

    def _again(self, seat: Seat, now: float) -> None:
        """One whose lease was revoked shows that it is alive."""
        try:
            effects = self._join(seat)
        except NoRoom as error:
            self.out.append(Out(seat.stream, wire.Task(waits=str(error))))
            return
        seat.revoked = False
        self._carry_out(effects, now)

    def doing(self, name: str, stream: int, doing: wire.Doing, now: float) -> None:
        seat = self.roll.at(name, stream)
        if seat is None:
            return
        moved = doing.steps > seat.told_steps
        seat.told(now, doing.steps)
        tally = self.roll.tally(name)
        tally.samples_per_s, tally.wait_s = doing.samples_per_s, doing.wait_s
        if not math.isnan(doing.loss):
            tally.loss = doing.loss
        if seat.revoked and moved and not self.stopping:
            self._again(seat, now)

    # -- time ------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Now and then: who is gone, who is frozen, what is not as it should be."""
        for seat in self.roll.lost(now):
            self.lines.news.append(
                f"{seat.name} has been away for {now - seat.away_s:.0f} s: its units are free"
            )
            self.late += self.rules.lease_of(seat.name) is not None
            self._leave(seat, now)
        owing = [one.owner for one in self.rules.leases.values() if not one.done]
        for seat, silent_s in list(self.roll.frozen(now, owing)):
            self.lines.warnings.append(
                f"{seat.name} has not pushed for {silent_s:.0f} s: its units are free"
            )
            self.late += 1
            seat.revoked = True
            self._part(seat.name, now)
        for name in [name for name, until in self._vacant_until.items() if now >= until]:
            del self._vacant_until[name]
            self.rules.vacate(name)
        if now >= self._advise_at and not self.stopping:  # at the end all fall silent
            self._advise_at = now + ADVISE_S
            self.lines.warnings += [advice.sentence for advice in self._advice(now)]

    def _advice(self, now: float) -> Iterator[Advice]:
        for advice in self._advisor.news(now):
            key = (advice.kind, advice.about)
            if now >= self._advised.get(key, -math.inf) + ADVICE_S:
                self._advised[key] = now
                yield advice

    def advice(self, now: float) -> list[Advice]:
        """All that is not as it should be."""
        return self._advisor.advice(now)

    def stop(self, reason: str) -> None:
        """The last pushes come now. Who is away has as long as any other time: nobody waits for a
        member that a restart has never seen."""
        self.stopping = reason
        for seat in self.roll.seats.values():
            seat.grace_s = min(seat.grace_s, GRACE_S)
        task = wire.Task(stop=reason)
        self.out += [Out(seat.stream, task) for seat in self.roll.seats.values() if seat.stream]

    @property
    def awaited(self) -> int:
        """Members that may still push: those that are away for a moment too."""
        return sum(not seat.revoked for seat in self.roll.seats.values())

    def states(self) -> dict[str, int]:
        """How many members train, wait for units or the others, are away, or silent."""
        out = dict.fromkeys(("training", "waiting", "away", "silent"), 0)
        for name in self.roll.seats:
            out[self.state(name)] += 1
        return out

    def state(self, name: str) -> str:
        """Of one member; of one that left: gone."""
        seat = self.roll.seats.get(name)
        if seat is None:
            return "gone"
        if seat.revoked:
            return "silent"
        if not seat.stream:
            return "away"
        lease = self.rules.lease_of(name)
        return "waiting" if lease is None or lease.done else "training"

    def part(self, held: Held) -> float:
        """Which part of the units that is."""
        return float(held[:-1].sum()) / max(1, self.structure.units)

    def shares(self) -> dict[str, float]:
        return {one.owner: self.part(one.held) for one in self.rules.leases.values()}

    # -- effects ---------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect], now: float) -> None:
        self._advisor.saw(now, effects)
        if self.rules.plan != self._checked:
            self.rules.check()
            self._checked = self.rules.plan
        for effect in effects:
            seat = self.roll.seats.get(effect.peer)
            if seat is None:
                continue
            if isinstance(effect, Give):
                seat.given(now, self.rules.totals.pushes)
            if seat.stream and (said := self._said(effect, seat)) is not None:
                self.out.append(said)

    def _said(self, effect: Effect, seat: Seat) -> Out | None:
        match effect:
            case Give() if not self.stopping:
                values = Outgoing(self.structure, effect.values)
                give = wire.Give(
                    plan=effect.plan,
                    lease=effect.lease,
                    version=effect.version,
                    held=encode_held(effect.held),
                    value_bytes=values.value_bytes,
                    checksum=values.checksum,
                )
                return Out(seat.stream, wire.Task(give=give), values)
            case Accepted():
                taken = wire.Taken(
                    lease=effect.lease, version=effect.version, staleness=seat.staleness
                )
                return Out(seat.stream, wire.Task(taken=taken))
            case Waits():
                return Out(seat.stream, wire.Task(waits=effect.sentence))
        return None
