"""Members, their leases and their time, as one state machine: words come in, words go out. Pure.

A solver decides who trains what. Here that is put between streams that break and come back: who is
who, which of two processes of one name is heard, whether a lease still holds, when a member that is
silent loses it. No sockets, no threads, and time is an argument.

What is said to a stream that is gone is dropped: the next hello and welcome set it right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from murmurate.core.batches.dealer import Take
from murmurate.core.partition.structure import Held, Structure
from murmurate.core.staleness import Summary
from murmurate.core.values.member_half import PushPace
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.subnet_values import Incoming, Unwanted, structure_digest, value_size
from murmurate.errors import (
    ConfigError,
    PeerExists,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate_coordinator.concerns import Concerns
from murmurate_coordinator.members import (
    GRACE_S,
    RESTART_S,
    VACANT_S,
    Members,
    Seat,
)
from murmurate_coordinator.session_words import (
    Coming,
    Lines,
    NoRoom,
    Out,
    SameValues,
    not_taken,
    said,
)
from murmurate_coordinator.solvers.effects import (
    Effect,
    GiveLease,
    MemberPush,
    PushAccepted,
    Reason,
    Refused,
    Waits,
)
from murmurate_coordinator.solvers.protocol import Capacity, Solver


class Sessions:
    """The coordinator without its network."""

    def __init__(self, solver: Solver, *, run: str, instance: str, now: float) -> None:
        self.solver = solver
        self.run = run
        self.members = Members()
        self.out: list[Out] = []
        """What is to be sent, in order; whoever sends it takes it away."""
        self.lines = Lines()
        self.spent = 0.0
        """The part of the run's budget, as whoever keeps it says."""
        self.stopping = ""
        """Why it ends."""
        self.staleness = Summary()
        self.late = 0
        """Leases that were revoked because their owner was gone or frozen."""
        self._instance = instance
        self.digest = structure_digest(solver.structure)
        self._full_bytes = value_size(solver.structure, solver.structure.everything())
        self.concerns = Concerns(solver, self.lines, now)
        self._checked = 0
        self._vacant_until: dict[str, float] = {}
        for name, capacity in solver.members.items():  # from a checkpoint: they will come back
            seat = Seat(name, "", capacity.speed, capacity.memory_bytes or 0, grace_s=RESTART_S)
            seat.away_s = now
            self.members.seats[name] = seat

    @property
    def structure(self) -> Structure:
        return self.solver.structure

    def remember(
        self, tallies: Mapping[str, Sequence[Any]], since: Iterable[tuple[MemberPush, int]]
    ) -> None:
        """What members did in earlier lives: their tallies at the checkpoint, and the pushes that
        were taken since, each with its staleness."""
        self.members.remember(tallies)
        for push, staleness in since:
            self.members.tally(push.peer).taken(push.steps, push.samples, staleness)
        for tally in self.members.tallies.values():
            self.staleness.merge(tally.staleness)

    # -- streams begin and end -------------------------------------------------------------------

    def hello(self, stream: int, hello: wire.WorkHello, now: float) -> wire.WorkWelcome:
        """Somebody is there. A MurmurateError refuses it."""
        self._judge(hello)
        seat = self.members.seats.get(hello.name)
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
        self.members.seats[seat.name] = seat
        self.solver.away(seat.name, gone=False)
        lease = self.solver.lease_of(seat.name)
        holds = lease is not None and lease.number == hello.lease
        if holds and seat.since_s is None:
            seat.given(now, self.solver.totals.pushes)
            seat.seconds = math.inf  # what it has trained is not known: its next push tells
        welcome = wire.WorkWelcome(
            run=self.run,
            instance=self._instance,
            rule=self.solver.rule,
            steps=self.solver.steps if self.solver.half.every is PushPace.AFTER_STEPS else 0,
            lease_holds=holds,
            lease_version=lease.version if lease is not None and holds else 0,
            plan=self.solver.plan,
            mode=self.solver.mode,
            pipelined=self.solver.half.pipelined,
        )
        self._carry_out(effects, now)
        if self.stopping:
            self.out.append(Out(stream, wire.Task(stop=self.stopping)))
        return welcome

    def _judge(self, hello: wire.WorkHello) -> None:
        if hello.run != self.run:
            raise SchemaMismatch(f"run {hello.run!r}, this coordinator has {self.run!r}")
        mode = hello.mode or "ist"
        if mode != self.solver.mode:
            raise SchemaMismatch(f"mode {mode!r}, this coordinator is of mode {self.solver.mode!r}")
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
        effects = self.solver.join(seat.name, capacity)
        if isinstance(effects[0], Refused):
            raise NoRoom(effects[0].sentence)
        seat.since_s = None
        return effects

    def _back(self, seat: Seat, hello: wire.WorkHello) -> list[Effect]:
        """The same process again: on with its lease, or what it lacks."""
        if seat.name not in self.solver.members:
            return self._join(seat)
        lease = self.solver.lease_of(seat.name)
        if lease is None:
            return [Waits(seat.name, "no unit is free yet")]
        if lease.number == hello.lease:
            return []
        if lease.done:
            return [Waits(seat.name, f"plan {self.solver.plan} is running: units at the next one")]
        return self.solver.again(seat.name)

    def gone(self, name: str, stream: int, now: float) -> None:
        """Its stream broke: it may come back."""
        seat = self.members.at(name, stream)
        if seat is None:
            return
        seat.stream, seat.away_s, seat.grace_s = 0, now, GRACE_S
        self.solver.away(name)
        if seat.revoked:
            del self.members.seats[name]

    def bye(self, name: str, stream: int, now: float) -> None:
        """It leaves: what it has pushed stays, what it had is free."""
        seat = self.members.at(name, stream)
        if seat is not None:
            self._leave(seat, now)
            self.out.append(Out(stream, None))

    def _leave(self, seat: Seat, now: float) -> None:
        self.members.seats.pop(seat.name, None)
        self._part(seat.name, now)

    def _part(self, name: str, now: float) -> None:
        """Its lease ends; its units wait a while for a newcomer, where that matters."""
        self._carry_out(self.solver.leave(name), now)
        self._vacant_until[name] = now + VACANT_S

    # -- pushes ----------------------------------------------------------------------------------

    def announce(self, name: str, stream: int, head: wire.Return) -> Coming:
        """Before its values are taken in: whether they are of use, and how many they must be."""
        if head.value_bytes > self._full_bytes:  # not even to be skipped
            raise RemoteProtocolError(
                "push.value_bytes", f"{head.value_bytes}, the whole model has {self._full_bytes}"
            )
        refused = self.solver.admits(name, head.plan, head.lease, head.version)
        if refused is None:
            held = self.solver.leases[head.lease].held
            if head.value_bytes == value_size(self.structure, held):
                into = Incoming("push", self.structure, held, head.value_bytes)
                return Coming(head, into)
            refused = self.solver.refuse(
                name,
                Reason.SHAPES,
                f"{head.value_bytes} bytes, these units have {value_size(self.structure, held)}",
            )
        return Coming(
            head, Unwanted("push", head.value_bytes), not_taken(self.solver, head, refused)
        )

    def push(self, name: str, stream: int, coming: Coming, now: float) -> None:
        """All its values are here."""
        seat = self.members.at(name, stream)
        if seat is None:
            return  # it has another stream by now, and pushes there
        head = coming.head
        if coming.answer is not None:
            self._refused(seat, coming.answer, now)
            return
        assert isinstance(coming.into, Incoming)
        lease = self.solver.leases.get(head.lease)
        steps, samples = (lease.steps, lease.samples) if lease is not None else (0, 0)
        push = MemberPush(
            name,
            head.plan,
            head.lease,
            head.version,
            head.steps - steps,
            head.samples - samples,
            coming.into.values,
        )
        effects = self.solver.push(push)
        first = effects[0]
        if isinstance(first, Refused):
            self._refused(seat, not_taken(self.solver, head, first), now)
            return
        assert lease is not None
        assert isinstance(first, PushAccepted)
        self.concerns.taken()
        self._count(seat, push, head, lease.held, now, first.staleness)
        self._carry_out(effects, now)

    def _count(
        self,
        seat: Seat,
        push: MemberPush,
        head: wire.Return,
        held: Held,
        now: float,
        staleness: int | None,
    ) -> None:
        tally = self.members.tally(seat.name)
        seat.pushed(now, self.solver.totals.pushes, staleness)
        tally.taken(push.steps, push.samples, seat.staleness)
        self.staleness.add(seat.staleness)
        self.concerns.heard(tally, head.loss)
        seat.trains(self.part(held), push.steps, head.seconds, push.samples)
        if not seat.width and self.solver.follows_speed:
            self._follow_speeds()

    def _follow_speeds(self) -> None:
        speeds = self.members.speeds()
        for name, speed in speeds.items():
            known = self.solver.members.get(name)
            if known is not None and not 0.9 < speed / known.speed < 1.1:
                self.solver.measured(name, speed)

    def _refused(self, seat: Seat, answer: wire.Task, now: float) -> None:
        """It hears why, and gets something better to do."""
        self.out.append(Out(seat.stream, answer))
        if answer.not_taken is None:
            return
        self.members.tally(seat.name).refused += 1
        reason = answer.not_taken.reason
        if self.stopping:
            return
        if reason == Reason.OVER and seat.revoked:  # it was frozen, and woke up
            self._again(seat, now)
        elif reason == Reason.NOT_FINITE:  # it will not get well by itself
            self.concerns.not_finite()
            self._carry_out(self.solver.again(seat.name), now)

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
        seat = self.members.at(name, stream)
        if seat is None:
            return
        moved = doing.steps > seat.told_steps
        seat.told(now, doing.steps)
        tally = self.members.tally(name)
        tally.samples_per_s, tally.wait_s = doing.samples_per_s, doing.wait_s
        self.concerns.heard(tally, doing.loss)
        if seat.revoked and moved and not self.stopping:
            self._again(seat, now)

    def take(self, name: str, stream: int, take: Take, now: float) -> None:
        """What one who takes batches has and needs."""
        seat = self.members.at(name, stream)
        if seat is not None:
            self._carry_out(self.solver.take(name, take, now), now)

    # -- time ------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Now and then: who is gone, who is frozen, what is not as it should be."""
        for seat in self.members.lost(now):
            self.lines.warnings.append(
                f"{seat.name} has been away for {now - seat.away_s:.0f} s: {self.solver.freed}"
            )
            self.late += self.solver.lease_of(seat.name) is not None
            self._leave(seat, now)
        owing = [one.owner for one in self.solver.leases.values() if not one.done]
        for seat, silent_s in list(self.members.frozen(now, owing)):
            self.lines.warnings.append(
                f"{seat.name} has not pushed for {silent_s:.0f} s: {self.solver.freed}"
            )
            self.late += 1
            seat.revoked = True
            self._part(seat.name, now)
        for name in [name for name, until in self._vacant_until.items() if now >= until]:
            del self._vacant_until[name]
            self.solver.vacate(name)
        self._carry_out(self.solver.tick(now), now)
        if wrong := self.solver.wrong():
            self.lines.warnings.append(wrong)
        if not self.stopping:  # at the end all fall silent
            self.concerns.advise(now)

    def stop(self, reason: str) -> None:
        """The last pushes come now. Who is away has as long as any other time: nobody waits for a
        member that a restart has never seen."""
        self.stopping = reason
        for seat in self.members.seats.values():
            seat.grace_s = min(seat.grace_s, GRACE_S)
        task = wire.Task(stop=reason)
        self.out += [Out(seat.stream, task) for seat in self.members.seats.values() if seat.stream]

    def samples_if_stopped(self, now: float) -> int:
        """What the model will have seen, about, if the run ends now: the last pushes of subnets
        come at its end. A hub is pushed to after every few steps, and counts what it has."""
        solver = self.solver
        if solver.mode != "ist":
            return solver.totals.samples
        training = [lease.owner for lease in solver.leases.values() if not lease.done]
        return solver.totals.samples + self.members.unpushed(now, training)

    @property
    def awaited(self) -> int:
        """Members that may still push: those that are away for a moment too."""
        return sum(not seat.revoked for seat in self.members.seats.values())

    def states(self) -> dict[str, int]:
        """How many members train, wait for units or the others, are away, or silent."""
        out = dict.fromkeys(("training", "waiting", "away", "silent"), 0)
        for name in self.members.seats:
            out[self.state(name)] += 1
        return out

    def state(self, name: str) -> str:
        """Of one member; of one that left: gone."""
        seat = self.members.seats.get(name)
        if seat is None:
            return "gone"
        if seat.revoked:
            return "silent"
        if not seat.stream:
            return "away"
        lease = self.solver.lease_of(name)
        return "waiting" if lease is None or lease.done else "training"

    def part(self, held: Held) -> float:
        """Which part of the units that is."""
        units = self.structure.units
        return float(held[:-1].sum()) / units if units else 1.0

    def shares(self) -> dict[str, float]:
        """Which part of the parameters each has, as the members themselves say it."""
        return {one.owner: self.share(one.held) for one in self.solver.leases.values()}

    def share(self, held: Held) -> float:
        """Which part of the model's parameters that is."""
        structure = self.structure
        return structure.parameters(held) / max(1, structure.parameters(structure.everything()))

    # -- effects ---------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect], now: float) -> None:
        self.concerns.saw(now, effects)
        if self.solver.plan != self._checked:
            self.solver.check()
            self._checked = self.solver.plan
        ready = SameValues(self.structure)
        for effect in effects:
            seat = self.members.seats.get(effect.peer)
            if seat is None:
                continue
            if isinstance(effect, GiveLease):
                seat.given(now, self.solver.totals.pushes)
            if not seat.stream or (self.stopping and isinstance(effect, GiveLease)):
                continue  # at the end nothing new is begun
            if (out := said(effect, seat, ready, self.spent)) is not None:
                self.out.append(out)
