"""Links as gRPC streams: `Speaking` is one of mine to a peer, `Listening` one of a peer to me."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc.aio

from murmurate.errors import (
    ChecksumMismatch,
    MurmurateError,
    PeerTimeout,
    PeerUnavailable,
    RemoteProtocolError,
)
from murmurate.io import wire
from murmurate.io.assembly import Assembly
from murmurate.io.deadline import Deadline
from murmurate.io.grpc_terms import (
    GRPC_ERRORS,
    REASONS,
    REFUSED,
    SERVICE,
    LinkEnded,
    Outcome,
    channel_options,
    first_of,
    is_bug,
    read,
)
from murmurate.io.link import Link, Packed

if TYPE_CHECKING:
    from murmurate.io.grpc_transport import GrpcTransport


class Route:
    """The way to a peer: its address, the link if there is one, and when to try again if not."""

    def __init__(self, transport: GrpcTransport, name: str, address: str) -> None:
        self._transport = transport
        self.name = name
        self.address = address
        self._speaking: Speaking | None = None
        self._failures = 0
        self._retry_at = 0.0
        limits = transport.limits
        self.dial = Deadline(first=limits.dial_s, pause=limits.pause_s, most=limits.dial_s)
        self.stall = limits.stall(first=limits.stall_max_s)

    @property
    def free(self) -> bool:
        if self._speaking is not None:
            return self._speaking.link.free
        return time.monotonic() >= self._retry_at

    def open(self, hello: wire.Hello) -> Speaking | None:
        """None: the last try failed just now."""
        if self._speaking is None and time.monotonic() >= self._retry_at:
            self._speaking = Speaking(self._transport, self, hello)
        return self._speaking

    def close(self) -> None:
        if self._speaking is not None:
            self._speaking.task.cancel()
            self._speaking = None

    def ended(self, speaking: Speaking, error: MurmurateError | None) -> None:
        if speaking is not self._speaking:
            return
        self._speaking = None
        self._failures = 0 if speaking.welcomed else self._failures + 1
        limits = self._transport.limits
        wait_s = min(limits.backoff_min_s * 2.0 ** min(self._failures, 10), limits.backoff_max_s)
        self._retry_at = time.monotonic() + (wait_s if error is None else limits.refused_s)


COMPANY_S, COMPANY_WITHIN_S = 0.05, 0.05
"""A small message waits this long for a bulk message to ride with, if one left this recently: a
frame of its own costs both sides 0.3 ms together. Updates leave that often where they are many
(`pace`), and whoever waits for a sign of life (`core.timing`) takes the update for one."""
COMPANY_S_AWAITED = 0.01
"""So long waits what the next bulk message of the other side waits for."""


class Speaking:
    """One link to a peer, from the first packet until it breaks or is closed."""

    def __init__(self, transport: GrpcTransport, route: Route, hello: wire.Hello) -> None:
        self._transport = transport
        self._route = route
        self._hello = hello
        self.link = Link(transport.limits, time.monotonic, route.stall)
        self.welcomed = False
        self._wake = asyncio.Event()
        self._finishing = False
        self._write_began = math.inf
        self._carried_at = -math.inf
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._ended)
        transport.began(self)

    def post(self, note: bytes, *, awaited: bool = False) -> None:
        """On a link that carries bulk messages it waits a moment for one to ride with."""
        self.link.post(note)
        if time.monotonic() - self._carried_at > COMPANY_WITHIN_S or self._finishing:
            self._wake.set()
            return
        due = self._loop.time() + (COMPANY_S_AWAITED if awaited else COMPANY_S)
        if self._timer is not None and self._timer.when() > due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._lonely)

    def _lonely(self) -> None:
        self._timer = None
        self._wake.set()

    def carry(self, packed: Packed) -> None:
        self._carried_at = time.monotonic()
        self.link.carry(packed)
        self._wake.set()

    def finish(self) -> None:
        """Send what waits, then close."""
        self._finishing = True
        self._wake.set()

    def check(self) -> None:
        if time.monotonic() - self._write_began > self._route.stall.limit:
            self._route.stall.miss()
            self.task.cancel()

    def _ended(self, task: asyncio.Task[MurmurateError | None]) -> None:
        transport, to = self._transport, self._route.name
        bug = None if task.cancelled() else task.exception()
        error = None if task.cancelled() or bug is not None else task.result()
        if self._timer is not None:
            self._timer.cancel()
        transport.ended(self)
        self._route.ended(self, error)
        if error is not None:
            transport.ears.refused(to, error)
        for message in self.link.broke():
            transport.ears.lost(to, message)
        if bug is not None and is_bug(bug):
            transport.ears.fault(bug)

    async def _run(self) -> MurmurateError | None:
        """Returns why the other side refuses me, or None: the link was closed, or broke."""
        limits = self._transport.limits
        options = channel_options(limits, wire.FRAME_BYTES_MAX)
        async with grpc.aio.insecure_channel(self._route.address, options=options) as channel:
            call = channel.stream_stream(f"/{SERVICE}/Talk")()
            outcome = Outcome(call)
            dial, began = self._route.dial, time.monotonic()
            try:
                async with asyncio.timeout(dial.limit):
                    await call.write(wire.encode_frame(hello=self._hello))
                    welcome = wire.decode_reply(await read(call)).welcome
                dial.note(time.monotonic() - began)
                if welcome is None or welcome.name != self._route.name:
                    name = welcome.name if welcome is not None else "nobody"
                    return PeerUnavailable(f"{self._route.address} is {name} now")
                self.welcomed = True
                await first_of(self._write(call), self._read(call))
                return None
            except RemoteProtocolError as error:
                self._transport.ears.rejected("reply", self._route.name, str(error))
                return None
            except (TimeoutError, LinkEnded, *GRPC_ERRORS) as error:
                if isinstance(error, TimeoutError):
                    dial.miss()
                code, details = await outcome.status()
                kind = REFUSED.get(code)
                return kind(details) if kind is not None else None
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
            self._transport.bytes_sent += len(frame)  # the other side may have it before I know
            await call.write(frame)
            self._write_began = math.inf
            self.link.took(time.monotonic() - began)
            del frame  # or the next one would be made beside it, in memory that is in no cache

    async def _read(self, call: Any) -> None:
        while True:
            reply = wire.decode_reply(await read(call))
            self.link.on_grants(reply.grants)
            landed = self.link.on_landed(reply.landed)
            while landed:  # nothing here may keep a large one alive until the next reply
                self._transport.ears.landed(self._route.name, landed.pop(0))
            if self.link.has_bulk or self._finishing:
                self._wake.set()


class Listening:
    """One link of a peer to me."""

    def __init__(self, transport: GrpcTransport, context: Any) -> None:
        self._transport = transport
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._closing: asyncio.Future[None] = self._loop.create_future()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._reply_began = math.inf
        self._assembly: Assembly

    def end(self, error: MurmurateError | None) -> None:
        """Nothing more is heard from now on."""
        if self._closing.done():
            return
        self._assembly.close()
        if error is None:
            self._closing.set_result(None)
        else:
            self._closing.set_exception(error)

    def check(self) -> None:
        if self._assembly.stalled():
            self.end(PeerTimeout("stalled: a transfer did not move any more"))
        if time.monotonic() - self._reply_began > self._transport.limits.reply_s:
            self.end(PeerTimeout("receipts are not read"))

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
                if self._assembly.broken is not None:
                    transport.ears.broke(name, self._assembly.broken, True)
        except LinkEnded:
            return
        except RemoteProtocolError as error:
            reason = "digest" if isinstance(error, ChecksumMismatch) else "malformed"
            transport.ears.rejected(reason, name, str(error))
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
            del data  # as a frame that was written

    async def _reply(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if (reply := self._assembly.reply()) is not None:
                self._reply_began = time.monotonic()
                await self._context.write(reply)
                self._reply_began = math.inf

    def _on_reply(self, wait_s: float) -> None:
        if not wait_s:
            self._wake.set()
            return
        due = self._loop.time() + wait_s
        if self._timer is not None and self._timer.when() > due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._wake.set)

    def _call_soon(self, action: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            action()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it
            self._loop.call_soon_threadsafe(action)
