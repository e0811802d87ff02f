"""`core/gossip/outbox.py`: a slow link gets fewer, fuller messages, and nothing is lost on the
way.
"""

from __future__ import annotations

import random

import pytest
import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.gossip.outbox import Outbox
from murmurate.core.message import STAMPS_MAX, Push, Stamp, summed
from murmurate.core.replica import Fresh, Replica

ELEMENTS = 3
PUSH_BYTES = 8 * ELEMENTS


def a(seq: int) -> Dot:
    return Dot("a", 1, seq)


def push(*seqs: int, value: int = 0) -> Push:
    """Updates of `a`, each computed on the one before it."""
    stamps = tuple(Stamp(a(seq), Clock([a(seq - 1)] if seq > 1 else [])) for seq in seqs)
    return Push(stamps, torch.full((ELEMENTS,), value or sum(seqs), dtype=torch.int64))


def filled(*pushes: Push, bytes_max: int = 10**6) -> Outbox:
    outbox = Outbox(bytes_max=bytes_max)
    for each in pushes:
        assert outbox.put("b", each)
    return outbox


def drained(outbox: Outbox, to: str = "b") -> list[Push]:
    out = []
    while (each := outbox.take(to)) is not None:
        out.append(each)
    return out


# -- summed --------------------------------------------------------------------------------------


def test_a_sum_is_the_sum_and_keeps_order_and_contexts() -> None:
    parts = [push(4), push(2, 3), push(9)]
    total = summed(parts)
    assert total.payload.tolist() == [4 + 5 + 9] * ELEMENTS
    assert total.stamps == tuple(stamp for part in parts for stamp in part.stamps)
    assert total.dots == (a(4), a(2), a(3), a(9))
    assert [set(stamp.context) for stamp in total.stamps] == [{a(3)}, {a(1)}, {a(2)}, {a(8)}]
    assert [part.payload.tolist()[0] for part in parts] == [4, 5, 9]  # others may hold them


def test_a_sum_of_one_is_itself() -> None:
    one = push(1)
    assert summed([one]) is one


def test_a_sum_folds_as_its_parts_would() -> None:
    parts = [push(seq) for seq in (1, 3, 2)]
    one_by_one, at_once = (Replica(torch.zeros(ELEMENTS, dtype=torch.int64)) for _ in range(2))
    staleness: list[int] = []
    for part in parts:
        outcome = one_by_one.fold(part.stamps, part.payload)
        assert isinstance(outcome, Fresh)
        staleness += outcome.staleness
    total = summed(parts)
    assert at_once.fold(total.stamps, total.payload) == Fresh(tuple(staleness))
    assert torch.equal(at_once.weights, one_by_one.weights)
    assert at_once.clock == one_by_one.clock


# -- put and take --------------------------------------------------------------------------------


def test_a_fast_link_takes_them_one_by_one() -> None:
    outbox = Outbox(bytes_max=10**6)
    for seq in (1, 2, 3):
        one = push(seq)
        assert outbox.put("b", one)
        assert outbox.nbytes("b") == PUSH_BYTES
        assert outbox.take("b") is one
        assert outbox.updates("b") == outbox.nbytes("b") == 0


def test_a_slow_link_takes_one_sum() -> None:
    outbox = filled(*(push(seq) for seq in (1, 2, 3, 4)), bytes_max=3 * PUSH_BYTES)
    assert outbox.nbytes("b") == PUSH_BYTES
    assert outbox.updates("b") == 4
    (total,) = drained(outbox)
    assert total.dots == tuple(a(seq) for seq in (1, 2, 3, 4))
    assert total.payload.tolist() == [10] * ELEMENTS


@pytest.mark.parametrize(
    ("bytes_max", "waiting"),
    [(3 * PUSH_BYTES, 3), (3 * PUSH_BYTES - 1, 1), (1, 1)],
)
def test_the_bound_is_met_to_the_byte(bytes_max: int, waiting: int) -> None:
    outbox = filled(*(push(seq) for seq in (1, 2, 3)), bytes_max=bytes_max)
    assert outbox.nbytes("b") == waiting * PUSH_BYTES
    assert len(drained(outbox)) == 1


def test_one_update_is_kept_even_when_it_is_too_large() -> None:
    one = push(1)
    assert drained(filled(one, bytes_max=1)) == [one]


def test_a_path_takes_everything_at_once() -> None:
    outbox = filled(push(1), push(2), push(3))
    assert outbox.updates("b") == 3
    total = outbox.take("b")
    assert total is not None
    assert total.dots == (a(1), a(2), a(3))
    assert total.payload.tolist() == [6] * ELEMENTS
    assert outbox.take("b") is None
    assert outbox.waiting() == []


def test_what_is_queued_is_not_queued_twice() -> None:
    outbox = filled(push(1), push(2, 3))
    for again in (push(1), push(3), push(4, 2), push(2, 3)):
        assert outbox.put("b", again)
    assert outbox.updates("b") == 3
    assert [dot for each in drained(outbox) for dot in each.dots] == [a(1), a(2), a(3)]


def test_also_not_when_it_is_in_a_sum() -> None:
    outbox = filled(push(1), push(2), push(3), bytes_max=1)
    assert outbox.put("b", push(2))
    (total,) = drained(outbox)
    assert total.dots == (a(1), a(2), a(3))
    assert total.payload.tolist() == [6] * ELEMENTS


def test_what_was_taken_may_be_queued_again() -> None:
    """It may have got lost on the way, and be asked for."""
    outbox = filled(push(1), push(2))
    assert outbox.take("b") is not None
    assert outbox.put("b", push(1))
    assert [each.dots for each in drained(outbox)] == [(a(1),)]


def test_paths_do_not_touch_each_other() -> None:
    outbox = Outbox(bytes_max=2 * PUSH_BYTES)
    shared = [push(1), push(2), push(3)]
    for each in shared:
        outbox.put("slow", each)
        outbox.put("fast", each)
        assert outbox.take("fast") is each
    assert outbox.waiting() == ["slow"]
    assert outbox.nbytes("slow") == PUSH_BYTES
    assert [each.payload.tolist()[0] for each in shared] == [1, 2, 3]
    outbox.put("third", shared[0])
    assert outbox.waiting() == ["slow", "third"]
    outbox.forget("slow")
    assert outbox.waiting() == ["third"]
    assert outbox.take("slow") is None
    assert outbox.updates("slow") == outbox.nbytes("slow") == 0


def test_nobody_waits_for_nothing() -> None:
    outbox = Outbox(bytes_max=1)
    assert outbox.take("b") is None
    assert outbox.waiting() == []
    outbox.forget("b")
    assert outbox.updates("b") == outbox.nbytes("b") == 0


# -- too far behind ------------------------------------------------------------------------------


def test_a_path_too_far_behind_is_given_up() -> None:
    many = push(*range(1, STAMPS_MAX))
    outbox = filled(many, push(STAMPS_MAX), bytes_max=1)  # exactly STAMPS_MAX: one sum
    outbox.put("c", push(1))
    assert outbox.updates("b") == STAMPS_MAX
    assert outbox.put("b", push(7))  # a duplicate is not one more
    assert not outbox.put("b", push(STAMPS_MAX + 1))
    assert outbox.updates("b") == outbox.nbytes("b") == 0
    assert outbox.waiting() == ["c"]  # only this path
    assert outbox.put("b", push(STAMPS_MAX + 1))  # and it starts anew
    assert [each.dots for each in drained(outbox)] == [(a(STAMPS_MAX + 1),)]


def test_the_fullest_sum_is_a_message() -> None:
    outbox = filled(push(*range(1, STAMPS_MAX)), push(STAMPS_MAX))
    total = outbox.take("b")
    assert total is not None
    assert len(total.stamps) == STAMPS_MAX


# -- against the dumb twin -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_what_goes_in_comes_out_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    bytes_max = rng.choice([1, 3 * PUSH_BYTES, 10 * PUSH_BYTES])
    outbox = Outbox(bytes_max=bytes_max)
    names = ["b", "c"]
    waiting: dict[str, list[int]] = {name: [] for name in names}
    seq = 0
    for _ in range(300):
        to = rng.choice(names)
        queue = waiting[to]
        if rng.random() < 0.7:
            if queue and rng.random() < 0.2:
                seqs = [rng.choice(queue), seq + 1]
            else:
                seqs = list(range(seq + 1, seq + 1 + rng.choice([1, 1, 1, 3])))
                queue += seqs
            seq = max(seqs)
            assert outbox.put(to, push(*seqs))
        else:
            taken = outbox.take(to)
            assert (taken is None) is (not queue)
            if taken is not None:
                seqs = [dot.seq for dot in taken.dots]
                assert seqs == queue[: len(seqs)]
                assert taken.payload.tolist() == [sum(seqs)] * ELEMENTS
                assert all(
                    set(s.context) == {a(s.dot.seq - 1)} for s in taken.stamps if s.dot.seq > 1
                )
                del queue[: len(seqs)]
        assert outbox.updates(to) == len(queue)
        assert outbox.nbytes(to) <= max(bytes_max, PUSH_BYTES)
        assert set(outbox.waiting()) == {name for name in names if waiting[name]}
