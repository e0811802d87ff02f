"""Links inside one process and one event loop, for tests and for trying things out.

Heads and small messages pass through the wire format and payloads are copied, so nothing is shared
between two nodes that could not be shared between two machines. The `Hub` can delay, cut and break.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from murmurate.errors import (
    ChecksumMismatch,
    ConfigError,
    LocalProtocolError,
    MurmurateError,
    PeerTimeout,
    PeerUnavailable,
    RemoteProtocolError,
)
from murmurate.io import link as links
from murmurate.io import wire
from murmurate.io.link import as_bytes
from murmurate.io.quarantine import Quarantine
from murmurate.io.transport import INLINE_BYTES, WINDOW_BYTES, WINDOW_MESSAGES, Ears, Limits


class Hub:
    """The network of one process.

    `break_chance`: of each message, that its link breaks instead. `delay_s(from, to)`: addresses.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        break_chance: float = 0.0,
        delay_s: Callable[[str, str], float] | None = None,
    ) -> None:
        self.break_chance = break_chance
        self.delay_s = delay_s or (lambda _from, _to: 0.0)
        self.rng = random.Random(seed)
        self.places: dict[str, MemoryTransport] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._ports = 0

    def transport(
        self, address: str | None = None, limits: Limits | None = None
    ) -> MemoryTransport:
        self._ports += 1
        return MemoryTransport(self, address or f"memory:{self._ports}", limits)

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two addresses any more, and their links break."""
        self._cuts |= {(one, other), (other, one)}
        for here, there in ((one, other), (other, one)):
            if here in self.places:
                self.places[here].break_links(there)

    def mend(self) -> None:
        self._cuts.clear()

    def at(self, here: str, there: str) -> MemoryTransport | None:
        """Whom `here` reaches at that address."""
        return None if (here, there) in self._cuts else self.places.get(there)


@dataclass(slots=True, eq=False)
class _Item:
    """A message under way: a note as bytes, or a bulk message."""

    note: bytes = b""
    message: Any = None
    nbytes: int = 0
    consumed: bool = False


class MemoryTransport:
    """`Transport` to the other transports of a `Hub`."""

    def __init__(self, hub: Hub, address: str, limits: Limits | None = None) -> None:
        self.address = address
        self.bytes_sent = 0
        self.bytes_received = 0
        self.limits = limits or Limits()
        self.hub = hub
        self.ears: Ears
        self.quarantine = Quarantine(self.limits)
        self._hello: wire.Hello | None = None
        self._links: dict[str, _Link] = {}
        self._stopping = False

    async def start(self, ears: Ears) -> None:
        if self.address in self.hub.places:
            raise ConfigError(f"listen {self.address}: is in use")
        self.ears = ears
        self.loop = asyncio.get_running_loop()
        self.hub.places[self.address] = self

    async def describe(self, address: str, timeout_s: float) -> wire.Description:
        delay_s = 2 * self.hub.delay_s(self.address, address)
        await asyncio.sleep(min(delay_s, timeout_s))
        if delay_s > timeout_s:
            raise PeerTimeout(f"{address} does not answer")
        there = self.hub.at(self.address, address)
        if there is None:
            raise PeerUnavailable(f"nobody answers at {address}")
        return wire.decode_description(wire.encode_description(there.ears.describe()))

    def hello(self, hello: wire.Hello) -> None:
        if hello != self._hello:
            self._hello = hello
            for link in self._links.values():
                link.fail()

    def meet(self, name: str, address: str) -> None:
        link = self._links.get(name)
        if link is not None and link.address != address:
            self.drop(name)
            link = None
        if link is None:
            self._links[name] = _Link(self, name, address)

    def drop(self, name: str) -> None:
        if (link := self._links.pop(name, None)) is not None:
            link.fail()

    def break_links(self, address: str) -> None:
        for link in self._links.values():
            if link.address == address:
                link.fail()

    def post(self, to: str, message: Any) -> None:
        link = self._links.get(to)
        if link is not None and link.may_open() and not self._stopping:
            link.post(wire.encode_note(message))

    def free(self, to: str) -> bool:
        link = self._links.get(to)
        return link is not None and not self._stopping and link.may_open() and link.free

    def carry(self, to: str, message: Any) -> None:
        link = self._links.get(to)
        if link is not None and link.may_open() and not self._stopping:
            link.carry(message)
        else:
            self.loop.call_soon(self.ears.lost, to, message)

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        quiet = [link.quiet.wait() for link in self._links.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*quiet)
        for link in self._links.values():
            link.fail()
        if self.hub.places.get(self.address) is self:
            del self.hub.places[self.address]
            for other in self.hub.places.values():
                other.break_links(self.address)
        await asyncio.sleep(0)

    @property
    def greeting(self) -> wire.Hello:
        if self._hello is None:
            raise LocalProtocolError("hello() comes before the first message")
        return self._hello


class _Link:
    """The way from one transport to another: `_queue` waits, `_under_way` has arrived or will."""

    def __init__(self, transport: MemoryTransport, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.quiet = asyncio.Event()
        self.quiet.set()
        self._transport = transport
        self._retry_at = 0.0
        self._failures = 0
        self._reset()

    def _reset(self) -> None:
        self._welcomed = False
        self._notes: deque[_Item] = deque()
        self._queue: deque[_Item] = deque()
        self._under_way: deque[_Item] = deque()
        self._life = object()
        self._sent_until = 0.0
        self.quiet.set()

    def may_open(self) -> bool:
        return self._transport.loop.time() >= self._retry_at

    @property
    def free(self) -> bool:
        waiting = [item.nbytes for item in (*self._queue, *self._under_way)]
        return sum(waiting) < WINDOW_BYTES and len(waiting) < WINDOW_MESSAGES

    def post(self, note: bytes) -> None:
        self._notes.append(_Item(note=note, nbytes=len(note)))
        if len(self._notes) > self._transport.limits.notes_max:
            self._notes.popleft()
        self._later()

    def carry(self, message: Any) -> None:
        _, payload = wire.take_apart(message)
        nbytes = payload.numel() * payload.element_size()
        self._queue.append(_Item(message=message, nbytes=nbytes))
        self._later()

    def _later(self) -> None:
        self.quiet.clear()
        self._transport.loop.call_soon(self._pump, self._life)

    def _pump(self, life: object) -> None:
        """Send what may go now; each takes its time, none overtakes another."""
        if life is not self._life:
            return
        ready: list[_Item] = list(self._notes)
        self._notes.clear()
        while self._queue and sum(item.nbytes for item in self._under_way) < WINDOW_BYTES:
            self._under_way.append(self._queue.popleft())
            ready.append(self._under_way[-1])
        if not ready:
            return
        transport = self._transport
        delay_s = transport.hub.delay_s(transport.address, self.address)
        if not delay_s and not self._sent_until:
            transport.loop.call_soon(self._arrive, life, ready)
        else:  # a little apart, since timers of one instant may be called in any order
            due = max(transport.loop.time() + delay_s, self._sent_until + 1e-6)
            self._sent_until = due
            transport.loop.call_at(due, self._arrive, life, ready)

    def _arrive(self, life: object, items: list[_Item]) -> None:
        hub, transport = self._transport.hub, self._transport
        for item in items:
            if life is not self._life:
                return
            there = hub.at(transport.address, self.address)
            if there is None or (hub.break_chance and hub.rng.random() < hub.break_chance):
                self.fail()
                return
            try:
                self._open(there)
                transport.bytes_sent += item.nbytes
                there.bytes_received += item.nbytes
                self._hand_over(there, item)
            except RemoteProtocolError as error:
                who = f"{transport.greeting.name} {transport.address}"
                reason = "digest" if isinstance(error, ChecksumMismatch) else "malformed"
                there.ears.rejected(reason, transport.greeting.name, str(error))
                there.quarantine.strike(who, there.loop.time())
                self.fail(LocalProtocolError(str(error)))
            except MurmurateError as error:
                there.ears.rejected("refused", transport.greeting.name, str(error))
                self.fail(error)
        self._settle()

    def _open(self, there: MemoryTransport) -> None:
        if self._welcomed:
            return
        hello = self._transport.greeting
        who = f"{hello.name} {self._transport.address}"
        if left_s := there.quarantine.left_s(who, there.loop.time()):
            raise PeerUnavailable(f"{hello.name} is in quarantine for {left_s:.0f} s more")
        welcome = there.ears.greet(hello)
        if welcome.name != self.name:
            raise PeerUnavailable(f"{self.address} is {welcome.name} now")
        self._welcomed = True
        self._failures = 0

    def _hand_over(self, there: MemoryTransport, item: _Item) -> None:
        sender = self._transport.greeting.name
        if item.message is None:
            there.ears.received(sender, wire.decode_note(item.note), _nothing)
            return
        parts, payload = wire.take_apart(item.message)
        told = links.told_checksum(item.message, as_bytes(payload))
        data = wire.encode_piece(number=1, total=item.nbytes, head=parts, checksum=told)
        head = wire.decode_frame(wire.encode_frame(piece=data, raw=b"\0")).piece
        assert head is not None
        assert head.head is not None
        expected = there.ears.expected_bytes(head.head)
        if item.nbytes != expected:
            raise RemoteProtocolError("bulk.total", f"{item.nbytes} bytes, expected {expected}")
        consumed = partial(self._consumed, self._life, item)
        if item.nbytes > INLINE_BYTES and not there.ears.wants(sender, head.head):
            consumed()
            return
        if isinstance(head.head, wire.SnapshotHead):
            crc = wire.checksum(as_bytes(payload))
            if crc != head.checksum:
                there.ears.broke(sender, head.head, False)
                problem = f"{crc:08x} of what arrived, not {head.checksum:08x}"
                raise ChecksumMismatch("snapshot.checksum", problem)
        message = wire.put_together(head.head, payload.clone())
        there.ears.received(sender, message, partial(_call_soon, there.loop, consumed))

    def _consumed(self, life: object, item: _Item) -> None:
        item.consumed = True
        if life is not self._life:
            return
        while self._under_way and self._under_way[0].consumed:
            landed = self._under_way.popleft()
            self._transport.loop.call_soon(self._transport.ears.landed, self.name, landed.message)
        self._pump(life)
        self._settle()

    def _settle(self) -> None:
        if not (self._notes or self._queue or self._under_way):
            self.quiet.set()

    def fail(self, error: MurmurateError | None = None) -> None:
        """Close: what has not landed is lost."""
        transport = self._transport
        call_soon, ears = transport.loop.call_soon, transport.ears
        if error is not None:
            call_soon(ears.refused, self.name, error)
        for item in (*self._under_way, *self._queue):
            call_soon(ears.lost, self.name, item.message)
        limits = transport.limits
        if error is not None:
            self._retry_at = transport.loop.time() + limits.refused_s
        elif not self._welcomed and not self.quiet.is_set():
            self._failures += 1
            wait_s = limits.backoff_min_s * 2.0 ** min(self._failures, 10)
            self._retry_at = transport.loop.time() + min(wait_s, limits.backoff_max_s)
        self._reset()


def _call_soon(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it
        loop.call_soon_threadsafe(action)


def _nothing() -> None:
    """Small messages need no receipt."""
