"""The generator's side of its streams: it deals what is in stock to whoever asks.

One stream per peer. A batch is kept, as the bytes that are sent, until it is done: it may have to
be dealt again.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence

from murmurate.core.batches.dealer import Dealer, Witness
from murmurate.core.clock import Key
from murmurate.edge.net import generator_wire as wire
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.generator_link import FEED
from murmurate.edge.net.grpc_terms import reason_of
from murmurate.edge.net.stream_server import Rejections, StreamServer, Visit
from murmurate.edge.net.transport import Limits
from murmurate.errors import (
    MurmurateError,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)

LEASE_MARGIN_S = 1.0
STOCK_BYTES_MAX = 512 << 20
"""Beyond this no new batch is dealt until some are done; one always is."""
FRESH_MAX, FRESH_BYTES_MAX = 32, 64 << 20
"""Batches made ahead of being asked for."""


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
        credentials: Credentials,
    ) -> None:
        self.dealer: Dealer | None = None
        """None: not open yet, peers come again."""
        self.swarm = ""
        """The founding that is dealt to: that of the first peer."""
        self.limits = limits or Limits()
        self.rejections = Rejections()
        """Streams that were refused or cut off."""
        self.server = StreamServer(
            listen, advertise=advertise, limits=self.limits, credentials=credentials
        )
        self.server.take(FEED, self)
        self.wanted = asyncio.Event()
        """Set when more batches should be made."""
        self.on_peer: Callable[[str], None] = lambda _: None
        """Told the address of each peer that comes."""
        self._run = run
        self._samples = samples
        self._tensors = tuple(tensors)
        self._instance = secrets.token_hex(8)
        self._fresh: deque[bytes] = deque()
        self._stock: dict[int, bytes] = {}
        self._heard: dict[Key, float] = {}
        self._streams: dict[Key, _Dealt] = {}

    # -- for the program -------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. ConfigError: the address is taken."""
        await self.server.start()

    @property
    def address(self) -> str:
        """Where others reach it; known after `start`."""
        return self.server.address

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
            stream.end()
        await self.server.stop(grace_s)

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

    def greeted(self, data: bytes) -> wire.FeedHello:
        hello = wire.decode_ask(data).hello
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

    async def attend(self, greeting: wire.FeedHello, stream: Visit) -> None:
        dealer, hello = self.dealer, greeting
        assert dealer is not None
        life = (hello.name, hello.epoch)
        if (before := self._streams.get(life)) is not None:
            before.end()  # the hello says what was taken on it; the rest is dealt again
        dealt = _Dealt(self, life, stream)
        self._streams[life] = dealt
        self._heard[life] = time.monotonic()
        self.on_peer(hello.address)
        kept = dealer.came(life, hello.seq, hello.claims)
        dealt.confirmed += kept
        dealt.denied += [number for number in hello.claims if number not in set(kept)]
        try:
            await dealt.run(
                wire.FeedWelcome(
                    run=self._run,
                    instance=self._instance,
                    batches=dealer.total or 0,
                    samples=self._samples,
                    tensors=self._tensors,
                )
            )
        finally:
            if self._streams.get(life) is dealt:
                del self._streams[life]
                dealer.went(life)
                self._serve()

    def hear(self, stream: _Dealt, ask: wire.Ask) -> bool:
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

    def rejected(self, sender: str, error: MurmurateError) -> None:
        self.rejections.note(reason_of(error), sender, error)

    def quarantined(self, sender: str) -> None:
        """It is told when it comes again, and counted then."""

    def stumbled(self, sender: str, bug: Exception) -> None:
        self.rejections.note("bug", sender, bug)


class _Dealt:
    """One peer at the table: what it is dealt and told."""

    def __init__(self, service: GeneratorService, life: Key, stream: Visit) -> None:
        self.life = life
        self.confirmed: list[int] = []
        self.denied: list[int] = []
        self.taken: list[int] = []
        self.pong = 0
        self._service = service
        self._stream = stream
        self.end = stream.end
        self._batches: deque[tuple[int, bytes]] = deque()
        self._number = 0
        self._wake = asyncio.Event()
        self._told_end = False

    def send(self, number: int, raw: bytes) -> None:
        self._batches.append((number, raw))
        self._wake.set()

    def take(self, number: int) -> None:
        self._batches = deque(item for item in self._batches if item[0] != number)
        self.taken.append(number)
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    async def run(self, welcome: wire.FeedWelcome) -> None:
        await self._write(wire.Deal(welcome=welcome))
        self._wake.set()
        await self._stream.until_over(self._listen(), self._speak())

    async def _listen(self) -> None:
        while True:
            ask = wire.decode_ask(await self._stream.read())
            if not self._service.hear(self, ask):
                return

    async def _speak(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._batches:
                number, raw = self._batches.popleft()
                self._number += 1
                place, more, most = self._number, [], self._stream.piece.nbytes
                if len(raw) <= most // 2:  # small ones travel together
                    raws = [raw]
                    while self._batches and (1 + len(raws)) * len(raw) <= most:
                        another, raw = self._batches.popleft()
                        more.append(another)
                        raws.append(raw)
                    self._number += len(more)
                    raw = b"".join(raws)
                start = 0
                while start < len(raw):
                    size = len(raw) if more else self._stream.piece.nbytes
                    part = memoryview(raw)[start : start + size]
                    piece = wire.Piece(number, start, place, tuple(more))
                    await self._write(self._words(piece, part))
                    start += len(part)
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
        limit_s = self._service.limits.stall_s
        late = "stalled: what is dealt is not read"
        await self._stream.write(wire.encode_deal(deal), limit_s, late, len(deal.raw))
