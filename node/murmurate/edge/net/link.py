"""One link between two peers: both speak on it, whoever opened it.

What is said goes through a `SendQueue`, what is heard through an `Assembly`; a frame carries of
both what there is: small messages, receipts, a piece of a large message. Which of two links with
the same peer is spoken on is decided by its `Route`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from murmurate.edge.net import wire
from murmurate.edge.net.grpc_terms import (
    SENTENCE_MAX,
    SERVICE,
    Revoked,
    StreamRefused,
    is_bug,
    refusal_of,
    status_of,
)
from murmurate.edge.net.reassembly import Assembly
from murmurate.edge.net.send_queue import Packed, SendQueue
from murmurate.edge.net.stream_client import BYE_S, StreamBroke, open_stream
from murmurate.edge.net.streams import Kind
from murmurate.errors import MurmurateError, PeerTimeout, PeerUnavailable, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from murmurate.edge.net.grpc_transport import GrpcTransport
    from murmurate.edge.net.route import Route

TALK = Kind(
    service=SERVICE,
    method="Talk",
    up_bytes_max=wire.FRAME_BYTES_MAX,
    down_bytes_max=wire.FRAME_BYTES_MAX,
)
COMPANY_S, COMPANY_WITHIN_S = 0.05, 0.05
"""A small message waits this long for a bulk message to ride with, if one left this recently: a
frame of its own costs both sides 0.3 ms together. Updates leave that often where they are many
(`pace`), and whoever waits for a sign of life (`core.membership.timing`) takes the update for
one."""
COMPANY_S_AWAITED = 0.01
"""So long waits what the next bulk message of the other side waits for."""


class FrameStream(Protocol):
    """A stream at either end."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def finish(self) -> None: ...

    def end(self, error: MurmurateError | None = None) -> None: ...

    async def until_over(self, *talks: Coroutine[Any, Any, None]) -> None: ...


class Alarm:
    """Does something once, at the earliest time that was asked for."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float) -> None:
        """So long from now, or earlier if it is set already."""
        due = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._ring)

    def clear(self) -> None:
        """It is not needed any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._action()


class Link:
    """One stream with a peer, from the first packet or the first word until it breaks or is closed.

    One that I opened (`mine`) begins with `dial`, one that was opened to me with `attend`.
    """

    def __init__(
        self, transport: GrpcTransport, route: Route, hello: wire.Hello, *, mine: bool
    ) -> None:
        """`hello` is what was said first by who opened it."""
        self._transport = transport
        self.route = route
        self.hello = hello
        self.mine = mine
        self.generation = transport.credentials.generation
        """Of the credentials it was opened with."""
        self.queue = SendQueue(transport.limits, time.monotonic, route.stall)
        self.assembly: Assembly | None = None
        """None: the other side has not answered yet."""
        self.epoch = 0
        """The life of who is at the other end; 0: not known yet."""
        self.draining = False
        """Nothing more is begun on it: what is on its way arrives, both ways, then it ends."""
        self.refusal: MurmurateError | None = None
        """Why I do not listen to the other side any more."""
        self.task: asyncio.Task[MurmurateError | None] | None = None
        self.over = asyncio.Event()
        self._stream: FrameStream | None = None
        self._wake = asyncio.Event()
        self._closing = False
        self._last_said = self._last_heard = self._refusal_said = False
        self._write_began = math.inf
        self._carried_at = -math.inf
        self._moved_at = self._began_to_end = time.monotonic()
        self._receipts_due = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lonely = Alarm(self._wake.set)
        self._receipts = Alarm(self._receipts_are_due)

    # -- what others ask of it -------------------------------------------------------------------

    def post(self, note: bytes, *, awaited: bool = False) -> None:
        """On a link that carries bulk messages it waits a moment for one to ride with."""
        self.queue.post(note)
        if time.monotonic() - self._carried_at > COMPANY_WITHIN_S or self._closing:
            self._wake.set()
        else:
            self._lonely.within(COMPANY_S_AWAITED if awaited else COMPANY_S)

    def carry(self, packed: Packed) -> None:
        self._carried_at = time.monotonic()
        self.queue.carry(packed)
        self._wake.set()

    def take_over(self, other: Link) -> None:
        """What waits on that one, of which nothing has begun, waits here."""
        self.queue.take_over(other.queue)
        self._wake.set()

    def drain(self) -> None:
        """Another link is spoken on: this one ends when all that was said has landed, both ways."""
        if not self.draining:
            self.draining = True
            self._began_to_end = time.monotonic()
            self._wake.set()

    def close(self) -> None:
        """Send what waits; when it has landed, end, whatever the other side still has to say."""
        self._closing = True
        self._wake.set()

    def end(self, error: MurmurateError | None = None) -> None:
        """Now. With an error: the other side is told why."""
        if self._stream is None or (self.mine and error is None):
            if self.task is not None:
                self.task.cancel()
        elif self.mine and error is not None:
            self._refuse(error)
        else:
            assert self.assembly is not None
            self.assembly.close()
            self._stream.end(error)

    def check(self) -> None:
        """Now and then: whether it stands still, or has drained."""
        if self.assembly is None or self.over.is_set():
            return
        now, stall = time.monotonic(), self.route.stall
        if self.mine and self.refusal is None:
            credentials, route = self._transport.credentials, self.route
            if credentials.revoked(credentials.dialled(route.address, route.name)):
                self.end(Revoked())
        if self.refusal is not None:
            if now - self._began_to_end > BYE_S:
                self.end()
        elif now - self._write_began > stall.limit:
            stall.miss()
            error = PeerTimeout("stalled: what is sent is not read")
            if self.mine:  # the reason could not be said
                self._transport.rejected(self.route.name, error)
                self.end()
            else:
                self.end(error)
        elif self.assembly.stalled():
            self.end(PeerTimeout("stalled: a transfer did not move any more"))
        elif self.draining and self._drained(now):
            self.end()

    def _drained(self, now: float) -> bool:
        """Nothing has come for as long as a peer may stand still; or it takes too long."""
        assert self.assembly is not None
        limits = self._transport.limits
        if self.assembly.closed or now - self._began_to_end > limits.stall_max_s:
            return True
        quiet_s = now - max(self._began_to_end, self._moved_at)
        return self.assembly.idle and self.queue.idle and quiet_s > limits.pause_s

    # -- from its beginning to its end -----------------------------------------------------------

    def dial(self) -> None:
        """Open it."""
        self.task = asyncio.get_running_loop().create_task(self._dial())
        self.task.add_done_callback(self._dialled)

    async def attend(self, stream: FrameStream) -> None:
        """One that was opened to me, after the welcome. A MurmurateError: the sentence to close it
        with."""
        error: MurmurateError | None = None
        try:
            self._greeted(self.hello, stream)
            await stream.until_over(self._read(stream), self._write(stream))
        except StreamRefused as refused:
            error = refused.error
        finally:
            self._ended(error)

    async def _dial(self) -> MurmurateError | None:
        """Returns why the other side refuses me, or None: the link was closed, or broke."""
        transport, route, began = self._transport, self.route, time.monotonic()
        try:
            async with open_stream(
                TALK,
                route.address,
                wire.encode_frame(hello=self.hello),
                within_s=route.dial.limit,
                limits=transport.limits,
                credentials=transport.credentials,
            ) as stream:
                welcome = said_first(stream.welcome)
                route.dial.note(time.monotonic() - began)
                if welcome.name != route.name:
                    return PeerUnavailable(f"{route.address} is {welcome.name} now")
                transport.ears.answered(welcome)
                self._greeted(welcome, stream)
                await stream.until_over(self._read(stream), self._write(stream))
        except RemoteProtocolError as error:  # of the welcome
            transport.distrust(route.name, route.address, error)
        except MurmurateError as error:
            return error
        except StreamRefused as refused:
            return refused.error
        except StreamBroke as broke:
            if broke.answered_late:
                route.dial.miss()
        return None

    def _greeted(self, them: wire.Hello, stream: FrameStream) -> None:
        """Both sides know who the other one is."""
        self._stream, self.epoch = stream, them.epoch
        transport, route = self._transport, self.route
        self.assembly = Assembly(
            them,
            transport.ears,
            transport.depot,
            call_soon=self._call_soon,
            on_reply=self._on_reply,
            on_offer=lambda key: route.offered(self, key),
        )
        route.greeted(self)

    def _dialled(self, task: asyncio.Task[MurmurateError | None]) -> None:
        bug = None if task.cancelled() else task.exception()
        self._ended(None if task.cancelled() or bug is not None else task.result())
        if bug is not None and is_bug(bug):
            self._transport.ears.fault(bug)

    def _ended(self, error: MurmurateError | None) -> None:
        transport, to = self._transport, self.route.name
        self._lonely.clear()
        self._receipts.clear()
        self.over.set()
        self.route.ended(self, error)
        transport.ended(self)
        if self.assembly is not None:
            self.assembly.close()
            if self.assembly.broken is not None:
                transport.ears.broke(to, self.assembly.broken, True)
        if error is not None:
            transport.ears.refused(to, error)
        for message in self.queue.broke():
            transport.ears.lost(to, message)

    # -- what is said ----------------------------------------------------------------------------

    async def _write(self, stream: FrameStream) -> None:
        while True:
            frame = self._next_frame()
            if frame is None:
                if self._all_is_said():
                    await stream.finish()
                    await asyncio.Event().wait()  # until the other side has read all of it
                self._wake.clear()
                await self._wake.wait()
                continue
            self._write_began = began = time.monotonic()
            self._transport.bytes_sent += len(frame)  # the other side may have it before I know
            await stream.write(frame)
            self._write_began = math.inf
            self.queue.took(time.monotonic() - began)
            del frame  # or the next one would be made beside it, in memory that is in no cache

    def _next_frame(self) -> bytes | None:
        """None: there is nothing to say now."""
        assert self.assembly is not None
        if self.refusal is not None:
            return self._last_word(self.refusal)
        last = self.draining and not self._last_said and self.queue.idle
        reply = b""
        if last or self._receipts_due or self.queue.ready:
            self._receipts_due = False
            self._receipts.clear()
            told = self.assembly.reply(last=last)
            reply = wire.encode_reply(told) if told is not None else b""
        self._last_said |= last
        return self.queue.next_frame(reply)

    def _last_word(self, refusal: MurmurateError) -> bytes | None:
        if self._refusal_said:
            return None
        self._refusal_said = True
        told = wire.LinkRefusal(status_of(refusal).value[0], str(refusal)[:SENTENCE_MAX])
        return wire.encode_frame(reply=wire.encode_reply(wire.Reply(refusal=told)))

    def _all_is_said(self) -> bool:
        """Whether the link ends here: who opened it ends it, unless the other one goes."""
        assert self.assembly is not None
        if self.refusal is not None:
            return True
        if self._closing:
            return self.queue.idle
        both = self._last_said and self._last_heard
        return self.mine and both and self.queue.idle and self.assembly.idle

    def _refuse(self, error: MurmurateError) -> None:
        """Who opened a link cannot end it with a status: it says why in its last frame."""
        if self.refusal is None:
            assert self.assembly is not None
            self.refusal, self._began_to_end = error, time.monotonic()
            self.assembly.close()
            self._transport.distrust(self.route.name, self.route.address, error)
            self._wake.set()

    def _on_reply(self, wait_s: float) -> None:
        if wait_s:
            self._receipts.within(wait_s)
        else:
            self._receipts_are_due()

    def _receipts_are_due(self) -> None:
        self._receipts_due = True
        self._wake.set()

    # -- what is heard ---------------------------------------------------------------------------

    async def _read(self, stream: FrameStream) -> None:
        assert self.assembly is not None
        while True:
            data = await stream.read()
            self._moved_at = time.monotonic()
            if self.mine:
                self._transport.bytes_answered += len(data)
            if self.refusal is None:
                try:
                    frame = wire.decode_frame(data)
                    if frame.reply is not None:
                        self._hear(frame.reply)
                    self.assembly.receive(frame)
                    del frame
                except MurmurateError as error:
                    if not self.mine:
                        raise
                    self._refuse(error)
            del data  # as a frame that was written

    def _hear(self, reply: wire.Reply) -> None:
        if reply.refusal is not None:
            raise refusal_of(reply.refusal.status, reply.refusal.sentence)
        self.queue.on_grants(reply.grants)
        landed = self.queue.on_landed(reply.landed)
        while landed:  # nothing here may keep a large one alive until the next reply
            self._transport.ears.landed(self.route.name, landed.pop(0))
        if reply.last and not self._last_heard:
            self._last_heard = True
            self.route.left(self)
        if self.queue.has_bulk or self._closing or self.draining:
            self._wake.set()

    def _call_soon(self, action: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            action()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it
            self._loop.call_soon_threadsafe(action)


def said_first(data: bytes) -> wire.Hello:
    """The greeting in the first frame of either side."""
    hello = wire.decode_frame(data).hello
    if hello is None:
        raise RemoteProtocolError("frame.hello", "missing: it is said first")
    return hello
