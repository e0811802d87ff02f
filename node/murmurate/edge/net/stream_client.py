"""Streams that are opened here: dialled, greeted, kept, and opened again when they broke.

`open_stream` is one stream on a channel of its own, `KeptStream` one after the other to the same
address. Whoever uses them says only what is spoken.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.grpc_terms import (
    GRPC_ERRORS,
    REFUSED,
    CallOutcome,
    LinkEnded,
    StreamRefused,
    channel_options,
    first_of,
    read,
)
from murmurate.edge.net.pieces import PieceSize
from murmurate.edge.net.streams import Kind, LivingStream
from murmurate.edge.net.transport import Limits
from murmurate.errors import (
    MurmurateError,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)

AGAIN_MAX_S = 2.0
"""At most, between two attempts to open a stream that is to be kept."""
BYE_S = 1.0
"""So long the other side has to end a stream after a goodbye."""


class StreamBroke(Exception):
    """A stream is gone, and nobody said why it was refused."""

    def __init__(self, *, answered_late: bool) -> None:
        super().__init__("no answer in time" if answered_late else "the stream broke")
        self.answered_late = answered_late
        """The welcome did not come in time."""


class OpenStream(LivingStream):
    """One stream that was welcomed."""

    def __init__(self, call: Any, welcome: bytes) -> None:
        super().__init__()
        self._call = call
        self.welcome = welcome
        """The first message of the other side."""
        self.piece = PieceSize()
        """How large pieces of something large are on it."""

    async def read(self) -> bytes:
        """The next message. LinkEnded: there is none."""
        return await read(self._call)

    async def write(self, data: bytes, piece_bytes: int = 0) -> None:
        """Returns when there is room for another one: that is the back-pressure. `piece_bytes`: so
        much of it is a piece of something large."""
        began = time.monotonic()
        await self._call.write(data)
        self.piece.took(time.monotonic() - began, piece_bytes)

    async def finish(self) -> None:
        """Nothing more is said; what comes is still read."""
        await self._call.done_writing()


@contextlib.asynccontextmanager
async def open_stream(
    kind: Kind,
    address: str,
    greeting: bytes,
    *,
    within_s: float,
    limits: Limits,
    credentials: Credentials,
) -> AsyncIterator[OpenStream]:
    """A stream for as long as the block runs, welcomed within so many seconds.

    StreamRefused, StreamBroke: it is over, whatever the block did with it.
    """
    options = channel_options(limits, max(kind.up_bytes_max, kind.down_bytes_max))
    async with credentials.open_channel(address, options) as channel:
        call = channel.stream_stream(kind.path)()
        outcome = CallOutcome(call)
        try:
            async with asyncio.timeout(within_s):
                await call.write(greeting)
                welcome = await read(call)
            yield OpenStream(call, welcome)
        except (TimeoutError, LinkEnded, *GRPC_ERRORS) as error:
            code, details = await outcome.status()
            if (refusal := REFUSED.get(code)) is not None:
                raise StreamRefused(refusal(details)) from None
            raise StreamBroke(answered_late=isinstance(error, TimeoutError)) from error
        finally:
            outcome.cut()


class Backoff:
    """How long to wait before a stream is opened again: longer each time nobody welcomed it."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0

    def after(self, *, welcomed: bool) -> float:
        """Seconds, now that one has ended."""
        self._failures = 0 if welcomed else self._failures + 1
        return min(self._first_s * 2.0 ** min(self._failures, 10), self._most_s)


class KeptStream(ABC):
    """A stream to `address`, opened again when it broke, as long as `run` runs.

    All of it happens on the thread of one event loop.
    """

    kind: ClassVar[Kind]
    whom: ClassVar[str]
    """Who is at the other end, for sentences."""
    beat_s: ClassVar[float]
    """Between two calls of `beat`."""

    def __init__(self, address: str, limits: Limits | None, credentials: Credentials) -> None:
        self.address = address
        self._limits = limits or Limits()
        self._credentials = credentials
        self._wake = asyncio.Event()
        self._again = asyncio.Event()
        self._closing = False
        self._welcomed = False
        self._draining = False
        """Nothing more is said on this stream, the next one follows."""
        self._task: asyncio.Task[None] | None = None

    # -- what is spoken --------------------------------------------------------------------------

    @abstractmethod
    def greeting(self) -> bytes:
        """What is said first."""

    @abstractmethod
    def welcomed(self, data: bytes) -> None:
        """The other side's first message. RemoteProtocolError, SchemaMismatch: not with that."""

    @abstractmethod
    async def say(self, stream: OpenStream) -> None:
        """All there is to say now."""

    @abstractmethod
    def goodbye(self) -> bytes:
        """The last message."""

    @abstractmethod
    def hear(self, data: bytes) -> None:
        """One message of the other side. RemoteProtocolError: with that the stream is over."""

    @abstractmethod
    def beat(self) -> None:
        """It is time for a sign of life; `say` comes next."""

    @abstractmethod
    def broke(self, error: MurmurateError | None, *, renewed: bool) -> bool:
        """The stream ended. Whether it is opened again."""

    # -- what others ask of it -------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to say."""
        self._wake.set()

    def renew(self) -> None:
        """Begin again with a new greeting."""
        self._again.set()

    def close(self) -> None:
        """Say goodbye, then end."""
        self._closing = True
        self._wake.set()
        self._again.set()
        if not self._welcomed and self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Until it is closed, or `broke` has had enough."""
        self._task = asyncio.current_task()
        backoff = Backoff(self._limits.backoff_min_s, AGAIN_MAX_S)
        try:
            while True:
                self._again.clear()
                error = await self._stream()
                if self._closing and not self._draining:
                    return
                if not self.broke(error, renewed=self._draining or self._again.is_set()):
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(backoff.after(welcomed=self._welcomed)):
                        await self._again.wait()
        finally:
            self._task = None

    # -- one stream ------------------------------------------------------------------------------

    async def _stream(self) -> MurmurateError | None:
        """One stream: why it ended; None: it was ended here."""
        self._welcomed = self._draining = False
        limits, generation = self._limits, self._credentials.generation
        try:
            async with open_stream(
                self.kind,
                self.address,
                self.greeting(),
                within_s=limits.dial_s,
                limits=limits,
                credentials=self._credentials,
            ) as stream:
                self.welcomed(stream.welcome)
                self._welcomed = True
                self._wake.set()
                await first_of(
                    self._speak(stream, generation),
                    self._listen(stream),
                    self._beat(),
                    self._renewed(),
                )
            return None
        except StreamBroke:
            if self._draining:
                return None
            what = "ended the stream" if self._welcomed else "does not answer"
            return PeerUnavailable(f"{self.whom} at {self.address} {what}")
        except StreamRefused as refused:
            return refused.error
        except (RemoteProtocolError, SchemaMismatch) as error:
            return error

    async def _speak(self, stream: OpenStream, generation: int) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.say(stream)
            # A channel keeps the credentials it began with: with others it is another stream.
            self._draining = self._credentials.generation != generation and not self._closing
            if self._closing:
                await stream.write(self.goodbye())
            if self._closing or self._draining:
                await stream.finish()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(
                        BYE_S if self._closing else self._limits.stall_max_s
                    ):
                        await asyncio.Event().wait()  # the other side reads all of it and ends it
                return

    async def _listen(self, stream: OpenStream) -> None:
        while True:
            self.hear(await stream.read())

    async def _beat(self) -> None:
        while True:
            self.beat()
            self._wake.set()
            await asyncio.sleep(self.beat_s)

    async def _renewed(self) -> None:
        await self._again.wait()
        if self._closing:
            await asyncio.Event().wait()  # first the goodbye
