"""The stream of one who takes batches: kept, and opened again when it broke.

It is a member's stream to a coordinator (`coordinator_link.TRAIN`) on which no model travels.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from murmurate.core.batches.dealer import LEASE_S, Take
from murmurate.core.intervals import Runs
from murmurate.core.partition.structure import NO_STRUCTURE
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.batch_values import Batch, IncomingBatches
from murmurate.edge.net.coordinator_link import TRAIN, lasting
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.stream_client import KeptStream, OpenStream
from murmurate.edge.net.subnet_values import structure_digest
from murmurate.edge.net.transport import Limits
from murmurate.errors import MurmurateError, RemoteProtocolError, SchemaMismatch

MODE = "batches"
DIGEST = structure_digest(NO_STRUCTURE)
BEAT_S = LEASE_S / 8


class Taker(Protocol):
    """What the link talks for: whoever holds the batches until they are trained on. Called on the
    link's thread only."""

    def me(self) -> tuple[str, str, str]:
        """Run, name, and the life of it that takes batches now."""

    def opened(self) -> None:
        """The dealer has welcomed me."""

    def take(self, *, beat: bool) -> Take | None:
        """What there is to say now; `beat`: something must be."""

    def dealt(self, batches: list[tuple[int, Batch]], samples: int) -> None: ...

    def leased(self, numbers: Runs, until: float) -> None:
        """These are mine, and what I publish of them may leave until then."""

    def stop(self, reason: str) -> None: ...

    def broke(self, error: MurmurateError | None) -> None:
        """The stream ended; it is opened again, unless `error` is for good (`lasting`)."""


class BatchLink(KeptStream):
    """A stream to the dealer at `address`, as long as `run` runs."""

    kind = TRAIN
    whom = "the generator"
    beat_s = BEAT_S

    def __init__(
        self, address: str, taker: Taker, limits: Limits | None, credentials: Credentials
    ) -> None:
        super().__init__(address, limits, credentials)
        self._taker = taker
        self._asked: dict[int, float] = {}
        self._number, self._due = 0, False
        self._coming: IncomingBatches | None = None

    def greeting(self) -> bytes:
        run, name, life = self._taker.me()
        hello = wire.WorkHello(structure=DIGEST, run=run, name=name, instance=life, mode=MODE)
        return wire.encode_work(wire.Work(hello=hello))

    def welcomed(self, data: bytes) -> None:
        welcome = wire.decode_task(data).welcome
        if welcome is None or welcome.mode != MODE:
            raise SchemaMismatch("it is a coordinator of something else than batches")
        self._asked.clear()
        self._coming = None
        self._due = True
        self._taker.opened()

    async def say(self, stream: OpenStream) -> None:
        due, self._due = self._due, False
        take = self._taker.take(beat=due)
        if take is not None:
            if due:
                now = time.monotonic()
                self._number += 1
                self._asked = {n: at for n, at in self._asked.items() if now < at + LEASE_S}
                self._asked[self._number] = now
                take = replace(take, beat=self._number)
            await stream.write(wire.encode_work(wire.Work(take=take)))

    def goodbye(self) -> bytes:
        return wire.encode_work(wire.Work(bye=True))

    def hear(self, data: bytes) -> None:
        taker, task = self._taker, wire.decode_task(data)
        if task.batches is not None:
            if self._coming is not None:
                raise RemoteProtocolError("task.batches", "before the others were all here")
            self._coming = IncomingBatches(task.batches)
        if task.raw:
            if self._coming is None:
                raise RemoteProtocolError("task.raw", "bytes of nothing that was announced")
            made = self._coming.take(task.offset, task.raw)
            if made is not None:
                samples, self._coming = self._coming.head.samples, None
                taker.dealt(made, samples)
        if task.lease is not None:
            asked = self._asked.pop(task.lease.beat, None)
            if asked is not None:
                taker.leased(task.lease.numbers, asked + LEASE_S)
        if task.stop:
            taker.stop(task.stop)

    def beat(self) -> None:
        self._due = True

    def broke(self, error: MurmurateError | None, *, renewed: bool) -> bool:
        if not renewed:
            self._taker.broke(error)
        return error is None or not lasting(error)
