"""What a member's training thread and its link to the coordinator share: lease, gift, push.

The training thread trains a lease, puts a push here at the end of a step, and takes what was given
at the end of a step. The link's thread sends and receives. Neither waits for the other, except
where the rule's half says so: then the training thread waits after a push for what comes, as long
as the coordinator is there. When it is gone, training goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from murmurate.core.figures.counters import Tally
from murmurate.core.partition.structure import Structure
from murmurate.core.values.member_half import TURNS, Down, MemberHalf, PushPace
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.coordinator_link import lasting
from murmurate.edge.net.subnet_values import Incoming, Outgoing, Values, decode_held
from murmurate.errors import (
    LocalProtocolError,
    MurmurateError,
    PeerExists,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.training.held_lease import Gift, HeldLease
from murmurate.training.push_pipeline import PushPipeline
from murmurate.training.unasked_pace import UnaskedPace
from murmurate.training.welcome import half_asked_for

log = logging.getLogger("murmurate")

BAD_PUSHES_MAX = 10
"""Pushes in a row whose values cannot be used, before it is an error."""
RENEW_S = 2.0
"""Without a lease for so long, while the coordinator is there: ask again."""
SAY_S = 5.0
"""Between two lines about a coordinator that is not there."""


class Leasing:
    """One member's dealings with the coordinator. Everything is guarded by `news`, which is told
    of whatever changes."""

    def __init__(
        self,
        *,
        run: str,
        name: str,
        instance: str,
        structure: Structure,
        digest: bytes,
        width: float,
        memory_bytes: int,
        tally: Tally,
        mode: str = "ist",
    ) -> None:
        self.news = threading.Condition()
        self.structure = structure
        self.tally = tally
        self.connected = False
        self.ever = False
        """Whether the coordinator has ever welcomed this member."""
        self.rule = ""
        self.half: MemberHalf = TURNS
        """What that rule asks of a member; before the welcome it is not used."""
        self.steps = 0
        """Until a push, where the half says so."""
        self.lease: HeldLease | None = None
        self.gift: Gift | None = None
        self.spent = 0.0
        """The part of the run's budget, as the coordinator said last."""
        self.sentence = ""
        """Why there is nothing to train, as the coordinator put it."""
        self.stopped = ""
        """Why the run ends."""
        self.error: BaseException | None = None
        self.trouble: MurmurateError | None = None
        """Why the stream ended the last time."""
        self.wake: Callable[[], None] = lambda: None
        self.renew: Callable[[], None] = lambda: None
        self.steps_lost = 0
        """Made after a push, and gone with the lease."""
        self.sent_bytes = self.received_bytes = 0
        self._hello = wire.WorkHello(
            run=run,
            name=name,
            instance=instance,
            structure=digest,
            width=width,
            memory_bytes=memory_bytes,
            mode=mode,
        )
        self._structure = structure
        self._pipeline = PushPipeline()
        """Where the half is pipelined; else there is one push at a time, below."""
        self._queued: tuple[wire.Return, Values] | None = None
        self._on_its_way: wire.Return | None = None
        """The push that has no answer yet."""
        self._pace = UnaskedPace()
        self._bad = 0
        self._without_since: float | None = None
        self._arriving = False
        """Something was announced, and its values come: on a slow link that takes a while."""
        self._said_at = -SAY_S

    # -- the training thread ---------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """For something new, at most so long."""
        with self.news:
            if self.gift is None and not self.stopped and self.error is None:
                self.news.wait(seconds)

    def check(self) -> None:
        """What went wrong in the background is raised here."""
        if self.error is not None:
            raise self.error

    def stepped(self, samples: int, seconds: float, now: float) -> bool:
        """Count a step. Whether there may be something to do after it: most steps of a rule
        without a number of steps end here."""
        with self.news:
            lease = self.lease
            if lease is None:
                return True
            lease.steps += 1
            lease.samples += samples
            lease.seconds += seconds
            return not (
                self.gift is None
                and self.half.every is PushPace.WHEN_IN
                and lease.valid
                and not self.stopped
                and not (self.connected and self._pace.due(now))
            )

    def wants_push(self, *, all_of_it: bool = False) -> bool:
        """Whether a push is due; `all_of_it`: there will be no later one."""
        with self.news:
            lease = self.lease
            if lease is None or not lease.valid or lease.done or lease.steps == lease.pushed:
                return False
            if not self.connected or self._queued is not None or self._on_its_way is not None:
                return False
            newer = self.gift is not None and self.half.pipelined and self.half.central
            if all_of_it or newer:
                return True  # a gradient is of one version: before others are taken it goes out
            if self._pipeline.full:
                return False
            if self.half.every is PushPace.AFTER_STEPS:
                return lease.steps - lease.pushed >= self.steps
            return self._pace.due(time.monotonic())

    def put(self, values: Values, copied_s: float) -> None:
        """A push of the lease as it is now: these values, which nobody changes any more.
        `copied_s`: what taking them cost."""
        with self.news:
            lease = self.lease
            if lease is None or not lease.valid:
                return
            push = wire.Return(
                plan=lease.plan,
                lease=lease.number,
                version=lease.version + len(self._pipeline) + 1,
                steps=lease.steps,
                samples=lease.samples,
                loss=self.tally.loss,
                seconds=lease.seconds,
                value_bytes=0,  # counted where it is sent
            )
            if self.half.pipelined:
                self._pipeline.put(push, values)
            else:
                self._queued = push, values
            self._pace.put(copied_s, time.monotonic())
            lease.pushed = lease.steps
            lease.done = self.half.waits
            self.tally.published += 1
        self.wake()

    def next_gift(self) -> Gift | None:
        with self.news:
            gift, self.gift = self.gift, None
            if gift is None:
                return None
            old = self.lease
            if old is not None and old.number == gift.lease.number and self.half.stays:
                old.plan = gift.lease.plan  # newer values of the same lease: all else goes on
                old.version = max(old.version, gift.lease.version)
                return gift
            if old is not None:
                self.steps_lost += old.steps - old.taken
            self.lease = gift.lease
            return gift

    def nothing_to_train(self) -> bool:
        """Whether what is trained now could not be used: the coordinator is there, and has or will
        have something else; or only it can change the weights, and it is not there."""
        with self.news:
            lease = self.lease
            if lease is None:
                return True
            over = not lease.valid or lease.done
            idle = self.connected and (over or self._pipeline.full)
            self._mind(idle and not lease.valid)
            if self.half.central and not self.connected:  # weights stay as they are without the hub
                return over or lease.steps > lease.taken  # over: a step now is in no push
            return idle

    def _mind(self, without: bool) -> None:
        """Who has no lease for a while asks for one with a new hello."""
        now = time.monotonic()
        if not without or self.gift is not None or self._arriving:
            self._without_since = None
        elif self._without_since is None:
            self._without_since = now
        elif now - self._without_since > RENEW_S and not self.sentence:
            self._without_since = None
            self.renew()

    def settled(self) -> bool:
        """Whether everything that can be is in the model."""
        with self.news:
            lease = self.lease
            if self._queued is not None or self._on_its_way is not None or self._pipeline:
                return False
            return lease is None or not lease.valid or lease.done or lease.steps == lease.pushed

    def conclude(self) -> None:
        """Nothing more is pushed: steps that are not in, as those made while an answer was waited
        for, are lost."""
        with self.news:
            if (lease := self.lease) is not None:
                self.steps_lost += lease.steps - lease.taken
                lease.taken = lease.steps

    # -- the link's thread -----------------------------------------------------------------------

    def hello(self) -> wire.WorkHello:
        with self.news:
            lease = self.gift.lease if self.gift is not None else self.lease
            if lease is None or not lease.valid:
                return self._hello
            return replace(self._hello, lease=lease.number, lease_version=lease.version)

    def welcomed(self, welcome: wire.WorkWelcome) -> None:
        half = half_asked_for(self._hello, welcome)
        with self.news:
            self.connected = self.ever = True
            self.rule, self.half, self.steps = welcome.rule, half, welcome.steps
            self._drop()
            self._resume(welcome)
            sent, self._on_its_way = self._on_its_way, None
            lease = self.gift.lease if self.gift is not None else self.lease
            if lease is not None and welcome.lease_holds and lease.valid:
                if self.half.pipelined:
                    pass  # what it lacks is sent again as it was
                elif welcome.lease_version < (lease.version if sent is None else sent.version):
                    lease.pushed, lease.done = 0, False  # the next push has everything in it
                elif sent is not None:
                    lease.taken = sent.steps
                    self.tally.applied += 1
                lease.version = welcome.lease_version
            elif lease is not None:
                lease.valid = False
                self.gift = None
            self.news.notify_all()

    def _resume(self, welcome: wire.WorkWelcome) -> None:
        """Pipelined: what the hub does not have yet is sent again, if the lease holds."""
        if not welcome.lease_holds or not self.half.pipelined:
            self._pipeline.clear()
            return
        before = len(self._pipeline)
        last = self._pipeline.answered(welcome.lease_version)
        self.tally.applied += before - len(self._pipeline)
        if self.lease is not None:
            self.lease.version = welcome.lease_version
            self.lease.taken = self.lease.taken if last is None else last.steps
        self._pipeline.again(welcome.lease_version)

    def push(self) -> tuple[wire.Return, Outgoing] | None:
        with self.news:
            if self.half.pipelined:
                queued = self._pipeline.next()
            else:
                queued, self._queued = self._queued, None
            if queued is None:
                return None
            push, values = queued
            self._on_its_way = None if self.half.pipelined else push
            self._pace.begun()
        outgoing = Outgoing(self._structure, values)  # not in the training thread: copies
        size = outgoing.value_bytes
        self.sent_bytes += size
        return replace(push, value_bytes=size), outgoing

    def sent(self) -> None:
        """Nothing to do: what counts is the answer."""

    def doing(self) -> wire.Doing:
        with self.news:
            tally = self.tally
            training_s = tally.training_s(time.monotonic())
            return wire.Doing(
                samples=tally.samples,
                steps=sum(tally.steps),
                samples_per_s=tally.samples / training_s if training_s > 0 else 0.0,
                loss=tally.loss,
                wait_s=tally.wait_s,
            )

    def incoming(self, give: wire.Give) -> Incoming:
        held = decode_held(self._structure, give.held)
        with self.news:
            self._arriving = True
        return Incoming("give", self._structure, held, give.value_bytes)

    def given(self, give: wire.Give, values: Values) -> None:
        held = decode_held(self._structure, give.held)
        with self.news:
            self.spent = give.spent
            self.gift = Gift(
                HeldLease(give.plan, give.lease, give.version, held), self._with(give, values)
            )
            self._arriving = False
            if self.lease is None or self.lease.number != give.lease:
                self._pipeline.clear()
            if not self._adds(give):
                self._drop()
                self._on_its_way = None
            self.sentence = ""
            self.received_bytes += give.value_bytes
            self.news.notify_all()

    def _adds(self, give: wire.Give) -> bool:
        """Whether this is for what is trained now, and not instead of it."""
        lease = self.lease
        same = lease is not None and lease.number == give.lease
        return same and self.half.down is Down.ADD

    def _with(self, give: wire.Give, values: Values) -> Values:
        """What is added, together with what came before and was not added yet."""
        gift = self.gift
        if gift is None or gift.lease.number != give.lease or self.half.down is not Down.ADD:
            return values
        return {name: value + values[name] for name, value in gift.values.items()}

    def taken(self, taken: wire.Taken) -> None:
        with self.news:
            sent = self._pipeline.answered(taken.version) or self._on_its_way
            self._answered()
            self.spent = taken.spent
            self._bad = 0
            self.tally.applied += 1
            self.tally.staleness.add(taken.staleness)
            if self.lease is not None and self.lease.number == taken.lease:
                self.lease.version = taken.version
                self.lease.taken = self.lease.taken if sent is None else sent.steps
            if not self.half.waits:  # who waits, waits for what is given: it wakes up then, once
                self.news.notify_all()

    def not_taken(self, answer: wire.NotTaken) -> None:
        with self.news:
            self._answered()
            self.tally.rejected[answer.reason] += 1
            lease = self.lease
            if lease is None or lease.number != answer.lease:
                return
            log.warning("a push was not taken (%s): %s", answer.reason, answer.sentence)
            if answer.reason not in ("duplicate", "future"):
                self._pipeline.clear()  # of the same lease: it is over, or this program is wrong
            match answer.reason:
                case "duplicate":  # its answer was lost
                    self._pipeline.answered(answer.version)
                    lease.version = max(lease.version, answer.version)
                case "not_finite":
                    self._bad += 1
                    lease.valid = False
                    if self._bad >= BAD_PUSHES_MAX:
                        self._fail(
                            LocalProtocolError(
                                f"{self._bad} pushes in a row could not be used: {answer.sentence}"
                            )
                        )
                case "shapes":
                    self._fail(LocalProtocolError(f"a push was refused: {answer.sentence}"))
                case "future":
                    self.renew()
                case _:
                    lease.valid = False
            self.news.notify_all()

    def _answered(self) -> None:
        """The next push nobody asked for comes so late that they cost a small part of the time."""
        if self._on_its_way is not None:
            self._pace.answered()
        self._on_its_way = None

    def waits(self, sentence: str) -> None:
        with self.news:
            self.sentence = sentence
            self.news.notify_all()

    def stop(self, reason: str) -> None:
        with self.news:
            self.stopped = reason
            self.news.notify_all()

    def broke(self, error: MurmurateError | None) -> bool:
        with self.news:
            was, self.connected = self.connected, False
            self._arriving = False
            self._drop()
            self.news.notify_all()
            if error is None:
                return True
            self.trouble = error
            patient = isinstance(error, PeerExists) and not self.ever
            if lasting(error) and not patient:
                if isinstance(error, RemoteProtocolError):
                    error = SchemaMismatch(f"the coordinator: {error}")
                self._fail(error)
                return False
            now = time.monotonic()
            if was or now - self._said_at > SAY_S:
                self._said_at = now
                more = "; training goes on" if self.lease is not None else ""
                log.warning("%s%s", error, more)
            return True

    def _drop(self) -> None:
        """What was put and not sent will not be: it is as if it had not been put."""
        if self._queued is not None:
            self._queued = None
            self.tally.published -= 1
            if self.lease is not None:
                self.lease.pushed, self.lease.done = self.lease.taken, False

    def fail(self, error: BaseException) -> None:
        """The link's thread died."""
        with self.news:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self.connected = False
        self.news.notify_all()
