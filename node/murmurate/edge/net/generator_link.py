"""The peer's side of its stream of batches: opened, kept, and opened again when it broke."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from murmurate.core.batches.dealer import Totals
from murmurate.edge.net import generator_wire as wire
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.generator_batch import Batch, Unpacking
from murmurate.edge.net.stream_client import KeptStream, OpenStream
from murmurate.edge.net.streams import Kind
from murmurate.edge.net.transport import Limits
from murmurate.errors import ChecksumMismatch, MurmurateError, PeerUnavailable, RemoteProtocolError

FEED = Kind(
    service=wire.SERVICE,
    method="Feed",
    up_bytes_max=wire.REST_BYTES_MAX,
    down_bytes_max=wire.DEAL_BYTES_MAX,
)
PING_S = wire.LEASE_S / 4


class Taker(Protocol):
    """What the link talks for: whoever holds the batches until they are trained on. Called on the
    link's thread only."""

    def hello(self) -> wire.FeedHello: ...

    def welcomed(self, welcome: wire.FeedWelcome) -> None:
        """SchemaMismatch: from that one nothing is taken."""

    def ask(self) -> wire.Ask | None:
        """What there is to say now."""

    def dealt(self, batches: list[tuple[int, Batch]]) -> None: ...

    def confirmed(self, number: int) -> None: ...

    def denied(self, number: int) -> None: ...

    def taken(self, number: int) -> None: ...

    def leased(self, until: float) -> None: ...

    def ended(self, totals: Totals) -> None: ...

    def skipped(self, count: int) -> None: ...

    def broke(self, error: MurmurateError | None) -> None:
        """The stream ended; it is opened again, unless `error` is for good (`lasting`)."""


class GeneratorLink(KeptStream):
    """A stream to the generator at `address`, as long as `run` runs."""

    kind = FEED
    whom = "the generator"
    beat_s = PING_S

    def __init__(
        self,
        address: str,
        taker: Taker,
        limits: Limits | None,
        credentials: Credentials,
    ) -> None:
        super().__init__(address, limits, credentials)
        self._taker = taker
        self._pings: dict[int, float] = {}
        self._ping = self._due = 0
        self._unpacking = Unpacking(())

    def greeting(self) -> bytes:
        return wire.encode_ask(wire.Ask(hello=self._taker.hello()))

    def welcomed(self, data: bytes) -> None:
        welcome = wire.decode_deal(data).welcome
        if welcome is None:
            raise RemoteProtocolError("deal.welcome", "missing: it is said first")
        self._taker.welcomed(welcome)
        self._pings.clear()
        self._unpacking = Unpacking(welcome.tensors)

    async def say(self, stream: OpenStream) -> None:
        ask, due, self._due = self._taker.ask(), self._due, 0
        if ask is not None or due:
            await stream.write(wire.encode_ask(replace(ask or wire.Ask(), ping=due)))

    def goodbye(self) -> bytes:
        return wire.encode_ask(wire.Ask(bye=True))

    def hear(self, data: bytes) -> None:
        taker, deal = self._taker, wire.decode_deal(data)
        for number in deal.confirmed:
            taker.confirmed(number)
        for number in deal.denied:
            taker.denied(number)
        for number in deal.taken:
            taker.taken(number)
        if deal.pong and (sent := self._pings.pop(deal.pong, None)) is not None:
            taker.leased(sent + wire.LEASE_S)
        if deal.piece is not None:
            unpacking = self._unpacking
            batches = unpacking.take(deal.piece, deal.raw)
            if unpacking.skipped:
                taker.skipped(unpacking.skipped)
                unpacking.skipped = 0
            if batches:
                taker.dealt(batches)
        if deal.end is not None:
            taker.ended(deal.end)

    def beat(self) -> None:
        """Ask now and then whether what was confirmed still holds."""
        now = time.monotonic()
        self._ping += 1
        self._due = self._ping
        self._pings = {n: at for n, at in self._pings.items() if now < at + wire.LEASE_S}
        self._pings[self._due] = now

    def broke(self, error: MurmurateError | None, *, renewed: bool) -> bool:
        if not renewed:
            self._taker.broke(error)
        return error is None or not lasting(error)


def lasting(error: MurmurateError) -> bool:
    """Whether trying again cannot help."""
    return not isinstance(error, PeerUnavailable | ChecksumMismatch)
