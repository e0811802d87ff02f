"""The coordinator's streams. The only module here that knows gRPC.

One thread owns the `Centre`: whatever takes time with the model (checking a push, folding it in,
cutting subnets) happens there, one call after another, and the event loop goes on carrying pieces
meanwhile. What the centre has to say is put into the queues of the streams, in the order in which
it was said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import grpc.aio

from murmurate.errors import (
    ChecksumMismatch,
    ConfigError,
    MurmurateError,
    PeerExists,
    PeerTimeout,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.io import coordinator_wire as wire
from murmurate.io.description import (
    DESCRIPTION_BYTES_MAX,
    Description,
    check_describe_request,
    encode_description,
)
from murmurate.io.grpc_terms import (
    SENTENCE_MAX,
    LinkEnded,
    first_of,
    read,
    server_options,
    status_of,
)
from murmurate.io.grpc_terms import SERVICE as PEER_SERVICE
from murmurate.io.quarantine import Quarantine
from murmurate.io.transport import Limits
from murmurate_coordinator.centre import Centre, Coming, NoRoom, Out

log = logging.getLogger("murmurate")
T = TypeVar("T")

LIMITS = Limits(keepalive_s=5.0, keepalive_timeout_s=5.0)
"""A member that died without a word is noticed after ten seconds."""
TICK_S = 0.5
WARN_S = 1.0
REASONS: tuple[tuple[type[MurmurateError], str], ...] = (
    (ChecksumMismatch, "checksum"),
    (RemoteProtocolError, "malformed"),
    (SchemaMismatch, "schema"),
    (PeerExists, "exists"),
    (PeerTimeout, "stalled"),
    (PeerUnavailable, "quarantine"),
)


class CoordinatorService:
    """`listen` may have port 0."""

    def __init__(
        self,
        listen: str,
        centre: Centre,
        *,
        advertise: str | None = None,
        describe: Callable[[], Description] | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self.address = advertise or listen
        self.centre = centre
        """Of the owner's thread: `own` asks it."""
        self.limits = limits
        self.bytes_sent = self.bytes_received = 0
        self.rejected: Counter[str] = Counter()
        """Streams that were refused or cut; pushes are counted by the rules."""
        self.failed: BaseException | None = None
        """A promise that does not hold, or a mistake in this program."""
        self._listen = listen
        self._advertise = advertise
        self._describe = describe
        self._streams: dict[int, _Stream] = {}
        self._numbers = 0
        self._calls = 0
        self._quarantine = Quarantine(limits)
        self._warned: dict[str, float] = {}
        self._owner = ThreadPoolExecutor(1, "centre")
        self._loop: asyncio.AbstractEventLoop
        self._server: Any = None
        self._ticking: asyncio.Task[None] | None = None

    # -- for the program -------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. ConfigError: the address is taken."""
        self._loop = asyncio.get_running_loop()
        limits = self.limits
        options = [
            *server_options(limits, wire.MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", max(wire.MESSAGE_BYTES_MAX, DESCRIPTION_BYTES_MAX)),
        ]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.links_max + 16)
        train = {"Train": grpc.stream_stream_rpc_method_handler(self._train)}
        handlers = [grpc.method_handlers_generic_handler(wire.SERVICE, train)]
        if self._describe is not None:
            describe = {"Describe": grpc.unary_unary_rpc_method_handler(self._described)}
            handlers.append(grpc.method_handlers_generic_handler(PEER_SERVICE, describe))
        server.add_generic_rpc_handlers(tuple(handlers))
        try:
            bound = server.add_insecure_port(self._listen)
        except RuntimeError as error:
            await server.stop(None)
            raise ConfigError(f"listen {self._listen}: cannot be bound; is it in use?") from error
        await server.start()
        self._server = server
        host, _, port = (self._advertise or self._listen).rpartition(":")
        self.address = f"{host}:{bound if port == '0' else port}"
        self._ticking = asyncio.create_task(self._tick())

    async def own(self, call: Callable[..., T], *args: Any) -> T:
        """Have the owner of the centre do this, after what it is doing."""
        return await self._loop.run_in_executor(self._owner, self._do, call, args)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """The same, without waiting for it."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._owner.submit(self._do, call, args)

    async def stop(self, grace_s: float = 0.5) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        for stream in list(self._streams.values()):
            stream.end()
        if self._server is not None:
            await self._server.stop(grace_s)
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

    async def _train(self, _: Any, context: Any) -> None:
        self._calls += 1
        host = context.peer().rpartition(":")[0]
        name = host
        now = time.monotonic
        try:
            if self._calls > self.limits.links_max:
                raise PeerUnavailable(f"{self.limits.links_max} streams already")
            hello = await self._greeted(context)
            name = hello.name
            if left_s := self._quarantine.left_s(f"{name} {host}", now()):
                raise PeerUnavailable(f"{name} is in quarantine for {left_s:.0f} s more")
            await self._attend(hello, context)
        except LinkEnded:
            pass
        except MurmurateError as error:
            if isinstance(error, RemoteProtocolError) and name != host:
                self._quarantine.strike(f"{name} {host}", now())
            self._reject(error, name)
            await context.abort(status_of(error), str(error)[:SENTENCE_MAX])
        finally:
            self._calls -= 1

    async def _greeted(self, context: Any) -> wire.WorkHello:
        try:
            async with asyncio.timeout(self.limits.dial_s):
                work = wire.decode_work(await self.read(context))
        except TimeoutError:
            raise PeerTimeout("no hello") from None
        if work.hello is None:
            raise RemoteProtocolError("work.hello", "missing: it is said first")
        return work.hello

    async def _attend(self, hello: wire.WorkHello, context: Any) -> None:
        """One stream, from the welcome to its end."""
        self._numbers += 1
        stream = _Stream(self, self._numbers, hello.name, context)
        self._streams[stream.number] = stream
        centre = self.centre
        try:
            welcome = await self.own(centre.hello, stream.number, hello, time.monotonic())
            await stream.run(welcome)
        finally:
            del self._streams[stream.number]
            self.post(centre.gone, hello.name, stream.number, time.monotonic())

    async def read(self, context: Any) -> bytes:
        data = await read(context)
        self.bytes_received += len(data)
        return data

    async def _described(self, data: bytes, context: Any) -> bytes:
        try:
            check_describe_request(data)
        except RemoteProtocolError as error:
            self._reject(error, context.peer())
            await context.abort(status_of(error), str(error)[:SENTENCE_MAX])
        assert self._describe is not None
        return encode_description(await self.own(self._describe))

    def _reject(self, error: MurmurateError, sender: str) -> None:
        reason = next((word for kind, word in REASONS if isinstance(error, kind)), "refused")
        if isinstance(error, NoRoom):
            reason = "full"  # counted by the rules
        else:
            self.rejected[reason] += 1
        now = time.monotonic()
        if now >= self._warned.get(reason, -math.inf) + WARN_S:
            self._warned[reason] = now
            log.warning("rejected (%s) from %s: %s", reason, sender, error)


class _Stream:
    """One member."""

    def __init__(self, service: CoordinatorService, number: int, name: str, context: Any) -> None:
        self.number = number
        self._service = service
        self._name = name
        self._context = context
        self._queue: deque[Out] = deque()
        self._wake = asyncio.Event()
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, out: Out) -> None:
        if out.values is not None:  # it makes void what was not sent yet
            self._queue = deque(each for each in self._queue if each.values is None)
        self._queue.append(out)
        self._wake.set()

    def end(self) -> None:
        if not self._closing.done():
            self._closing.set_result(None)

    async def run(self, welcome: wire.WorkWelcome) -> None:
        await self._write(wire.Task(welcome=welcome))
        await first_of(self._listen(), self._speak(), self._closing)

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
                coming = await service.own(centre.announce, name, self.number, work.push)
                done = coming.into.take(0, work.raw)
            elif work.raw:
                if coming is None:
                    raise RemoteProtocolError("work.raw", "values that were not announced")
                done = coming.into.take(work.offset, work.raw)
            elif work.doing is not None:
                await service.own(centre.doing, name, self.number, work.doing, time.monotonic())
            elif work.bye:
                await service.own(centre.bye, name, self.number, time.monotonic())
            if done:
                await service.own(centre.push, name, self.number, coming, time.monotonic())
                coming = None

    async def _heard(self, coming: Coming | None) -> wire.Work:
        """The next message; values that have begun must go on coming."""
        limit = None if coming is None else self._service.limits.stall_max_s
        try:
            async with asyncio.timeout(limit):
                return wire.decode_work(await self._service.read(self._context))
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
                for offset, raw in out.values.pieces():
                    piece = wire.Task(offset=offset, raw=raw)
                    await self._write(piece if offset else replace(out.task, raw=raw))

    async def _write(self, task: wire.Task) -> None:
        data = wire.encode_task(task)
        try:
            async with asyncio.timeout(self._service.limits.stall_s):
                await self._context.write(data)
        except TimeoutError:
            raise PeerTimeout("stalled: what it is given is not read") from None
        self._service.bytes_sent += len(data)
