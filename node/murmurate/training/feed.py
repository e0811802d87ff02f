"""Batches from a generator for a training loop that never waits for the network if it can help it.

A thread keeps some batches ready. An update says which batches are in it, and leaves only while the
lease of these holds: until some seconds after the last word that the generator answered. If that
is over, the steps stay with the next ones, in the same update, until the generator has said whose
they are: nobody waits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from murmurate.core.batches.dealer import AHEAD_MAX, Take
from murmurate.core.batches.held import STAMP_RUNS_MAX, runs_of
from murmurate.core.intervals import Runs, runs_has
from murmurate.edge.net.batch_link import BatchLink
from murmurate.edge.net.batch_values import Batch, shape_of
from murmurate.edge.net.coordinator_link import lasting
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

AHEAD_S = 0.1
"""Batches for about so long are ready or on their way."""
AHEAD_MIN = 4
SAY_S = 5.0
"""Between two lines about a generator that is not there."""
LINGER_S = 0.2
"""After so long without a batch, steps that wait for more steps are published."""
FOLLOW_S = 0.05
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
        """In each batch; known when the first has come."""
        self.ended = ""
        """Why there are no more; empty: there may be."""
        self.consumed = 0
        """Batches in updates of mine."""
        self._swarm = swarm
        self._audit = open(audit, "a", encoding="utf-8") if audit is not None else None  # noqa: SIM115
        self._port = swarm.runtime.training
        self._figures = swarm.runtime.figures
        self._lock = threading.Lock()
        self._ready: deque[tuple[int, Batch]] = deque()
        self._open: list[int] = []
        """In steps that are in no update yet."""
        self._spoiled = False
        """Some of these are not mine any more: the steps must be taken back."""
        self._back: list[int] = []
        self._spent: list[int] = []
        self._coming = 0
        """Asked for and not here yet."""
        self._until = 0.0
        """The lease of all that is mine."""
        self._epoch = self._port.life().epoch
        self._first = True
        self._tensors = ""
        self._step_s = self._taken_at = 0.0
        self._welcomed = self._connected = False
        self._given_up: MurmurateError | None = None
        self._lost_at = self._said_at = time.monotonic()
        self._link = BatchLink(address, self, limits, swarm.credentials)
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
            if self._spoiled:
                self._swarm.discard()
            batch = self._take()
            if batch is not None or self._over():
                break
            began = began or time.monotonic()
            if idle():
                break
            if time.monotonic() - began > LINGER_S:
                self._swarm.publish()
            self._swarm.follow(lambda: bool(self._ready or self._spoiled or self.ended), FOLLOW_S)
        if began is not None:
            self._figures.waited(time.monotonic() - began)
        return batch

    def _take(self) -> Batch | None:
        life = self._port.life()
        if life.epoch != self._epoch:
            self._begin_life(life.epoch)
        if not life.synced:
            return None  # a snapshot will come, and take the steps before it away
        with self._lock:
            if not self._ready or len(self._open) >= STAMP_RUNS_MAX:
                return None
            number, batch = self._ready.popleft()
            self._open.append(number)
            now = time.monotonic()
            step_s, self._taken_at = now - self._taken_at, now
            if step_s < 1.0:  # else a pause
                self._step_s = 0.95 * self._step_s + 0.05 * step_s if self._step_s else step_s
            lacking = self._lacking() > 0
        if lacking:
            self._kick()
        return batch

    def _lacking(self) -> int:
        """Batches that should be on their way and are not; asked for by the half; lock held."""
        ahead = min(AHEAD_MAX, max(AHEAD_MIN, round(AHEAD_S / max(self._step_s, 1e-6))))
        there = len(self._ready) + self._coming
        return ahead - there if 2 * there <= ahead else 0

    def _begin_life(self, epoch: int) -> None:
        """What was dealt to my last life is not mine: the generator finds out what became of it."""
        with self._lock:
            self._epoch = epoch
            self._ready.clear()
            self._open, self._back, self._spent, self._spoiled = [], [], [], False
            self._until = 0.0
        self._thread.call(self._link.renew)

    def _over(self) -> bool:
        """Whether there will be no more batches."""
        if self._given_up is not None:
            if isinstance(self._given_up, SchemaMismatch) and not self._welcomed:
                raise SchemaMismatch(f"the generator at {self.address}: {self._given_up}")
            return True
        if self.ended:
            return True
        lost_s = time.monotonic() - self._lost_at
        return not self._connected and lost_s > ALONE_S and self._others_are_done()

    def _others_are_done(self) -> bool:
        """Whether the end came while I was not listening."""
        done = [entry.done for entry in self._figures.others_told()]
        return bool(done) and all(done)

    def close(self) -> None:
        """No more steps: what may still be published is, the rest is for others."""
        with self._lock:
            self._closing = True
            self._back += [number for number, _ in self._ready]
            self._ready.clear()
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
            leased = not self._open or time.monotonic() < self._until
            return leased and not self._spoiled

    def batches(self) -> Runs:
        with self._lock:
            return runs_of(self._open)

    def published(self) -> None:
        with self._lock:
            numbers, self._open = self._open, []
            self.consumed += len(numbers)
        if self._audit is not None and numbers:
            life = self._port.life()
            dot = (self._figures.name, life.epoch, life.seq)
            self._audit.write(json.dumps({"update": dot, "batches": numbers}) + "\n")
            self._audit.flush()

    def dropped(self) -> None:
        """The steps since the last update are not in the weights any more."""
        self._drop(self._back)

    def undone(self) -> None:
        """Their result was not finite: nobody else needs to try."""
        self._drop(self._spent)

    def _drop(self, into: list[int]) -> None:
        with self._lock:
            into += self._open
            self._open, self._spoiled = [], False
        self._kick()

    # -- Taker: what the link says and hears -------------------------------------------------------

    def me(self) -> tuple[str, str, str]:
        return self._figures.run, self._figures.name, f"{self._epoch}"

    def opened(self) -> None:
        with self._lock:
            self._coming, self._first = 0, True
            self._welcomed = True
        if not self._connected:
            self._connected = True
            log.info("%s: batches come from %s", self._figures.name, self.address)

    def take(self, *, beat: bool) -> Take | None:
        with self._lock:
            stopped = bool(self._closing or self.ended)
            more = 0 if stopped else self._lacking()
            if not (beat or more or self._back or self._spent or self._closing):
                return None
            # First what is in no update, then what is: whatever is published meanwhile is in both.
            mine = (*(number for number, _ in self._ready), *self._open)
            keeps = runs_of(mine) if self._first else ()
            back, spent = runs_of(self._back), runs_of(self._spent)
            self._back.clear()
            self._spent.clear()
            self._first = False
            self._coming += more
        held = self._port.batches()
        return Take(
            swarm=self._figures.swarm,
            more=more,
            here=held.numbers,
            twice=held.repeated,
            keeps=keeps,
            back=back,
            spent=spent,
        )

    def dealt(self, batches: list[tuple[int, Batch]], samples: int) -> None:
        here, repeated = self._port.batches().numbers, []
        tensors = " ".join(map(str, shape_of(batches[0][1])))
        if tensors != (self._tensors or tensors):
            raise RemoteProtocolError("batches", f"of {tensors} now, they were {self._tensors}")
        self._tensors, self.samples = tensors, samples
        with self._lock:
            known = {*self._open, *(number for number, _ in self._ready)}
            for number, batch in batches:
                self._coming = max(0, self._coming - 1)
                if number in known or runs_has(here, number):
                    repeated.append(number)
                elif self._closing:
                    self._back.append(number)
                else:
                    self._ready.append((number, batch))
        for number in repeated:
            detail = f"batch {number} again, which is trained on already"
            self._port.reject("batch_repeated", self.address, detail)
        self._port.wake()

    def leased(self, numbers: Runs, until: float) -> None:
        with self._lock:
            self._until = max(self._until, until)
            self._ready = deque(each for each in self._ready if runs_has(numbers, each[0]))
            kept = [number for number in self._open if runs_has(numbers, number)]
            self._spoiled |= len(kept) < len(self._open)
            self._open = kept
        if self._spoiled:
            self._port.wake()

    def stop(self, reason: str) -> None:
        self.ended = reason
        self._port.wake()

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
        elif not self.ended and now - self._said_at > SAY_S:
            self._said_at = now
            why = error if error is not None else PeerUnavailable("the stream broke")
            log.warning("%s: no batches, following the swarm; trying again", why)
        self._port.wake()

    # -- inside ------------------------------------------------------------------------------------

    def _kick(self) -> None:
        self._thread.call(self._link.wake)
