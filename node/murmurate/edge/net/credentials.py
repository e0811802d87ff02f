"""Credentials: the one place that opens a port or a channel, and that says who a caller is.

Whatever listens or dials takes them as an argument and asks them, so that what protects a
connection is decided here and nowhere else (`tests/policy/test_ports.py`). Today they are
`Plaintext`: nothing is encrypted, nobody proves a name, nobody is shut out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from murmurate.errors import ConfigError

Options = Sequence[tuple[str, int]]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a caller is, as far as its connection proves it."""

    host: str
    """Where it calls from."""
    name: str | None = None
    """What its certificate says; None: it showed none, and may call itself anything."""


class Credentials(Protocol):
    """What a node opens its ports and channels with."""

    @property
    def generation(self) -> int:
        """Higher whenever what is shown to others changes. A channel keeps what it was opened with:
        one of an earlier generation is to be replaced, while what is on its way arrives."""

    def open_channel(self, address: str, options: Options) -> grpc.aio.Channel:
        """A channel to that address; it is the caller's to close."""

    async def open_port(
        self,
        listen: str,
        services: Sequence[grpc.GenericRpcHandler],
        options: Options,
        calls_max: int,
    ) -> tuple[grpc.aio.Server, int]:
        """A server that has begun to listen at host:port, and its port. ConfigError: it cannot."""

    async def open_pages(
        self, host: str, port: int, serve: Serve, line_bytes_max: int
    ) -> asyncio.Server:
        """A port for pages over HTTP. OSError: it cannot be listened at."""

    def identity(self, context: Any) -> Identity:
        """Who is at the other end of a call."""

    def dialled(self, address: str, name: str) -> Identity:
        """Who is at the other end of a channel to that address, if it was opened to call `name`:
        the same host, and as much of a name, as if that one had called."""

    def revoked(self, identity: Identity) -> bool:
        """Whether that one is not spoken to any more."""


class Plaintext:
    """Credentials that protect nothing: for one machine, or a network that is trusted."""

    generation = 0

    def open_channel(self, address: str, options: Options) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=options)

    async def open_port(
        self,
        listen: str,
        services: Sequence[grpc.GenericRpcHandler],
        options: Options,
        calls_max: int,
    ) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=calls_max)
        server.add_generic_rpc_handlers(tuple(services))
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as error:
            await server.stop(None)
            raise ConfigError(f"listen {listen}: cannot be bound; is it in use?") from error
        await server.start()
        return server, port

    async def open_pages(
        self, host: str, port: int, serve: Serve, line_bytes_max: int
    ) -> asyncio.Server:
        return await asyncio.start_server(
            serve, host, port, limit=line_bytes_max, reuse_address=True
        )

    def identity(self, context: Any) -> Identity:
        return Identity(context.peer().rpartition(":")[0])

    def dialled(self, address: str, name: str) -> Identity:
        host = address.rpartition(":")[0]
        try:
            version = ipaddress.ip_address(host.strip("[]")).version
        except ValueError:
            return Identity(host)  # a name: who calls from there shows its number
        return Identity(f"ipv{version}:{host}")

    def revoked(self, identity: Identity) -> bool:
        return False


PLAINTEXT = Plaintext()
"""The same for all: only where a program begins is it chosen (`tests/policy/test_ports.py`)."""


def source_towards(family: int, kind: int, number: int, place: Any) -> str | None:
    """This machine's address on the way to a place; None: no way leads there. Nothing is sent: a
    datagram's socket only looks up the route."""
    with socket.socket(family, kind, number) as probe:
        try:
            probe.connect(place)
        except OSError:
            return None
        return str(probe.getsockname()[0])
