"""Streams that others open to me: greeted, limited, refused with a reason, closed in order.

`StreamServer` is one port. An `Attendant` stands behind each kind of stream it takes: it reads the
greeting, speaks with who is let in, and hears of who was not. Messages are parsed here in this
program and not by gRPC, so garbage gets a status and a sentence, never a traceback.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc

from murmurate.edge.net.credentials import Credentials, Identity
from murmurate.edge.net.description import (
    DESCRIPTION_BYTES_MAX,
    Description,
    check_describe_request,
    encode_description,
)
from murmurate.edge.net.grpc_terms import (
    GRPC_ERRORS,
    SENTENCE_MAX,
    SERVICE,
    LinkEnded,
    LinksFull,
    Revoked,
    is_bug,
    read,
    server_options,
    status_of,
)
from murmurate.edge.net.pieces import PieceSize
from murmurate.edge.net.quarantine import Quarantine
from murmurate.edge.net.streams import Kind, LivingStream
from murmurate.edge.net.transport import Limits
from murmurate.errors import MurmurateError, PeerTimeout, PeerUnavailable, RemoteProtocolError

log = logging.getLogger("murmurate")

REVOKED_S = 0.5
"""Between two looks whether who has a stream is still one to be spoken to."""
WARN_S = 1.0
"""Between two lines in the log about the same reason."""


class Named(Protocol):
    """A greeting: it says who opens the stream."""

    @property
    def name(self) -> str: ...


G = TypeVar("G", bound=Named)


class Attendant(Protocol[G]):
    """Who speaks on one kind of stream."""

    def greeted(self, data: bytes) -> G:
        """What the first message says. A MurmurateError refuses the stream with that sentence."""

    async def attend(self, greeting: G, stream: Visit) -> None:
        """The stream, from the welcome to its end. A MurmurateError closes it with that sentence,
        a RemoteProtocolError is a strike against who opened it."""

    def rejected(self, sender: str, error: MurmurateError) -> None:
        """A stream was refused or cut off."""

    def quarantined(self, sender: str) -> None:
        """That one is not heard for a while."""

    def stumbled(self, sender: str, bug: Exception) -> None:
        """A mistake of ours, found by what somebody sent: it costs that one its stream."""


class Visit(LivingStream):
    """One stream that somebody opened to me."""

    def __init__(self, server: StreamServer, context: Any, identity: Identity) -> None:
        super().__init__()
        self.identity = identity
        """Who opened it."""
        self._server = server
        self._context = context
        self.piece = PieceSize()
        """How large pieces of something large are on it."""

    async def read(self) -> bytes:
        """The next message. LinkEnded: there is none."""
        data = await read(self._context)
        self._server.bytes_received += len(data)
        return data

    async def write(
        self,
        data: bytes,
        within_s: float | None = None,
        late: str = "",
        piece_bytes: int = 0,
    ) -> None:
        """PeerTimeout: the other side did not make room for it, with that sentence; without a limit
        the caller looks after it. `piece_bytes`: so much of it is a piece of something large."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                await self._context.write(data)
        except TimeoutError:
            raise PeerTimeout(late) from None
        self.piece.took(time.monotonic() - began, piece_bytes)
        self._server.bytes_sent += len(data)

    async def finish(self) -> None:
        """All is said: the stream ends in order."""
        self.end()


class StreamServer:
    """Listens at one address. `listen` may have port 0; `advertise` is where others reach it."""

    def __init__(
        self,
        listen: str,
        *,
        advertise: str | None,
        limits: Limits,
        credentials: Credentials,
    ) -> None:
        self.address = advertise or listen
        """Where others reach it; known after `start`."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self._listen = listen
        self._limits = limits
        self._credentials = credentials
        self.quarantine = Quarantine(limits)
        """Who is not heard, by name and host."""
        self._methods: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
        self._up_bytes_max = self._down_bytes_max = 0
        self.open = 0
        """Streams there are now."""
        self._visits: set[Visit] = set()
        self._looking: asyncio.Task[None] | None = None
        self._server: Any = None

    # -- before it starts ------------------------------------------------------------------------

    def take(self, kind: Kind, attendant: Attendant[Any]) -> None:
        """Streams of that kind are taken, and this one attends to them."""

        async def serve(_: Any, context: Any) -> None:
            await self._serve(attendant, context)

        handler = grpc.stream_stream_rpc_method_handler(serve)
        self._methods.setdefault(kind.service, {})[kind.method] = handler
        self._up_bytes_max = max(self._up_bytes_max, kind.up_bytes_max)
        self._down_bytes_max = max(self._down_bytes_max, kind.down_bytes_max)

    def describe(
        self,
        description: Callable[[], Awaitable[Description]],
        rejected: Callable[[str, MurmurateError], None],
    ) -> None:
        """Whoever asks is told how this process is doing."""

        async def described(request: bytes) -> bytes:
            check_describe_request(request)
            return encode_description(await description())

        self.answer(SERVICE, "Describe", described, rejected)
        self._down_bytes_max = max(self._down_bytes_max, DESCRIPTION_BYTES_MAX)

    def answer(
        self,
        service: str,
        method: str,
        respond: Callable[[bytes], Awaitable[bytes]],
        rejected: Callable[[str, MurmurateError], None],
    ) -> None:
        """One question, one answer. What `respond` raises is told instead, and to `rejected`."""

        async def answered(request: bytes, context: Any) -> bytes:
            try:
                return await respond(request)
            except MurmurateError as error:
                rejected(self._credentials.identity(context).host, error)
                await context.abort(status_of(error), str(error)[:SENTENCE_MAX])
                raise

        handler = grpc.unary_unary_rpc_method_handler(answered)
        self._methods.setdefault(service, {})[method] = handler

    # -- from start to stop ----------------------------------------------------------------------

    async def start(self) -> None:
        """ConfigError: the address cannot be listened at."""
        services = [
            grpc.method_handlers_generic_handler(service, methods)
            for service, methods in self._methods.items()
        ]
        options = server_options(self._limits, self._up_bytes_max, self._down_bytes_max)
        calls_max = self._limits.links_max + 16
        self._server, bound = await self._credentials.open_port(
            self._listen, services, options, calls_max
        )
        host, _, port = self.address.rpartition(":")
        self.address = f"{host}:{bound if port == '0' else port}"
        self._looking = asyncio.create_task(self._cut_revoked())

    async def _cut_revoked(self) -> None:
        """Who is not spoken to any more loses the streams it has, too."""
        while True:
            for stream in list(self._visits):
                if self._credentials.revoked(stream.identity):
                    stream.end(Revoked())
            await asyncio.sleep(REVOKED_S)

    async def stop(self, grace_s: float) -> None:
        """Streams that are open then have so long to end by themselves."""
        if self._looking is not None:
            self._looking.cancel()
        if self._server is not None:
            await self._server.stop(grace_s)

    # -- one stream ------------------------------------------------------------------------------

    async def _serve(self, attendant: Attendant[Any], context: Any) -> None:
        try:
            await self.visit(attendant, context)
        except MurmurateError as error:
            await context.abort(status_of(error), str(error)[:SENTENCE_MAX])
        except GRPC_ERRORS:
            pass  # the stream broke
        except Exception as bug:
            if not is_bug(bug):
                return
            attendant.stumbled(self._credentials.identity(context).host, bug)
            log.exception("a stream ended unexpectedly")
            await context.abort(grpc.StatusCode.INTERNAL, "a bug in this program")

    async def visit(self, attendant: Attendant[Any], context: Any) -> None:
        """A stream from its first message to its last. A MurmurateError: the sentence to close it
        with; the attendant has heard of it."""
        identity = self._credentials.identity(context)
        sender = host = identity.host
        stream: Visit | None = None
        self.open += 1
        try:
            if self.open > self._limits.links_max:
                raise LinksFull(f"{self._limits.links_max} links already, no more are taken")
            if self._credentials.revoked(identity):
                raise Revoked
            stream = Visit(self, context, identity)
            self._visits.add(stream)
            greeting = await self._greeted(attendant, stream)
            sender = greeting.name
            if left_s := self.quarantine.left_s(f"{sender} {host}", time.monotonic()):
                raise PeerUnavailable(f"{sender} is in quarantine for {left_s:.0f} s more")
            await attendant.attend(greeting, stream)
        except LinkEnded:
            pass
        except MurmurateError as error:
            attendant.rejected(sender, error)
            bad = isinstance(error, RemoteProtocolError) and sender != host
            if bad and self.quarantine.strike(f"{sender} {host}", time.monotonic()):
                attendant.quarantined(sender)
            raise
        finally:
            self.open -= 1
            if stream is not None:
                self._visits.discard(stream)

    async def _greeted(self, attendant: Attendant[G], stream: Visit) -> G:
        try:
            async with asyncio.timeout(self._limits.dial_s):
                data = await stream.read()
        except TimeoutError:
            raise PeerTimeout("no hello") from None
        return attendant.greeted(data)


class Rejections:
    """Counts streams that were refused or cut off, by reason, and logs some of them."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self._warned: dict[str, float] = {}

    def note(self, reason: str, sender: str, error: BaseException, *, count: bool = True) -> None:
        """`count` False: it is counted elsewhere."""
        if count:
            self.counted[reason] += 1
        now = time.monotonic()
        if now >= self._warned.get(reason, -math.inf) + WARN_S:
            self._warned[reason] = now
            log.warning("rejected (%s) from %s: %s", reason, sender, error)
