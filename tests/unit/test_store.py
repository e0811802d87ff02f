"""`core/gossip/store.py`: by hand, and against a list of pushes that is searched from end to
end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
import torch

from murmurate.core.clock import Clock, Dot, Key, Range
from murmurate.core.gossip.store import Store
from murmurate.core.message import STAMPS_MAX, Push, Stamp

A1, A2, A3, A4 = (Dot("a", 1, seq) for seq in (1, 2, 3, 4))
B1, B2 = (Dot("b", 1, seq) for seq in (1, 2))
PUSH_BYTES = 16


def push(*dots: Dot, elements: int = 4) -> Push:
    return Push(tuple(Stamp(dot, Clock()) for dot in dots), torch.zeros(elements))


def stored(*pushes: Push, bytes_max: int | None = None) -> Store:
    store = Store(bytes_max)
    for each in pushes:
        store.add(each)
    return store


# -- by hand -------------------------------------------------------------------------------------


def test_what_is_kept_is_found() -> None:
    single, total = push(A1), push(A2, B1)
    store = stored(single, total)
    assert len(store) == 2
    assert store.nbytes == 2 * PUSH_BYTES  # a sum is as large as one update
    assert list(store) == [single, total]
    assert [dot in store for dot in (A1, A2, B1, A3)] == [True, True, True, False]
    assert [store.alone(dot) for dot in (A1, A2, B1, A3)] == [True, False, False, False]


@pytest.mark.parametrize("second", [(A1,), (A1, A2), (A3, A2), (A2, A1)])
def test_a_dot_stands_in_one_push_at_most(second: tuple[Dot, ...]) -> None:
    first = push(A1, A2)
    store = stored(first, push(*second))
    assert list(store) == [first]
    assert store.nbytes == PUSH_BYTES
    assert A3 not in store


@pytest.mark.parametrize(
    ("wanted", "served", "lacking"),
    [
        ([Range("a", 1, 1, 1)], ["a1"], []),
        ([Range("a", 1, 2, 3)], ["a2+a3"], []),
        ([Range("a", 1, 1, 3)], ["a1", "a2+a3"], []),
        ([Range("a", 1, 2, 2)], [], [A2]),  # of the sum, only a part is wanted
        ([Range("a", 1, 3, 4)], [], [A3, A4]),
        ([Range("a", 1, 1, 2), Range("a", 1, 3, 3)], ["a1", "a2+a3"], []),
        ([Range("a", 1, 1, 2), Range("a", 1, 2, 3)], ["a1", "a2+a3"], []),  # ranges overlap
        ([Range("b", 1, 1, 2)], ["b1"], [B2]),
        ([Range("a", 2, 1, 1)], [], [Dot("a", 2, 1)]),
        ([], [], []),
    ],
)
def test_serve(wanted: list[Range], served: list[str], lacking: list[Dot]) -> None:
    pushes = {"a1": push(A1), "a2+a3": push(A2, A3), "b1": push(B1)}
    store = stored(*pushes.values())
    assert store.serve(wanted, STAMPS_MAX) == ([pushes[name] for name in served], lacking)
    assert len(store) == 3  # serving takes nothing away


def test_cover_keeps_the_order_asked_for() -> None:
    one, two, total = push(A1), push(B1), push(A2, A3)
    store = stored(one, total, two)
    wanted = dict.fromkeys([A3, B2, B1, A2, A1])
    assert store.cover(wanted) == ([total, two, one], [B2])


def test_an_endless_want_is_cut_short() -> None:
    """2^62 dots are not made one by one; who wants more than a path takes asks again."""
    store = stored(push(A1), push(A2, A3))
    served, lacking = store.serve([Range("a", 1, 1, 2**62)], STAMPS_MAX)
    assert [each.dots for each in served] == [(A1,), (A2, A3)]
    assert len(lacking) == STAMPS_MAX - 3
    again = [Range("a", 1, 1, 2**62)] * 1000
    assert store.serve(again, STAMPS_MAX) == (served, lacking)
    assert store.serve([Range("a", 1, 1, 3)], 2) == ([store._by_dot[A1]], [])  # a sum is whole
    assert store.serve([Range("a", 1, 1, 3)], 0) == ([], [])


def test_past_the_bound_the_oldest_go() -> None:
    pushes = [push(A1), push(A2, A3), push(A4), push(B1)]
    store = stored(*pushes, bytes_max=2 * PUSH_BYTES + 1)
    assert list(store) == pushes[2:]
    assert store.nbytes == 2 * PUSH_BYTES
    assert [dot in store for dot in (A1, A2, A3, A4, B1)] == [False, False, False, True, True]
    store.add(push(A1))  # what went may come again, as the newest
    assert [each.dots for each in store] == [(B1,), (A1,)]


def test_the_bound_is_met_to_the_byte() -> None:
    assert len(stored(push(A1), push(A2), bytes_max=2 * PUSH_BYTES)) == 2
    assert len(stored(push(A1), push(A2), bytes_max=2 * PUSH_BYTES - 1)) == 1


def test_one_larger_than_the_bound_is_not_kept() -> None:
    large = push(A2, elements=1000)
    assert list(stored(push(A1), large, bytes_max=10)) == []


def test_a_log_has_no_bound() -> None:
    store = stored(*(push(Dot("a", 1, seq)) for seq in range(1, 2001)))
    assert len(store) == 2000


def test_prune_lets_go_of_what_everyone_has() -> None:
    store = stored(push(A1), push(A2, B1), push(A3))
    assert store.prune(Clock([A1, A2, B2])) == [A1]  # of the sum, B1 is still needed
    assert store.prune(Clock([A2, B1])) == [A2, B1]
    assert [each.dots for each in store] == [(A3,)]
    assert store.nbytes == PUSH_BYTES
    assert store.prune(Clock([A1])) == []


def without(*keys: tuple[str, int]) -> Callable[[Push], Push | None]:
    """A change that lets go of whatever touches one of these epochs."""
    return lambda each: None if any((d.origin, d.epoch) in keys for d in each.dots) else each


def test_a_change_to_nothing_lets_go_of_the_whole_push() -> None:
    later = Dot("a", 2, 1)
    store = stored(push(A1), push(B1, A2), push(later), push(B2))
    assert store.change(without(("a", 1), ("c", 1))) == [A1, B1, A2]
    assert [each.dots for each in store] == [(later,), (B2,)]
    assert store.nbytes == 2 * PUSH_BYTES
    assert B1 not in store


def test_a_change_puts_the_new_form_in_the_old_place() -> None:
    store = stored(push(A1), push(B1))
    assert store.change(lambda each: Push(each.stamps, each.payload + 2)) == []
    assert [each.dots for each in store] == [(A1,), (B1,)]
    assert store.serve(Clock([A1]).ranges(), 1)[0][0].payload.tolist() == [2, 2, 2, 2]


def test_squeezed_pushes_are_one_sum_of_the_same_updates() -> None:
    store = stored(push(A1), push(B1), push(A2))
    store.change(lambda each: Push(each.stamps, each.payload + each.dots[0].seq))
    store.squeeze(lambda each: each.dots[0].origin == "a")
    assert [each.dots for each in store] == [(B1,), (A1, A2)]
    assert store.nbytes == 2 * PUSH_BYTES
    assert not store.alone(A1)
    total = next(each for each in store if A1 in each.dots)
    assert total.payload.tolist() == [3, 3, 3, 3]


# -- against the dumb twin -----------------------------------------------------------------------


class Twin:
    """A list, oldest first."""

    def __init__(self, bytes_max: int | None) -> None:
        self.bytes_max = bytes_max
        self.pushes: list[Push] = []

    def holder(self, dot: Dot) -> Push | None:
        return next((each for each in self.pushes if dot in each.dots), None)

    def add(self, new: Push) -> None:
        if any(self.holder(dot) is not None for dot in new.dots):
            return
        self.pushes.append(new)
        while self.bytes_max is not None and len(self.pushes) > 1 and self.nbytes > self.bytes_max:
            del self.pushes[0]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.pushes)

    def cover(self, wanted: list[Dot]) -> tuple[list[Push], list[Dot]]:
        served: list[Push] = []
        lacking = []
        for dot in wanted:
            holder = self.holder(dot)
            if holder is None or not set(holder.dots) <= set(wanted):
                lacking.append(dot)
            elif not any(holder is each for each in served):
                served.append(holder)
        return served, lacking

    def prune(self, stable: set[Dot]) -> list[Dot]:
        return self.let_go([each for each in self.pushes if set(each.dots) <= stable])

    def drop_epochs(self, keys: set[Key]) -> list[Dot]:
        return self.let_go(
            [each for each in self.pushes if any(dot[:2] in keys for dot in each.dots)]
        )

    def let_go(self, gone: Iterable[Push]) -> list[Dot]:
        gone = list(gone)
        self.pushes = [each for each in self.pushes if not any(each is other for other in gone)]
        return [dot for each in gone for dot in each.dots]


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_against_the_twin(seed: int) -> None:
    rng = random.Random(seed)
    bytes_max = rng.choice([None, 5 * PUSH_BYTES, 12 * PUSH_BYTES])
    store, twin = Store(bytes_max), Twin(bytes_max)
    universe = [
        Dot(origin, epoch, seq) for origin in "ab" for epoch in (1, 2) for seq in range(1, 9)
    ]
    for _ in range(150):
        what = rng.randrange(10)
        some = rng.sample(universe, rng.randrange(1, len(universe)))
        if what < 6:
            new = push(*some[: rng.choice([1, 1, 2, 3])], elements=rng.randrange(1, 9))
            store.add(new)
            twin.add(new)
        elif what == 6:
            ranges = Clock(some).ranges()
            assert store.serve(ranges, STAMPS_MAX) == twin.cover(
                [dot for span in ranges for dot in span.dots()]
            )
        elif what == 7:
            assert store.cover(dict.fromkeys(some)) == twin.cover(some)
        elif what == 8:
            assert store.prune(Clock(some)) == twin.prune(set(some))
        else:
            keys = {(some[0].origin, some[0].epoch)}
            assert store.change(without(*keys)) == twin.drop_epochs(keys)
        assert list(store) == twin.pushes
        assert len(store) == len(twin.pushes)
        assert store.nbytes == twin.nbytes
        assert store.fits(push(universe[0])) == (
            bytes_max is None or twin.nbytes + push(universe[0]).nbytes <= bytes_max
        )
        for dot in universe:
            holder = twin.holder(dot)
            assert (dot in store) is (holder is not None)
            assert store.alone(dot) is (holder is not None and len(holder.dots) == 1)
