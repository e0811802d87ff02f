"""Encoded updates on the wire: they come back to the bit, and lies about them are refused early."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
import torch
from tests.unit.test_codec import encoded, noise
from tests.unit.test_topk import form
from tests.unit.test_wire import PUSH, frame_of, received, sum_of
from tests.unit.test_wire_hostile import EMPTY, bulk, taken

from murmurate.core.clock import Clock, Dot
from murmurate.core.codecs.codec import CODED, ROW
from murmurate.core.codecs.topk import bytes_max
from murmurate.core.figures.counters import bytes_by_codec
from murmurate.core.message import PARTS_MAX, Push, Snapshot, Stamp, summed
from murmurate.edge.net import wire
from murmurate.errors import RemoteProtocolError
from murmurate.v1 import peer_pb2 as pb

SIZE = 3 * ROW + 5


def push(*names: str, size: int = SIZE) -> Push:
    stamps = sum_of(max(1, len(names)))
    return Push(stamps, parts=tuple(encoded(n, noise(size, i)) for i, n in enumerate(names)))


@pytest.mark.parametrize("names", [*((name,) for name in CODED), ("int8", "topk", "int8", "bf16")])
@pytest.mark.parametrize("size", [1, 2, 3, ROW, SIZE])
def test_parts_come_back_to_the_bit(names: tuple[str, ...], size: int) -> None:
    sent = push(*names, size=size)
    back = received(frame_of(sent))
    assert isinstance(back, Push)
    assert back.stamps == sent.stamps
    assert [(part.codec, part.size) for part in back.parts] == [(name, size) for name in names]
    one, other = noise(size, 7), noise(size, 7)
    sent.add_to(one)
    back.add_to(other)
    assert torch.equal(one, other)
    assert torch.equal(back.payload, sent.payload)


def test_one_part_is_sent_from_where_it_lies() -> None:
    sent = push("bf16")
    assert wire.take_apart(sent)[1].data_ptr() == sent.parts[0].data.data_ptr()  # type: ignore[attr-defined]


def test_what_was_received_is_passed_on_as_it_came() -> None:
    """Over two relays, alone and in a sum: every receiver adds the same numbers."""
    first, second = (
        Push((Stamp(Dot("a", 1, seq), Clock()),), parts=(encoded("int8", noise(SIZE, seq)),))
        for seq in (1, 2)
    )
    relayed = [received(frame_of(received(frame_of(each)))) for each in (first, second)]
    total = received(frame_of(summed(relayed)))
    one, other = noise(SIZE, 9), noise(SIZE, 9)
    first.add_to(one)
    second.add_to(one)
    total.add_to(other)
    assert len(total.parts) == 2
    assert torch.equal(one, other)


def test_bytes_are_counted_by_codec() -> None:
    assert bytes_by_codec(push("int8", "topk")) == [
        (part.codec, part.nbytes) for part in push("int8", "topk").parts
    ]
    assert bytes_by_codec(PUSH) == [("fp32", 24)]
    assert bytes_by_codec(Snapshot(torch.zeros(4).double(), Clock(), ())) == [("fp64", 32)]


def test_generated_code_reads_the_parts() -> None:
    frame = pb.Frame.FromString(frame_of(push("bf16", "topk")))
    head = frame.bulk.push
    assert head.size == SIZE
    assert [part.codec for part in head.parts] == ["bf16", "topk"]
    assert sum(part.bytes for part in head.parts) == len(frame.raw) == frame.bulk.total
    assert head.dtype == "f4"


def test_a_plain_push_is_what_it_was() -> None:
    head = pb.Frame.FromString(frame_of(PUSH)).bulk.push
    assert not head.parts
    assert head.size == 0


def test_sums_of_many_parts_fit() -> None:
    many = Push(sum_of(64), parts=push("topk").parts * PARTS_MAX)
    assert wire.push_fits(many)
    assert len(received(frame_of(many)).parts) == PARTS_MAX


# -- lies ----------------------------------------------------------------------------------------

ONE = [pb.Stamp(seq=1, context=EMPTY)]
LIFE = [pb.Life(origin="a", epoch=1)]


def coded(*parts: tuple[str, int], size: int = 64, dtype: str = "f4", raw: int = 16) -> bytes:
    head = pb.PushHead(
        dtype=dtype,
        lives=LIFE,
        stamps=ONE,
        size=size,
        parts=[pb.Part(codec=codec, bytes=count) for codec, count in parts],
    )
    return bulk(bytes(raw), number=1, total=raw, push=head)


BAD = {
    "an unknown codec": coded(("zip", 16)),
    "no codec": coded(("", 16)),
    "fp32 as a codec": coded(("fp32", 256)),
    "a codec of 50 KB": coded(("z" * 50_000, 16)),
    "no size": coded(("topk", 16), size=0),
    "a size beyond all": coded(("topk", 16), size=2**63),
    "a size without parts": coded(size=64),
    "an empty topk": coded(("topk", 0)),
    "no values": coded(("topk", 12)),
    "more entries than half the model": coded(("topk", bytes_max(64) + 4)),
    "2^63 bytes": coded(("topk", 2**63)),
    "bf16 of another size": coded(("bf16", 130)),
    "int8 without scales": coded(("int8", 64)),
    "the second one": coded(("topk", 16), ("bf16", 2)),
    "too many parts": coded(*[("topk", 16)] * (PARTS_MAX + 1)),
}


@pytest.mark.parametrize("what", BAD)
def test_heads_that_lie(what: str) -> None:
    assert not taken(wire.decode_frame, BAD[what])


def test_the_heads_these_differ_from_are_taken() -> None:
    assert taken(wire.decode_frame, coded(("topk", 16)))
    assert taken(wire.decode_frame, coded(("topk", bytes_max(64)), ("bf16", 128), ("int8", 68)))


def head_of(data: bytes) -> wire.PushHead:
    piece = wire.decode_frame(data).piece
    assert piece is not None
    assert isinstance(piece.head, wire.PushHead)
    return piece.head


def test_the_receiver_says_how_many_bytes_there_are() -> None:
    head = head_of(coded(("topk", 16), ("bf16", 128)))
    assert wire.parts_bytes(head, 64) == 144
    with pytest.raises(RemoteProtocolError, match=r"push\.size"):
        wire.parts_bytes(head, 65)  # this model is another
    with pytest.raises(RemoteProtocolError, match=r"push\.dtype"):
        wire.parts_bytes(head_of(coded(("topk", 16), dtype="f8")), 64)


def test_bytes_that_are_not_those_of_the_parts() -> None:
    head = head_of(coded(("topk", 16)))
    for count in (0, 8, 12, 20, 32):
        with pytest.raises(RemoteProtocolError):
            wire.put_together(head, torch.zeros(count, dtype=torch.uint8))
    with pytest.raises(RemoteProtocolError, match=r"bulk\.dtype"):
        wire.put_together(head, torch.zeros(4))
    with pytest.raises(RemoteProtocolError, match="0 gaps"):
        wire.put_together(head, torch.zeros(16, dtype=torch.uint8))


def test_mutated_forms_are_refused_or_harmless() -> None:
    rng = random.Random(3)
    sent = [push(name) for name in CODED]
    frames = [frame_of(each) for each in sent]
    for _ in range(1500):
        data = bytearray(rng.choice(frames))
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            back = received(bytes(data))
        except (RemoteProtocolError, AssertionError):  # the last: `received` sees another kind
            continue
        if isinstance(back, Push) and back.parts and back.parts[0].size == SIZE:
            back.add_to(torch.zeros(SIZE))


def test_a_small_message_stays_small() -> None:
    """16 bytes that claim to be an update of a huge model take no memory of that size."""
    size = 2**31 - 1
    head: Any = wire.PushHead(PUSH.stamps, "f4", size, (wire.PartHead("topk", 16),))
    data = form([5], [127], base=(127 << 3) - 127)  # 1.0
    tracemalloc.start()
    message = wire.put_together(head, torch.frombuffer(bytearray(data), dtype=torch.uint8))
    assert isinstance(message, Push)
    assert message.nbytes == 16
    assert message.parts[0].norm() == 1.0
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_memory_for_forms_of_any_size_is_not_kept_by_size() -> None:
    """A sender chooses how many entries a top-k has: each size would keep its block for ever."""
    from murmurate.core import buffers
    from murmurate.edge.net.incoming import IncomingMessage

    kept = set(buffers._free)
    for entries in range(1 << 19, (1 << 19) + 3):
        parts = (wire.PartHead("topk", 8 * entries),)
        head = wire.PushHead(PUSH.stamps, "f4", 1 << 26, parts)
        IncomingMessage(1, 8 * entries, 1, head).allocate()
    assert set(buffers._free) == kept
