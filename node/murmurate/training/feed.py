"""Batches from a generator for a training loop that never waits for the network if it can help it.

A thread keeps some batches ready, and claims them ahead, in groups, for the updates they will be in
(`core.batches.ledger`). An update does not leave before the generator has confirmed all its claims
(`may_publish`), which is normally long before its steps are done. If not, the steps stay with the
next ones, in the same update: nobody waits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from murmurate.core.batches.dealer import CREDITS_MAX, Totals
from murmurate.core.batches.held import runs_of
from murmurate.core.batches.ledger import Ledger
from murmurate.core.batches.numbers_seen import NumbersSeen
from murmurate.core.intervals import Runs
from murmurate.edge.net import generator_wire as wire
from murmurate.edge.net.generator_batch import Batch
from murmurate.edge.net.generator_link import GeneratorLink, lasting
from murmurate.edge.net.link_thread import LinkThread
from murmurate.edge.net.transport import Limits
from murmurate.errors import (
    ChecksumMismatch,
    MurmurateError,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)

if TYPE_CHECKING:
    from murmurate.training.swarm import Swarm

log = logging.getLogger("murmurate")

GROUP_S = 0.01
"""A group of batches is so many that training on it takes this long, or twice as long as an answer:
then messages are few, and answers in time. One, where a step takes longer."""
GROUP_MAX = 16
BULK_S = 0.03
"""Batches for about this long are asked for at once; twice as many are ready or on their way."""
AHEAD_MIN = 4
SAY_S = 5.0
"""Between two lines about a generator that is not there."""
LINGER_S = 0.2
"""After so long without a batch, steps that wait for more steps are published."""
FOLLOW_S = 0.05
CONFIRM_S = 2.0
CLOSE_S = 5.0
DRAIN_S = 0.05
"""gRPC still tells a closed stream's end to its loop, which must be there."""
ALONE_S = 5.0


class Feed:
    """The batches of one node. `next` and the methods of `publisher.Source` are for the training
    thread, those of `Taker` for the link's."""

    def __init__(
        self,
        swarm: Swarm,
        address: str,
        *,
        audit: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`audit`: a file for a line of JSON per update: who made it, and the batches in it."""
        self.address = address
        self.samples = 0
        """In each batch; known when the generator has answered."""
        self.totals: Totals | None = None
        self.consumed = 0
        """Batches in updates of mine."""
        self._swarm = swarm
        self._audit = open(audit, "a", encoding="utf-8") if audit is not None else None  # noqa: SIM115
        self._port = swarm.runtime.training
        self._figures = swarm.runtime.figures
        self._lock = threading.Lock()
        self._ready: dict[int, Batch] = {}
        life = self._port.life()
        self._book = Ledger(life.seq + 1)
        self._coming = 0
        """Asked for and not here yet."""
        self._epoch = life.epoch
        self._lease = 0.0
        self._group = self._bulk = max(1, swarm.publisher.every)
        self._step_s = self._answer_s = 0.0
        self._taken_at = 0.0
        self._claimed_at = 0.0
        """When the claims were sent whose answer is timed; 0: none."""
        self._seen = NumbersSeen()
        self._highest = 0
        self._welcome: wire.FeedWelcome | None = None
        self._given_up: MurmurateError | None = None
        self._connected = False
        self._lost_at = time.monotonic()
        self._said_at = time.monotonic()
        self._link = GeneratorLink(address, self, limits, swarm.credentials)
        self._kicked = False
        self._closing = False
        self._thread = LinkThread("murmurate-feed", self._speak)
        swarm.publisher.source = self
        self._thread.start()

    async def _speak(self) -> None:
        try:
            await self._link.run()
        except asyncio.CancelledError:
            pass  # closed while nobody answered
        except BaseException as error:
            self._port.fail(error)  # raised in the training thread, at its next step
            raise
        finally:
            await asyncio.sleep(DRAIN_S)

    # -- the training thread ---------------------------------------------------------------------

    def next(self, idle: Callable[[], bool] = lambda: False) -> Batch | None:
        """The next batch; None: there are no more, or `idle` said so.

        Waiting for one, the node follows the swarm; `idle` is called now and then.
        """
        began: float | None = None
        while True:
            self._port.check()
            if self._book.spoiled:
                self._swarm.discard()
            batch = self._take()
            if batch is not None or self._over():
                break
            began = began or time.monotonic()
            if idle():
                break
            if time.monotonic() - began > LINGER_S:
                self._swarm.publish()
            self._swarm.follow(lambda: bool(self._ready or self._book.spoiled), FOLLOW_S)
        if began is not None:
            self._figures.waited(time.monotonic() - began)
        return batch

    def _take(self) -> Batch | None:
        life = self._port.life()
        if not life.synced:
            return None  # a snapshot will come, and take the steps before it away
        seq = life.seq + 1
        with self._lock:
            if life.epoch != self._epoch:
                self._begin_life(life.epoch, seq)
            number = self._book.take(seq)
            if number is None:
                return None
            batch = self._ready.pop(number)
            self._time_step()
            if self._book.claims or self._missing() >= self._bulk:
                self._kick()
        return batch

    def _time_step(self) -> None:
        """How many batches go into one update."""
        now = time.monotonic()
        step_s = now - self._taken_at
        self._taken_at = now
        if step_s > 1.0:
            return  # a pause, or long enough for a group of one
        self._step_s = step_s if not self._step_s else 0.95 * self._step_s + 0.05 * step_s
        every = self._swarm.publisher.every
        wanted = max(GROUP_S, 2 * self._answer_s) / max(self._step_s, 1e-6)
        groups = min(GROUP_MAX, max(1.0, wanted)) / every
        self._group = every * max(1, round(groups))
        bulk = min(CREDITS_MAX // 2, round(BULK_S / max(self._step_s, 1e-6)))
        self._bulk = max(1, min(self._group, CREDITS_MAX // 2), bulk)

    def _missing(self) -> int:
        """Batches that should be on their way and are not."""
        ahead = min(CREDITS_MAX, max(AHEAD_MIN, 2 * self._bulk))
        return ahead - len(self._ready) - self._coming

    def _begin_life(self, epoch: int, seq: int) -> None:
        """What was dealt to my last life is not mine: the generator finds out what became of it."""
        self._epoch = epoch
        self._forget_stream()
        self._book.restart(seq)
        self._thread.call(self._link.renew)

    def _over(self) -> bool:
        """Whether there will be no more batches."""
        if self._given_up is not None:
            if isinstance(self._given_up, SchemaMismatch) and self._welcome is None:
                raise SchemaMismatch(f"the generator at {self.address}: {self._given_up}")
            return True
        if self.totals is not None:
            return True
        lost_s = time.monotonic() - self._lost_at
        return not self._connected and lost_s > ALONE_S and self._others_are_done()

    def _others_are_done(self) -> bool:
        """Whether the end came while I was not listening."""
        done = [entry.done for entry in self._figures.others_told()]
        return bool(done) and all(done)

    def close(self) -> None:
        """No more steps: what is claimed is confirmed or taken back, the rest is for others."""
        with self._lock:
            self._book.give_up_ready()
            self._ready.clear()
            self._closing = True
        self._kick()
        self._swarm.follow(lambda: self.may_publish() or not self._connected, CONFIRM_S)
        if self.may_publish():
            self._swarm.publish()
        else:
            self._swarm.discard()
        self._thread.call(self._link.close)
        self._thread.join(CLOSE_S)
        if self._audit is not None:
            self._audit.close()

    # -- Source: what becomes of the steps (the training thread) -----------------------------------

    def may_publish(self) -> bool:
        with self._lock:
            leased = not self._book.open or time.monotonic() < self._lease
            return leased and self._book.may_publish()

    def batches(self) -> Runs:
        with self._lock:
            return runs_of(self._book.open)

    def published(self) -> None:
        with self._lock:
            dot = (self._figures.name, self._epoch, self._book.seq)
            numbers = self._book.published()
            for number in numbers:
                self._seen.add(number)
            self.consumed += len(numbers)
        if self._audit is not None and numbers:
            self._audit.write(json.dumps({"update": dot, "batches": numbers}) + "\n")
            self._audit.flush()

    def dropped(self) -> None:
        """The steps since the last update are not in the weights any more."""
        with self._lock:
            self._book.drop()
        self._kick()

    def undone(self) -> None:
        """Their result was not finite: nobody else needs to try."""
        with self._lock:
            self._book.drop(spent=True)
        self._kick()

    # -- Taker: what the link hears ----------------------------------------------------------------

    def hello(self) -> wire.FeedHello:
        with self._lock:
            self._forget_stream()
            claims = self._book.restart()
            return wire.FeedHello(
                run=self._figures.run,
                swarm=self._figures.swarm,
                name=self._figures.name,
                epoch=self._epoch,
                address=self._figures.address,
                seq=self._book.seq,
                claims=tuple(claims),
            )

    def _forget_stream(self) -> None:
        """What was said and heard on the last stream and is not settled."""
        self._ready.clear()
        self._coming = 0
        self._lease = self._claimed_at = 0.0

    def welcomed(self, welcome: wire.FeedWelcome) -> None:
        before = self._welcome
        if before is not None and before.instance != welcome.instance:
            raise SchemaMismatch(
                "it is another one than before, and would deal what was trained on already"
            )
        if before is not None and before.tensors != welcome.tensors:
            was, now = (" ".join(map(str, w.tensors)) for w in (before, welcome))
            raise SchemaMismatch(f"its batches are {now} now, they were {was}")
        with self._lock:
            self._welcome = welcome
            self.samples = welcome.samples
            if not self._connected:
                self._connected = True
                log.info("%s: batches come from %s", self._figures.name, self.address)

    def ask(self) -> wire.Ask | None:
        with self._lock:
            self._kicked = False
            more = self._missing() if self.totals is None and not self._closing else 0
            more = more if more >= self._bulk or not (self._ready or self._coming) else 0
            claims, spent, back, forgone = self._book.sent()
            if not (more or claims or spent or back or forgone):
                return None
            self._coming += more
            if claims and not self._claimed_at:
                self._claimed_at = time.monotonic()
            return wire.Ask(pull=more, claims=claims, spent=spent, back=back, forgone=forgone)

    def dealt(self, batches: list[tuple[int, Batch]]) -> None:
        repeated = []
        with self._lock:
            for number, batch in batches:
                self._coming = max(0, self._coming - 1)
                self._highest = max(self._highest, number)
                if number in self._book or number in self._seen:
                    repeated.append(number)
                elif self._closing:
                    self._book.back.append(number)
                else:
                    self._ready[number] = batch
                    self._book.arrive(number, self._group)
        for number in repeated:
            detail = f"batch {number} again, which is trained on already"
            self._port.reject("batch_repeated", self.address, detail)
        self._link.wake()
        self._notify()

    def confirmed(self, number: int) -> None:
        with self._lock:
            self._book.confirmed(number)
            if self._claimed_at:
                answer_s = time.monotonic() - self._claimed_at
                self._claimed_at = 0.0
                self._answer_s = (
                    answer_s if not self._answer_s else (0.9 * self._answer_s + 0.1 * answer_s)
                )

    def denied(self, number: int) -> None:
        self._lose(number, self._book.denied)

    def taken(self, number: int) -> None:
        self._lose(number, self._book.taken)

    def _lose(self, number: int, note: Callable[[int], None]) -> None:
        with self._lock:
            note(number)
            if number not in self._book:
                self._ready.pop(number, None)
        self._link.wake()
        self._notify()

    def leased(self, until: float) -> None:
        with self._lock:
            self._lease = max(self._lease, until)

    def ended(self, totals: Totals) -> None:
        welcome = self._welcome
        announced = welcome.batches if welcome is not None else 0
        wrong = totals.consumed != totals.batches or self._highest > totals.batches
        if wrong or (announced and announced != totals.batches):
            detail = (
                f"the end says {totals.consumed} of {totals.batches} batches, announced were"
                f" {announced or 'none'}, the highest number here was {self._highest}"
            )
            self._port.reject("batch_skipped", self.address, detail)
        self.totals = totals
        self._notify()

    def skipped(self, count: int) -> None:
        self._port.reject("batch_skipped", self.address, f"{count} batches did not come")

    def broke(self, error: MurmurateError | None) -> None:
        now = time.monotonic()
        if self._connected:
            self._lost_at = now
        self._connected = False
        if error is not None and lasting(error):
            if isinstance(error, RemoteProtocolError):
                self._port.reject("malformed", self.address, str(error))
            log.warning("no more batches from the generator at %s: %s", self.address, error)
            self._given_up = error
        elif isinstance(error, ChecksumMismatch):  # what did not come whole is dealt again
            self._port.reject("digest", self.address, str(error))
        elif self.totals is None and now - self._said_at > SAY_S:
            self._said_at = now
            why = error if error is not None else PeerUnavailable("the stream broke")
            log.warning("%s: no batches, following the swarm; trying again", why)
        self._notify()

    # -- inside ------------------------------------------------------------------------------------

    def _kick(self) -> None:
        if not self._kicked:
            self._kicked = True
            self._thread.call(self._link.wake)

    def _notify(self) -> None:
        self._port.wake()
