"""`core/clock.py` against a deliberately dumb twin: a plain Python set of dots.

Numbers are small and dense, so that runs meet, split, touch and overlap in nearly every example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmurate.core.clock import Clock, ClockLimits, Dot, Key, Range
from murmurate.core.intervals import (
    SEQ_MAX,
    Runs,
    runs_add,
    runs_common,
    runs_has,
    runs_minus,
    runs_size,
)
from murmurate.errors import LocalProtocolError

often = settings(derandomize=True, deadline=None, database=None, max_examples=100)

SEQ_TOP = 9
numbers = st.frozensets(st.integers(1, 24))
origins = st.sampled_from(["a", "b", "node-17", "é"])
dots = st.builds(Dot, origins, st.integers(1, 2), st.integers(1, SEQ_TOP))
sets_of_dots = st.frozensets(dots, max_size=40)
spans = st.builds(
    lambda dot, more: Range(dot.origin, dot.epoch, dot.seq, dot.seq + more),
    dots,
    st.integers(0, SEQ_TOP),
)


def runs_of(held: Iterable[int]) -> Runs:
    """The runs of a set, found the slow way."""
    held = set(held)
    firsts = sorted(n for n in held if n - 1 not in held)
    lasts = sorted(n for n in held if n + 1 not in held)
    return tuple(n for pair in zip(firsts, lasts, strict=True) for n in pair)


def ranges_of(held: Iterable[Dot]) -> list[Range]:
    held = set(held)
    out = []
    for origin, epoch in {(dot.origin, dot.epoch) for dot in held}:
        runs = runs_of(dot.seq for dot in held if dot[:2] == (origin, epoch))
        out += [Range(origin, epoch, *runs[i : i + 2]) for i in range(0, len(runs), 2)]
    return sorted(out)


def keys_of(held: Iterable[Dot]) -> set[Key]:
    return {(dot.origin, dot.epoch) for dot in held}


def assert_is(clock: Clock, twin: Iterable[Dot]) -> None:
    """Everything a clock says of itself is what its twin says."""
    twin = set(twin)
    assert len(clock) == len(twin)
    assert bool(clock) == bool(twin)
    assert list(clock) == sorted(twin)
    assert clock.ranges() == ranges_of(twin)
    assert clock.spans == len(clock.ranges())
    assert clock.keys() == sorted(keys_of(twin))
    for key in keys_of(twin):
        held = {dot.seq for dot in twin if dot[:2] == key}
        assert clock.runs(key) == runs_of(held)
        assert clock.last(*key) == max(held)


# -- runs ----------------------------------------------------------------------------------------


@often
@given(numbers, numbers)
def test_runs_are_sets_of_numbers(a: frozenset[int], b: frozenset[int]) -> None:
    assert runs_size(runs_of(a)) == len(a)
    assert [n for n in range(27) if runs_has(runs_of(a), n)] == sorted(a)
    assert runs_common(runs_of(a), runs_of(b)) == len(a & b)
    assert runs_minus(runs_of(a), runs_of(b)) == runs_of(a - b)


@often
@given(numbers, st.integers(1, 24), st.integers(0, 10))
def test_runs_add_keeps_them_sorted_and_apart(held: frozenset[int], first: int, more: int) -> None:
    last = first + more
    assert runs_add(runs_of(held), first, last) == runs_of(held | set(range(first, last + 1)))


@pytest.mark.parametrize(
    ("runs", "first", "last", "expected"),
    [
        ((), 5, 5, (5, 5)),
        ((1, 3), 4, 4, (1, 4)),  # the usual case: the next number
        ((1, 3), 5, 5, (1, 3, 5, 5)),  # one is missing
        ((1, 3, 5, 5), 4, 4, (1, 5)),  # the hole is filled
        ((4, 5), 1, 2, (1, 2, 4, 5)),
        ((4, 5), 1, 3, (1, 5)),
        ((1, 2, 5, 6, 9, 9), 3, 8, (1, 9)),
        ((1, 2, 5, 6, 9, 9), 1, 20, (1, 20)),
        ((1, 9), 3, 4, (1, 9)),
        ((1, SEQ_MAX - 1), SEQ_MAX, SEQ_MAX, (1, SEQ_MAX)),
    ],
)
def test_runs_add_by_hand(runs: Runs, first: int, last: int, expected: Runs) -> None:
    assert runs_add(runs, first, last) == expected


# -- one clock -----------------------------------------------------------------------------------


@often
@given(st.lists(st.one_of(dots, spans, sets_of_dots), max_size=30), sets_of_dots)
def test_a_clock_is_a_set(steps: list[Dot | Range | frozenset[Dot]], asked: frozenset[Dot]) -> None:
    clock = Clock()
    twin: set[Dot] = set()
    for step in steps:
        if isinstance(step, Dot):
            assert clock.add(step) is (step not in twin)
            twin.add(step)
        elif isinstance(step, Range):
            clock.add_range(step)
            twin |= set(step.dots())
        else:
            clock.merge(Clock(step))
            twin |= step
        assert len(clock) == len(twin)
    assert_is(clock, twin)
    for dot in asked | twin:
        assert (dot in clock) is (dot in twin)


@often
@given(st.data())
def test_the_order_of_arrival_leaves_no_trace(data: st.DataObject) -> None:
    arrived = data.draw(st.lists(dots, max_size=30))
    again = data.draw(st.permutations(arrived))
    one, two = Clock(arrived), Clock(again)
    assert one == two
    assert one.to_bytes() == two.to_bytes()
    assert one.distance(two) == 0


@often
@given(sets_of_dots, sets_of_dots)
def test_a_copy_has_a_life_of_its_own(held: frozenset[Dot], later: frozenset[Dot]) -> None:
    clock = Clock(held)
    before, twin = clock.copy(), clock.copy()
    assert before == clock
    for dot in later:
        clock.add(dot)
    assert_is(before, held)
    assert_is(clock, held | later)
    twin.merge(Clock(later))
    assert twin == clock
    assert_is(before, held)


def test_a_copy_keeps_what_the_baseline_holds() -> None:
    clock = Clock([Dot("a", 1, 1), Dot("b", 1, 1)]).lifted(1, {("a", 1): (1, 2)})
    copy = clock.copy()
    assert (copy.generation, copy.base, copy.apart) == (1, 2, 1)
    assert copy == clock


def test_last_and_runs_of_what_is_not_there() -> None:
    clock = Clock([Dot("a", 1, 4)])
    assert clock.last("a", 2) == clock.last("b", 1) == 0
    assert clock.runs(("a", 2)) == ()
    assert Dot("a", 2, 4) not in clock


def test_words_for_people() -> None:
    assert str(Dot("a", 1, 7)) == "a/1/7"
    assert str(Range("a", 1, 7, 9)) == "a/1/7-9"
    assert repr(Clock([Dot("b", 2, 1), Dot("a", 1, 7)])) == "Clock(a/1/7-7, b/2/1-1)"
    assert repr(Clock(generation=3, base=5)) == "Clock(generation 3 (5 updates) + )"


def test_a_clock_is_no_key_and_no_set() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Clock())
    assert Clock() != set()


@pytest.mark.parametrize("differing", ["generation", "base", "apart"])
def test_equal_means_the_same_baseline_too(differing: str) -> None:
    one, two = Clock([Dot("a", 1, 1)]), Clock([Dot("a", 1, 1)])
    setattr(two, differing, 1)
    assert one != two


# -- two clocks ----------------------------------------------------------------------------------


@often
@given(sets_of_dots, sets_of_dots)
def test_two_clocks_are_two_sets(a: frozenset[Dot], b: frozenset[Dot]) -> None:
    one, two = Clock(a), Clock(b)
    assert one.distance(two) == two.distance(one) == len(a ^ b)
    assert_is(one.union(two), a | b)
    assert_is(one.intersection(two), a & b)
    assert one.missing(two) == ranges_of(a - b)
    assert one.covers(two) is (a >= b)
    assert (one == two) is (a == b)
    assert_is(one, a)  # and neither was changed by being asked
    assert_is(two, b)
    one.merge(two)
    assert_is(one, a | b)
    assert_is(two, b)


@often
@given(sets_of_dots, sets_of_dots)
def test_what_is_missing_makes_up_the_difference(a: frozenset[Dot], b: frozenset[Dot]) -> None:
    one, two = Clock(a), Clock(b)
    for span in one.missing(two):
        two.add_range(span)
    for span in two.missing(one):
        one.add_range(span)
    assert one == two
    assert_is(one, a | b)


@often
@given(sets_of_dots, sets_of_dots)
def test_what_was_handed_out_does_not_change_later(a: frozenset[Dot], b: frozenset[Dot]) -> None:
    """Runs are shared between clocks: growing one must not grow the other."""
    one, two = Clock(a), Clock(b)
    union, common = one.union(two), one.intersection(two)
    for dot in [Dot("a", 1, 20), Dot("b", 2, 20), *a]:
        two.add(dot)
        common.add(dot)
    assert_is(union, a | b)
    assert_is(one, a)


def test_distance_of_long_runs_needs_no_counting() -> None:
    one, two = Clock(), Clock()
    one.add_range(Range("a", 1, 1, 10**15))
    two.add_range(Range("a", 1, 3, 10**15 + 7))
    two.add_range(Range("b", 1, 1, 5))
    assert one.distance(two) == 2 + 7 + 5
    two.add(Dot("a", 1, 1))  # more than one run on one side
    assert one.distance(two) == 1 + 7 + 5


# -- the baseline --------------------------------------------------------------------------------


def folds_of(held: Iterable[Dot], keys: Iterable[Key]) -> dict[Key, Runs]:
    held = set(held)
    return {
        key: runs_of(dot.seq for dot in held if dot[:2] == key)
        for key in keys
        if key in keys_of(held)
    }


@often
@given(sets_of_dots, sets_of_dots, st.sampled_from(["any", "fewer", "more"]), st.data())
def test_a_lift_changes_no_distance(
    held: frozenset[Dot], context: frozenset[Dot], how: str, data: st.DataObject
) -> None:
    """The clock holds exactly the folds; the context holds any part of them, and more besides."""
    if how == "fewer":
        context &= held
    elif how == "more":
        context |= held
    folds = folds_of(
        held, data.draw(st.frozensets(st.sampled_from(sorted(keys_of(held))))) if held else ()
    )
    clock, old = Clock(held), Clock(context)
    lifted_clock, lifted = clock.lifted(1, folds), old.lifted(1, folds)
    assert lifted.distance(lifted_clock) == lifted_clock.distance(lifted) == len(held ^ context)
    assert lifted_clock.apart == 0
    assert lifted.apart == sum(1 for dot in held ^ context if dot[:2] in folds)
    assert len(lifted_clock) == len(held)
    assert set(lifted_clock) == {dot for dot in held if dot[:2] not in folds}
    assert_is(clock, held)  # a lift makes a new clock
    assert_is(old, context)
    assert (clock.generation, clock.base, old.apart) == (0, 0, 0)


Round = tuple[frozenset[Key], frozenset[Dot], frozenset[Dot]]
rounds = st.lists(
    st.tuples(
        st.frozensets(st.tuples(origins, st.integers(1, 2)), max_size=3),
        sets_of_dots,
        sets_of_dots,
    ),
    min_size=2,
    max_size=4,
)


@often
@given(sets_of_dots, st.lists(sets_of_dots, max_size=2), rounds)
def test_lifts_one_after_another(
    start: frozenset[Dot], contexts: list[frozenset[Dot]], steps: list[Round]
) -> None:
    """Contexts of every age, lifted once or more, against a clock that goes on growing."""
    held = set(start)
    clock = Clock(held)
    known = [(Clock(context), context) for context in contexts]
    closed: set[Key] = set()
    for generation, (keys, more, flips) in enumerate(steps, start=1):
        folds = folds_of(held, keys - closed)
        closed |= set(folds)
        clock = clock.lifted(generation, folds)
        known = [(context.lifted(generation, folds), true) for context, true in known]
        for dot in more:
            if dot[:2] not in closed:
                held.add(dot)
                clock.add(dot)
        # A context of this generation: some open dots fewer or more than the clock.
        true = frozenset(held ^ {dot for dot in flips if dot[:2] not in closed})
        fresh = Clock(generation=generation, base=clock.base)
        for dot in true:
            if dot[:2] not in closed:
                fresh.add(dot)
        known.append((fresh, true))
        assert clock.apart == 0
        assert len(clock) == len(held)
        for context, true in known:
            assert context.distance(clock) == clock.distance(context) == len(true ^ held)
            assert Clock.from_bytes(context.to_bytes()) == context


@pytest.mark.parametrize("generation", [-1, 0, 2, 3])
def test_a_lift_skips_no_generation(generation: int) -> None:
    with pytest.raises(LocalProtocolError, match="cannot lift 0"):
        Clock().lifted(generation, {})


@pytest.mark.parametrize(
    "compare",
    [Clock.distance, Clock.union, Clock.merge, Clock.missing, Clock.intersection, Clock.covers],
)
def test_generations_are_not_mixed(compare: Callable[[Clock, Clock], object]) -> None:
    old = Clock([Dot("a", 1, 1), Dot("b", 1, 1)])
    new = old.lifted(1, {("a", 1): (1, 1)})
    for one, two in ((old, new), (new, old)):
        before = one.copy()
        with pytest.raises(LocalProtocolError, match="lift one first"):
            compare(one, two)
        assert one == before


# -- the wire ------------------------------------------------------------------------------------

wide_numbers = st.one_of(
    st.integers(1, 9), st.integers(1, SEQ_MAX), st.sampled_from([127, 128, 16384, 2**53, SEQ_MAX])
)
wide_dots = st.builds(
    Dot, st.text("abé€-\U0001d538 ", min_size=1, max_size=32), wide_numbers, wide_numbers
)


@often
@given(st.lists(st.one_of(dots, wide_dots), max_size=40))
def test_bytes_there_and_back(held: list[Dot]) -> None:
    clock = Clock(held)
    back = Clock.from_bytes(clock.to_bytes())
    assert back == clock
    assert_is(back, held)
    assert back.to_bytes() == clock.to_bytes()


def test_one_hole_of_one_number() -> None:
    """The least hole there can be: the next shape up from a lost message."""
    clock = Clock([Dot("a", 1, 1), Dot("a", 1, 3)])
    assert Clock.from_bytes(clock.to_bytes()) == clock


def test_the_wire_form_by_hand() -> None:
    """Peers of different versions meet: these bytes change only together with the version."""
    clock = Clock(
        [Dot("b", 2, 1), *Range("a", 300, 1, 3).dots(), Dot("a", 300, 7)], generation=4, base=130
    )
    clock.apart = 5
    head = [1, 4, 0x82, 1, 5, 2]  # version, generation, base (130), apart, entries
    a = [1, ord("a"), 0xAC, 2, 2, 0, 2, 3, 0]  # epoch 300; 1 and two more; after 3 missing, 7
    b = [1, ord("b"), 2, 1, 0, 0]
    assert clock.to_bytes() == bytes(head + a + b)
    assert Clock().to_bytes() == bytes([1, 0, 0, 0, 0])


@pytest.mark.parametrize("updates", [1, 100, 10_000, 1_000_000])
def test_64_origins_fit_in_a_kibibyte(updates: int) -> None:
    clock = Clock()
    for number in range(64):
        clock.add_range(Range(f"node-{number}", 3, 1, updates + number))
    data = clock.to_bytes()
    assert len(data) <= 1024
    assert Clock.from_bytes(data, ClockLimits(bytes_max=1024, entries_max=64, runs_max=64)) == clock
