"""Messages between a member and the coordinator: there and back, and what a stranger may send."""

from __future__ import annotations

import contextlib
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.partition_models import MODELS

from murmurate.core.intervals import SEQ_MAX
from murmurate.core.partition import analyse, deal, part_of, weights_of
from murmurate.core.partition.structure import Structure
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.pieces import PieceSize
from murmurate.edge.net.subnet_values import (
    Incoming,
    Outgoing,
    Unwanted,
    decode_held,
    encode_held,
    structure_digest,
    value_size,
)
from murmurate.errors import (
    ChecksumMismatch,
    LocalProtocolError,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.v1 import coordinator_pb2 as pb

HELLO = wire.WorkHello(
    run="a-run",
    name="node-1",
    instance="f00d",
    structure=bytes(range(32)),
    width=2.0,
    memory_bytes=200_000_000,
    lease=7,
    lease_version=3,
)
PUSH = wire.Return(
    plan=4,
    lease=7,
    version=4,
    steps=10,
    samples=640,
    loss=0.5,
    seconds=1.5,
    value_bytes=3,
)
GIVE = wire.Give(plan=5, lease=8, version=0, held=b"\x05", value_bytes=2_000_000)
WELCOME = wire.WorkWelcome(
    run="a-run",
    instance="beef",
    rule="once",
    steps=10,
    lease_holds=True,
    lease_version=3,
    plan=4,
)
WORKS = [
    wire.Work(hello=HELLO),
    wire.Work(push=PUSH, raw=b"abc"),
    wire.Work(offset=1 << 20, raw=b"more"),
    wire.Work(doing=wire.Doing(samples=5, steps=2, samples_per_s=0.5, loss=2.5, wait_s=0.25)),
    wire.Work(bye=True),
]
TASKS = [
    wire.Task(welcome=WELCOME),
    wire.Task(give=GIVE, raw=b"x" * wire.RAW_BYTES_MAX),
    wire.Task(offset=wire.RAW_BYTES_MAX, raw=b"y"),
    wire.Task(taken=wire.Taken(lease=7, version=4, staleness=3)),
    wire.Task(
        not_taken=wire.NotTaken(lease=7, version=4, reason="over", sentence="lease 7 is over")
    ),
    wire.Task(waits="1 of 4 are here"),
    wire.Task(stop="10,000 samples"),
]


@pytest.mark.parametrize("work", WORKS)
def test_a_work_comes_back_as_it_was(work: wire.Work) -> None:
    assert wire.decode_work(wire.encode_work(work)) == work


@pytest.mark.parametrize("task", TASKS)
def test_a_task_comes_back_as_it_was(task: wire.Task) -> None:
    assert wire.decode_task(wire.encode_task(task)) == task


def test_a_loss_may_be_no_number() -> None:
    push = replace(PUSH, loss=math.nan)
    back = wire.decode_work(wire.encode_work(wire.Work(push=push, raw=b"x"))).push
    assert back is not None
    assert math.isnan(back.loss)


def _work(**changes: Any) -> bytes:
    data: bytes = pb.Work(**changes).SerializeToString()
    return data


def _task(**changes: Any) -> bytes:
    data: bytes = pb.Task(**changes).SerializeToString()
    return data


def _hello(**changes: Any) -> bytes:
    m = pb.Work.FromString(wire.encode_work(WORKS[0])).hello
    for key, value in changes.items():
        setattr(m, key, value)
    return _work(hello=m)


def _push(**changes: Any) -> bytes:
    m = pb.Work.FromString(wire.encode_work(WORKS[1])).push
    for key, value in changes.items():
        setattr(m, key, value)
    return _work(push=m, raw=b"abc")


def _give(**changes: Any) -> bytes:
    m = pb.Task.FromString(wire.encode_task(TASKS[1])).give
    for key, value in changes.items():
        setattr(m, key, value)
    return _task(give=m, raw=b"abc")


def _welcome(**changes: Any) -> bytes:
    m = pb.Task.FromString(wire.encode_task(TASKS[0])).welcome
    for key, value in changes.items():
        setattr(m, key, value)
    return _task(welcome=m)


BAD_WORKS: list[tuple[bytes, str]] = [
    (b"", "work: 0 things said"),
    (b"\xff\xff", "work: not a Work"),
    (b"\0" * (wire.MESSAGE_BYTES_MAX + 1), "work: 1114113 bytes"),
    (_work(hello=pb.WorkHello(version=1)), "hello.structure: 0 bytes"),
    (_hello(run=""), "hello.run: empty"),
    (_hello(name="a\nb"), "hello.name"),
    (_hello(name="x" * 500), "hello.name: 500 characters"),
    (_hello(instance=""), "hello.instance: empty"),
    (_hello(structure=b"x" * 31), "hello.structure: 31 bytes, expected 32"),
    (_hello(width=-1.0), "hello.width: -1, expected a number from 0 on"),
    (_hello(width=math.nan), "hello.width: nan"),
    (_hello(width=math.inf), "hello.width: inf"),
    (_hello(memory_bytes=2**64 - 1), "hello.memory_bytes"),
    (_hello(lease=2**64 - 1), "hello.lease"),
    (_hello(lease=0), "hello.lease_version: 3, expected 0 to 0"),
    (_push(plan=0), "push.plan: 0"),
    (_push(lease=0), "push.lease: 0"),
    (_push(version=0), "push.version: 0"),
    (_push(version=SEQ_MAX + 1), "push.version"),
    (_push(steps=2**64 - 1), "push.steps"),
    (_push(samples=2**64 - 1), "push.samples"),
    (_push(seconds=-0.5), "push.seconds: -0.5"),
    (_push(seconds=math.inf), "push.seconds: inf"),
    (_push(value_bytes=0), "push.value_bytes: 0"),
    (_push(value_bytes=wire.VALUE_BYTES_MAX + 1), "push.value_bytes"),
    (_work(push=pb.Work.FromString(wire.encode_work(WORKS[1])).push), "work.raw: missing"),
    (_work(raw=b"x" * (wire.RAW_BYTES_MAX + 1), offset=5), "work.raw: 1048577 bytes"),
    (_work(raw=b"x"), "work.offset: 0 with 1 raw bytes"),
    (_work(offset=5), "work.offset: 5 with 0 raw bytes"),
    (_work(offset=2**63, raw=b"x"), "work.offset"),
    (_work(offset=5, raw=b"x", bye=True), "work: 2 things said"),
    (_work(bye=True, doing=pb.Doing()), "work: 2 things said"),
    (_work(doing=pb.Doing(wait_s=-1.0)), "doing.wait_s: -1"),
    (_work(doing=pb.Doing(samples_per_s=math.nan)), "doing.samples_per_s: nan"),
    (_work(doing=pb.Doing(steps=2**64 - 1)), "doing.steps"),
    (_work(doing=pb.Doing(samples=2**64 - 1)), "doing.samples"),
]
BAD_TASKS: list[tuple[bytes, str]] = [
    (b"", "task: 0 things said"),
    (_welcome(rule=""), "welcome.rule: empty"),
    (_welcome(run=""), "welcome.run: empty"),
    (_welcome(instance="\x00"), "welcome.instance"),
    (_welcome(steps=2**64 - 1), "welcome.steps"),
    (_welcome(lease_version=2**64 - 1), "welcome.lease_version"),
    (_welcome(plan=2**64 - 1), "welcome.plan"),
    (_give(plan=0), "give.plan: 0"),
    (_give(lease=0), "give.lease: 0"),
    (_give(version=2**64 - 1), "give.version"),
    (_give(held=b"x" * (wire.HELD_BYTES_MAX + 1)), "give.held: 49153 bytes"),
    (_give(value_bytes=0), "give.value_bytes: 0"),
    (_task(give=pb.Task.FromString(wire.encode_task(TASKS[1])).give), "task.raw: missing"),
    (_task(raw=b"x"), "task.offset: 0 with 1 raw bytes"),
    (_task(offset=5), "task.offset: 5 with 0 raw bytes"),
    (_task(taken=pb.Taken(lease=0, version=1)), "taken.lease: 0"),
    (_task(taken=pb.Taken(lease=1, version=0)), "taken.version: 0"),
    (_task(taken=pb.Taken(lease=1, version=1, staleness=2**64 - 1)), "taken.staleness"),
    (_task(not_taken=pb.NotTaken(lease=1, version=1)), "not_taken.reason: empty"),
    (_task(not_taken=pb.NotTaken(reason="over", sentence="x" * 2000)), "not_taken.sentence"),
    (_task(waits="a\x1b[31m"), "task.waits"),
    (_task(stop="x" * 2000), "task.stop: 2000 characters"),
    (_task(stop="x", waits="y"), "task: 2 things said"),
]


@pytest.mark.parametrize(
    ("decode", "data", "said"),
    [
        *((wire.decode_work, data, said) for data, said in BAD_WORKS),
        *((wire.decode_task, data, said) for data, said in BAD_TASKS),
    ],
)
def test_what_is_wrong_is_named(decode: Callable[[bytes], Any], data: bytes, said: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(data)
    assert str(caught.value).startswith(said)


def test_another_version_is_named_with_ours() -> None:
    with pytest.raises(SchemaMismatch, match="version 2 of the protocol, this side version 1"):
        wire.decode_work(_hello(version=2))
    with pytest.raises(SchemaMismatch, match="version 0"):
        wire.decode_task(_welcome(version=0))


def test_any_bytes_are_understood_or_refused() -> None:
    rng = random.Random(5)
    good: list[tuple[Callable[[bytes], Any], bytes]]
    good = [(wire.decode_work, wire.encode_work(w)) for w in WORKS]
    good += [(wire.decode_task, wire.encode_task(t)) for t in TASKS]
    for _ in range(3000):
        decode, data = rng.choice(good)
        bad = bytearray(data[:300])
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        with contextlib.suppress(RemoteProtocolError, SchemaMismatch):
            decode(bytes(bad[: rng.randrange(1, len(bad) + 1)]))


def test_what_this_side_must_not_send() -> None:
    with pytest.raises(LocalProtocolError, match="1048577 raw bytes"):
        wire.encode_work(wire.Work(offset=5, raw=b"x" * (wire.RAW_BYTES_MAX + 1)))
    with pytest.raises(LocalProtocolError, match="besides raw"):
        wire.encode_task(wire.Task(give=replace(GIVE, held=b"x" * wire.REST_BYTES_MAX), raw=b"x"))
    with pytest.raises(LocalProtocolError, match="task"):
        wire.encode_task(wire.Task(give=replace(GIVE, plan=-1), raw=b"x"))


# -- values --------------------------------------------------------------------------------------


def _found(name: str) -> tuple[torch.nn.Module, Structure]:
    torch.manual_seed(3)
    make, example = MODELS[name]
    model = make()
    return model, analyse(model, example())


@pytest.mark.parametrize("name", ["mlp with batch-norm", "cnn"])
@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1000, wire.RAW_BYTES_MAX])
def test_values_come_back_to_the_bit(name: str, piece_bytes: int) -> None:
    model, structure = _found(name)
    for held in deal(structure, [3, 1, 2], np.random.default_rng(0)):
        sent = part_of(weights_of(model), structure, held)
        out = Outgoing(structure, sent)
        assert out.value_bytes == value_size(structure, held) == structure.nbytes(held)
        into = Incoming("push", structure, held, out.value_bytes)
        pieces = list(out.pieces(PieceSize(piece_bytes)))
        assert [into.take(offset, raw) for offset, raw in pieces][-1]
        assert {len(raw) for _, raw in pieces[:-1]} <= {piece_bytes}
        got = into.values
        assert list(got) == list(sent)
        for key, value in got.items():
            assert value.dtype == sent[key].dtype
            assert torch.equal(value, sent[key])


def test_values_that_lie_otherwise_in_memory_are_sent_in_rows() -> None:
    model, structure = _found("mlp")
    held = structure.everything()
    sent = {n: v.detach() for n, v in weights_of(model).items()}
    turned = {n: v.t().contiguous().t() if v.dim() == 2 else v for n, v in sent.items()}
    assert b"".join(r for _, r in Outgoing(structure, turned).pieces(PieceSize())) == b"".join(
        v.numpy().tobytes() for v in sent.values()
    )
    assert value_size(structure, held) == Outgoing(structure, sent).value_bytes


def _incoming() -> tuple[Incoming, list[tuple[int, bytes]]]:
    model, structure = _found("mlp")
    held = deal(structure, [1, 1], np.random.default_rng(0))[0]
    out = Outgoing(structure, part_of(weights_of(model), structure, held))
    into = Incoming("give", structure, held, out.value_bytes)
    return into, list(out.pieces(PieceSize(100)))


def test_pieces_that_do_not_fit_are_refused() -> None:
    into, pieces = _incoming()
    with pytest.raises(RemoteProtocolError, match=r"give.offset: 100, expected 0 of"):
        into.take(*pieces[1])
    into.take(*pieces[0])
    with pytest.raises(RemoteProtocolError, match=r"give.offset: 0, expected 100"):
        into.take(*pieces[0])
    with pytest.raises(RemoteProtocolError, match=r"give.raw: 100 \+ 0 bytes"):
        into.take(100, b"")
    with pytest.raises(RemoteProtocolError, match=r"give.raw: 100 \+ 1000000 bytes"):
        into.take(100, b"x" * 1_000_000)
    with pytest.raises(LocalProtocolError, match="not all of its values"):
        _ = into.values


@pytest.mark.parametrize(
    ("encode", "decode", "message"),
    [
        (wire.encode_work, wire.decode_work, wire.Work(offset=64, raw=b"values")),
        (wire.encode_work, wire.decode_work, wire.Work(push=PUSH, raw=b"values")),
        (wire.encode_task, wire.decode_task, wire.Task(give=GIVE, raw=b"values")),
    ],
)
def test_a_piece_that_is_not_what_its_checksum_says_is_refused(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], message: Any
) -> None:
    data = encode(message)
    assert decode(data).checksum == zlib.crc32(b"values")
    place = data.rindex(b"values")
    for at in range(place, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(ChecksumMismatch, match=r"\.checksum: [0-9a-f]{8} of what arrived"):
                decode(bytes(damaged))
    none = bytearray(data)
    crc = data.index(zlib.crc32(b"values").to_bytes(4, "little"))
    none[crc - 1 : crc + 4] = b""
    with pytest.raises(ChecksumMismatch, match="not 00000000"):
        decode(bytes(none))


def test_another_size_is_refused_before_anything_is_allocated() -> None:
    _, structure = _found("mlp")
    held = structure.everything()
    with pytest.raises(RemoteProtocolError, match=r"push.value_bytes: 1099511627776, expected"):
        Incoming("push", structure, held, 1 << 40)


def test_values_nobody_wants_must_be_in_order_too() -> None:
    _, pieces = _incoming()
    total = sum(len(raw) for _, raw in pieces)
    unwanted = Unwanted("push", total)
    assert [unwanted.take(*piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    with pytest.raises(RemoteProtocolError):
        Unwanted("push", total).take(*pieces[2])


def test_values_of_something_else_are_not_sent() -> None:
    model, structure = _found("mlp")
    values = {n: v.detach() for n, v in weights_of(model).items()}
    first = next(iter(values))
    with pytest.raises(LocalProtocolError, match="float64"):
        Outgoing(structure, {**values, first: values[first].double()})
    with pytest.raises(LocalProtocolError, match="missing or unknown"):
        Outgoing(structure, {n: v for n, v in values.items() if n != first})


# -- units ---------------------------------------------------------------------------------------


def test_units_come_back_as_they_were() -> None:
    _, structure = _found("cnn")
    for held in deal(structure, [3, 1, 2], np.random.default_rng(1)):
        assert np.array_equal(decode_held(structure, encode_held(held)), held)
    one = structure.hold([0, 9])
    assert encode_held(one)[:2] == b"\x01\x02"


def test_units_of_something_else_are_refused() -> None:
    _, structure = _found("mlp")
    whole = encode_held(structure.everything())
    with pytest.raises(RemoteProtocolError, match=r"give.held: .* bytes, expected"):
        decode_held(structure, whole + b"\0")
    with pytest.raises(RemoteProtocolError, match=r"give.held: no unit of"):
        decode_held(structure, b"\0" * len(whole))
    if structure.units % 8:
        with pytest.raises(RemoteProtocolError, match=r"give.held: a unit beyond"):
            decode_held(structure, b"\xff" * len(whole))


# -- the digest ----------------------------------------------------------------------------------


def test_the_digest_is_of_the_model_and_not_of_its_values_or_the_example() -> None:
    digests: dict[bytes, str] = {}
    names = ("mlp", "resnet", "encoder", "gpt")  # the last two: with heads, with sizes in the code
    for name in names:
        make, example = MODELS[name]
        for seed in (1, 2):
            torch.manual_seed(seed)
            model, (batch,) = make(), example()
            batch = torch.cat([batch] * seed)
            assert digests.setdefault(structure_digest(analyse(model, (batch,))), name) == name
    assert list(digests.values()) == list(names)


def test_another_type_of_numbers_is_another_digest() -> None:
    model, structure = _found("mlp")
    wide = analyse(model.double(), MODELS["mlp"][1]())
    assert structure_digest(wide) != structure_digest(structure)
