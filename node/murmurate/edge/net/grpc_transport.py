"""Links between peers over gRPC: one long-lived stream (`Talk`) with each, for both ways.

Bytes go through as they are, and frames are parsed by `wire`. A write that waits gives
back-pressure; the event loop is never blocked for longer than it takes to copy one piece.
"""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from typing import Any

from murmurate.core.gossip.average.push_sum import Receipt, Share
from murmurate.edge.net import wire
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.depot import Depot
from murmurate.edge.net.grpc_terms import LinkEnded, describe, reason_of
from murmurate.edge.net.link import TALK, Link, said_first
from murmurate.edge.net.route import Route
from murmurate.edge.net.send_queue import Packed
from murmurate.edge.net.stream_server import StreamServer, Visit
from murmurate.edge.net.transport import Ears, Limits
from murmurate.errors import (
    ConfigError,
    LocalProtocolError,
    MurmurateError,
    RemoteProtocolError,
)


class GrpcTransport:
    """`Transport` over grpc.aio. `listen` may have port 0; `advertise` is where others reach it."""

    def __init__(
        self,
        listen: str,
        *,
        advertise: str | None = None,
        limits: Limits | None = None,
        credentials: Credentials,
    ) -> None:
        self.address = advertise or listen
        self.bytes_sent = 0
        self.bytes_answered = 0
        """Received on links that I opened."""
        self.limits = limits or Limits()
        self.credentials = credentials
        self.depot = Depot(self.limits, time.monotonic)
        self.ears: Ears
        self._listen = listen
        self._advertise = advertise
        self._hello: wire.Hello | None = None
        self._routes: dict[str, Route] = {}
        self._links: set[Link] = set()
        self._opened = 0
        """How many links I have opened."""
        self._packed: weakref.WeakValueDictionary[int, Packed] = weakref.WeakValueDictionary()
        """By id of the message, while a link has it under way: it is packed once for all links."""
        self._stopping = False
        self._swept_at = -math.inf
        self._sweeping: asyncio.TimerHandle | None = None
        """None: it has not started."""
        self._server = StreamServer(
            listen, advertise=advertise, limits=self.limits, credentials=credentials
        )
        self._server.take(TALK, self)
        self._server.describe(self._described, self.rejected)

    @property
    def bytes_received(self) -> int:
        return self._server.bytes_received + self.bytes_answered

    async def start(self, ears: Ears) -> None:
        host, _ = split_address("listen", self._listen)
        split_address("advertise", self.address)
        if self._advertise is None and host in ("0.0.0.0", "[::]"):
            raise ConfigError(f"listen {self._listen}: say with advertise where others reach it")
        self.ears = ears
        self._loop = asyncio.get_running_loop()
        await self._server.start()
        self.address = self._server.address
        self._sweep()

    async def describe(self, address: str, timeout_s: float) -> wire.Description:
        return await describe(address, timeout_s, self.limits, self.credentials)

    def hello(self, hello: wire.Hello) -> None:
        if hello != self._hello:
            self._hello = hello
            for route in list(self._routes.values()):
                route.close()

    def meet(self, name: str, address: str) -> None:
        route = self._routes.get(name)
        if route is None:
            route = self._routes[name] = Route(self, name)
        if route.address != address:
            route.locate(address)

    def drop(self, name: str) -> None:
        if (route := self._routes.pop(name, None)) is not None:
            route.close()

    def post(self, to: str, message: Any) -> None:
        if (link := self._open(to)) is not None:
            link.post(wire.encode_note(message), awaited=isinstance(message, Receipt))

    def free(self, to: str) -> bool:
        route = self._routes.get(to)
        return route is not None and not self._stopping and route.free

    def carry(self, to: str, message: Any) -> None:
        if (link := self._open(to)) is not None:
            link.carry(self._pack(message))
        else:
            self._loop.call_soon(self.ears.lost, to, message)

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        for link in self._links:
            link.close()
        try:
            async with asyncio.timeout(grace_s):
                while self._links:
                    await next(iter(self._links)).over.wait()
        except TimeoutError:
            for link in list(self._links):
                link.end()
            while self._links:
                await next(iter(self._links)).over.wait()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await self._server.stop(0.5)
            await asyncio.sleep(0)  # the last of `lost` has been told

    def _open(self, to: str) -> Link | None:
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
            for link in list(self._links):
                link.check()
        self._swept_at = now
        self._sweeping = self._loop.call_later(interval_s, self._sweep)

    # -- links of others: the attendant's part ---------------------------------------------------

    def greeted(self, data: bytes) -> wire.Hello:
        return said_first(data)

    async def attend(self, greeting: wire.Hello, stream: Visit) -> None:
        if self._stopping:
            raise LinkEnded  # nobody is welcomed any more
        welcome = wire.encode_frame(hello=self.ears.greet(greeting))
        await stream.write(welcome, self.limits.stall_max_s, "the welcome is not read")
        route = self._routes.get(greeting.name)
        if route is None:
            route = self._routes[greeting.name] = Route(self, greeting.name)
        await route.called(greeting).attend(stream)

    def rejected(self, sender: str, error: MurmurateError) -> None:
        self.ears.rejected(reason_of(error), sender, str(error))

    def quarantined(self, sender: str) -> None:
        self.ears.rejected("quarantine", sender, "one bad message too many")

    def stumbled(self, sender: str, bug: Exception) -> None:
        self.ears.rejected("bug", sender, repr(bug))

    async def _described(self) -> wire.Description:
        return self.ears.describe()

    # -- what links ask and tell -----------------------------------------------------------------

    def number_of_next_link(self) -> int:
        self._opened += 1
        return self._opened

    def began(self, link: Link) -> None:
        self._links.add(link)
        if self._stopping:
            link.close()

    def ended(self, link: Link) -> None:
        self._links.discard(link)
        name = link.route.name
        if self._routes.get(name) is link.route and link.route.idle:
            del self._routes[name]  # a caller, and nobody has said where it is

    def distrust(self, name: str, address: str, error: MurmurateError) -> None:
        """What came on a link that I opened was refused: as if it had called."""
        self.rejected(name, error)
        if isinstance(error, RemoteProtocolError):
            who = f"{name} {self.credentials.dialled(address, name).host}"
            if self._server.quarantine.strike(who, time.monotonic()):
                self.quarantined(name)

    def distrusts(self, name: str, address: str) -> bool:
        """Whether that one is in quarantine."""
        who = f"{name} {self.credentials.dialled(address, name).host}"
        return self._server.quarantine.left_s(who, time.monotonic()) > 0.0


def split_address(key: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{key} {address!r}: expected host:port")
    return host, int(port)
