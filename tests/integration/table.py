"""A generator in a thread, with batches of its own; and one that says what it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio
import torch

from murmurate.core.batches.dealer import Totals
from murmurate.edge.net import generator_wire as wire
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.net.generator_batch import pack, shape_of
from murmurate.edge.net.generator_service import GeneratorService
from murmurate.edge.net.generator_watch import Watch
from murmurate.edge.net.transport import Limits

LOOK_S = 0.1


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and a tensor that says which one it is."""
    data = torch.Generator().manual_seed(number)
    return torch.randn(16, 8, generator=data), torch.tensor([number])


class Table:
    """`GeneratorService` with `total` batches, on a loop of its own."""

    def __init__(self, total: int | None, run: str = "test", limits: Limits | None = None) -> None:
        self.total = total
        self.run = run
        self.limits = limits
        self.service: GeneratorService
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def address(self) -> str:
        return self.service.address

    @property
    def totals(self) -> Totals:
        assert self.service.dealer is not None
        return self.service.dealer.totals

    def call(self, act: Callable[[], Any]) -> Any:
        """Do this on its thread."""

        async def do() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(do(), self.loop).result(10)

    def break_streams(self) -> None:
        def act() -> None:
            for stream in self.service._streams.values():
                stream.end(None)

        self.call(act)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        self.service = GeneratorService(
            "127.0.0.1:0",
            run=self.run,
            samples=16,
            tensors=shape_of(batch(1)),
            limits=self.limits,
            credentials=PLAINTEXT,
        )
        watch = Watch(self.run, self.service.limits, PLAINTEXT)
        self.service.on_peer = watch.meet
        await self.service.start()
        self.service.open(self.total)
        self._ready.set()
        tasks = [asyncio.create_task(self._make()), asyncio.create_task(self._look(watch))]
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await self.service.stop()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _make(self) -> None:
        number = 0
        while self.service.left != 0:
            await self.service.wanted.wait()
            number += 1
            self.service.put(pack(batch(number)))

    async def _look(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self.service.swarm:
                self.service.settle(await watch.look(self.service.swarm))

    def __enter__(self) -> Table:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def scripted(script: Callable[[Any], AsyncIterator[bytes]]) -> Iterator[str]:
    """A generator that answers as `script(context)` says; its address."""
    loop = asyncio.new_event_loop()
    address: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def feed(_: Any, context: Any) -> None:
        async for data in script(context):
            await context.write(data)

    async def serve() -> None:
        server = grpc.aio.server()
        methods = {"Feed": grpc.stream_stream_rpc_method_handler(feed)}
        handler = grpc.method_handlers_generic_handler(wire.SERVICE, methods)
        server.add_generic_rpc_handlers((handler,))
        address.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        ready.set()
        await stop.wait()
        await server.stop(None)

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
