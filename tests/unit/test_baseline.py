"""`core/forgetting/baseline.py`: clocks of earlier generations are understood exactly, or not
at all.
"""

from __future__ import annotations

import pytest
import torch

from murmurate.core.clock import Clock, Dot, Key, Range
from murmurate.core.forgetting.baseline import Baseline
from murmurate.core.intervals import Runs
from murmurate.core.message import Generation, Push, Stamp

ROSTER = ("a", "b", "c")


def generation(
    number: int, *folds: tuple[Key, Runs], roster: tuple[str, ...] = ROSTER
) -> Generation:
    return Generation(number, roster, folds)


FOUNDING = generation(0)
ONE = generation(1, (("a", 1), (1, 5)))
TWO = generation(2, (("b", 1), (1, 2, 4, 4)), (("a", 2), (1, 1)), roster=("a", "c"))
THREE = generation(3, (("c", 1), (1, 3)), roster=("c",))
FOUR = generation(4)
ALL = (FOUNDING, ONE, TWO, THREE, FOUR)


def whole() -> set[Dot]:
    """Every dot that is folded somewhere, and two that are open."""
    folds = [fold for each in ALL for fold in each.folds]
    spans = [Range(*key, *runs[i : i + 2]) for key, runs in folds for i in range(0, len(runs), 2)]
    return {dot for span in spans for dot in span.dots()} | {Dot("d", 1, 1), Dot("d", 1, 2)}


def test_no_history_is_generation_zero() -> None:
    baseline = Baseline((), keep=3)
    assert (baseline.number, baseline.roster, baseline.history) == (0, (), ())
    clock = Clock([Dot("a", 1, 1)])
    assert baseline.lift(clock) is clock
    assert baseline.lift(Clock(generation=1)) is None
    assert baseline.folded(Dot("a", 1, 1)) is None
    assert baseline.since(0) == ()


def test_the_newest_is_what_counts() -> None:
    baseline = Baseline((FOUNDING, ONE, TWO), keep=8)
    assert (baseline.number, baseline.roster) == (2, ("a", "c"))
    baseline.extend((THREE, FOUR))
    assert (baseline.number, baseline.roster) == (4, ROSTER)
    assert baseline.history == ALL


def test_what_is_known_is_not_taken_twice() -> None:
    baseline = Baseline((FOUNDING, ONE, TWO), keep=8)
    for heard in [(ONE, TWO), (TWO, THREE), (THREE,)]:
        baseline.extend(heard)
        assert baseline.history == ALL[: heard[-1].number + 1]


@pytest.mark.parametrize(
    ("number", "expected"), [(-1, ALL), (0, ALL[1:]), (3, (FOUR,)), (4, ()), (9, ())]
)
def test_since(number: int, expected: tuple[Generation, ...]) -> None:
    assert Baseline(ALL, keep=8).since(number) == expected


@pytest.mark.parametrize(
    ("dot", "folded"),
    [
        (Dot("a", 1, 5), True),
        (Dot("a", 1, 6), False),  # its epoch was closed without it
        (Dot("b", 1, 3), False),
        (Dot("b", 1, 4), True),
        (Dot("a", 2, 1), True),
        (Dot("b", 2, 1), None),  # open
        (Dot("z", 1, 1), None),
    ],
)
def test_folded(dot: Dot, folded: bool | None) -> None:
    assert Baseline(ALL, keep=8).folded(dot) is folded


def test_only_the_last_few_are_kept() -> None:
    baseline = Baseline((), keep=2)
    for each in ALL:
        baseline.extend((each,))
    assert baseline.history == (THREE, FOUR)
    assert baseline.folded(Dot("a", 1, 5)) is None
    assert baseline.folded(Dot("c", 1, 3)) is True
    assert baseline.lift(Clock(generation=1)) is None  # too old: 2 is no longer known
    assert baseline.lift(Clock(generation=2)) is not None
    assert Baseline(ALL, keep=2).history == (THREE, FOUR)


@pytest.mark.parametrize("age", range(5))
def test_a_lift_over_several_generations_changes_no_distance(age: int) -> None:
    """A context that lacks some of the folded updates, and has one that nobody else has."""
    baseline = Baseline(ALL, keep=8)
    context = whole() - {Dot("b", 1, 2), Dot("c", 1, 1), Dot("d", 1, 2)} | {Dot("a", 2, 9)}
    clock, old = Clock(whole()), Clock(context)
    for each in ALL[1 : age + 1]:
        clock = clock.lifted(each.number, dict(each.folds))
        old = old.lifted(each.number, dict(each.folds))
    mine, lifted = baseline.lift(clock), baseline.lift(old)
    assert mine is not None
    assert lifted is not None
    assert mine.generation == lifted.generation == 4
    assert mine.apart == 0
    assert lifted.distance(mine) == len(context ^ whole()) == 4
    assert set(mine) == {Dot("d", 1, 1), Dot("d", 1, 2)}
    assert len(mine) == len(whole())
    assert clock.generation == old.generation == age  # what was given is left alone


@pytest.mark.parametrize("ahead", [5, 6, 100])
def test_a_newer_clock_is_not_understood(ahead: int) -> None:
    assert Baseline(ALL, keep=8).lift(Clock(generation=ahead)) is None


# -- pushes --------------------------------------------------------------------------------------


def push(*contexts: Clock) -> Push:
    stamps = tuple(Stamp(Dot("d", 1, seq), each) for seq, each in enumerate(contexts, start=3))
    return Push(stamps, torch.ones(2))


def test_a_push_of_today_is_passed_on_as_it_is() -> None:
    today = push(Clock(generation=4), Clock(generation=4))
    assert Baseline(ALL, keep=8).lift_push(today) is today


def test_a_push_that_restores_weights_still_does_when_it_is_lifted() -> None:
    old = Push((Stamp(Dot("d", 1, 3), Clock(whole()), written=True),), torch.ones(2))
    lifted = Baseline(ALL, keep=8).lift_push(old)
    assert lifted is not None
    assert lifted is not old
    assert lifted.written


def test_every_context_of_a_sum_is_lifted() -> None:
    contexts = [Clock(generation=4), Clock(whole()), Clock([Dot("a", 1, 1)])]
    old = push(*contexts)
    new = Baseline(ALL, keep=8).lift_push(old)
    assert new is not None
    assert new.dots == old.dots
    assert new.payload is old.payload
    folded = len(whole()) - 2
    assert [stamp.context.generation for stamp in new.stamps] == [4, 4, 4]
    assert [stamp.context.apart for stamp in new.stamps] == [0, 0, folded - 1]
    assert [stamp.context for stamp in old.stamps] == contexts


@pytest.mark.parametrize("generation", [0, 5])
def test_one_context_that_is_not_understood_is_enough(generation: int) -> None:
    mixed = push(Clock(generation=4), Clock(generation=generation), Clock(generation=3))
    assert Baseline(ALL, keep=2).lift_push(mixed) is None
