"""Links over gRPC. This file and the two it is made of are the only importers of grpc here.

One channel and one long-lived stream per peer (`Talk`). Bytes go through as they are, frames are
parsed by `wire`, so garbage gets a status and a sentence, never a traceback. `await call.write`
gives back-pressure; the event loop is never blocked for longer than it takes to copy one piece.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from typing import Any

import grpc
import grpc.aio

from murmurate.core.averaging import Receipt, Share
from murmurate.errors import (
    ConfigError,
    LocalProtocolError,
    MurmurateError,
    PeerUnavailable,
    RemoteProtocolError,
)
from murmurate.io import wire
from murmurate.io.assembly import Depot
from murmurate.io.grpc_links import Listening, Route, Speaking
from murmurate.io.grpc_terms import (
    GRPC_ERRORS,
    SENTENCE_MAX,
    SERVICE,
    describe,
    is_bug,
    server_options,
    status_of,
)
from murmurate.io.link import Packed
from murmurate.io.quarantine import Quarantine
from murmurate.io.transport import Ears, Limits

log = logging.getLogger("murmurate")


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
        self._routes: dict[str, Route] = {}
        self._speaking: set[Speaking] = set()
        self._listening: dict[str, Listening] = {}
        self._talks = 0
        self._packed: weakref.WeakValueDictionary[int, Packed] = weakref.WeakValueDictionary()
        """By id of the message, while a link has it under way: it is packed once for all links."""
        self._stopping = False
        self._swept_at = -math.inf
        self._server: Any = None

    async def start(self, ears: Ears) -> None:
        host, port = split_address("listen", self._listen)
        if self._advertise is None and host in ("0.0.0.0", "[::]"):
            raise ConfigError(f"listen {self._listen}: say with advertise where others reach it")
        self.ears = ears
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server(
            options=server_options(self.limits, wire.FRAME_BYTES_MAX),
            maximum_concurrent_rpcs=self.limits.links_max + 16,
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
        return await describe(address, timeout_s, self.limits)

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
            self._routes[name] = Route(self, name, address)

    def drop(self, name: str) -> None:
        if (route := self._routes.pop(name, None)) is not None:
            route.close()

    def post(self, to: str, message: Any) -> None:
        if (speaking := self._open(to)) is not None:
            speaking.post(wire.encode_note(message), awaited=isinstance(message, Receipt))

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

    def _open(self, to: str) -> Speaking | None:
        route = self._routes.get(to)
        if route is None or self._stopping:
            return None
        if self._hello is None:
            raise LocalProtocolError("hello() comes before the first message")
        return route.open(self._hello)

    def _pack(self, message: Any) -> Packed:
        if isinstance(message, Share):  # for one link alone
            return Packed.of(message)
        packed = self._packed.get(id(message))
        if packed is None:
            packed = self._packed[id(message)] = Packed.of(message)
        return packed

    def _sweep(self) -> None:
        """Now and then: what stalls, and parts that nobody came back for."""
        self.depot.sweep()
        interval_s, now = min(0.5, self.limits.stall_s / 4), time.monotonic()
        # If this comes late it was I who stood still: what was sent to me meanwhile is read first.
        if now - self._swept_at < interval_s + min(0.5, self.limits.pause_s):
            for listening in list(self._listening.values()):
                listening.check()
            for speaking in list(self._speaking):
                speaking.check()
        self._swept_at = now
        self._sweeping = self._loop.call_later(interval_s, self._sweep)

    # -- what others call ------------------------------------------------------------------------

    async def _describe(self, request: bytes, context: Any) -> bytes:
        try:
            wire.check_describe_request(request)
        except RemoteProtocolError as error:
            self.ears.rejected("malformed", context.peer().rpartition(":")[0], str(error))
            await context.abort(status_of(error), str(error)[:SENTENCE_MAX])
        return wire.encode_description(self.ears.describe())

    async def _talk(self, _: Any, context: Any) -> None:
        self._talks += 1
        try:
            if self._talks > self.limits.links_max:
                raise PeerUnavailable(f"{self.limits.links_max} links already, no more are taken")
            await Listening(self, context).run()
        except MurmurateError as error:
            await context.abort(status_of(error), str(error)[:SENTENCE_MAX])
        except GRPC_ERRORS:
            pass  # the link broke
        except Exception as bug:
            if not is_bug(bug):
                return
            # Of ours, found by what somebody sent: it costs that one its link, and nobody else.
            self.ears.rejected("bug", context.peer().rpartition(":")[0], repr(bug))
            log.exception("a link ended unexpectedly")
            await context.abort(grpc.StatusCode.INTERNAL, "a bug in this node")
        finally:
            self._talks -= 1

    def take_turn(self, name: str, listening: Listening) -> None:
        """A peer has one link to me: the newest."""
        if (before := self._listening.get(name)) is not None:
            before.end(None)
        self._listening[name] = listening

    def give_up_turn(self, name: str, listening: Listening) -> None:
        if self._listening.get(name) is listening:
            del self._listening[name]

    # -- links of mine ---------------------------------------------------------------------------

    def began(self, speaking: Speaking) -> None:
        self._speaking.add(speaking)

    def ended(self, speaking: Speaking) -> None:
        self._speaking.discard(speaking)


def split_address(key: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{key} {address!r}: expected host:port")
    return host, int(port)
