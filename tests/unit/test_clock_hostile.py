"""Clocks a hostile peer may send: each gets an error that names the field, before memory is spent.

The bytes are put together here by hand, not by the code under test.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter

import pytest

from murmurate.core.clock import Clock, ClockLimits, Dot, Range
from murmurate.core.intervals import SEQ_MAX
from murmurate.errors import RemoteProtocolError

CPU_S_MAX = 0.05
PEAK_BYTES_MAX = 2**20


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def padded(number: int) -> bytes:
    """The same number with a byte that says nothing."""
    data = varint(number)
    return bytes([*data[:-1], data[-1] | 0x80, 0])


def entry(name: str | bytes = "a", epoch: int = 1, *runs: tuple[int, int]) -> bytes:
    """One origin and epoch; runs as (missing before it, further numbers in it)."""
    raw = name.encode() if isinstance(name, str) else name
    out = varint(len(raw)) + raw + varint(epoch) + varint(len(runs))
    return out + b"".join(varint(gap) + varint(more) for gap, more in runs)


def wire(
    *entries: bytes,
    version: int = 1,
    generation: bytes = b"\0",
    base: bytes = b"\0",
    apart: bytes = b"\0",
    claimed: int | None = None,
) -> bytes:
    count = varint(len(entries) if claimed is None else claimed)
    return bytes([version]) + generation + base + apart + count + b"".join(entries)


ONE = entry("a", 1, (0, 2))
TOO_LONG = b"\xff" * 9 + b"\x7f"  # 70 bits
MINUS_FIVE = 2**64 - 5  # what a signed writer makes of -5

HOSTILE: dict[str, tuple[str, bytes]] = {
    "nothing": ("clock.version", b""),
    "version 0": ("clock.version", wire(ONE, version=0)),
    "version 2": ("clock.version", wire(ONE, version=2)),
    "version 255": ("clock.version", wire(ONE, version=255)),
    "a JSON clock": ("clock.version", b'{"a": 3}'),
    # numbers
    "counter 2^63": ("clock.seq", wire(entry("a", 1, (2**63 - 1, 0)))),
    "counter 2^64-1": ("clock.seq", wire(entry("a", 1, (2**64 - 2, 0)))),
    "counter up to 2^63": ("clock.seq", wire(entry("a", 1, (0, 2**63 - 1)))),
    "counter up to 2^64-1": ("clock.seq", wire(entry("a", 1, (0, 2**64 - 2)))),
    "counter one beyond the limit": ("clock.seq", wire(entry("a", 1, (SEQ_MAX, 0)))),
    "run one beyond the limit": ("clock.seq", wire(entry("a", 1, (0, SEQ_MAX)))),
    "run ends one beyond": ("clock.seq", wire(entry("a", 1, (SEQ_MAX - 1, 1)))),
    "second run beyond": ("clock.seq", wire(entry("a", 1, (0, SEQ_MAX - 4), (2, 9)))),
    "counter of 70 bits": (
        "clock.seq",
        wire(varint(1) + b"a" + varint(1) + varint(1) + TOO_LONG + b"\0"),
    ),
    "generation 2^63": ("clock.generation", wire(ONE, generation=varint(2**63))),
    "generation 2^64-1": ("clock.generation", wire(ONE, generation=varint(2**64 - 1))),
    "base 2^63": ("clock.base", wire(ONE, base=varint(2**63))),
    "base of 70 bits": ("clock.base", wire(ONE, base=TOO_LONG)),
    "apart 2^63": ("clock.apart", wire(ONE, apart=varint(2**63))),
    "epoch 2^63": ("clock.epoch", wire(entry("a", 2**63, (0, 0)))),
    "endless number": ("clock.generation", wire(ONE, generation=b"\x80" * 1000)),
    # how many
    "350,000 entries claimed": ("clock.entries", wire(ONE, claimed=350_000)),
    "2^63 entries claimed": ("clock.entries", wire(ONE, claimed=2**63)),
    "4,096 claimed, one there": ("clock.origin", wire(ONE, claimed=4096)),
    "fewer claimed than there": ("clock", wire(ONE, entry("b", 1, (0, 0)), claimed=1)),
    "350,000 runs claimed": (
        "clock.runs",
        wire(varint(1) + b"a" + varint(1) + varint(350_000) + b"\0\0"),
    ),
    "no runs": ("clock.runs", wire(entry("a", 1))),
    # order
    "runs that touch": ("clock.runs", wire(entry("a", 1, (0, 2), (0, 2)))),
    "runs that overlap": ("clock.seq", wire(entry("a", 1, (0, 20), (MINUS_FIVE, 20)))),
    "runs that descend": ("clock.seq", wire(entry("a", 1, (50, 0), (2**64 - 30, 0)))),
    "a run backwards": ("clock.seq", wire(entry("a", 1, (20, MINUS_FIVE)))),
    "one key twice": ("clock.origin", wire(ONE, ONE)),
    "one key twice, other runs": ("clock.origin", wire(ONE, entry("a", 1, (7, 0)))),
    "origins descend": ("clock.origin", wire(entry("b", 1, (0, 0)), ONE)),
    "epochs descend": ("clock.origin", wire(entry("a", 2, (0, 0)), ONE)),
    # names
    "name not UTF-8": ("clock.origin", wire(entry(b"\xff\xfe", 1, (0, 0)))),
    "name overlong UTF-8": ("clock.origin", wire(entry(b"\xc0\xaf", 1, (0, 0)))),
    "name half a surrogate pair": ("clock.origin", wire(entry(b"\xed\xa0\x80", 1, (0, 0)))),
    "name empty": ("clock.origin", wire(entry("", 1, (0, 0)))),
    "name of 129 bytes": ("clock.origin", wire(entry("a" * 129, 1, (0, 0)))),
    "name of 350,000 bytes claimed": ("clock.origin", wire(varint(350_000) + b"a")),
    "name longer than the rest": ("clock.origin", wire(varint(100) + b"abc")),
    "name with a newline": ("clock.origin", wire(entry("a\nERROR all is lost", 1, (0, 0)))),
    "name with a NUL": ("clock.origin", wire(entry("a\0", 1, (0, 0)))),
    # the end
    "one byte more": ("clock", wire(ONE) + b"\0"),
    "two clocks": ("clock", wire(ONE) + wire(ONE)),
    # numbers written longer than needed: two forms of one clock would have two digests
    "padded generation": ("clock.generation", wire(ONE, generation=padded(0))),
    "padded base": ("clock.base", wire(ONE, base=padded(300))),
    "padded apart": ("clock.apart", wire(ONE, apart=padded(1))),
    "padded entries": ("clock.entries", bytes([1, 0, 0, 0]) + padded(1) + ONE),
    "padded name length": ("clock.origin", wire(padded(1) + b"a\1\1\0\0")),
    "padded epoch": ("clock.epoch", wire(b"\1a" + padded(1) + b"\1\0\0")),
    "padded runs": ("clock.runs", wire(b"\1a\1" + padded(1) + b"\0\0")),
    "padded first": ("clock.seq", wire(b"\1a\1\1" + padded(5) + b"\0")),
    "padded last": ("clock.seq", wire(b"\1a\1\1\0" + padded(5))),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_the_error_names_the_field(case: str) -> None:
    field, data = HOSTILE[case]
    with pytest.raises(RemoteProtocolError) as caught:
        Clock.from_bytes(data)
    assert caught.value.field == field
    assert str(caught.value) == f"{field}: {caught.value.problem}"
    assert len(str(caught.value)) < 400  # it goes into a log


@pytest.mark.parametrize("case", HOSTILE)
def test_refusing_costs_next_to_nothing(case: str) -> None:
    _, data = HOSTILE[case]
    assert_cheap(data)


def test_350_000_entries_sent_in_full_are_not_even_looked_at() -> None:
    data = wire(*[ONE] * 350_000)
    with pytest.raises(RemoteProtocolError) as caught:
        Clock.from_bytes(data)
    assert caught.value.field == "clock"
    assert_cheap(data)


def assert_cheap(data: bytes) -> None:
    spent_s = []
    tracemalloc.start()
    try:
        for _ in range(3):  # the best of three: the garbage collector may come by in one
            started_s = time.process_time()
            with pytest.raises(RemoteProtocolError):
                Clock.from_bytes(data)
            spent_s.append(time.process_time() - started_s)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES_MAX
    assert min(spent_s) < CPU_S_MAX


@pytest.mark.parametrize(
    "data",
    [
        wire(entry("a", 1, (0, SEQ_MAX - 1)), entry("b", 1, (0, SEQ_MAX - 1))),
        wire(entry("a", 1, (0, SEQ_MAX - 1)), base=varint(SEQ_MAX)),
    ],
    ids=["two runs of 2^62", "a run and a base of 2^62"],
)
def test_more_updates_than_len_can_say(data: bytes) -> None:
    """Every number is in its limit, the sum is not: `len` of such a clock would raise."""
    with pytest.raises(RemoteProtocolError) as caught:
        len(Clock.from_bytes(data))
    assert caught.value.field.startswith("clock")


# -- truncated -----------------------------------------------------------------------------------

PARTS: list[tuple[str, bytes]] = [
    ("clock.version", b"\1"),
    ("clock.generation", varint(3)),
    ("clock.base", varint(70_000)),
    ("clock.apart", varint(200)),
    ("clock.entries", varint(3)),
    ("clock.origin", varint(7) + b"node-17"),
    ("clock.epoch", varint(1)),
    ("clock.runs", varint(1)),
    ("clock.seq", varint(0) + varint(2**40)),
    ("clock.origin", varint(7) + b"node-17"),
    ("clock.epoch", varint(2**33)),
    ("clock.runs", varint(3)),
    ("clock.seq", varint(4) + varint(0) + varint(300) + varint(1) + varint(2) + varint(2**50)),
    ("clock.origin", varint(5) + "zoé!".encode()),
    ("clock.epoch", varint(2)),
    ("clock.runs", varint(1)),
    ("clock.seq", varint(128) + varint(0)),
]


def test_truncated_at_every_byte() -> None:
    whole = b"".join(data for _, data in PARTS)
    fields = [field for field, data in PARTS for _ in data]
    assert Clock.from_bytes(whole).to_bytes() == whole
    for size, field in enumerate(fields):
        with pytest.raises(RemoteProtocolError) as caught:
            Clock.from_bytes(whole[:size])
        assert (size, caught.value.field) == (size, field)


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (ClockLimits(bytes_max=28), "clock"),
        (ClockLimits(entries_max=1), "clock.entries"),
        (ClockLimits(runs_max=2), "clock.runs"),
        (ClockLimits(name_bytes_max=5), "clock.origin"),
        (ClockLimits(seq_max=7), "clock.seq"),
    ],
)
def test_each_limit_is_kept(limits: ClockLimits, field: str) -> None:
    data = wire(entry("node-1", 1, (0, 2)), entry("node-2", 1, (2, 0), (4, 0)))
    roomy = ClockLimits(bytes_max=29, entries_max=2, runs_max=3, name_bytes_max=6, seq_max=9)
    assert len(data) == 29
    Clock.from_bytes(data, roomy)
    with pytest.raises(RemoteProtocolError) as caught:
        Clock.from_bytes(data, limits)
    assert caught.value.field == field


def test_the_largest_honest_clock_is_taken() -> None:
    clock = Clock()
    for number in range(4096):
        clock.add(Dot(f"{number:04}", 1, 1))
    assert Clock.from_bytes(clock.to_bytes()) == clock
    last = Clock()
    last.add_range(Range("a" * 128, SEQ_MAX, SEQ_MAX, SEQ_MAX))
    assert Clock.from_bytes(last.to_bytes()) == last


# -- mutated -------------------------------------------------------------------------------------


def some_clock(rng: random.Random) -> Clock:
    clock = Clock(generation=rng.randrange(3), base=rng.choice([0, 5, 10_000]))
    for _ in range(rng.randrange(12)):
        first = rng.choice([1, rng.randrange(1, 40), rng.randrange(1, 2**30)])
        last = first + rng.choice([0, 0, rng.randrange(9), 10_000])
        clock.add_range(Range(f"node-{rng.randrange(4)}", rng.randrange(1, 4), first, last))
    return clock


def mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(out)) if out else 0
        how = rng.randrange(6)
        if how == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif how == 1 and out:
            out[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif how == 2:
            out.insert(at, rng.randrange(256))
        elif how == 3:
            del out[at : at + rng.randrange(1, 4)]
        elif how == 4:
            out[at:at] = out[at : at + rng.randrange(1, 16)]
        else:
            other = rng.randrange(len(out) + 1)
            out[min(at, other) : max(at, other)] = rng.randbytes(rng.randrange(4))
    return bytes(out)


def test_mutated_bytes_are_a_clock_or_an_error() -> None:
    rng = random.Random(614310)
    taken = 0
    refused: Counter[str] = Counter()
    for _ in range(5000):
        clock = some_clock(rng)
        data = mutated(clock.to_bytes(), rng)
        try:
            back = Clock.from_bytes(data)
        except RemoteProtocolError as error:
            refused[error.field] += 1
            continue
        assert back.to_bytes() == data  # one clock, one form
        for key in back.keys():
            runs = back.runs(key)
            assert runs[0] >= 1
            assert all(runs[i] <= runs[i + 1] for i in range(0, len(runs), 2))
            assert all(runs[i] + 1 < runs[i + 1] for i in range(1, len(runs) - 1, 2))
        assert len(back) == back.base + sum(span.last - span.first + 1 for span in back.ranges())
        taken += 1
    assert taken > 250  # no part of the test is empty
    assert set(refused) == {"clock", *(field for field, _ in PARTS)}
