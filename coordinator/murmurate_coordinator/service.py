"""The coordinator's streams: what members say is told to the centre, and back.

One thread owns the `Sessions`: whatever takes time with the model (checking a push, folding it in,
cutting subnets) happens there, one call after another, and the event loop goes on carrying pieces
meanwhile. What the centre has to say is put into the queues of the streams, in the order in which
it was said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.coordinator_link import STOP, TRAIN
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.description import Description
from murmurate.edge.net.grpc_terms import reason_of
from murmurate.edge.net.stream_server import Rejections, StreamServer, Visit
from murmurate.edge.net.transport import Limits
from murmurate.errors import (
    MurmurateError,
    PeerExists,
    PeerTimeout,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate_coordinator.session_words import Coming, NoRoom, Out
from murmurate_coordinator.sessions import Sessions

log = logging.getLogger("murmurate")
T = TypeVar("T")

LIMITS = Limits(keepalive_s=5.0, keepalive_timeout_s=5.0)
"""A member that died without a word is noticed after ten seconds."""
TICK_S = 0.5


class CoordinatorService:
    """`listen` may have port 0."""

    def __init__(
        self,
        listen: str,
        centre: Sessions,
        *,
        advertise: str | None = None,
        describe: Callable[[], Description] | None = None,
        stop_run: Callable[[], None] | None = None,
        limits: Limits = LIMITS,
        credentials: Credentials,
    ) -> None:
        self.centre = centre
        """Of the owner's thread: `own` asks it."""
        self.limits = limits
        self.rejections = Rejections()
        """Streams that were refused or cut; pushes are counted by the rules."""
        self.server = StreamServer(
            listen, advertise=advertise, limits=limits, credentials=credentials
        )
        self.server.take(TRAIN, self)
        if describe is not None:
            self.server.describe(lambda: self.own(describe), self.rejected)
        if stop_run is not None:
            self.server.answer(
                wire.SERVICE, STOP, lambda data: self._stopped(data, stop_run), self.rejected
            )
        self.failed: BaseException | None = None
        """A promise that does not hold, or a mistake in this program."""
        self._streams: dict[int, _Stream] = {}
        self._numbers = 0
        self._owner = ThreadPoolExecutor(1, "centre")
        self._loop: asyncio.AbstractEventLoop
        self._ticking: asyncio.Task[None] | None = None

    # -- for the program -------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. ConfigError: the address is taken."""
        self._loop = asyncio.get_running_loop()
        await self.server.start()
        self._ticking = asyncio.create_task(self._tick())

    @property
    def address(self) -> str:
        """Where others reach it; known after `start`."""
        return self.server.address

    async def own(self, call: Callable[..., T], *args: Any) -> T:
        """Have the owner of the centre do this, after what it is doing."""
        return await self._loop.run_in_executor(self._owner, self._do, call, args)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """The same, without waiting for it."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._owner.submit(self._do, call, args)

    async def close(self, grace_s: float = 0.5) -> None:
        """Nobody is heard from now on: what was answered as taken is in the model, and no more
        will be. The owner still answers `own`."""
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
            self._ticking = None
        for stream in list(self._streams.values()):
            stream.end()
        await self.server.stop(grace_s)

    async def stop(self, grace_s: float = 0.5) -> None:
        await self.close(grace_s)
        await asyncio.to_thread(self._owner.shutdown)

    @property
    def open(self) -> int:
        """Streams."""
        return len(self._streams)

    # -- the owner's thread ----------------------------------------------------------------------

    def _do(self, call: Callable[..., T], args: Sequence[Any]) -> T:
        centre = self.centre
        try:
            return call(*args)
        except (RemoteProtocolError, SchemaMismatch, PeerExists, PeerUnavailable):
            raise
        except Exception as error:
            self.failed = self.failed or error
            raise
        finally:
            out, centre.out = centre.out, []
            for line in centre.lines.news:
                log.info("%s", line)
            for line in centre.lines.warnings:
                log.warning("%s", line)
            centre.lines.news.clear()
            centre.lines.warnings.clear()
            if out:
                self._loop.call_soon_threadsafe(self._dispatch, out)

    def _dispatch(self, out: list[Out]) -> None:
        for each in out:
            if (stream := self._streams.get(each.stream)) is not None:
                stream.send(each)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.own(self._tick_now)

    def _tick_now(self) -> None:
        self.centre.tick(time.monotonic())

    # -- streams ---------------------------------------------------------------------------------

    def greeted(self, data: bytes) -> wire.WorkHello:
        hello = wire.decode_work(data).hello
        if hello is None:
            raise RemoteProtocolError("work.hello", "missing: it is said first")
        return hello

    async def _stopped(self, data: bytes, stop_run: Callable[[], None]) -> bytes:
        """Somebody says that the run is to end."""
        wire.STOP_RUN.decode(data)
        stop_run()
        members = await self.own(lambda: self.centre.awaited)
        return wire.RUN_STOPS.encode(wire.RunStops(run=self.centre.run, members=members))

    async def attend(self, greeting: wire.WorkHello, stream: Visit) -> None:
        self._numbers += 1
        member = _Stream(self, self._numbers, greeting.name, stream)
        self._streams[member.number] = member
        centre = self.centre
        try:
            welcome = await self.own(centre.hello, member.number, greeting, time.monotonic())
            await member.run(welcome)
        finally:
            del self._streams[member.number]
            self.post(centre.gone, greeting.name, member.number, time.monotonic())

    def rejected(self, sender: str, error: MurmurateError) -> None:
        no_room = isinstance(error, NoRoom)  # counted by the rules
        reason = "full" if no_room else reason_of(error)
        self.rejections.note(reason, sender, error, count=not no_room)

    def quarantined(self, sender: str) -> None:
        """It is told when it comes again, and counted then."""

    def stumbled(self, sender: str, bug: Exception) -> None:
        self.rejections.note("bug", sender, bug)  # what the centre did wrong is in `failed`


class _Stream:
    """One member."""

    def __init__(self, service: CoordinatorService, number: int, name: str, stream: Visit) -> None:
        self.number = number
        self._service = service
        self._name = name
        self._stream = stream
        self.end = stream.end
        self._queue: deque[Out] = deque()
        self._wake = asyncio.Event()

    def send(self, out: Out) -> None:
        if out.task is not None and out.task.give is not None:  # it makes void what was not sent
            self._queue = deque(each for each in self._queue if each.values is None)
        self._queue.append(out)
        self._wake.set()

    async def run(self, welcome: wire.WorkWelcome) -> None:
        await self._write(wire.Task(welcome=welcome))
        await self._stream.until_over(self._listen(), self._speak())

    # -- what comes --------------------------------------------------------------------------------

    async def _listen(self) -> None:
        service, centre, name = self._service, self._service.centre, self._name
        coming: Coming | None = None
        while True:
            work = await self._heard(coming)
            done = False
            if work.hello is not None:
                raise RemoteProtocolError("work.hello", "again")
            if work.push is not None:
                if coming is not None:
                    raise RemoteProtocolError("work.push", "before the values of the last one")
                coming = await service.own(self._begun, work.push, work.raw)
            elif work.raw:
                if coming is None:
                    raise RemoteProtocolError("work.raw", "values that were not announced")
                done = coming.into.take(work.offset, work.raw)
            elif work.doing is not None:
                await service.own(centre.doing, name, self.number, work.doing, time.monotonic())
            elif work.take is not None:
                await service.own(centre.take, name, self.number, work.take, time.monotonic())
            elif work.bye:
                await service.own(centre.bye, name, self.number, time.monotonic())
            if done:
                await service.own(centre.push, name, self.number, coming, time.monotonic())
                coming = None

    def _begun(self, head: wire.Return, raw: bytes | memoryview) -> Coming | None:
        """In the owner's thread: a push with its first values. None: these were all, and it is
        in, so that a small model goes from thread to thread once and not twice."""
        centre = self._service.centre
        coming = centre.announce(self._name, self.number, head)
        if not coming.into.take(0, raw):
            return coming
        centre.push(self._name, self.number, coming, time.monotonic())
        return None

    async def _heard(self, coming: Coming | None) -> wire.Work:
        """The next message; values that have begun must go on coming."""
        limit = None if coming is None else self._service.limits.stall_max_s
        try:
            async with asyncio.timeout(limit):
                return wire.decode_work(await self._stream.read())
        except TimeoutError:
            raise PeerTimeout("stalled: the values of its push do not come") from None

    # -- what goes ---------------------------------------------------------------------------------

    async def _speak(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                out = self._queue.popleft()
                if out.task is None:
                    return
                if out.values is None:
                    await self._write(out.task)
                    continue
                for offset, raw in out.values.pieces(self._stream.piece):
                    piece = wire.Task(offset=offset, raw=raw)
                    await self._write(piece if offset else replace(out.task, raw=raw))

    async def _write(self, task: wire.Task) -> None:
        limit_s = self._service.limits.stall_s
        late = "stalled: what it is given is not read"
        await self._stream.write(wire.encode_task(task), limit_s, late, len(task.raw))
