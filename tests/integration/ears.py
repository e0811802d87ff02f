"""A node's ears that only remember, and a pair of transports with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Ping, Push, Stamp
from murmurate.edge.net import wire
from murmurate.edge.net.transport import Limits, Transport
from murmurate.errors import MurmurateError, RemoteProtocolError

SMALL, LARGE = 1000, 3_000_000
"""Elements of a push that is sent at once, and of one that is offered first."""
WAIT_S = 20.0

SHORT = Limits(
    heard_s=0.0,
    backoff_min_s=0.01,
    backoff_max_s=0.05,
    refused_s=0.01,
    stall_s=0.4,
    pause_s=0.4,
    stall_max_s=1.0,
    dial_s=2.0,
    quarantine_min_s=30.0,
)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """One scenario on a loop of its own. What nobody awaited or caught fails it."""

    async def watched() -> None:
        trouble: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: trouble.append(context))
        async with asyncio.timeout(3 * WAIT_S):
            await scenario
        assert trouble == []
        mine = asyncio.current_task()
        deadline = loop.time() + WAIT_S  # gRPC ends a cancelled handler of a server a little later
        while left := [task for task in asyncio.all_tasks() if task is not mine]:
            assert loop.time() < deadline, left
            await asyncio.sleep(0.01)

    asyncio.run(watched())


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait for it, not longer than it takes."""
    loop = asyncio.get_running_loop()
    end = loop.time() + WAIT_S
    while not condition():
        assert loop.time() < end, f"did not come: {what or condition}"
        await asyncio.sleep(0.002)


def push(seq: int, size: int = SMALL, origin: str = "a") -> Push:
    payload = torch.arange(size, dtype=torch.float32) + seq
    return Push((Stamp(Dot(origin, 1, seq), Clock()),), payload)


def ping(number: int) -> Ping:
    return Ping(number)


class Memo:
    """`Ears` that write down what they hear; `done` is called unless `hold` is set."""

    def __init__(self, name: str, size: int = SMALL, epoch: int = 1) -> None:
        self.name, self.size, self.epoch = name, size, epoch
        self.address = ""
        self.run = "test"
        self.hold = False
        self.unwanted = False
        self.bad: Callable[[Any], bool] = lambda _message: False
        self.refusal: MurmurateError | None = None
        self.hellos: list[wire.Hello] = []
        self.got: list[tuple[str, Any]] = []
        self.dones: list[Callable[[], None]] = []
        self.landed_there: list[tuple[str, Any]] = []
        self.lost_there: list[tuple[str, Any]] = []
        self.refusals: list[tuple[str, MurmurateError]] = []
        self.rejections: list[tuple[str, str, str]] = []
        self.bugs: list[BaseException] = []
        self.pieces = 0
        self.broken: list[tuple[str, wire.BulkHead, bool]] = []

    def greeting(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "swarm": "1",
            "schema": "s",
            "name": self.name,
            "epoch": self.epoch,
            "address": self.address,
        }

    def hello(self) -> wire.Hello:
        return wire.Hello(**self.greeting())

    def greet(self, hello: wire.Hello) -> wire.Hello:
        if self.refusal is not None:
            raise self.refusal
        self.hellos.append(hello)
        return self.hello()

    def answered(self, hello: wire.Hello) -> None:
        if self.refusal is not None:
            raise self.refusal

    def describe(self) -> wire.Description:
        return wire.Description(instance="i", synced=True, **self.greeting())

    def expected_bytes(self, head: wire.BulkHead) -> int:
        if head.dtype != "f4":
            raise RemoteProtocolError("bulk.dtype", head.dtype)
        return 4 * self.size

    def wants(self, sender: str, head: wire.BulkHead) -> bool:
        return not self.unwanted

    def heard(self, sender: str, head: wire.BulkHead) -> None:
        self.pieces += 1

    def broke(self, sender: str, head: wire.BulkHead, again: bool) -> None:
        self.broken.append((sender, head, again))

    def received(self, sender: str, message: Any, done: Callable[[], None]) -> None:
        if self.bad(message):
            raise RemoteProtocolError("push.payload", "not finite")
        self.got.append((sender, message))
        if self.hold:
            self.dones.append(done)
        else:
            done()

    def landed(self, to: str, message: Any) -> None:
        self.landed_there.append((to, message))

    def lost(self, to: str, message: Any) -> None:
        self.lost_there.append((to, message))

    def refused(self, to: str, error: MurmurateError) -> None:
        self.refusals.append((to, error))

    def rejected(self, reason: str, sender: str, detail: str) -> None:
        self.rejections.append((reason, sender, detail))

    def fault(self, bug: BaseException) -> None:
        self.bugs.append(bug)

    def has(self, count: int) -> bool:
        """Whether so many messages have come."""
        return len(self.got) == count

    @property
    def messages(self) -> list[Any]:
        return [message for _, message in self.got]


class Node:
    """A transport and its ears."""

    def __init__(self, transport: Transport, ears: Memo) -> None:
        self.transport, self.ears = transport, ears

    async def start(self) -> Node:
        await self.transport.start(self.ears)
        self.ears.address = self.transport.address
        self.transport.hello(self.ears.hello())
        return self

    def meet(self, other: Node) -> None:
        self.transport.meet(other.ears.name, other.transport.address)

    async def stop(self) -> None:
        await self.transport.stop(0.2)


Make = Callable[[Limits], Transport]
Scenario = Callable[[Node, Node], Awaitable[None]]


async def pair(make: Make, scenario: Scenario, size: int = SMALL, limits: Limits = SHORT) -> None:
    """Two nodes, `a` and `b`, who know where the other is."""
    a = await Node(make(limits), Memo("a", size)).start()
    b = await Node(make(limits), Memo("b", size)).start()
    a.meet(b)
    b.meet(a)
    try:
        await scenario(a, b)
    finally:
        await a.stop()
        await b.stop()
        assert a.ears.bugs == b.ears.bugs == []
