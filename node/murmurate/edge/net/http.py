"""A few pages over HTTP/1.1, from the event loop of a node: for scrapes, probes and browsers.

Only GET and HEAD, one answer to each connection, no body is read, and nothing a stranger sends
takes more than a few kilobytes or seconds. Plain text on the wire: what is here is for reading, it
changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from murmurate.core.values.addresses import split_address
from murmurate.edge.net.credentials import Credentials
from murmurate.errors import ConfigError

HEAD_BYTES_MAX = 8 << 10
CONNECTIONS_MAX = 32
READ_S = 5.0
WRITE_S = 10.0
PIECE_BYTES = 1 << 20
TEXT = "text/plain; charset=utf-8"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;"
    " connect-src 'self'"
)
"""A page may talk to the node it came from, and to nobody else."""
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    kind: str = TEXT
    status: int = 200


Make = Callable[[Mapping[str, str]], Page | Awaitable[Page]]
"""A page from the request's headers, their names in small letters; later, if it takes time."""


class Pages:
    """Serves them at one address, from `start` to `stop`, both on the loop that serves."""

    def __init__(self, listen: str, routes: Mapping[str, Make], credentials: Credentials) -> None:
        self.address = listen
        """With port 0: known after `start`."""
        self._routes = dict(routes)
        self._credentials = credentials
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """ConfigError: the address is taken, or cannot be one."""
        try:
            host, port = split_address(self.address)
        except ValueError as error:
            raise ConfigError(f"metrics {self.address!r}: {error}") from None
        try:
            self._server = await self._credentials.open_pages(
                host, port, self._serve, HEAD_BYTES_MAX
            )
        except OSError as error:
            raise ConfigError(
                f"metrics {self.address}: cannot listen there"
                f" ({error.strerror or error}); another port, or 0 for a free one"
            ) from None
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if len(self._open) <= CONNECTIONS_MAX:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    await self._answer(reader, writer)
        except asyncio.CancelledError:
            pass  # this node stops: asyncio would report it as a failure
        finally:
            self._open.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = "GET"
        try:
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, made = self._page(head)
            page = made if isinstance(made, Page) else await made
        except asyncio.LimitOverrunError:
            page = Page(b"too long\n", status=431)
        except asyncio.IncompleteReadError:
            return
        writer.write(
            f"HTTP/1.1 {page.status} {REASONS[page.status]}\r\n"
            f"Content-Type: {page.kind}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            "Cache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            f"Content-Security-Policy: {POLICY}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        body = memoryview(page.body if method != "HEAD" else b"")
        for at in range(0, max(1, len(body)), PIECE_BYTES):  # a large one may take its time
            writer.write(body[at : at + PIECE_BYTES])
            async with asyncio.timeout(WRITE_S):
                await writer.drain()

    def _page(self, head: bytes) -> tuple[str, Page | Awaitable[Page]]:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "GET", Page(b"expected an HTTP/1.1 request\n", status=400)
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return method, Page(b"only GET\n", status=405)
        make = self._routes.get(target.partition("?")[0])
        if make is None:
            known = " ".join(self._routes)
            return method, Page(f"here are {known}\n".encode(), status=404)
        pairs = (line.partition(":") for line in lines if line)
        return method, make({name.strip().lower(): text.strip() for name, _, text in pairs})
