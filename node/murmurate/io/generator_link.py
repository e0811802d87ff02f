"""The peer's side of its stream of batches: opened, kept, and opened again when it broke."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any, Protocol

import grpc.aio

from murmurate.core.dealer import Totals
from murmurate.errors import (
    MurmurateError,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.io import generator_wire as wire
from murmurate.io.generator_batch import Batch, Unpacking
from murmurate.io.grpc_terms import (
    GRPC_ERRORS,
    REFUSED,
    LinkEnded,
    Outcome,
    channel_options,
    first_of,
    read,
)
from murmurate.io.transport import Limits

PING_S = wire.LEASE_S / 4
BYE_S = 1.0


class Taker(Protocol):
    """What the link talks for: whoever holds the batches until they are trained on. Called on the
    link's thread only."""

    def hello(self) -> wire.FeedHello: ...

    def welcomed(self, welcome: wire.FeedWelcome) -> None:
        """SchemaMismatch: from that one nothing is taken."""

    def ask(self) -> wire.Ask | None:
        """What there is to say now."""

    def dealt(self, batches: list[tuple[int, Batch]]) -> None: ...

    def confirmed(self, number: int) -> None: ...

    def denied(self, number: int) -> None: ...

    def taken(self, number: int) -> None: ...

    def leased(self, until: float) -> None: ...

    def ended(self, totals: Totals) -> None: ...

    def skipped(self, count: int) -> None: ...

    def broke(self, error: MurmurateError | None) -> None:
        """The stream ended; it is opened again, unless `error` is for good (`lasting`)."""


class GeneratorLink:
    """A stream to the generator at `address`, as long as `run` runs."""

    def __init__(self, address: str, taker: Taker, limits: Limits | None = None) -> None:
        self.address = address
        self._taker = taker
        self._limits = limits or Limits()
        self._wake = asyncio.Event()
        self._again = asyncio.Event()
        self._closing = False
        self._welcomed = False
        self._task: asyncio.Task[None] | None = None
        self._pings: dict[int, float] = {}
        self._ping = self._due = 0

    # -- on the link's thread --------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to say."""
        self._wake.set()

    def renew(self) -> None:
        """Begin again with a new hello."""
        self._again.set()

    def close(self) -> None:
        """Say goodbye, then end."""
        self._closing = True
        self._wake.set()
        self._again.set()
        if not self._welcomed and self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Until it is closed, or refused for good."""
        self._task = asyncio.current_task()
        try:
            await self._run()
        finally:
            self._task = None

    async def _run(self) -> None:
        limits, failures = self._limits, 0
        while True:
            self._again.clear()
            error = await self._stream()
            if self._closing:
                return
            if not self._again.is_set():
                self._taker.broke(error)
            if error is not None and lasting(error):
                return
            failures = 0 if self._welcomed else failures + 1
            wait_s = min(limits.backoff_min_s * 2.0 ** min(failures, 10), 2.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._again.wait()

    async def _stream(self) -> MurmurateError | None:
        """One stream: why it ended."""
        options = channel_options(self._limits, wire.DEAL_BYTES_MAX)
        self._welcomed = False
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            call = channel.stream_stream(f"/{wire.SERVICE}/Feed")()
            outcome = Outcome(call)
            try:
                async with asyncio.timeout(self._limits.dial_s):
                    hello = wire.Ask(hello=self._taker.hello())
                    await call.write(wire.encode_ask(hello))
                    welcome = wire.decode_deal(await read(call)).welcome
                if welcome is None:
                    raise RemoteProtocolError("deal.welcome", "missing: it is said first")
                self._taker.welcomed(welcome)
                self._welcomed = True
                self._pings.clear()
                self._wake.set()
                unpacking = Unpacking(welcome.tensors)
                await first_of(
                    self._speak(call), self._listen(call, unpacking), self._keep(), self._renewed()
                )
                return None
            except (RemoteProtocolError, SchemaMismatch) as error:
                return error
            except (TimeoutError, LinkEnded, *GRPC_ERRORS):
                code, details = await outcome.status()
                kind = REFUSED.get(code)
                if kind is not None:
                    return kind(details)
                what = "ended the stream" if self._welcomed else "does not answer"
                return PeerUnavailable(f"the generator at {self.address} {what}")
            finally:
                call.cancel()

    async def _speak(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            ask, due, self._due = self._taker.ask(), self._due, 0
            if ask is not None or due:
                await call.write(wire.encode_ask(replace(ask or wire.Ask(), ping=due)))
            if self._closing:
                await call.write(wire.encode_ask(wire.Ask(bye=True)))
                await call.done_writing()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BYE_S):
                        await asyncio.Event().wait()  # the other side ends it
                return

    async def _listen(self, call: Any, unpacking: Unpacking) -> None:
        taker = self._taker
        while True:
            deal = wire.decode_deal(await read(call))
            for number in deal.confirmed:
                taker.confirmed(number)
            for number in deal.denied:
                taker.denied(number)
            for number in deal.taken:
                taker.taken(number)
            if deal.pong and (sent := self._pings.pop(deal.pong, None)) is not None:
                taker.leased(sent + wire.LEASE_S)
            if deal.piece is not None:
                batches = unpacking.take(deal.piece, deal.raw)
                if unpacking.skipped:
                    taker.skipped(unpacking.skipped)
                    unpacking.skipped = 0
                if batches:
                    taker.dealt(batches)
            if deal.end is not None:
                taker.ended(deal.end)

    async def _keep(self) -> None:
        """Ask now and then whether what was confirmed still holds."""
        while True:
            now = time.monotonic()
            self._ping += 1
            self._due = self._ping
            self._pings = {n: at for n, at in self._pings.items() if now < at + wire.LEASE_S}
            self._pings[self._due] = now
            self._wake.set()
            await asyncio.sleep(PING_S)

    async def _renewed(self) -> None:
        await self._again.wait()
        if self._closing:
            await asyncio.Event().wait()  # first the goodbye


def lasting(error: MurmurateError) -> bool:
    """Whether trying again cannot help."""
    return not isinstance(error, PeerUnavailable)
