"""What a peer and the generator say (proto/murmurate/v1/generator.proto)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from murmurate.core.batches.dealer import CREDITS_MAX, OPEN_MAX, Totals
from murmurate.core.values.limits import (
    Anything,
    Count,
    Few,
    Line,
    Name,
    Number,
    Octets,
    OneOf,
    Ordinal,
    WireNames,
)
from murmurate.edge.net.messages import PROTOCOL_VERSION, Codec, RawCodec, Version
from murmurate.errors import RemoteProtocolError
from murmurate.v1 import generator_pb2 as pb

SERVICE = "murmurate.v1.Generator"
RAW_BYTES_MAX = 1 << 20
REST_BYTES_MAX = 64 << 10
DEAL_BYTES_MAX = RAW_BYTES_MAX + REST_BYTES_MAX
BATCH_BYTES_MAX = 1 << 30
LEASE_S = 4.0
"""How long a peer may publish what was confirmed, from the ping that was answered last."""
TENSORS_MAX = 64
AXES_MAX = 16

_DTYPES = ("f2", "f4", "f8", "bf2", "i1", "i2", "i4", "i8", "u1", "b1")
ITEM_BYTES = {name: int(name[-1]) for name in _DTYPES}

Batches = Annotated[Sequence[Ordinal], Few(OPEN_MAX)]
Claim = Annotated[tuple[Ordinal, Ordinal], WireNames("batch", "seq")]


@dataclass(frozen=True, slots=True)
class BatchTensor:
    """One tensor of every batch."""

    dtype: Annotated[str, OneOf(_DTYPES)]
    shape: Annotated[tuple[Annotated[int, Count(0, BATCH_BYTES_MAX)], ...], Few(AXES_MAX)]

    @property
    def nbytes(self) -> int:
        size = ITEM_BYTES[self.dtype]
        for each in self.shape:
            size *= each
        return size

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedHello:
    """«I am `name` in my life `epoch`. My next update is `seq`, and `claims` will be in it.»"""

    version: Version = PROTOCOL_VERSION
    run: Name
    swarm: Name
    name: Name
    epoch: Ordinal
    address: Line = ""
    seq: Ordinal = 1
    claims: Annotated[tuple[Ordinal, ...], Few(OPEN_MAX)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a peer says after its hello; see the proto file for each."""

    hello: FeedHello | None = None
    pull: Annotated[int, Count(0, CREDITS_MAX)] = 0
    claims: Annotated[Sequence[Claim], Few(OPEN_MAX)] = ()
    """Batch, and the update it will be in."""
    back: Batches = ()
    spent: Batches = ()
    forgone: Batches = ()
    ping: Number = 0
    bye: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedWelcome:
    """«Welcome; this is who deals, and what a batch consists of.»"""

    version: Version = PROTOCOL_VERSION
    run: Name
    instance: Name
    batches: Number = 0
    samples: Ordinal
    tensors: Annotated[tuple[BatchTensor, ...], Few(TENSORS_MAX)]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes from `offset` of a batch, the `number`-th of this stream."""

    batch: Ordinal
    offset: Annotated[int, Count(0, BATCH_BYTES_MAX)]
    number: Ordinal
    more: Annotated[tuple[Ordinal, ...], Few(OPEN_MAX)] = ()
    """Whole batches whose bytes follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """What the generator says."""

    welcome: FeedWelcome | None = None
    piece: Piece | None = None
    confirmed: Batches = ()
    denied: Batches = ()
    taken: Batches = ()
    pong: Number = 0
    end: Totals | None = None
    raw: Annotated[bytes | memoryview, Octets(0, RAW_BYTES_MAX)] = b""
    checksum: Annotated[int, Anything()] = field(default=0, compare=False)
    """Of `raw`; counted and looked at by the codec."""


# -- what lies between fields --------------------------------------------------------------------


def _check_ask(ask: Ask) -> None:
    rest = ask.pull or ask.claims or ask.back or ask.spent or ask.forgone or ask.ping or ask.bye
    if ask.hello is not None and rest:
        raise RemoteProtocolError("ask.hello", "not alone")
    if ask.hello is None and not rest:
        raise RemoteProtocolError("ask", "empty")


def _check_deal(deal: Deal) -> None:
    if deal.raw and deal.piece is None:
        raise RemoteProtocolError("deal.raw", "bytes of no batch")
    if deal.welcome is not None and not 0 < deal.welcome.nbytes <= BATCH_BYTES_MAX:
        raise RemoteProtocolError(
            "welcome.tensors", f"{deal.welcome.nbytes} bytes, expected 1 to {BATCH_BYTES_MAX}"
        )


ASK = Codec(Ask, pb.Ask, "ask", bytes_max=REST_BYTES_MAX, check=_check_ask)
DEAL = RawCodec(
    Deal,
    pb.Deal,
    "deal",
    rest_bytes_max=REST_BYTES_MAX,
    raw_bytes_max=RAW_BYTES_MAX,
    check=_check_deal,
)
encode_ask, decode_ask = ASK.encode, ASK.decode
encode_deal, decode_deal = DEAL.encode, DEAL.decode
