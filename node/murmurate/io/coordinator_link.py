"""A member's side of its stream to the coordinator: kept, and opened again when it broke."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

import grpc.aio

from murmurate.errors import (
    ChecksumMismatch,
    MurmurateError,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.io import coordinator_wire as wire
from murmurate.io.coordinator_values import Incoming, Outgoing, Values
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

DOING_S = 2.0
"""Between two words about how the member is doing. Each wakes threads on both sides, whose caches
training has emptied: with four members and a coordinator on 2 cores that was seen in the rate."""
BYE_S = 1.0
AGAIN_S = 2.0
"""At most, between two attempts."""


class Trainee(Protocol):
    """What the link talks for. Called on the link's thread only."""

    def hello(self) -> wire.WorkHello: ...

    def welcomed(self, welcome: wire.WorkWelcome) -> None:
        """SchemaMismatch: from that one nothing is taken."""

    def push(self) -> tuple[wire.Return, Outgoing] | None:
        """A push that is to be sent now, once."""

    def sent(self) -> None:
        """All of it is out."""

    def doing(self) -> wire.Doing: ...

    def incoming(self, give: wire.Give) -> Incoming:
        """Room for what was announced; RemoteProtocolError: it cannot be a subnet of mine."""

    def given(self, give: wire.Give, values: Values) -> None: ...

    def taken(self, taken: wire.Taken) -> None: ...

    def not_taken(self, not_taken: wire.NotTaken) -> None: ...

    def waits(self, sentence: str) -> None: ...

    def stop(self, reason: str) -> None: ...

    def broke(self, error: MurmurateError | None) -> bool:
        """The stream ended. Whether it is opened again."""


class CoordinatorLink:
    """A stream to the coordinator at `address`, as long as `run` runs."""

    def __init__(self, address: str, trainee: Trainee, limits: Limits | None = None) -> None:
        self.address = address
        self._trainee = trainee
        self._limits = limits or Limits()
        self._wake = asyncio.Event()
        self._again = asyncio.Event()
        self._closing = False
        self._welcomed = False
        self._due = False
        self._task: asyncio.Task[None] | None = None

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
        """Until it is closed, or the trainee has had enough."""
        self._task = asyncio.current_task()
        failures = 0
        try:
            while True:
                self._again.clear()
                error = await self._stream()
                if self._closing or not self._trainee.broke(error):
                    return
                failures = 0 if self._welcomed else failures + 1
                wait_s = min(self._limits.backoff_min_s * 2.0 ** min(failures, 10), AGAIN_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._again.wait()
        finally:
            self._task = None

    async def _stream(self) -> MurmurateError | None:
        """One stream: why it ended; None: it was ended here."""
        options = channel_options(self._limits, wire.MESSAGE_BYTES_MAX)
        self._welcomed = False
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            call = channel.stream_stream(f"/{wire.SERVICE}/Train")()
            outcome = Outcome(call)
            try:
                async with asyncio.timeout(self._limits.dial_s):
                    await call.write(wire.encode_work(wire.Work(hello=self._trainee.hello())))
                    welcome = wire.decode_task(await read(call)).welcome
                if welcome is None:
                    raise RemoteProtocolError("task.welcome", "missing: it is said first")
                self._trainee.welcomed(welcome)
                self._welcomed = True
                self._wake.set()
                await first_of(self._speak(call), self._listen(call), self._keep(), self._renewed())
                return None
            except (RemoteProtocolError, SchemaMismatch) as error:
                return error
            except (TimeoutError, LinkEnded, *GRPC_ERRORS):
                code, details = await outcome.status()
                kind = REFUSED.get(code)
                if kind is not None:
                    return kind(details)
                what = "ended the stream" if self._welcomed else "does not answer"
                return PeerUnavailable(f"the coordinator at {self.address} {what}")
            finally:
                call.cancel()

    async def _speak(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (push := self._trainee.push()) is not None:
                await self._send(call, *push)
            if self._due:
                self._due = False
                await call.write(wire.encode_work(wire.Work(doing=self._trainee.doing())))
            if self._closing:
                await call.write(wire.encode_work(wire.Work(bye=True)))
                await call.done_writing()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BYE_S):
                        await asyncio.Event().wait()  # the other side ends it
                return

    async def _send(self, call: Any, push: wire.Return, values: Outgoing) -> None:
        for offset, raw in values.pieces():
            said = wire.Work(push=None if offset else push, offset=offset, raw=raw)
            await call.write(wire.encode_work(said))
        self._trainee.sent()

    async def _listen(self, call: Any) -> None:
        trainee = self._trainee
        give: wire.Give | None = None
        incoming: Incoming | None = None
        while True:
            task = wire.decode_task(await read(call))
            if incoming is not None and (task.give is not None or not task.raw):
                raise RemoteProtocolError("task", "said before all of the values were here")
            if task.give is not None:
                give, incoming = task.give, trainee.incoming(task.give)
            if task.raw:
                if give is None or incoming is None:
                    raise RemoteProtocolError("task.raw", "bytes of nothing that was announced")
                if incoming.take(task.offset, task.raw):
                    trainee.given(give, incoming.values)
                    give = incoming = None
            if task.welcome is not None:
                raise RemoteProtocolError("task.welcome", "said twice")
            if task.taken is not None:
                trainee.taken(task.taken)
            if task.not_taken is not None:
                trainee.not_taken(task.not_taken)
            if task.waits:
                trainee.waits(task.waits)
            if task.stop:
                trainee.stop(task.stop)

    async def _keep(self) -> None:
        while True:
            self._due = True
            self._wake.set()
            await asyncio.sleep(DOING_S)

    async def _renewed(self) -> None:
        await self._again.wait()
        if self._closing:
            await asyncio.Event().wait()  # first the goodbye


def lasting(error: MurmurateError) -> bool:
    """Whether trying again cannot help."""
    return not isinstance(error, PeerUnavailable | ChecksumMismatch)
