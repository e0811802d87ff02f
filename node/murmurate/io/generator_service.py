"""The generator's side of its streams: it deals what is in stock to whoever asks.

One stream per peer. Messages are parsed here, so garbage gets a status and a sentence. A batch is
kept, as the bytes that are sent, until it is done: it may have to be dealt again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from murmurate.core.clock import Key
from murmurate.core.dealer import Dealer, Witness
from murmurate.errors import (
    ConfigError,
    MurmurateError,
    PeerTimeout,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.io import generator_wire as wire
from murmurate.io.grpc_terms import (
    REASONS,
    SENTENCE_MAX,
    LinkEnded,
    first_of,
    read,
    server_options,
    status_of,
)
from murmurate.io.quarantine import Quarantine
from murmurate.io.transport import Limits

log = logging.getLogger("murmurate")

LEASE_MARGIN_S = 1.0
STOCK_BYTES_MAX = 512 << 20
"""Beyond this no new batch is dealt until some are done; one always is."""
FRESH_MAX, FRESH_BYTES_MAX = 32, 64 << 20
"""Batches made ahead of being asked for."""
WARN_S = 1.0


class GeneratorService:
    """Streams of batches over grpc.aio. `listen` may have port 0."""

    def __init__(
        self,
        listen: str,
        *,
        run: str,
        samples: int,
        tensors: Sequence[wire.BatchTensor],
        advertise: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.address = advertise or listen
        self.bytes_sent = 0
        self.bytes_received = 0
        self.rejected: Counter[str] = Counter()
        self.dealer: Dealer | None = None
        """None: not open yet, peers come again."""
        self.swarm = ""
        """The founding that is dealt to: that of the first peer."""
        self.limits = limits or Limits()
        self.wanted = asyncio.Event()
        """Set when more batches should be made."""
        self.on_peer: Callable[[str], None] = lambda _: None
        """Told the address of each peer that comes."""
        self._run = run
        self._listen = listen
        self._advertise = advertise
        self._samples = samples
        self._tensors = tuple(tensors)
        self._instance = secrets.token_hex(8)
        self._fresh: deque[bytes] = deque()
        self._stock: dict[int, bytes] = {}
        self._heard: dict[Key, float] = {}
        self._streams: dict[Key, _Stream] = {}
        self._quarantine = Quarantine(self.limits)
        self._calls = 0
        self._warned: dict[str, float] = {}
        self._server: Any = None

    # -- for the program -------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. ConfigError: the address is taken."""
        limits = self.limits
        options = [
            *server_options(limits, wire.REST_BYTES_MAX),
            ("grpc.max_send_message_length", wire.DEAL_BYTES_MAX),
        ]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.links_max + 16)
        methods = {"Feed": grpc.stream_stream_rpc_method_handler(self._feed)}
        handler = grpc.method_handlers_generic_handler(wire.SERVICE, methods)
        server.add_generic_rpc_handlers((handler,))
        try:
            bound = server.add_insecure_port(self._listen)
        except RuntimeError as error:
            await server.stop(None)
            raise ConfigError(f"listen {self._listen}: cannot be bound; is it in use?") from error
        await server.start()
        self._server = server
        host, _, port = (self._advertise or self._listen).rpartition(":")
        self.address = f"{host}:{bound if port == '0' else port}"

    def open(self, total: int | None) -> None:
        """Deal from now on: so many batches, or without end."""
        self.dealer = Dealer(total)
        self._see_wants()

    def put(self, raw: bytes) -> None:
        """One more batch."""
        self._fresh.append(raw)
        self._serve()

    def settle(self, witnesses: Sequence[Witness]) -> None:
        """Draw the conclusions from what the members said."""
        assert self.dealer is not None
        now = time.monotonic()
        settled = self.dealer.settle(witnesses, now, lambda life: self._leased(life, now))
        self._drop(settled.done)
        for life, number in settled.taken:
            if (stream := self._streams.get(life)) is not None:
                stream.take(number)
        for life, heard in list(self._heard.items()):
            if life not in self._streams and now > heard + wire.LEASE_S + LEASE_MARGIN_S:
                del self._heard[life]
        self._serve()
        if self.dealer.over:
            for stream in self._streams.values():
                stream.wake()

    def close(self) -> None:
        """No more than what has been dealt."""
        assert self.dealer is not None
        self._fresh.clear()
        self.dealer.close()
        self._see_wants()

    @property
    def full(self) -> bool:
        """Whether nothing new is dealt until something is done."""
        return self._stocked() >= STOCK_BYTES_MAX

    @property
    def peers(self) -> int:
        """Open streams."""
        return len(self._streams)

    async def stop(self, grace_s: float = 0.5) -> None:
        for stream in list(self._streams.values()):
            stream.end(None)
        if self._server is not None:
            await self._server.stop(grace_s)

    # -- dealing ---------------------------------------------------------------------------------

    def _leased(self, life: Key, now: float) -> bool:
        heard = self._heard.get(life, -math.inf)
        return now < heard + wire.LEASE_S + LEASE_MARGIN_S

    def _serve(self) -> None:
        """A batch to each who asks, as long as there are any."""
        dealer = self.dealer
        if dealer is None:
            return
        while asking := dealer.ready():
            served = False
            for life in asking:
                room = not self._stock or not self.full
                number = dealer.deal(life, fresh=bool(self._fresh) and room)
                if number is None:
                    break
                if number not in self._stock:
                    self._stock[number] = self._fresh.popleft()
                self._streams[life].send(number, self._stock[number])
                served = True
            if not served:
                break
        self._see_wants()

    def _see_wants(self) -> None:
        made = sum(map(len, self._fresh))
        few = len(self._fresh) < FRESH_MAX and made < FRESH_BYTES_MAX
        if self.dealer is not None and few and self.left != 0:
            self.wanted.set()
        else:
            self.wanted.clear()

    @property
    def left(self) -> int | None:
        """Batches still to be made; None: without end."""
        dealer = self.dealer
        if dealer is None or dealer.total is None:
            return None
        return max(0, dealer.total - dealer.totals.batches - len(self._fresh))

    def _stocked(self) -> int:
        return len(self._stock) * sum(tensor.nbytes for tensor in self._tensors)

    def _drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._stock.pop(number, None)

    # -- streams ---------------------------------------------------------------------------------

    async def _feed(self, _: Any, context: Any) -> None:
        self._calls += 1
        host = context.peer().rpartition(":")[0]
        name = host
        now = time.monotonic
        try:
            if self._calls > self.limits.links_max:
                raise PeerUnavailable(f"{self.limits.links_max} streams already")
            hello = await self._greeted(context)
            name = hello.name
            if left_s := self._quarantine.left_s(f"{name} {host}", now()):
                raise PeerUnavailable(f"{name} is in quarantine for {left_s:.0f} s more")
            await self._attend(hello, context)
        except LinkEnded:
            pass
        except MurmurateError as error:
            reason = REASONS.get(type(error), "refused")
            if isinstance(error, RemoteProtocolError):
                reason = "malformed"
                if name != host:
                    self._quarantine.strike(f"{name} {host}", now())
            self._reject(reason, name, str(error))
            await context.abort(status_of(error), str(error)[:SENTENCE_MAX])
        finally:
            self._calls -= 1

    async def _greeted(self, context: Any) -> wire.FeedHello:
        try:
            async with asyncio.timeout(self.limits.dial_s):
                ask = wire.decode_ask(await self._read(context))
        except TimeoutError:
            raise PeerTimeout("no hello") from None
        hello = ask.hello
        if hello is None:
            raise RemoteProtocolError("ask.hello", "missing: it is said first")
        if hello.run != self._run:
            raise SchemaMismatch(f"run {hello.run!r}, this generator has {self._run!r}")
        if self.dealer is None:
            raise PeerUnavailable("the generator is not open yet")
        self.swarm = self.swarm or hello.swarm
        if hello.swarm != self.swarm:
            raise SchemaMismatch(
                f"swarm {hello.swarm!r} of run {hello.run!r}: this generator deals to"
                f" {self.swarm!r}, and a batch is trained on once; start another one"
            )
        return hello

    async def _attend(self, hello: wire.FeedHello, context: Any) -> None:
        """One stream, from the welcome to its end."""
        dealer = self.dealer
        assert dealer is not None
        life = (hello.name, hello.epoch)
        if (before := self._streams.get(life)) is not None:
            before.end(None)  # a peer has one stream: the newest
        stream = _Stream(self, life, context)
        self._streams[life] = stream
        self._heard[life] = time.monotonic()
        self.on_peer(hello.address)
        kept = dealer.came(life, hello.seq, hello.claims)
        stream.confirmed += kept
        stream.denied += [number for number in hello.claims if number not in set(kept)]
        try:
            await stream.run(
                wire.FeedWelcome(
                    run=self._run,
                    instance=self._instance,
                    batches=dealer.total or 0,
                    samples=self._samples,
                    tensors=self._tensors,
                )
            )
        finally:
            if self._streams.get(life) is stream:
                del self._streams[life]
                dealer.went(life)
                self._serve()

    def hear(self, stream: _Stream, ask: wire.Ask) -> bool:
        """What a peer says. False: that was its last word."""
        dealer, life = self.dealer, stream.life
        assert dealer is not None
        if self._streams.get(life) is not stream:
            return False  # it has another one by now
        if ask.hello is not None:
            raise RemoteProtocolError("ask.hello", "again")
        self._heard[life] = time.monotonic()
        self._drop(dealer.spent(life, ask.spent))
        dealer.back(life, ask.back)
        dealer.forgo(life, ask.forgone)
        for number, seq in ask.claims:  # last: what was given back may have come again
            (stream.confirmed if dealer.claim(life, number, seq) else stream.denied).append(number)
        if ask.pull:
            dealer.pull(life, ask.pull)
        if ask.ping:
            stream.pong = ask.ping
        if ask.pull or ask.back:
            self._serve()
        stream.wake()
        return not ask.bye

    async def _read(self, context: Any) -> bytes:
        data = await read(context)
        self.bytes_received += len(data)
        return data

    def _reject(self, reason: str, sender: str, detail: str) -> None:
        self.rejected[reason] += 1
        now = time.monotonic()
        if now >= self._warned.get(reason, -math.inf) + WARN_S:
            self._warned[reason] = now
            log.warning("rejected (%s) from %s: %s", reason, sender, detail)


class _Stream:
    """One peer at the table."""

    def __init__(self, service: GeneratorService, life: Key, context: Any) -> None:
        self.life = life
        self.confirmed: list[int] = []
        self.denied: list[int] = []
        self.taken: list[int] = []
        self.pong = 0
        self._service = service
        self._context = context
        self._batches: deque[tuple[int, bytes]] = deque()
        self._number = 0
        self._wake = asyncio.Event()
        self._told_end = False
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, number: int, raw: bytes) -> None:
        self._batches.append((number, raw))
        self._wake.set()

    def take(self, number: int) -> None:
        self._batches = deque(item for item in self._batches if item[0] != number)
        self.taken.append(number)
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def end(self, error: MurmurateError | None) -> None:
        if not self._closing.done():
            if error is None:
                self._closing.set_result(None)
            else:
                self._closing.set_exception(error)

    async def run(self, welcome: wire.FeedWelcome) -> None:
        await self._write(wire.Deal(welcome=welcome))
        self._wake.set()
        await first_of(self._listen(), self._speak(), self._closing)

    async def _listen(self) -> None:
        while True:
            ask = wire.decode_ask(await self._service._read(self._context))
            if not self._service.hear(self, ask):
                return

    async def _speak(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._batches:
                number, raw = self._batches.popleft()
                self._number += 1
                place, more = self._number, []
                if len(raw) <= wire.RAW_BYTES_MAX // 2:  # small ones travel together
                    raws = [raw]
                    while self._batches and (1 + len(raws)) * len(raw) <= wire.RAW_BYTES_MAX:
                        another, raw = self._batches.popleft()
                        more.append(another)
                        raws.append(raw)
                    self._number += len(more)
                    raw = b"".join(raws)
                for start in range(0, len(raw), wire.RAW_BYTES_MAX):
                    part = memoryview(raw)[start : start + wire.RAW_BYTES_MAX]
                    piece = wire.Piece(number, start, place, tuple(more))
                    await self._write(self._words(piece, part))
            words = self._words()
            if words != wire.Deal():
                await self._write(words)

    def _words(self, piece: wire.Piece | None = None, raw: bytes | memoryview = b"") -> wire.Deal:
        """All there is to say, now that something is said."""
        dealer = self._service.dealer
        end = None
        if dealer is not None and dealer.over and not self._told_end and piece is None:
            self._told_end = True
            end = dealer.totals
        confirmed, self.confirmed = self.confirmed, []
        denied, self.denied = self.denied, []
        taken, self.taken = self.taken, []
        pong, self.pong = self.pong, 0
        return wire.Deal(
            piece=piece,
            confirmed=tuple(confirmed),
            denied=tuple(denied),
            taken=tuple(taken),
            pong=pong,
            end=end,
            raw=raw,
        )

    async def _write(self, deal: wire.Deal) -> None:
        data = wire.encode_deal(deal)
        try:
            async with asyncio.timeout(self._service.limits.stall_s):
                await self._context.write(data)
        except TimeoutError:
            raise PeerTimeout("stalled: what is dealt is not read") from None
        self._service.bytes_sent += len(data)
