"""`core/codecs/codec.py`: what comes back, how far it may be off, and what is refused."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmurate.core.admission import NORM_MAX, payload_problem
from murmurate.core.clock import Clock, Dot
from murmurate.core.codecs import codec
from murmurate.core.codecs.choice import Choice, parse_codec
from murmurate.core.codecs.codec import BLOCK, CODED, ROW, Encoded, Encoder, check_bytes, opened
from murmurate.core.codecs.topk import bytes_max
from murmurate.core.gossip.peer import Peer
from murmurate.core.message import PARTS_MAX, Push, Stamp, summed
from murmurate.core.replica import Fresh, Replica
from murmurate.errors import ConfigError, LocalProtocolError, RemoteProtocolError

SIZES = (1, 2, 3, 5, ROW - 1, ROW, ROW + 1, 5 * ROW + 7, 40_001, BLOCK, BLOCK + 3 * ROW + 1)


def encoded(name: str, values: torch.Tensor, part: float = 0.01) -> Encoded:
    return Encoder(Choice(name, part), values.numel()).encode(values)


def noise(size: int, seed: int = 0, scale: float = 1e-3) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


floats = st.floats(
    width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**50), max_value=2.0**50
)
vectors = st.lists(floats, min_size=1, max_size=60).map(torch.tensor)


# -- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_bf16_is_the_nearest_number_of_16_bits(size: int) -> None:
    values = noise(size)
    form = encoded("bf16", values)
    assert torch.equal(form.decoded(), values.to(torch.bfloat16).float())
    assert form.nbytes == -(-2 * size // 4) * 4


def test_bf16_rounds_ties_to_even() -> None:
    bits = torch.tensor([0x3F808000, 0x3F818000, 0x3F808001], dtype=torch.int32)
    back = encoded("bf16", bits.view(torch.float32)).decoded().view(torch.int32)
    assert [hex(int(x)) for x in back] == ["0x3f800000", "0x3f820000", "0x3f810000"]


@pytest.mark.parametrize("size", SIZES)
def test_int8_is_off_by_half_a_step_at_most(size: int) -> None:
    values = noise(size)
    values[: size // 2] *= 1000  # one block large, its neighbour small
    off = (encoded("int8", values).decoded() - values).abs()
    for start in range(0, size, ROW):
        row = values[start : start + ROW].abs().max()
        assert off[start : start + ROW].max() <= row / 127 * 0.501
    assert encoded("int8", values).nbytes <= size + 4 * (size // ROW + 2)


@given(vectors)
@settings(deadline=None)
def test_int8_of_any_numbers(values: torch.Tensor) -> None:
    off = (encoded("int8", values).decoded() - values).abs().max()
    assert float(off) <= max(float(values.abs().max()) / 127 * 0.501, 127e-37)


@given(vectors, st.sampled_from(CODED), st.floats(0.01, 0.25))
@settings(deadline=None)
def test_the_norm_is_that_of_what_is_decoded_or_a_bound_of_it(
    values: torch.Tensor, name: str, part: float
) -> None:
    form = encoded(name, values, part)
    true = float(torch.linalg.vector_norm(form.decoded().double()))
    assert form.norm() >= true * (1 - 1e-5) - 1e-15  # squares of what is tiny vanish in float32
    if name != "int8":
        assert form.norm() <= true * (1 + 1e-5) + 1e-15


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("size", [10, 2 * ROW, 50_000])
@pytest.mark.parametrize("many", [False, True])
def test_what_is_not_finite_is_seen_in_the_norm(
    name: str, bad: float, size: int, many: bool
) -> None:
    values = noise(size)
    values[size // 3 :: 1 if many else size] = bad
    assert not encoded(name, values).norm() <= NORM_MAX


@pytest.mark.parametrize("name", CODED)
def test_nothing_learned_is_sent_as_nothing(name: str) -> None:
    form = encoded(name, torch.zeros(3 * ROW))
    assert not form.decoded().any()
    assert form.nbytes > 0  # it has an id all the same, and must arrive
    assert torch.equal(opened(name, 3 * ROW, form.data).decoded(), form.decoded())


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("size", SIZES)
def test_adding_is_decoding_and_adding(name: str, size: int) -> None:
    form, weights = encoded(name, noise(size)), noise(size, 1, 1.0)
    expected = weights + form.decoded()
    form.add_to(weights)
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("size", SIZES)
def test_a_place_of_it_is_added_so_many_times(name: str, size: int) -> None:
    form = encoded(name, noise(size), 0.2)
    for start, stop in ((0, size), (size // 3, size), (size // 4, size // 2 + 1), (0, 1)):
        flat = noise(stop - start, 1)
        expected = flat + 0.5 * form.decoded()[start:stop]
        form.add_to(flat, start=start, times=0.5)
        torch.testing.assert_close(flat, expected)


@pytest.mark.parametrize("name", CODED)
def test_the_same_numbers_give_the_same_bytes(name: str) -> None:
    values = noise(70_001)
    one, other = Encoder(Choice(name), 70_001), Encoder(Choice(name), 70_001)
    one.encode(noise(70_001, 5))  # what was before leaves no trace
    assert torch.equal(one.encode(values).data, other.encode(values.clone()).data)


def test_the_input_is_left_alone() -> None:
    values = noise(5000)
    for name in CODED:
        before = values.clone()
        encoded(name, values)
        assert torch.equal(values, before)


def test_big_endian_machines_swap_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    values = noise(2 * ROW + 3)
    plain = {name: encoded(name, values).decoded() for name in CODED}
    monkeypatch.setattr(codec, "_SWAP", True)
    for name in CODED:
        form = encoded(name, values)
        assert torch.equal(opened(name, values.numel(), form.data).decoded(), plain[name])


# -- error feedback ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODED)
def test_nothing_is_lost_only_late(name: str) -> None:
    """What is left out of one update is in a later one: sums differ by the last rest alone."""
    size, steps = 2000, 400
    encoder = Encoder(Choice(name), size)
    true, sent, rest = torch.zeros(size), torch.zeros(size), torch.zeros(size)
    constant = noise(size, 3)
    for step in range(steps):
        delta = constant + noise(size, 10 + step)
        true += delta
        form = encoder.encode(rest + delta)
        form.add_to(sent)
        rest = rest + delta - form.decoded()
    assert torch.allclose(sent + rest, true, atol=1e-4)
    assert torch.linalg.vector_norm(true - sent) < 0.2 * torch.linalg.vector_norm(true)


# -- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "nbytes"),
    [
        ("fp32", 4, 16),
        ("zip", 4, 16),
        ("x" * 5000, 4, 16),
        ("", 4, 16),
        ("bf16", 4, 4),
        ("bf16", 3, 6),
        ("int8", 4, 4),
        ("int8", ROW + 1, ROW + 8),
        ("topk", 100, 0),
        ("topk", 100, 12),
        ("topk", 100, 18),
        ("topk", 100, bytes_max(100) + 4),
        ("topk", 1, 20),
        ("topk", 2**31, 16),
        ("topk", 100, -16),
    ],
)
def test_sizes_that_cannot_be(name: str, size: int, nbytes: int) -> None:
    with pytest.raises(RemoteProtocolError, match=r"push\.parts") as caught:
        check_bytes(name, size, nbytes)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("size", SIZES)
def test_sizes_that_can(name: str, size: int) -> None:
    check_bytes(name, size, encoded(name, noise(size)).nbytes)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0])
def test_scales_that_are_none(scale: float) -> None:
    form = encoded("int8", noise(2 * ROW))
    data = form.data.clone()
    data[4:8].view(torch.float32)[0] = scale
    with pytest.raises(RemoteProtocolError, match="scale"):
        opened("int8", 2 * ROW, data)


@given(st.binary(min_size=0, max_size=400), st.sampled_from(CODED), st.integers(1, 200))
@settings(deadline=None)
def test_any_bytes_are_refused_or_can_be_added(data: bytes, name: str, size: int) -> None:
    tensor = torch.frombuffer(bytearray(data + b"\0" * 4), dtype=torch.uint8)[: len(data)].clone()
    try:
        form = opened(name, size, tensor)
    except RemoteProtocolError:
        return
    form.norm()
    form.add_to(torch.zeros(size))


@pytest.mark.parametrize(
    "text", ["fp16", "", "top-k", "topk()", "topk(0)", "topk(0.3)", "topk(-1)", "int8(2)"]
)
def test_codecs_there_are_not(text: str) -> None:
    with pytest.raises(ConfigError, match="codec"):
        parse_codec(text)


def test_codecs_there_are() -> None:
    assert parse_codec("fp32").plain
    assert parse_codec("topk") == Choice("topk", 0.04)
    assert parse_codec(" TopK(0.05) ") == Choice("topk", 0.05)


def test_models_that_cannot_be_encoded() -> None:
    with pytest.raises(ConfigError, match="float64"):
        Encoder(Choice("bf16"), 4, torch.float64)
    with pytest.raises(ConfigError, match="topk"):
        Encoder(Choice("topk"), 2**31)
    with pytest.raises(ConfigError, match="fp32"):
        Encoder(Choice("fp32"), 4)


# -- as parts of a push --------------------------------------------------------------------------

SIZE = 4 * ROW


def stamp(seq: int) -> Stamp:
    return Stamp(Dot("a", 1, seq), Clock())


def push(seq: int, name: str, seed: int | None = None) -> Push:
    return Push((stamp(seq),), parts=(encoded(name, noise(SIZE, seq if seed is None else seed)),))


def test_a_push_is_plain_or_in_parts() -> None:
    form = encoded("bf16", noise(4))
    for bad in (
        lambda: Push((stamp(1),)),
        lambda: Push((stamp(1),), torch.zeros(4), (form,)),
        lambda: Push((stamp(1),), parts=(form, encoded("bf16", noise(5)))),
        lambda: Push((stamp(1),), parts=(form,) * (PARTS_MAX + 1)),
    ):
        with pytest.raises(RemoteProtocolError, match=r"push\.pa"):
            bad()
    one = Push((stamp(1),), parts=(form,))
    assert one.nbytes == form.nbytes
    assert torch.equal(one.payload, form.decoded())
    again = one.stamped((stamp(2),))
    assert again.parts == one.parts
    assert again.dots == (Dot("a", 1, 2),)
    with pytest.raises(AttributeError):
        one.parts = ()


@given(st.lists(st.sampled_from([*CODED, "plain"]), min_size=1, max_size=9))
@settings(deadline=None, max_examples=60)
def test_a_sum_is_what_its_updates_are_one_by_one(names: list[str]) -> None:
    pushes = [
        Push((stamp(seq),), noise(SIZE, seq)) if name == "plain" else push(seq, name)
        for seq, name in enumerate(names, 1)
    ]
    total = summed(pushes)
    one_by_one, at_once = torch.zeros(SIZE), torch.zeros(SIZE)
    for each in pushes:
        each.add_to(one_by_one)
    total.add_to(at_once)
    assert torch.equal(at_once, one_by_one)
    assert total.dots == tuple(dot for each in pushes for dot in each.dots)
    assert total.nbytes <= max(SIZE * 4, pushes[0].nbytes)
    nested = summed([summed(pushes[:2]), *pushes[2:]])
    torch.testing.assert_close(nested.payload, total.payload)


def test_a_sum_stays_encoded_while_that_is_smaller() -> None:
    assert len(summed([push(1, "int8"), push(2, "int8"), push(3, "int8")]).parts) == 3
    assert len(summed([push(1, "bf16"), push(2, "int8")]).parts) == 2
    assert not summed([push(1, "bf16"), push(2, "bf16")]).parts
    assert not summed([push(seq, "int8") for seq in range(1, 5)]).parts
    assert len(summed([push(seq, "topk") for seq in range(1, 21)]).parts) == 20
    assert not summed([push(1, "topk"), Push((stamp(2),), noise(SIZE))]).parts
    many = [push(seq, "topk") for seq in range(1, PARTS_MAX + 2)]
    assert not summed(many).parts


def test_parts_of_a_sum_added_to_weights_are_the_updates_added_one_by_one() -> None:
    """So whoever got them one by one has the same weights, to the bit."""
    pushes = [push(1, "int8"), push(2, "topk"), push(3, "int8")]
    one, other = Replica(noise(SIZE, 9, 1.0)), Replica(noise(SIZE, 9, 1.0))
    for each in pushes:
        assert isinstance(one.fold(each.stamps, each.parts), Fresh)
    total = summed(pushes)
    assert isinstance(other.fold(total.stamps, total.parts), Fresh)
    assert torch.equal(one.weights, other.weights)
    assert one.clock == other.clock


def test_parts_do_not_fit_other_weights() -> None:
    parts = push(1, "int8").parts
    with pytest.raises(LocalProtocolError):
        Replica(torch.zeros(SIZE + 1)).fold((stamp(1),), parts)
    assert "elements" in payload_problem(parts, torch.zeros(SIZE + 1))
    assert "float64" in payload_problem(parts, torch.zeros(SIZE, dtype=torch.float64))
    assert payload_problem(parts, torch.zeros(SIZE)) == ""
    large = encoded("topk", noise(SIZE) * 1e20).data
    assert "norm" in payload_problem((opened("topk", SIZE, large),), torch.zeros(SIZE))


def test_a_peer_applies_what_it_sends() -> None:
    peer = Peer("a", 1, Replica(torch.zeros(SIZE)), rng=random.Random(0))
    form = encoded("topk", noise(SIZE))
    peer.publish(form, peer.context())
    assert torch.equal(peer.replica.weights, form.decoded())
    assert [each.parts for each in peer.log] == [(form,)]
    nan = encoded("topk", torch.full((SIZE,), float("nan")))
    with pytest.raises(LocalProtocolError, match="norm"):
        peer.publish(nan, peer.context())
