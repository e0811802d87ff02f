"""What a peer and the generator say, as bytes and back (proto/murmurate/v1/generator.proto).

Whatever is wrong with bytes from the network comes out as `RemoteProtocolError`, which names the
field, or as `SchemaMismatch` (another version), and as nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from murmurate.core.dealer import CREDITS_MAX, OPEN_MAX, Totals
from murmurate.errors import LocalProtocolError, RemoteProtocolError
from murmurate.io import fields
from murmurate.io.fields import PROTOCOL_VERSION
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


@dataclass(frozen=True, slots=True)
class BatchTensor:
    """One tensor of every batch."""

    dtype: str
    shape: tuple[int, ...]

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

    version: int = PROTOCOL_VERSION
    run: str
    swarm: str
    name: str
    epoch: int
    address: str = ""
    seq: int = 1
    claims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a peer says after its hello; see the proto file for each."""

    hello: FeedHello | None = None
    pull: int = 0
    claims: Sequence[tuple[int, int]] = ()
    """Batch, and the update it will be in."""
    back: Sequence[int] = ()
    spent: Sequence[int] = ()
    forgone: Sequence[int] = ()
    ping: int = 0
    bye: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedWelcome:
    """«Welcome; this is who deals, and what a batch consists of.»"""

    version: int = PROTOCOL_VERSION
    run: str
    instance: str
    batches: int = 0
    samples: int
    tensors: tuple[BatchTensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes from `offset` of a batch, the `number`-th of this stream."""

    batch: int
    offset: int
    number: int
    more: tuple[int, ...] = ()
    """Whole batches whose bytes follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """What the generator says."""

    welcome: FeedWelcome | None = None
    piece: Piece | None = None
    confirmed: Sequence[int] = ()
    denied: Sequence[int] = ()
    taken: Sequence[int] = ()
    pong: int = 0
    end: Totals | None = None
    raw: bytes | memoryview = b""


# -- from the peer -------------------------------------------------------------------------------


def encode_ask(ask: Ask) -> bytes:
    h = ask.hello
    return _bytes(
        "ask",
        lambda: pb.Ask(
            hello=None
            if h is None
            else pb.FeedHello(
                version=h.version,
                run=h.run,
                swarm=h.swarm,
                name=h.name,
                epoch=h.epoch,
                address=h.address,
                seq=h.seq,
                claims=h.claims,
            ),
            pull=ask.pull,
            claims=[pb.Claim(batch=batch, seq=seq) for batch, seq in ask.claims],
            back=ask.back,
            spent=ask.spent,
            forgone=ask.forgone,
            ping=ask.ping,
            bye=ask.bye,
        ),
        REST_BYTES_MAX,
    )


def decode_ask(data: bytes) -> Ask:
    m = fields.parsed("ask", pb.Ask, data, REST_BYTES_MAX)
    hello = _read_hello(m.hello) if m.HasField("hello") else None
    ask = Ask(
        hello=hello,
        pull=fields.number("ask.pull", m.pull, 0, CREDITS_MAX),
        claims=[
            (_batch("claim.batch", each.batch), fields.number("claim.seq", each.seq, 1))
            for each in fields.few("ask.claims", m.claims, OPEN_MAX)
        ],
        back=_batches("ask.back", m.back),
        spent=_batches("ask.spent", m.spent),
        forgone=_batches("ask.forgone", m.forgone),
        ping=fields.number("ask.ping", m.ping),
        bye=m.bye,
    )
    rest = ask.pull or ask.claims or ask.back or ask.spent or ask.forgone or ask.ping or ask.bye
    if hello is not None and rest:
        raise RemoteProtocolError("ask.hello", "not alone")
    if hello is None and not rest:
        raise RemoteProtocolError("ask", "empty")
    return ask


def _read_hello(m: pb.FeedHello) -> FeedHello:
    return FeedHello(
        version=fields.version("hello", m.version),
        run=fields.name("hello.run", m.run),
        swarm=fields.name("hello.swarm", m.swarm),
        name=fields.name("hello.name", m.name),
        epoch=fields.number("hello.epoch", m.epoch, 1),
        address=fields.text("hello.address", m.address),
        seq=fields.number("hello.seq", m.seq, 1),
        claims=tuple(_batches("hello.claims", m.claims)),
    )


# -- from the generator --------------------------------------------------------------------------


def encode_deal(deal: Deal) -> bytes:
    w, p, e = deal.welcome, deal.piece, deal.end
    if len(deal.raw) > RAW_BYTES_MAX:
        raise LocalProtocolError(f"deal: {len(deal.raw)} raw bytes, at most {RAW_BYTES_MAX}")
    return _bytes(
        "deal",
        lambda: pb.Deal(
            welcome=None
            if w is None
            else pb.FeedWelcome(
                version=w.version,
                run=w.run,
                instance=w.instance,
                batches=w.batches,
                samples=w.samples,
                tensors=[pb.BatchTensor(dtype=t.dtype, shape=t.shape) for t in w.tensors],
            ),
            piece=None
            if p is None
            else pb.Piece(batch=p.batch, offset=p.offset, number=p.number, more=p.more),
            confirmed=deal.confirmed,
            denied=deal.denied,
            taken=deal.taken,
            pong=deal.pong,
            end=None
            if e is None
            else pb.End(
                batches=e.batches,
                consumed=e.consumed,
                dealt_again=e.dealt_again,
                spent=e.spent,
                repeated_batches=e.repeated,
            ),
            raw=bytes(deal.raw),
        ),
        DEAL_BYTES_MAX,
    )


def decode_deal(data: bytes) -> Deal:
    m = fields.parsed("deal", pb.Deal, data, DEAL_BYTES_MAX)
    raw = m.raw
    if len(raw) > RAW_BYTES_MAX:
        raise RemoteProtocolError("deal.raw", f"{len(raw)} bytes, at most {RAW_BYTES_MAX}")
    piece = None
    if m.HasField("piece"):
        piece = Piece(
            _batch("piece.batch", m.piece.batch),
            fields.number("piece.offset", m.piece.offset, 0, BATCH_BYTES_MAX),
            fields.number("piece.number", m.piece.number, 1),
            tuple(_batches("piece.more", m.piece.more)),
        )
    elif raw:
        raise RemoteProtocolError("deal.raw", "bytes of no batch")
    return Deal(
        welcome=_read_welcome(m.welcome) if m.HasField("welcome") else None,
        piece=piece,
        confirmed=_batches("deal.confirmed", m.confirmed),
        denied=_batches("deal.denied", m.denied),
        taken=_batches("deal.taken", m.taken),
        pong=fields.number("deal.pong", m.pong),
        end=_read_end(m.end) if m.HasField("end") else None,
        raw=raw,
    )


def _read_welcome(m: pb.FeedWelcome) -> FeedWelcome:
    fields.few("welcome.tensors", m.tensors, TENSORS_MAX)
    welcome = FeedWelcome(
        version=fields.version("welcome", m.version),
        run=fields.name("welcome.run", m.run),
        instance=fields.name("welcome.instance", m.instance),
        batches=fields.number("welcome.batches", m.batches),
        samples=fields.number("welcome.samples", m.samples, 1),
        tensors=tuple(_read_tensor(each) for each in m.tensors),
    )
    if not 0 < welcome.nbytes <= BATCH_BYTES_MAX:
        raise RemoteProtocolError(
            "welcome.tensors", f"{welcome.nbytes} bytes, expected 1 to {BATCH_BYTES_MAX}"
        )
    return welcome


def _read_tensor(m: pb.BatchTensor) -> BatchTensor:
    if m.dtype not in ITEM_BYTES:
        raise RemoteProtocolError(
            "welcome.tensors.dtype", f"{m.dtype[:20]!r}, one of {', '.join(ITEM_BYTES)}"
        )
    fields.few("welcome.tensors.shape", m.shape, AXES_MAX)
    return BatchTensor(
        m.dtype,
        tuple(fields.number("welcome.tensors.shape", n, 0, BATCH_BYTES_MAX) for n in m.shape),
    )


def _read_end(m: pb.End) -> Totals:
    return Totals(
        batches=fields.number("end.batches", m.batches),
        consumed=fields.number("end.consumed", m.consumed),
        dealt_again=fields.number("end.dealt_again", m.dealt_again),
        spent=fields.number("end.spent", m.spent),
        repeated=fields.number("end.repeated_batches", m.repeated_batches),
    )


# -- inside --------------------------------------------------------------------------------------


def _batch(field: str, value: int) -> int:
    return fields.number(field, value, 1)


def _batches(field: str, values: Sequence[int]) -> list[int]:
    return [_batch(field, each) for each in fields.few(field, values, OPEN_MAX)]


def _bytes(what: str, make: Callable[[], Message], bytes_max: int) -> bytes:
    try:
        data: bytes = make().SerializeToString()
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"{what}: {error}") from error
    if len(data) > bytes_max:
        raise LocalProtocolError(f"{what}: {len(data)} bytes, at most {bytes_max}")
    return data
