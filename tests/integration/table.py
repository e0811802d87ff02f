"""A generator in a thread, with batches of its own; and one that says what it is told to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio
import numpy as np
import torch

from murmurate.core.batches.dealer import Totals
from murmurate.core.partition.structure import NO_STRUCTURE
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.net.transport import Limits
from murmurate_coordinator.service import LIMITS, CoordinatorService
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.batches.dealing import BatchDealing

SAMPLES = 16


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and a tensor that says which one it is."""
    data = torch.Generator().manual_seed(number)
    return torch.randn(SAMPLES, 8, generator=data), torch.tensor([number])


class Table:
    """A coordinator of mode batches with `total` of them, on a loop of its own."""

    def __init__(
        self, total: int | None, run: str = "test", limits: Limits = LIMITS, large: int = 0
    ) -> None:
        """`large`: so many bytes in each batch."""
        self.solver = BatchDealing(NO_STRUCTURE, {}, np.random.default_rng(0))
        self.solver.samples = SAMPLES
        zeros = (torch.zeros(large, dtype=torch.uint8),)
        self.solver.batch = lambda number: zeros if large else batch(number)
        self.dealer = self.solver.dealer
        self.dealer.total = total
        self.run = run
        self.limits = limits
        self.service: CoordinatorService
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def address(self) -> str:
        return self.service.address

    @property
    def totals(self) -> Totals:
        return self.dealer.totals

    def break_streams(self) -> None:
        async def act() -> None:
            for stream in list(self.service._streams.values()):
                stream.end()

        asyncio.run_coroutine_threadsafe(act(), self.loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        now = time.monotonic()
        centre = Sessions(self.solver, run=self.run, instance="i", now=now)
        self.service = CoordinatorService(
            "127.0.0.1:0", centre, limits=self.limits, credentials=PLAINTEXT
        )
        await self.service.start()
        self._ready.set()
        told = False
        while not self._stop.is_set():
            await asyncio.sleep(0.02)
            if self.dealer.over and not told:
                told = True
                await self.service.own(centre.stop, "samples")
        await self.service.stop()
        if self.service.failed is not None:
            raise self.service.failed

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
        methods = {"Train": grpc.stream_stream_rpc_method_handler(feed)}
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
