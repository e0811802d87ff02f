"""`core/codecs/topk.py`: which numbers are sent, how far off they may be, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_codec import encoded, noise

from murmurate.core.codecs import topk
from murmurate.core.codecs.codec import BLOCK, check_bytes, opened
from murmurate.core.codecs.topk import BASE_MAX, FAR, bytes_max, decode, largest
from murmurate.errors import RemoteProtocolError

STEP = 1 / 16
"""Half of the widest step: 8 in an octave."""


def taken(values: torch.Tensor, part: float = 0.01) -> torch.Tensor:
    return encoded("topk", values, part).decoded()


def count(values: torch.Tensor, part: float = 0.01) -> int:
    found = decode(encoded("topk", values, part).data.numpy())
    return sum(len(indices) for indices, _ in found)


def naive(data: bytes) -> dict[int, float]:
    """The form read byte by byte, as its description says."""
    gaps, base = struct.unpack_from("<II", data)
    at, entries = -1, []
    for gap in data[8 : 8 + gaps]:
        at += gap if gap == FAR else gap + 1
        if gap != FAR:
            entries.append(at)
    start = 8 + -(-gaps // 4) * 4
    found = {}
    for place, code in zip(entries, data[start:], strict=False):
        bits = (code >> 7) << 31 | (base + (code & 127)) << 20
        (found[place],) = struct.unpack("<f", struct.pack("<I", bits))
    return found


# -- which, and what becomes of them -------------------------------------------------------------


def test_of_few_it_is_exact_which() -> None:
    values = torch.tensor([0.1, -5.0, 0.2, 3.0, -0.3, 0.0, 4.0, 0.5])
    assert taken(values, 0.25).tolist() == [0, -5, 0, 0, 0, 0, 4, 0]


@pytest.mark.parametrize("size", [32_768, 100_003, BLOCK + 17, 1_000_000])
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x,
        lambda x: x**5,
        lambda x: torch.where(x > 1, x, torch.zeros(())),
        lambda x: torch.sort(x)[0],
        lambda x: torch.cat([x[: len(x) // 2] * 1e-6, x[len(x) // 2 :]]),
    ],
    ids=["normal", "heavy tail", "sparse", "sorted", "two scales"],
)
def test_about_as_many_and_the_largest(
    size: int, shape: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    values = shape(noise(size, scale=1.0))
    sent = taken(values)
    here = sent != 0
    wanted = round(0.01 * size)
    assert 0.5 * wanted <= int(here.sum()) <= 1.5 * wanted
    assert values[here].abs().min() >= values[~here].abs().max()
    assert ((sent - values)[here].abs() <= values[here].abs() * STEP).all()
    assert encoded("topk", values).nbytes <= 2.5 * int(here.sum()) + size // FAR + 16


def test_of_equals_the_first_ones() -> None:
    assert count(torch.ones(100_000)) == 1000
    assert count(torch.full((100_000,), -2.0)) == 1000
    assert torch.equal(taken(torch.ones(100_000)).nonzero().flatten(), torch.arange(1000))


def test_of_fewer_than_wanted_all_there_are() -> None:
    values = torch.zeros(100_000)
    values[7::1000] = 1.0
    assert count(values) == 100
    assert torch.equal(taken(values), values)


def test_where_the_sample_sees_nothing() -> None:
    """All that is large lies where no sample is taken: found out, and done exactly."""
    size = 1 << 20
    values = noise(size, scale=1e-6)
    stride = size // topk.SAMPLES[0] | 1
    hidden = [i for i in range(1, 60_000) if i % stride][:30_000]
    values[hidden] = 1.0
    assert 0.5 * 0.01 * size <= count(values) <= 1.5 * 0.01 * size


def test_what_is_16_octaves_below_the_largest_stays_behind() -> None:
    values = torch.zeros(400)
    values[[0, 5, 6, 300]] = torch.tensor([1.0, 2.0**-15, -(2.0**-17), -(2.0**-15)])
    sent = taken(values)
    assert sent[[0, 5, 300]].tolist() == [1.0, 2.0**-15, -(2.0**-15)]
    assert sent[6] == 0


@pytest.mark.parametrize("largest_one", [0.0, 1e-45, 1e-40, 1e-33, 1e-3, 1e30, 3e38])
def test_numbers_of_any_size(largest_one: float) -> None:
    values = torch.zeros(100)
    values[40] = -largest_one
    sent = taken(values)
    off = (sent - values).abs().max()
    assert off <= max(largest_one * STEP, 2.0**-129)  # below 1e-38 steps are equally wide
    assert (sent[torch.arange(100) != 40] == 0).all()


@pytest.mark.parametrize("gap", [0, 1, 253, 254, 255, 256, 509, 510, 511, 765, 5000])
def test_gaps_of_any_width(gap: int) -> None:
    for first in (0, 254, 255, 600):
        values = torch.zeros(first + gap + 10)
        values[first] = 1.0
        values[first + gap + 1] = -2.0
        assert torch.equal(taken(values, 0.25), values)


@given(st.integers(1, 3000), st.floats(0.0005, 0.25), st.integers(0, 100))
@settings(deadline=None)
def test_read_byte_by_byte_it_is_the_same(size: int, part: float, seed: int) -> None:
    values = noise(size, seed)
    form = encoded("topk", values, part)
    check_bytes("topk", size, form.nbytes)
    chunks = list(decode(opened("topk", size, form.data).data.numpy()))
    indices, numbers = (np.concatenate(some) for some in zip(*chunks, strict=True))
    assert naive(bytes(form.data.numpy())) == dict(zip(indices, numbers, strict=True))
    assert np.all(np.diff(indices) > 0)
    chosen, found = largest(values.numpy(), part, np.empty(size, dtype=np.float32))
    assert set(indices) <= set(chosen)
    assert np.array_equal(values.numpy()[chosen], found)


# -- refused -------------------------------------------------------------------------------------


def form(gaps: list[int], codes: list[int], base: int = 1000, count: int | None = None) -> bytes:
    words = struct.pack("<II", len(gaps) if count is None else count, base)
    return words + b"".join(bytes(x) + b"\0" * (-len(x) % 4) for x in (gaps, codes))


GOOD = form([3, FAR, 40, 0], [5, 133, 127])


def test_a_form_by_hand() -> None:
    found = opened("topk", 301, torch.frombuffer(bytearray(GOOD), dtype=torch.uint8)).decoded()
    assert found.nonzero().flatten().tolist() == [3, 299, 300]
    assert found[299] == -found[3] != 0
    assert {place: float(found[place]) for place in (3, 299, 300)} == naive(GOOD)


BAD = {
    "an index that is the size": form([4], [1]),
    "a sum of gaps that is": form([1, 2], [1, 1]),
    "far beyond": form([FAR] * 4 + [0], [1]),
    "no gaps": form([], [1], count=0),
    "more gaps than bytes": form([0], [1], count=100),
    "gaps up to the end": form([0], [1], count=8),
    "2^32 - 1 gaps": form([0], [1], count=2**32 - 1),
    "a way to nowhere": form([0, FAR], [1]),
    "values for gaps that are far": form([FAR, 0, FAR, 0], [1, 2, 3, 4, 5]),
    "fewer values than gaps": form([0, 0, 0, 0, 0], [1, 2, 3]),
    "a base beyond all": form([0], [1], base=BASE_MAX + 1),
    "half of a word": form([0], [1])[:-2],
    "too long for its model": form([0] * 4, [0] * 4) + bytes(bytes_max(4)),
}


@pytest.mark.parametrize("what", BAD)
def test_forms_that_lie(what: str) -> None:
    data = torch.frombuffer(bytearray(BAD[what]), dtype=torch.uint8)
    with pytest.raises(RemoteProtocolError, match=r"push\.parts") as caught:
        opened("topk", 4, data)
    assert len(str(caught.value)) < 200
    opened("topk", 4, torch.frombuffer(bytearray(form([3], [1])), dtype=torch.uint8))


def test_a_stranger_can_say_infinite_and_it_is_seen() -> None:
    data = torch.frombuffer(bytearray(form([0, 0], [127, 1], base=BASE_MAX)), dtype=torch.uint8)
    assert not opened("topk", 4, data).norm() <= 1e30


def test_the_example_of_the_wire_format() -> None:
    """docs/wire.md, byte by byte."""
    values = torch.zeros(1000)
    values[3], values[300] = 1.0, -0.5
    data = bytes.fromhex("0300000079030000 03ff2900 7ff70000")
    assert bytes(encoded("topk", values).data.numpy()) == data
    assert naive(data) == {3: 1.0, 300: -0.5}


@pytest.mark.parametrize("part", [0.01, 0.25])
@pytest.mark.parametrize("spread", [0.0, 9.0])
def test_so_many_entries_at_a_time_are_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, part: float, spread: float
) -> None:
    """Also where some are far from the one before, and where some are too small to be sent."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(3000, generator=generator)
    values *= torch.exp(spread * torch.randn(3000, generator=generator))
    values[1000:2500] = 0.0
    at_once = encoded("topk", values, part)
    expected = at_once.decoded()
    monkeypatch.setattr("murmurate.core.codecs.topk.CHUNK", 7)
    assert torch.equal(encoded("topk", values, part).data, at_once.data)
    assert torch.equal(at_once.decoded(), expected)
