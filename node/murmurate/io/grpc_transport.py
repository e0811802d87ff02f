"""Links over gRPC: the only importer of grpc on the node side.

One channel and one long-lived stream per peer (`Talk`). Bytes go through as they are, frames are
parsed by `wire`, so garbage gets a status and a sentence, never a traceback. `await call.write`
gives back-pressure; the event loop is never blocked for longer than it takes to copy one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

import grpc
import grpc.aio

from murmurate.errors import (
    ConfigError,
    LocalProtocolError,
    MurmurateError,
    PeerExists,
    PeerTimeout,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.io import wire
from murmurate.io.assembly import Assembly, Depot
from murmurate.io.link import Link, Packed
from murmurate.io.quarantine import Quarantine
from murmurate.io.transport import INLINE_BYTES, Ears, Limits

SERVICE = "murmurate.v1.Peer"
SENTENCE_MAX = 500
PACKED_MAX = 4
"""Bulk messages kept ready for the next link: a push usually goes to all neighbours."""

STATUS: tuple[tuple[type[MurmurateError], grpc.StatusCode], ...] = (
    (RemoteProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    (SchemaMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (PeerExists, grpc.StatusCode.ALREADY_EXISTS),
    (ConfigError, grpc.StatusCode.FAILED_PRECONDITION),
    (PeerTimeout, grpc.StatusCode.DEADLINE_EXCEEDED),
    (PeerUnavailable, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (MurmurateError, grpc.StatusCode.UNKNOWN),
)
"""What the side that refuses says: the first that fits."""
REFUSED: dict[grpc.StatusCode, type[MurmurateError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: LocalProtocolError,
    grpc.StatusCode.FAILED_PRECONDITION: SchemaMismatch,
    grpc.StatusCode.ALREADY_EXISTS: PeerExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: PeerUnavailable,
    grpc.StatusCode.UNIMPLEMENTED: SchemaMismatch,
}
"""What it means to the side that is refused. Any other status: the link broke, try again."""


REASONS: dict[type[MurmurateError], str] = {
    SchemaMismatch: "schema",
    PeerExists: "exists",
    PeerTimeout: "stalled",
    PeerUnavailable: "quarantine",
}
"""Labels of the counter of what was not let in."""
GRPC_ERRORS = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


class LinkEnded(Exception):
    """The other side has said all it had to say."""


def channel_options(limits: Limits, receive_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", receive_bytes_max),
        ("grpc.max_send_message_length", wire.FRAME_BYTES_MAX),
        ("grpc.keepalive_time_ms", int(limits.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", int(limits.backoff_min_s * 1000)),
        ("grpc.min_reconnect_backoff_ms", int(limits.dial_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(limits.backoff_max_s * 1000)),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", wire.FRAME_BYTES_MAX),
        ("grpc.max_send_message_length", wire.DESCRIPTION_BYTES_MAX),
        ("grpc.keepalive_time_ms", int(limits.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.server_handshake_timeout_ms", 5_000),
        ("grpc.max_connection_age_ms", 3_600_000),
        ("grpc.max_connection_age_grace_ms", 30_000),
        ("grpc.max_concurrent_streams", 16),
        ("grpc.so_reuseport", 0),
    ]


class GrpcTransport:
    """`Transport` over grpc.aio. `listen` may have port 0; `advertise` is where others reach it."""

    def __init__(
        self, listen: str, *, advertise: str | None = None, limits: Limits | None = None
    ) -> None:
        self.address = advertise or listen
        self.bytes_sent = 0
        self.bytes_received = 0
        self.limits = limits or Limits()
        self.depot = Depot(self.limits, time.monotonic)
        self.quarantine = Quarantine(self.limits)
        self.ears: Ears
        self._listen = listen
        self._advertise = advertise
        self._hello: wire.Hello | None = None
        self._routes: dict[str, _Route] = {}
        self._speaking: set[_Speaking] = set()
        self._listening: dict[str, _Listening] = {}
        self._talks = 0
        self._packed: deque[Packed] = deque(maxlen=PACKED_MAX)
        self._stopping = False
        self._server: Any = None

    async def start(self, ears: Ears) -> None:
        host, port = split_address("listen", self._listen)
        if self._advertise is None and host in ("0.0.0.0", "[::]"):
            raise ConfigError(f"listen {self._listen}: say with advertise where others reach it")
        self.ears = ears
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server(
            options=server_options(self.limits), maximum_concurrent_rpcs=self.limits.links_max + 16
        )
        methods = {
            "Talk": grpc.stream_stream_rpc_method_handler(self._talk),
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            await server.stop(None)
            raise ConfigError(f"listen {self._listen}: cannot be bound; is it in use?") from error
        await server.start()
        self._server = server
        shown, shown_port = split_address("advertise", self._advertise or self._listen)
        self.address = f"{shown}:{shown_port or bound}"
        self._sweep()

    async def describe(self, address: str, timeout_s: float) -> wire.Description:
        options = channel_options(self.limits, wire.DESCRIPTION_BYTES_MAX)
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            try:
                data = await channel.unary_unary(f"/{SERVICE}/Describe")(b"", timeout=timeout_s)
                return wire.decode_description(data)
            except RemoteProtocolError as error:
                raise SchemaMismatch(f"{address} is not a murmurate peer: {error}") from error
            except grpc.aio.AioRpcError as error:
                raise describe_error(address, error.code(), error.details() or "") from error

    def hello(self, hello: wire.Hello) -> None:
        if hello != self._hello:
            self._hello = hello
            for route in self._routes.values():
                route.close()

    def meet(self, name: str, address: str) -> None:
        route = self._routes.get(name)
        if route is not None and route.address != address:
            route.close()
            route = None
        if route is None:
            self._routes[name] = _Route(self, name, address)

    def drop(self, name: str) -> None:
        if (route := self._routes.pop(name, None)) is not None:
            route.close()

    def post(self, to: str, message: Any) -> None:
        if (speaking := self._open(to)) is not None:
            speaking.post(wire.encode_note(message))

    def free(self, to: str) -> bool:
        route = self._routes.get(to)
        return route is not None and not self._stopping and route.free

    def carry(self, to: str, message: Any) -> None:
        if (speaking := self._open(to)) is not None:
            speaking.carry(self._pack(message))
        else:
            self._loop.call_soon(self.ears.lost, to, message)

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        for speaking in self._speaking:
            speaking.finish()
        tasks = [speaking.task for speaking in self._speaking]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for listening in list(self._listening.values()):
            listening.end(None)
        if self._server is not None:
            self._sweeping.cancel()
            await self._server.stop(0.5)
            await asyncio.sleep(0)  # the last of `lost` has been told

    def _open(self, to: str) -> _Speaking | None:
        route = self._routes.get(to)
        if route is None or self._stopping:
            return None
        if self._hello is None:
            raise LocalProtocolError("hello() comes before the first message")
        return route.open(self._hello)

    def _pack(self, message: Any) -> Packed:
        for packed in self._packed:
            if packed.message is message:
                return packed
        packed = Packed.of(message)
        if len(packed.raw) <= INLINE_BYTES:
            self._packed.append(packed)
        return packed

    def _sweep(self) -> None:
        """Now and then: what stalls, and parts that nobody came back for."""
        self.depot.sweep()
        for listening in list(self._listening.values()):
            listening.check()
        for speaking in self._speaking:
            speaking.check()
        self._sweeping = self._loop.call_later(min(1.0, self.limits.stall_s / 4), self._sweep)

    # -- what others call ------------------------------------------------------------------------

    async def _describe(self, _: bytes, __: Any) -> bytes:
        return wire.encode_description(self.ears.describe())

    async def _talk(self, _: Any, context: Any) -> None:
        self._talks += 1
        try:
            if self._talks > self.limits.links_max:
                raise PeerUnavailable(f"{self.limits.links_max} links already, no more are taken")
            await _Listening(self, context).run()
        except MurmurateError as error:
            await context.abort(status_of(error), str(error)[:SENTENCE_MAX])
        finally:
            self._talks -= 1

    def take_turn(self, name: str, listening: _Listening) -> None:
        """A peer has one link to me: the newest."""
        if (before := self._listening.get(name)) is not None:
            before.end(None)
        self._listening[name] = listening

    def give_up_turn(self, name: str, listening: _Listening) -> None:
        if self._listening.get(name) is listening:
            del self._listening[name]

    # -- links of mine ---------------------------------------------------------------------------

    def began(self, speaking: _Speaking) -> None:
        self._speaking.add(speaking)

    def ended(self, speaking: _Speaking) -> None:
        self._speaking.discard(speaking)


class _Route:
    """The way to a peer: its address, the link if there is one, and when to try again if not."""

    def __init__(self, transport: GrpcTransport, name: str, address: str) -> None:
        self._transport = transport
        self.name = name
        self.address = address
        self._speaking: _Speaking | None = None
        self._failures = 0
        self._retry_at = 0.0

    @property
    def free(self) -> bool:
        if self._speaking is not None:
            return self._speaking.link.free
        return time.monotonic() >= self._retry_at

    def open(self, hello: wire.Hello) -> _Speaking | None:
        """None: the last try failed just now."""
        if self._speaking is None and time.monotonic() >= self._retry_at:
            self._speaking = _Speaking(self._transport, self, hello)
        return self._speaking

    def close(self) -> None:
        if self._speaking is not None:
            self._speaking.task.cancel()
            self._speaking = None

    def ended(self, speaking: _Speaking, error: MurmurateError | None) -> None:
        if speaking is not self._speaking:
            return
        self._speaking = None
        self._failures = 0 if speaking.welcomed else self._failures + 1
        limits = self._transport.limits
        wait_s = min(limits.backoff_min_s * 2.0 ** min(self._failures, 10), limits.backoff_max_s)
        self._retry_at = time.monotonic() + (wait_s if error is None else limits.refused_s)


class _Speaking:
    """One link to a peer, from the first packet until it breaks or is closed."""

    def __init__(self, transport: GrpcTransport, route: _Route, hello: wire.Hello) -> None:
        self._transport = transport
        self._route = route
        self._hello = hello
        self.link = Link(transport.limits)
        self.welcomed = False
        self._wake = asyncio.Event()
        self._finishing = False
        self._write_began = math.inf
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._ended)
        transport.began(self)

    def post(self, note: bytes) -> None:
        self.link.post(note)
        self._wake.set()

    def carry(self, packed: Packed) -> None:
        self.link.carry(packed)
        self._wake.set()

    def finish(self) -> None:
        """Send what waits, then close."""
        self._finishing = True
        self._wake.set()

    def check(self) -> None:
        if time.monotonic() - self._write_began > self._transport.limits.stall_s:
            self.task.cancel()

    def _ended(self, task: asyncio.Task[MurmurateError | None]) -> None:
        transport, to = self._transport, self._route.name
        transport.ended(self)
        error = None if task.cancelled() else task.result()
        self._route.ended(self, error)
        if error is not None:
            transport.ears.refused(to, error)
        for message in self.link.broke():
            transport.ears.lost(to, message)

    async def _run(self) -> MurmurateError | None:
        """Returns why the other side refuses me, or None: the link was closed, or broke."""
        limits = self._transport.limits
        options = channel_options(limits, wire.FRAME_BYTES_MAX)
        async with grpc.aio.insecure_channel(self._route.address, options=options) as channel:
            call = channel.stream_stream(f"/{SERVICE}/Talk")()
            try:
                async with asyncio.timeout(limits.dial_s):
                    await call.write(wire.encode_frame(hello=self._hello))
                    welcome = wire.decode_reply(await read(call)).welcome
                if welcome is None or welcome.name != self._route.name:
                    name = welcome.name if welcome is not None else "nobody"
                    return PeerUnavailable(f"{self._route.address} is {name} now")
                self.welcomed = True
                await first_of(self._write(call), self._read(call))
                return None
            except RemoteProtocolError as error:
                self._transport.ears.rejected("reply", self._route.name, str(error))
                return None
            except (TimeoutError, LinkEnded, *GRPC_ERRORS):
                if not call.done():
                    return None
                code = await call.code()
                kind = REFUSED.get(code)
                return kind(await call.details()) if kind is not None else None
            finally:
                call.cancel()

    async def _write(self, call: Any) -> None:
        while True:
            frame = self.link.next_frame()
            if frame is None:
                if self._finishing and self.link.idle:
                    await call.done_writing()
                    await asyncio.Event().wait()  # until the other side has read all of it
                self._wake.clear()
                await self._wake.wait()
                continue
            self._write_began = began = time.monotonic()
            await call.write(frame)
            self._write_began = math.inf
            self.link.took(time.monotonic() - began)
            self._transport.bytes_sent += len(frame)

    async def _read(self, call: Any) -> None:
        while True:
            reply = wire.decode_reply(await read(call))
            self.link.on_grants(reply.grants)
            for message in self.link.on_landed(reply.landed):
                self._transport.ears.landed(self._route.name, message)
            self._wake.set()


class _Listening:
    """One link of a peer to me."""

    def __init__(self, transport: GrpcTransport, context: Any) -> None:
        self._transport = transport
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Future[None] = self._loop.create_future()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._assembly: Assembly

    def end(self, error: MurmurateError | None) -> None:
        if self._closing.done():
            return
        if error is None:
            self._closing.set_result(None)
        else:
            self._closing.set_exception(error)

    def check(self) -> None:
        if self._assembly.stalled():
            self.end(PeerTimeout("stalled: a transfer did not move any more"))

    async def run(self) -> None:
        """Until the link is closed. A MurmurateError: the sentence to close it with."""
        transport, now = self._transport, time.monotonic
        host = self._context.peer().rpartition(":")[0]
        name = host
        try:
            hello = await self._greeted()
            name = hello.name
            if left_s := transport.quarantine.left_s(f"{name} {host}", now()):
                raise PeerUnavailable(f"{name} is in quarantine for {left_s:.0f} s more")
            welcome = transport.ears.greet(hello)
            await self._context.write(wire.encode_reply(wire.Reply(welcome)))
            self._assembly = Assembly(
                hello,
                transport.ears,
                transport.depot,
                call_soon=self._call_soon,
                on_reply=self._on_reply,
            )
            transport.take_turn(name, self)
            try:
                await first_of(self._read(), self._reply(), self._closing)
            finally:
                transport.give_up_turn(name, self)
                self._assembly.close()
                if self._timer is not None:
                    self._timer.cancel()
        except LinkEnded:
            return
        except RemoteProtocolError as error:
            transport.ears.rejected("malformed", name, str(error))
            if name != host and transport.quarantine.strike(f"{name} {host}", now()):
                transport.ears.rejected("quarantine", name, "one bad message too many")
            raise
        except MurmurateError as error:
            transport.ears.rejected(REASONS.get(type(error), "refused"), name, str(error))
            raise

    async def _greeted(self) -> wire.Hello:
        try:
            async with asyncio.timeout(self._transport.limits.dial_s):
                frame = wire.decode_frame(await read(self._context))
        except TimeoutError:
            raise PeerTimeout("no hello") from None
        if frame.hello is None:
            raise RemoteProtocolError("frame.hello", "missing: it is said first")
        return frame.hello

    async def _read(self) -> None:
        while True:
            data = await read(self._context)
            self._transport.bytes_received += len(data)
            self._assembly.receive(wire.decode_frame(data))

    async def _reply(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if (reply := self._assembly.reply()) is not None:
                try:
                    async with asyncio.timeout(self._transport.limits.reply_s):
                        await self._context.write(reply)
                except TimeoutError:
                    raise PeerTimeout("receipts are not read") from None

    def _on_reply(self, at_once: bool) -> None:
        if at_once:
            self._wake.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._transport.limits.landed_s, self._wake.set)

    def _call_soon(self, action: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it
            self._loop.call_soon_threadsafe(action)


# -- around grpc ---------------------------------------------------------------------------------


async def read(stream: Any) -> bytes:
    """The next message of a call or a context."""
    data = await stream.read()
    if data is grpc.aio.EOF:
        raise LinkEnded
    return cast("bytes", data)


async def first_of(*things: Coroutine[Any, Any, None] | asyncio.Future[None]) -> None:
    """Until the first of them ends, with its outcome; the others are cancelled."""
    futures = [asyncio.ensure_future(thing) for thing in things]
    try:
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in futures:
            future.cancel()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    del outcomes
    for future in futures:
        if future in done:
            future.result()


def status_of(error: MurmurateError) -> grpc.StatusCode:
    return next(code for kind, code in STATUS if isinstance(error, kind))


def describe_error(address: str, code: grpc.StatusCode, details: str) -> MurmurateError:
    """Why nobody described itself."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerTimeout(f"{address} does not answer")
    if code is grpc.StatusCode.UNAVAILABLE:
        return PeerUnavailable(f"nobody answers at {address}: {details}"[:SENTENCE_MAX])
    return SchemaMismatch(f"{address} is not a murmurate peer: {code.name}"[:SENTENCE_MAX])


def split_address(key: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{key} {address!r}: expected host:port")
    return host, int(port)
