"""Bytes a hostile peer may send: each gets an error that names the field, soon and cheaply.

Only `RemoteProtocolError` and `SchemaMismatch` may come out, whatever goes in.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.test_wire import (
    DESCRIPTION,
    GENERATION,
    HELLO,
    NOTES,
    PUSH,
    RUMOUR,
    frame_of,
    sum_of,
)

from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.gossip.average.push_sum import Receipt
from murmurate.core.intervals import SEQ_MAX
from murmurate.core.message import Generation, Push, Rumour, Snapshot, SnapshotRequest
from murmurate.edge.net import wire
from murmurate.edge.net.description import AXES_MAX, MEMBERS_MAX, TENSORS_MAX
from murmurate.edge.net.messages import varint
from murmurate.errors import RemoteProtocolError, SchemaMismatch
from murmurate.v1 import peer_pb2 as pb

CPU_S_MAX = 0.05
PEAK_BYTES_MAX = 48 << 20

SUM = Push(sum_of(12), torch.arange(4.0))
SNAPSHOT = Snapshot(
    torch.arange(4.0), Clock([Dot("a", 1, 1)], generation=4, base=17), (GENERATION,), (RUMOUR,)
)
FRAMES = [
    wire.encode_frame(hello=HELLO),
    wire.encode_frame(notes=[wire.encode_note(note) for note in NOTES]),
    *(wire.encode_frame(notes=[wire.encode_note(note)]) for note in NOTES),
    frame_of(PUSH, key=77),
    frame_of(SUM),
    frame_of(SNAPSHOT),
]
REFUSAL = wire.LinkRefusal(3, "bulk.total: another")
REPLY = wire.encode_reply(wire.Reply((wire.Grant(3, 2**33), wire.Grant(4)), 2**40, True, REFUSAL))
FRAMES.append(wire.encode_frame(notes=[wire.encode_note(NOTES[0])], reply=REPLY))
SEEDS: list[tuple[Callable[[bytes], Any], bytes]] = [
    *((wire.decode_frame, frame) for frame in FRAMES),
    (wire.decode_description, wire.encode_description(DESCRIPTION)),
    (wire.check_describe_request, b""),
]


def taken(decode: Callable[[bytes], Any], data: bytes) -> bool:
    """Whether the bytes were accepted; any other exception than the two fails the test."""
    try:
        decode(data)
    except (RemoteProtocolError, SchemaMismatch) as error:
        if len(str(error)) > 2000:
            raise AssertionError("an error is to be a line in a log") from error
        return False
    return True


def part(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + varint(len(data)) + data


def serialized(m: Any) -> bytes:
    data: bytes = m.SerializeToString()
    return data


def bulk(raw: bytes = b"", **bulk_fields: Any) -> bytes:
    return serialized(pb.Frame(bulk=pb.Bulk(**bulk_fields), raw=raw))


def push(**push_fields: Any) -> bytes:
    """A frame with a push of one element."""
    push_fields.setdefault("dtype", "f4")
    push_fields.setdefault("lives", [pb.Life(origin="a", epoch=1)])
    return bulk(bytes(4), number=1, total=4, push=pb.PushHead(**push_fields))


def note(**note_fields: Any) -> bytes:
    return serialized(pb.Frame(notes=[pb.Note(**note_fields)]))


EMPTY = Clock().to_bytes()


# -- anything ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 100, 5000])
def test_random_bytes(size: int) -> None:
    rng = random.Random(size)
    decoders = {decode for decode, _ in SEEDS}
    for _ in range(400):
        data = rng.randbytes(size)
        for decode in decoders:
            taken(decode, data)
        taken(wire.decode_frame, part(0x12, data))
        taken(wire.decode_frame, part(0x1A, data) + part(0x22, b"raw."))
        taken(wire.decode_frame, part(0x0A, data))


@pytest.mark.parametrize("index", range(len(SEEDS)))
def test_truncated_at_every_byte(index: int) -> None:
    decode, data = SEEDS[index]
    for end in range(len(data)):
        taken(decode, data[:end])
    assert taken(decode, data)


def test_a_frame_cut_inside_a_field_is_refused() -> None:
    """Where a cut falls between fields, protobuf cannot know; where it does not, we do."""
    data = frame_of(PUSH)
    assert not any(taken(wire.decode_frame, data[:end]) for end in range(len(data)))


@pytest.mark.parametrize("index", range(len(SEEDS)))
def test_mutated_bytes(index: int) -> None:
    decode, data = SEEDS[index]
    rng = random.Random(index)
    for _ in range(1500):
        bad = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(bad) + 1)
            match rng.randrange(4):
                case 0:
                    bad[at:at] = rng.randbytes(rng.randrange(1, 9))
                case 1:
                    del bad[at : at + rng.randrange(1, 9)]
                case 2 if at < len(bad):
                    bad[at] ^= 1 << rng.randrange(8)
                case _:
                    bad[at : at + 1] = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80"))
        taken(decode, bytes(bad))


def test_one_thing_said_as_another() -> None:
    """A valid message in the place of another kind."""
    inner = [wire.encode_note(each) for each in NOTES]
    heads = [wire.encode_head(wire.take_apart(each)[0]) for each in (PUSH, SUM, SNAPSHOT)]
    for data in (*inner, *heads, *FRAMES, REPLY):
        for decode, _ in SEEDS:
            taken(decode, data)
        for number in range(1, 16):
            taken(wire.decode_frame, part(0x12, part(number << 3 | 2, data)))
            taken(wire.decode_frame, part(0x1A, part(number << 3 | 2, data)))


# -- the envelope --------------------------------------------------------------------------------

ENVELOPES = {
    "empty": b"",
    "an unknown field": part(0x2A, b"x"),
    "a field beyond 15": b"\x82\x01\x00",
    "a varint field": b"\x08\x01",
    "a fixed field": b"\x0d\x00\x00\x00\x00",
    "a group": b"\x0b\x0c",
    "a tag and nothing": b"\x22",
    "an endless length": b"\x22" + b"\xff" * 20,
    "a length beyond the end": b"\x22\xff\xff\xff\x7f",
    "hello twice": FRAMES[0] * 2,
    "hello and notes": FRAMES[0] + FRAMES[1],
    "bulk twice": FRAMES[-1] * 2,
    "raw alone": part(0x22, b"1234"),
    "raw and notes, no bulk": FRAMES[1] + part(0x22, b"1234"),
    "too many notes": part(0x12, wire.encode_note(SnapshotRequest())) * (wire.NOTES_MAX + 1),
    "empty notes": part(0x12, b""),
    "raw too large": frame_of(PUSH)[:-26] + part(0x22, bytes(wire.RAW_BYTES_MAX + 1)),
    "rest too large": part(0x12, bytes(33 << 10)) * 2,
    "frame too large": bytes(wire.FRAME_BYTES_MAX + 1),
    "hello with a name of control characters": part(
        0x0A, pb.Hello(version=1, run="r\n", schema="s", name="a", epoch=1).SerializeToString()
    ),
    "hello without a name": part(
        0x0A, pb.Hello(version=1, run="r", schema="s", epoch=1).SerializeToString()
    ),
    "hello in life 0": part(
        0x0A, pb.Hello(version=1, run="r", schema="s", name="a").SerializeToString()
    ),
    "hello with a name of 60 KB": part(
        0x0A,
        pb.Hello(version=1, run="\n" * 60_000, schema="s", name="a", epoch=1).SerializeToString(),
    ),
    "hello that is not UTF-8": part(0x0A, b"\x08\x01" + part(0x12, b"\xff\xfe")),
}


@pytest.mark.parametrize("what", ENVELOPES)
def test_the_envelope(what: str) -> None:
    assert not taken(wire.decode_frame, ENVELOPES[what])


# -- pieces --------------------------------------------------------------------------------------

ONE = [pb.Stamp(seq=1, context=EMPTY)]
PIECES = {
    "no number": bulk(b"1234", total=4, push=pb.PushHead(dtype="f4")),
    "a number beyond 2^62": bulk(b"1234", number=SEQ_MAX + 1, total=4),
    "no total": bulk(b"", number=1),
    "a total beyond all": bulk(b"1234", number=1, total=2**63),
    "more bytes than the total": bulk(b"1234", number=1, total=3),
    "an offset beyond the total": bulk(b"1234", number=1, offset=2**64 - 1, total=8),
    "no bytes": bulk(b"", number=1, total=4),
    "a head in the middle": bulk(b"1234", number=1, offset=4, total=8, push=pb.PushHead()),
    "an offer of nothing": bulk(b"", number=1, total=4, offer=True),
    "an offer with bytes": bulk(b"1234", number=1, total=4, offer=True, share=pb.ShareHead()),
    "no stamps": push(),
    "another dtype": push(dtype="f2", stamps=ONE),
    "big-endian": push(dtype=">f4", stamps=ONE),
    "no dtype": push(dtype="", stamps=ONE),
    "a life that is not in the table": push(stamps=[pb.Stamp(life=1, seq=1, context=EMPTY)]),
    "a life without a name": push(lives=[pb.Life(epoch=1)], stamps=ONE),
    "life 0 of a name": push(lives=[pb.Life(origin="a")], stamps=ONE),
    "update 0": push(stamps=[pb.Stamp(context=EMPTY)]),
    "update 2^64 - 1": push(stamps=[pb.Stamp(seq=2**64 - 1, context=EMPTY)]),
    "no context": push(stamps=[pb.Stamp(seq=1)]),
    "a broken context": push(stamps=[pb.Stamp(seq=1, context=b"\x01\x00")]),
    "the first one looks back": push(stamps=[pb.Stamp(seq=1, back=1)]),
    "further back than the first": push(stamps=[*ONE, pb.Stamp(seq=2, back=2)]),
    "whole and added": push(stamps=[*ONE, pb.Stamp(seq=2, back=1, context=EMPTY)]),
    "not triples": push(stamps=[*ONE, pb.Stamp(seq=2, back=1, added=[0, 0])]),
    "added: no such life": push(stamps=[*ONE, pb.Stamp(seq=2, back=1, added=[1, 0, 0])]),
    "added: life -1": push(stamps=[*ONE, pb.Stamp(seq=2, back=1, added=[-1, 0, 0])]),
    "added: before the first": push(stamps=[*ONE, pb.Stamp(seq=2, back=1, added=[0, -1, 0])]),
    "added: backwards": push(stamps=[*ONE, pb.Stamp(seq=2, back=1, added=[0, 5, -2])]),
    "added: beyond 2^62": push(stamps=[*ONE, pb.Stamp(seq=2, back=1, added=[0, 0, 2**62])]),
    "too many stamps": push(stamps=[pb.Stamp(seq=1, back=1)] * 4097),
    "a share in life 0": bulk(
        bytes(16),
        number=1,
        total=16,
        share=pb.ShareHead(seq=1, to_epoch=1, clock=EMPTY, dtype="f4"),
    ),
    "a share without a number": bulk(
        bytes(16),
        number=1,
        total=16,
        share=pb.ShareHead(epoch=1, to_epoch=1, clock=EMPTY, dtype="f4"),
    ),
    "a snapshot without a clock": bulk(
        bytes(4), number=1, total=4, snapshot=pb.SnapshotHead(dtype="f4")
    ),
    "too many generations": bulk(
        bytes(4),
        number=1,
        total=4,
        snapshot=pb.SnapshotHead(
            dtype="f4", clock=EMPTY, history=[pb.Generation(roster=["a"])] * 65
        ),
    ),
    "too many members": bulk(
        bytes(4),
        number=1,
        total=4,
        snapshot=pb.SnapshotHead(dtype="f4", clock=EMPTY, members=[pb.Rumour(name="a")] * 4097),
    ),
}


@pytest.mark.parametrize("what", PIECES)
def test_pieces(what: str) -> None:
    assert not taken(wire.decode_frame, PIECES[what])


def test_the_piece_these_differ_from_is_taken() -> None:
    assert taken(wire.decode_frame, push(stamps=ONE))
    assert taken(
        wire.decode_frame, push(stamps=[*ONE, pb.Stamp(seq=2, back=1, added=[0, 0, 2**61])])
    )
    assert taken(wire.decode_frame, bulk(b"1234", number=1, total=8))
    assert taken(
        wire.decode_frame,
        bulk(number=1, total=16, offer=True, share=pb.ShareHead(
            seq=1, epoch=1, to_epoch=1, clock=EMPTY, dtype="f4", weight=1.0)),
    )  # fmt: skip


def test_what_only_the_message_can_tell() -> None:
    twice = push(stamps=[*ONE, pb.Stamp(seq=1, context=EMPTY)])
    piece = wire.decode_frame(twice).piece
    assert piece is not None
    assert piece.head is not None
    with pytest.raises(RemoteProtocolError, match="twice"):
        wire.put_together(piece.head, torch.zeros(1))
    head = wire.SnapshotHead(Clock(generation=3), (Generation(7, ("a",)),), (), "f4")
    with pytest.raises(RemoteProtocolError, match="history"):
        wire.put_together(head, torch.zeros(1))
    share = wire.ShareHead(1, 1, 1, float("nan"), Clock(), "f8")
    with pytest.raises(RemoteProtocolError, match=r"share\.weight"):
        wire.put_together(share, torch.ones(1, dtype=torch.float64))
    with pytest.raises(RemoteProtocolError, match=r"bulk\.dtype"):
        wire.put_together(share, torch.ones(1))


# -- notes ---------------------------------------------------------------------------------------

RANGE = pb.Range(origin="a", epoch=1, first=1, last=1)
BALLOT = pb.Ballot(number=1, name="a")
VALUE = pb.Generation(number=1, roster=["a"])
FULL = Clock([Dot("a", 1, 1)]).to_bytes()
WHO = pb.Rumour(name="a", epoch=1, state=pb.STATE_ALIVE)
OTHER_STATE = pb.Rumour.FromString(part(0x0A, b"a") + b"\x20\x07")
NOTES_BAD = {
    "of no kind": part(0x12, b""),
    "of a kind to come": part(0x12, part(15 << 3 | 2, b"")),
    "a digest without clocks": note(digest=pb.Digest(epoch=1)),
    "more durable than held": note(digest=pb.Digest(clock=EMPTY, durable=FULL)),
    "nothing wanted": note(want=pb.Want()),
    "too much wanted": note(want=pb.Want(ranges=[RANGE] * 1025)),
    "a range backwards": note(want=pb.Want(ranges=[pb.Range(origin="a", epoch=1, first=2)])),
    "a range of nobody": note(lack=pb.Lack(ranges=[pb.Range(epoch=1, first=1, last=1)])),
    "a range beyond 2^62": note(
        want=pb.Want(ranges=[pb.Range(origin="a", epoch=1, first=1, last=2**64 - 1)])
    ),
    "too many rumours": note(ping=pb.Ping(rumours=[WHO] * 65)),
    "a rumour of no state": note(ping=pb.Ping(rumours=[pb.Rumour(name="a")])),
    "a rumour of another state": note(ping=pb.Ping(rumours=[OTHER_STATE])),
    "a rumour about nobody": note(ping=pb.Ping(rumours=[pb.Rumour(state=pb.STATE_DEAD)])),
    "an address of two lines": note(
        ping=pb.Ping(rumours=[pb.Rumour(name="a", state=pb.STATE_DEAD, address="a\nb")])
    ),
    "a ping of 2^63": note(ping=pb.Ping(number=2**63)),
    "a request to ask nobody": note(ping_request=pb.PingRequest(number=1)),
    "an answer about nobody": note(ack=pb.Ack(number=1)),
    "a ballot of nobody": note(accepted=pb.Accepted(number=1)),
    "too many candidates": note(
        prepare=pb.Prepare(ballot=BALLOT, candidates=[pb.Life(origin="a", epoch=1)] * 257)
    ),
    "too many evicted": note(prepare=pb.Prepare(ballot=BALLOT, evict=["a"] * 4097)),
    "too much held": note(
        promise=pb.Promise(ballot=BALLOT, held=[pb.Fold(origin="a", epoch=1, runs=[1, 1])] * 257)
    ),
    "runs of three ends": note(
        promise=pb.Promise(ballot=BALLOT, held=[pb.Fold(origin="a", epoch=1, runs=[1, 1, 5])])
    ),
    "runs that touch": note(
        promise=pb.Promise(ballot=BALLOT, held=[pb.Fold(origin="a", epoch=1, runs=[1, 2, 3, 4])])
    ),
    "no runs": note(promise=pb.Promise(ballot=BALLOT, held=[pb.Fold(origin="a", epoch=1)])),
    "a value without its ballot": note(promise=pb.Promise(ballot=BALLOT, accepted=VALUE)),
    "a ballot without its value": note(promise=pb.Promise(ballot=BALLOT, accepted_ballot=BALLOT)),
    "nothing to accept": note(accept=pb.Accept(ballot=BALLOT)),
    "an unsorted roster": note(
        accept=pb.Accept(ballot=BALLOT, value=pb.Generation(roster=["b", "a"]))
    ),
    "too many decisions": note(decided=pb.Decided(generations=[VALUE] * 65)),
    "an epoch folded twice": note(
        decided=pb.Decided(
            generations=[
                pb.Generation(roster=["a"], folds=[pb.Fold(origin="a", epoch=1, runs=[1, 1])] * 2)
            ]
        )
    ),
    "a receipt for 2^64 - 1": note(receipt=pb.Receipt(seq=2**64 - 1)),
    "progress of nobody": note(progress=pb.Progress(epoch=1)),
    "NaN samples per second": note(progress=pb.Progress(name="a", samples_per_s=float("nan"))),
    "endless waiting": note(progress=pb.Progress(name="a", wait_s=float("inf"))),
    "a step of ages": note(progress=pb.Progress(name="a", step_s=1e300)),
    "a speed beyond any": note(progress=pb.Progress(name="a", samples_per_s=1e300)),
    "a negative step": note(progress=pb.Progress(name="a", step_s=-1.0)),
    "2^63 samples": note(progress=pb.Progress(name="a", samples=2**63)),
    "reasons out of order": note(
        progress=pb.Progress(name="a", rejected=[pb.Count(reason="b"), pb.Count(reason="a")])
    ),
    "too many reasons": note(
        progress=pb.Progress(
            name="a", rejected=[pb.Count(reason=f"r{i:03}", count=1) for i in range(65)]
        )
    ),
    "NaN staleness": note(
        progress=pb.Progress(name="a", staleness=pb.Staleness(mean=float("nan")))
    ),
}


@pytest.mark.parametrize("what", NOTES_BAD)
def test_notes(what: str) -> None:
    assert not taken(wire.decode_frame, NOTES_BAD[what])


# -- replies and descriptions --------------------------------------------------------------------


def described(**changes: Any) -> bytes:
    m = pb.Description.FromString(wire.encode_description(DESCRIPTION))
    m.MergeFrom(pb.Description(**changes))
    return serialized(m)


def replied(**fields: Any) -> tuple[Callable[[bytes], Any], bytes]:
    return wire.decode_frame, pb.Frame(reply=pb.Reply(**fields)).SerializeToString()


OTHERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "grant for 0": replied(grants=[pb.Grant()]),
    "grant far beyond": replied(grants=[pb.Grant(number=1, offset=2**63)]),
    "too many grants": replied(grants=[pb.Grant(number=1)] * (wire.GRANTS_MAX + 1)),
    "landed 2^64 - 1": replied(landed=2**64 - 1),
    "a refusal without end": replied(refusal=pb.Refusal(status=3, sentence="x" * 2000)),
    "a refusal of no status": replied(refusal=pb.Refusal(status=1000, sentence="x")),
    "a request over the limit": (wire.check_describe_request, bytes(2000)),
    "a description over the limit": (
        wire.decode_description,
        bytes(wire.DESCRIPTION_BYTES_MAX + 1),
    ),
    "an empty description": (wire.decode_description, b""),
    "too many tensors": (
        wire.decode_description,
        described(tensors=[pb.TensorDescription(name="w", dtype="f4")] * (TENSORS_MAX + 1)),
    ),
    "too many axes": (
        wire.decode_description,
        described(tensors=[pb.TensorDescription(name="w", dtype="f4", shape=[1] * (AXES_MAX + 1))]),
    ),
    "too many members": (
        wire.decode_description,
        described(
            members=[pb.MemberDescription(name="a", state=pb.STATE_DEAD)] * (MEMBERS_MAX + 1)
        ),
    ),
    "too much progress": (
        wire.decode_description,
        described(progress=[pb.Progress(name="a")] * 1025),
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_replies_and_descriptions(what: str) -> None:
    assert not taken(*OTHERS[what])


# -- bombs: small on the wire, large when opened -------------------------------------------------


def wide(entries: int) -> bytes:
    out = Clock()
    for i in range(entries):
        out.add(Dot(f"{i:x}", 1, 1))
    return out.to_bytes()


def torn(runs: int) -> bytes:
    """A clock with every other number of one life, written by hand."""
    head = bytes((1, 0, 0, 0, 1, 1)) + b"a" + bytes((1,)) + varint(runs)
    return head + bytes((0, 0)) + bytes((1, 0)) * (runs - 1)


def test_the_torn_clock_is_one() -> None:
    assert Clock.from_bytes(torn(3)).ranges() == [Range("a", 1, seq, seq) for seq in (1, 3, 5)]


BOMBS: dict[str, Callable[[], bytes]] = {
    "contexts that copy 4,000 entries each": lambda: push(
        stamps=[pb.Stamp(seq=1, context=wide(4000))]
        + [pb.Stamp(seq=seq, back=1) for seq in range(2, 4096)]
    ),
    "contexts that rebuild 8,000 runs each": lambda: push(
        stamps=[pb.Stamp(seq=1, context=torn(8000))]
        + [pb.Stamp(seq=seq, back=1, added=[0, 1, 0]) for seq in range(2, 3000)]
    ),
    "one context that rebuilds 8,000 runs 10,000 times": lambda: push(
        stamps=[
            pb.Stamp(seq=1, context=torn(8000)),
            pb.Stamp(seq=2, back=1, added=[0, 1, 0] * 10_000),
        ]
    ),
    "a hole filled one by one from the far end": lambda: push(
        stamps=[*ONE, pb.Stamp(seq=2, back=1, added=[0, 60_000, 0] + [0, -3, 0] * 10_000)]
    ),
    "as many small notes as fit": lambda: part(0x12, wire.encode_note(SnapshotRequest())) * 1024,
    "empty notes without end": lambda: b"\x12\x00" * 32_000,
    "empty notes in a frame of the full size": lambda: b"\x12\x00" * (wire.FRAME_BYTES_MAX // 2),
    "a clock of 32 KB": lambda: note(digest=pb.Digest(clock=torn(16_384), durable=EMPTY)),
    "a clock of 56 KB": lambda: note(digest=pb.Digest(clock=torn(28_000), durable=EMPTY)),
    "two clocks": lambda: note(digest=pb.Digest(clock=torn(14_000), durable=torn(14_000))),
    "a roster of 4,000": lambda: note(
        decided=pb.Decided(generations=[pb.Generation(roster=[f"{i:05}" for i in range(4000)])])
    ),
    "20,000 empty generations": lambda: note(
        decided=pb.Decided(generations=[pb.Generation()] * 20_000)
    ),
    "20,000 empty lives": lambda: push(lives=[pb.Life()] * 20_000, stamps=ONE),
    "groups in groups": lambda: part(0x12, b"\x0b" * 30_000),
    "messages in messages": lambda: nested(5000),
    "unknown fields in a note": lambda: part(0x12, part(0x22, b"\xf8\x07\x01" * 15_000)),
}


def nested(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = part(0x0A, data)
    return part(0x12, data)


@pytest.mark.parametrize("what", BOMBS)
def test_bombs(what: str) -> None:
    data = BOMBS[what]()
    if len(data) <= wire.REST_BYTES_MAX:
        cpu_s = []
        for _ in range(5):  # the least of five: the machine is shared
            start = time.process_time()
            taken(wire.decode_frame, data)
            cpu_s.append(time.process_time() - start)
        assert min(cpu_s) < CPU_S_MAX
    tracemalloc.start()
    try:
        taken(wire.decode_frame, data)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "what", [name for name in BOMBS if name.startswith(("contexts", "one context", "empty", "20,"))]
)
def test_bombs_are_refused(what: str) -> None:
    assert not taken(wire.decode_frame, BOMBS[what]())


def test_honest_neighbours_of_the_limits_are_taken() -> None:
    rumours = [pb.Rumour(name="a", state=pb.STATE_ALIVE)] * 64
    assert taken(wire.decode_frame, note(ping=pb.Ping(rumours=rumours)))
    assert taken(wire.decode_frame, note(want=pb.Want(ranges=[RANGE] * 1024)))
    assert taken(wire.decode_frame, wire.encode_frame(notes=[wire.encode_note(Receipt(1, 1, 1))]))
    long_name = wire.encode_note(NOTES[3]), Rumour("n" * 128, 1, 1, "alive")
    assert long_name[1].name
    hello = wire.Hello(run="r" * 128, swarm="", schema="s", name="n" * 128, epoch=1, address="")
    assert taken(wire.decode_frame, wire.encode_frame(hello=hello))
