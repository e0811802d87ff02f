"""A TCP line between two nodes that can be slow, cut, or silent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Line:
    """A TCP line to somewhere: slow, or cut after so many bytes, or silent after them."""

    def __init__(
        self, address: str, bytes_per_s: float = float("inf"), *, both_ways: bool = False
    ) -> None:
        """`both_ways`: what comes back is slow and counted, too."""
        self._target = address
        self.bytes_per_s = bytes_per_s
        self._both_ways = both_ways
        self.bytes_left: float = float("inf")
        self.silent = False
        self.forwarded = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Line:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        self._writers |= {writer, there_writer}
        for source, sink, counted in (
            (reader, there_writer, True),
            (there_reader, writer, self._both_ways),
        ):
            task = asyncio.create_task(self._forward(source, sink, counted))
            self._tasks.add(task)

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, counted: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if counted:
                    self.forwarded += len(data)
                    self.bytes_left -= len(data)
                    if self.bytes_left < 0:
                        if self.silent:
                            continue
                        self.cut()
                        return
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                sink.write(data)
                await sink.drain()


@contextlib.contextmanager
def line_to(address: str) -> Iterator[Line]:
    """A line on a loop and a thread of its own, for nodes that have theirs. Both ways count."""
    line = Line(address, both_ways=True)
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def live() -> None:
        async with line:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    try:
        assert ready.wait(10)
        yield line
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
