"""The classes of messages and the .proto say the same, and what does not fit does not import."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor

from murmurate.core.batches.dealer import Take
from murmurate.core.clock import Clock, Dot, Fold, Key
from murmurate.core.figures.progress import Progress
from murmurate.core.gossip.average.push_sum import Receipt
from murmurate.core.message import Ping, Promise, Rumour
from murmurate.core.values.limits import (
    AnyNumber,
    Anything,
    Count,
    Few,
    Finite,
    FromZero,
    Limit,
    Line,
    Name,
    Number,
    Octets,
    OneOf,
    Ordinal,
    Printable,
    WireNames,
)
from murmurate.edge.net import (
    coordinator_wire,
    description,
    small_messages,
    tensor_messages,
    wire,
)
from murmurate.edge.net.messages import Codec, OneOfCodec, RawCodec, varint
from murmurate.edge.net.shapes import shape_of
from murmurate.errors import LocalProtocolError, RemoteProtocolError
from murmurate.v1 import coordinator_pb2, peer_pb2

BY_HAND = {"Frame", "Bulk", "PushHead", "Stamp", "Part"}
"""Tensors and what belongs to them (edge/net/wire.py, tensor_messages.py, stamps.py)."""
NO_FIELDS = {"DescribeRequest"}
COVERED = frozenset().union(
    coordinator_wire.WORK.kinds,
    coordinator_wire.TASK.kinds,
    coordinator_wire.STOP_RUN.kinds,
    coordinator_wire.RUN_STOPS.kinds,
    small_messages.NOTE.kinds,
    description.DESCRIPTION.kinds,
    wire.HELLO.kinds,
    wire.REPLY.kinds,
    tensor_messages.SNAPSHOT.kinds,
    tensor_messages.SHARE.kinds,
)
SAID_AS: list[tuple[type, Any]] = [
    *((each, getattr(peer_pb2, each.__name__)) for each in get_args(small_messages.Note)),
    (wire.Hello, peer_pb2.Hello),
    (wire.LinkRefusal, peer_pb2.Refusal),
    (wire.Reply, peer_pb2.Reply),
    (wire.Grant, peer_pb2.Grant),
    (wire.Description, peer_pb2.Description),
    (wire.DescribedTensor, peer_pb2.TensorDescription),
    (wire.DescribedMember, peer_pb2.MemberDescription),
    (wire.SnapshotHead, peer_pb2.SnapshotHead),
    (wire.ShareHead, peer_pb2.ShareHead),
    *(
        (getattr(coordinator_wire, name), getattr(coordinator_pb2, name))
        for name in coordinator_pb2.DESCRIPTOR.message_types_by_name
    ),
]


# -- the classes and the .proto ------------------------------------------------------------------


@pytest.mark.parametrize("file", [peer_pb2, coordinator_pb2])
def test_every_message_of_the_proto_is_made_from_a_class(file: Any) -> None:
    names = set(file.DESCRIPTOR.message_types_by_name) - BY_HAND - NO_FIELDS
    assert {f"murmurate.v1.{name}" for name in names} <= COVERED


def test_nothing_is_by_hand_that_a_class_covers() -> None:
    assert not {f"murmurate.v1.{name}" for name in BY_HAND | NO_FIELDS} & COVERED


TYPES = {
    int: {
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_FIXED32,
    },
    float: {FieldDescriptor.TYPE_DOUBLE},
    bool: {FieldDescriptor.TYPE_BOOL},
    str: {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_ENUM},
    bytes: {FieldDescriptor.TYPE_BYTES},
    Clock: {FieldDescriptor.TYPE_BYTES},
}


@pytest.mark.parametrize(("said", "kind"), SAID_AS, ids=[each.__name__ for each, _ in SAID_AS])
def test_the_class_has_the_fields_of_the_proto(said: type, kind: Any) -> None:
    """Looked at from outside, without the engine: names, types, one or many."""
    assert is_dataclass(said)
    assert {each.name for each in fields(said)} == set(kind.DESCRIPTOR.fields_by_name)
    for name, hint in get_type_hints(said).items():
        field = kind.DESCRIPTOR.fields_by_name[name]
        kinds = [each for each in get_args(hint) if each is not type(None)]
        many = kinds[-1:] == [...] or get_origin(hint) is Sequence
        assert field.is_repeated == many, name
        plain_tuple = get_origin(hint) is tuple and not many
        bare = kinds[0] if kinds and not plain_tuple else hint
        if field.message_type is None:
            assert field.type in TYPES[bare], name
        else:
            assert bare not in TYPES, name


# -- what does not fit does not import -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Missing:
    seq: Number
    epoch: Number


@dataclass(frozen=True, slots=True)
class Beyond:
    seq: Number
    epoch: Number
    to_epoch: Number
    why: Line


@dataclass(frozen=True, slots=True)
class Unlimited:
    seq: int
    epoch: Number
    to_epoch: Number


@dataclass(frozen=True, slots=True)
class AnotherType:
    seq: Line
    epoch: Number
    to_epoch: Number


@dataclass(frozen=True, slots=True)
class ManyForOne:
    seq: Annotated[tuple[Number, ...], Few(3)]
    epoch: Number
    to_epoch: Number


@dataclass(frozen=True, slots=True)
class TwoTypes:
    seq: int | str
    epoch: Number
    to_epoch: Number


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Missing, "Missing and murmurate.v1.Receipt: to_epoch"),
        (Beyond, "Beyond and murmurate.v1.Receipt: why"),
        (Unlimited, "receipt.seq: no limit says what it may be"),
        (AnotherType, "receipt.seq: .*str.* cannot be said as murmurate.v1.Receipt.seq"),
        (ManyForOne, "receipt.seq: one or many"),
        (TwoTypes, "one type expected"),
        (int, "cannot be said as murmurate.v1.Receipt"),
        (tuple[Number, Number, Number], "cannot be said as murmurate.v1.Receipt"),
    ],
)
def test_a_class_that_is_not_as_the_proto_has_it(said: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        shape_of(said, peer_pb2.Receipt.DESCRIPTOR, "receipt")


@dataclass(frozen=True, slots=True)
class Endless:
    number: Number
    rumours: tuple[Rumour, ...]


@dataclass(frozen=True, slots=True)
class OneForMany:
    number: Number
    rumours: Rumour


def test_many_need_a_limit_of_how_many() -> None:
    with pytest.raises(TypeError, match=r"ping\.rumours: no limit says how many"):
        shape_of(Endless, peer_pb2.Ping.DESCRIPTOR, "ping")
    with pytest.raises(TypeError, match=r"ping\.rumours: one or many"):
        shape_of(OneForMany, peer_pb2.Ping.DESCRIPTOR, "ping")


def test_each_kind_of_note_needs_its_class() -> None:
    with pytest.raises(TypeError, match="accept, accepted, ack"):
        OneOfCodec(Ping | Receipt, peer_pb2.Note, "note", bytes_max=100)


# -- shapes --------------------------------------------------------------------------------------


class Span(NamedTuple):
    origin: Name
    epoch: Ordinal
    first: Ordinal
    last: Ordinal


def read(said: Any, m: Any, path: str = "x") -> Any:
    return shape_of(said, m.DESCRIPTOR, path).read(m)


def test_tuples_have_names_on_the_wire_only() -> None:
    assert read(Key, peer_pb2.Life(origin="a", epoch=2)) == ("a", 2)
    fold = (("a", 2), (1, 5))
    shape = shape_of(Fold, peer_pb2.Fold.DESCRIPTOR, "x")
    assert shape.write(fold) == {"origin": "a", "epoch": 2, "runs": (1, 5)}
    assert shape.read(peer_pb2.Fold(**shape.write(fold))) == fold
    span = read(Span, peer_pb2.Range(origin="a", epoch=1, first=2, last=3))
    assert span == Span("a", 1, 2, 3)
    assert isinstance(span, Span)


def test_a_field_in_a_field_is_named_with_both() -> None:
    decode = small_messages.decode_note
    held = [peer_pb2.Fold(origin="a", runs=[1, 1])]
    m = peer_pb2.Promise(ballot=peer_pb2.Ballot(name="a"), held=held)
    with pytest.raises(RemoteProtocolError, match=r"^promise\.held\.epoch: 0, expected 1 to"):
        decode(peer_pb2.Note(promise=m).SerializeToString())
    ping = peer_pb2.Ping(
        rumours=[peer_pb2.Rumour(name="a", state=peer_pb2.STATE_DEAD, address="\n")]
    )
    with pytest.raises(RemoteProtocolError, match=r"^ping\.rumours\.address: .* not a printable"):
        decode(peer_pb2.Note(ping=ping).SerializeToString())


def test_a_message_checks_itself_when_it_is_read() -> None:
    with pytest.raises(RemoteProtocolError, match=r"promise\.accepted: a ballot and a value"):
        Promise(1, (1, "a"), (), accepted_ballot=(1, "a"))


def test_progress_has_the_same_limits_here_and_from_the_wire() -> None:
    bad = peer_pb2.Progress(name="a", rejected=[{"reason": "b"}, {"reason": "a"}])
    with pytest.raises(RemoteProtocolError, match=r"progress\.rejected: 'a' is not in order"):
        small_messages.decode_note(peer_pb2.Note(progress=bad).SerializeToString())
    with pytest.raises(RemoteProtocolError, match=r"progress\.rejected: 'a' is not in order"):
        Progress(name="a", epoch=1, version=1, rejected=(("b", 0), ("a", 0)))
    with pytest.raises(RemoteProtocolError, match=r"progress\.sketch: 7 bytes, expected 256 or"):
        Progress(name="a", epoch=1, version=1, sketch=bytes(7))
    with pytest.raises(RemoteProtocolError, match=r"progress\.made_at: nan, expected a number"):
        Progress(name="a", epoch=1, version=1, made_at=(math.nan,))


def test_an_empty_clock_is_said_and_a_missing_one_is_not() -> None:
    said = description.Description(
        instance="i", run="r", swarm="", name="a", epoch=1, address="", synced=True, schema="s"
    )
    back = description.decode_description(description.encode_description(said))
    assert back.clock == Clock()
    assert back.arrived is None
    held = Clock([Dot("a", 1, 1)])
    m = peer_pb2.Description.FromString(description.encode_description(said))
    m.arrived = held.to_bytes()
    assert description.decode_description(m.SerializeToString()).arrived == held


def test_a_word_that_the_enum_has_not_is_a_local_mistake() -> None:
    member = description.DescribedMember("a", 1, "asleep")
    said = description.Description(
        instance="i",
        run="r",
        swarm="",
        name="a",
        epoch=1,
        address="",
        synced=True,
        schema="s",
        members=(member,),
    )
    with pytest.raises(LocalProtocolError, match="asleep"):
        description.encode_description(said)


# -- limits --------------------------------------------------------------------------------------

LIMITS: list[tuple[Limit, list[Any], dict[Any, str]]] = [
    (Count(1, 3), [1, 2, 3], {0: "0, expected 1 to 3", 4: "4, expected 1 to 3"}),
    (FromZero(), [0.0, 1e300], {-1e-9: "-1e-09, expected", math.nan: "nan", math.inf: "inf"}),
    (Finite(), [-1.0, 0.0], {math.nan: "nan", -math.inf: "-inf"}),
    (Printable(4, empty=False), ["a", "abcd", "é"], {"": "empty", "abcde": "5 characters"}),
    (Printable(4, empty=False), ["éé"], {"ééé": "a name of 6 bytes", "a\n": "not a printable"}),
    (Printable(4, empty=True), ["", "a"], {"\n": "not a printable"}),
    (OneOf(("a", "b")), ["a", "b"], {"c": "'c', one of a, b", "": "'', one of", "d" * 99: "'ddd"}),
    (Octets(2, 2), [b"ab"], {b"": "0 bytes, expected 2", b"abc": "3 bytes, expected 2"}),
    (Octets(1, 2), [b"a"], {b"": "0 bytes, expected 1 to 2", b"abc": "3 bytes"}),
    (Octets(0, 2), [b""], {b"abc": "3 bytes, at most 2"}),
    (Octets(2, 2, empty=True), [b"", b"ab"], {b"a": "1 bytes, expected 2 or none"}),
    (Few(1), [(), (1,)], {(1, 2): "2, at most 1"}),
    (Anything(), [math.nan, -1, ""], {}),
]


@pytest.mark.parametrize(("limit", "good", "bad"), LIMITS, ids=[str(each) for each, *_ in LIMITS])
def test_limits(limit: Limit, good: list[Any], bad: dict[Any, str]) -> None:
    check = limit.check("a.field")
    for value in good:
        assert check(value) is value
    for value, why in bad.items():
        with pytest.raises(RemoteProtocolError) as caught:
            check(value)
        assert caught.value.field == "a.field"
        assert caught.value.problem.startswith(why) or why in caught.value.problem
        assert len(str(caught.value)) < 200


# -- codecs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """As a `RunStops`."""

    version: Number = 0
    run: Line = ""
    others: Annotated[Number, WireNames("members")] = 0


def test_a_codec_there_and_back() -> None:
    codec = Codec(Small, coordinator_pb2.RunStops, "end", bytes_max=11)
    said = Small(version=3, others=2)
    assert codec.decode(codec.encode(said)) == said
    assert codec.decode(memoryview(codec.encode(said))) == said
    with pytest.raises(LocalProtocolError, match="end: 12 bytes, at most 11"):
        codec.encode(Small(others=2**62, version=1))
    with pytest.raises(LocalProtocolError, match="end: "):
        codec.encode(Small(others=-1))
    with pytest.raises(RemoteProtocolError, match=r"end\.members"):
        codec.decode(coordinator_pb2.RunStops(members=2**63).SerializeToString())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """As a `Doing` with the bytes of a `Work`."""

    hello: coordinator_wire.WorkHello | None = None
    push: coordinator_wire.Return | None = None
    offset: Number = 0
    raw: Annotated[bytes | memoryview, Octets(0, 300)] = b""
    doing: coordinator_wire.Doing | None = None
    take: Take | None = None
    bye: bool = False
    checksum: AnyNumber = field(default=0, compare=False)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300])
def test_raw_bytes_are_as_generated_code_reads_them(size: int) -> None:
    codec = RawCodec(Sent, coordinator_pb2.Work, "work", rest_bytes_max=60, raw_bytes_max=300)
    raw = bytes(range(256)) * 2
    said = Sent(offset=7, raw=memoryview(raw[:size]))
    data = codec.encode(said)
    read = coordinator_pb2.Work.FromString(data)
    assert (read.raw, read.checksum) == (raw[:size], zlib.crc32(raw[:size]))
    assert codec.decode(data) == Sent(offset=7, raw=raw[:size])
    with pytest.raises(LocalProtocolError, match="work: 301 raw bytes, at most 300"):
        codec.encode(Sent(raw=raw[:301]))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**62])
def test_varints(value: int) -> None:
    assert peer_pb2.Reply.FromString(b"\x10" + varint(value)).landed == value
