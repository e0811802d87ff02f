"""`core/codecs/span.py` and `core/publishing/turns.py`: large models are published a part at a
time.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_codec import noise
from tests.unit.test_wire import frame_of, received, sum_of

from murmurate.core.admission import payload_problem
from murmurate.core.clock import Clock, Dot
from murmurate.core.codecs import span
from murmurate.core.codecs.codec import Encoded, check_bytes, opened, part_in, place_of
from murmurate.core.figures.counters import bytes_by_codec
from murmurate.core.message import Push, summed
from murmurate.core.publishing.turns import Turns
from murmurate.errors import RemoteProtocolError


def gained_in(place: slice, new: torch.Tensor, old: torch.Tensor, size: int) -> Encoded:
    """What `new` has more than `old`, which lie in this place of a model with `size` elements."""
    return part_in(place, size, lambda numbers: torch.sub(new, old, out=numbers))


def form(place: slice, size: int, seed: int = 0) -> Encoded:
    new = noise(size, seed)
    return gained_in(place, new[place], torch.zeros(size)[place], size)


@given(st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_the_spans_of_a_model_are_all_of_it_once(size: int) -> None:
    covered = [at for place in span.spans(size) for at in range(size)[place]]
    assert covered == list(range(size))
    assert len(span.spans(size)) <= span.TURNS
    assert max(p.stop - p.start for p in span.spans(size)) == span.turn_length(size)
    assert form(span.spans(size)[0], size).nbytes == span.turn_bytes(size)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
@settings(max_examples=60, deadline=None)
def test_a_span_adds_what_was_gained_there_and_nothing_elsewhere(shape: tuple[int, int]) -> None:
    size, start = shape
    new, old, base = noise(size, 1), noise(size, 2), noise(size, 3)
    place = slice(start, min(size, start + 70))
    expected = base.clone()
    expected[place] += new[place] - old[place]
    sent = Push(sum_of(1), parts=(gained_in(place, new[place], old[place], size),))
    back = received(frame_of(sent))
    back.add_to(base)
    assert torch.equal(base, expected)
    assert place_of([back]) == place


def test_the_bytes_of_a_span() -> None:
    made = gained_in(slice(7, 9), torch.tensor([1.0, -2.0]), torch.zeros(2), 12)
    assert bytes(made.data.numpy()).hex(" ", 4) == "07000000 00000000 0000803f 000000c0"


def test_a_place_beyond_32_bits() -> None:
    data, numbers = span.empty(slice(2**33 + 5, 2**33 + 7))
    numbers.fill_(1.0)
    assert span.opened(data)[0] == slice(2**33 + 5, 2**33 + 7)


@pytest.mark.parametrize(
    ("nbytes", "problem"),
    [(8, "8 bytes for 10"), (0, "0 bytes"), (13, "13 bytes"), (52, "52 bytes for 10 elements")],
)
def test_bytes_that_cannot_be_a_span(nbytes: int, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        check_bytes("span", 10, nbytes)


@pytest.mark.parametrize("start", [9, 10, 2**32, 2**63, 2**64 - 1])
def test_a_span_that_does_not_lie_in_the_model(start: int) -> None:
    data = torch.frombuffer(bytearray(start.to_bytes(8, "little") + bytes(8)), dtype=torch.uint8)
    with pytest.raises(RemoteProtocolError, match="of 10 elements"):
        opened("span", 10, data)
    good = torch.frombuffer(bytearray((8).to_bytes(8, "little") + bytes(8)), dtype=torch.uint8)
    assert opened("span", 10, good).size == 10


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_numbers_that_are_not_finite_are_told(bad: float) -> None:
    new = torch.zeros(10)
    new[4] = bad
    made = gained_in(slice(2, 6), new[2:6], torch.zeros(4), 10)
    assert payload_problem((made,), torch.zeros(10))
    assert not payload_problem((form(slice(2, 6), 10),), torch.zeros(10))


def test_a_sum_is_in_parts_while_these_are_fewer_bytes() -> None:
    size = 4000
    pushes = [
        Push((stamp,), parts=(form(place, size, seed),))
        for seed, (stamp, place) in enumerate(zip(sum_of(4), span.spans(size), strict=True))
    ]
    few, all_of_it = summed(pushes[:3]), summed(pushes)
    assert len(few.parts) == 3
    assert not all_of_it.parts
    one, other = noise(size, 9), noise(size, 9)
    for push in pushes:
        push.add_to(one)
    all_of_it.add_to(other)
    torch.testing.assert_close(one, other)
    assert place_of(pushes[1:3]) == slice(1000, 3000)
    assert place_of([pushes[0], all_of_it]) == slice(None)
    assert place_of([pushes[0], object()]) == slice(None)
    assert place_of([]) == slice(0, 0)


def test_spans_are_counted_as_plain_numbers() -> None:
    made = form(slice(2, 6), 10)
    assert bytes_by_codec(Push(sum_of(1), parts=(made,))) == [("fp32", made.nbytes)]


# -- whose turn it is ----------------------------------------------------------------------------


def clock(count: int) -> Clock:
    return Clock(Dot("a", 1, seq) for seq in range(1, count + 1))


def test_each_part_has_the_age_of_its_own_first_step() -> None:
    """Against lists of all batches each part has gained from since it was published."""
    turns = Turns(span.spans(40))
    batches: dict[int, list[int]] = {part: [] for part in range(4)}
    order = []
    for batch in range(12):
        turns.begin(clock(batch), float(batch))
        turns.stepped()
        for gained in batches.values():
            gained.append(batch)
        for _ in range(batch % 3):  # none, one or two parts find room
            part = turns.places.index(turns.place)
            assert turns.context == clock(batches[part][0])
            assert turns.started == batches[part][0]
            assert turns.steps == len(batches[part])
            turns.published()
            batches[part].clear()
            order.append(part)
        assert turns.waiting
    assert order == [turn % 4 for turn in range(len(order))]
    for _ in range(4):
        turns.published()
    assert not turns.waiting


def test_at_the_end_only_what_is_left_is_published() -> None:
    turns = Turns(span.spans(40))
    turns.begin(clock(0), 0.0)
    turns.stepped()
    turns.published()
    left = []
    while turns.waiting:
        left.append(turns.places.index(turns.place))
        turns.published()
    assert left == [1, 2, 3]
    assert turns.places.index(turns.place) == 0, "it goes on where it was"


def test_what_is_taken_back_is_not_published() -> None:
    turns = Turns(span.spans(40))
    turns.begin(clock(1), 1.0)
    turns.stepped()
    turns.forget()
    assert not turns.waiting
    turns.begin(clock(2), 2.0)
    assert turns.context == clock(2)
