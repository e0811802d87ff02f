"""When a budget of the whole swarm is spent, by what nodes know of each other; batches that end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from murmurate.core.figures.progress import Progress
from murmurate.programs.roles.rounds import all_there_was, rounds
from murmurate.programs.roles.spending import UNHEARD_S, Spending, fresh


def told(name: str, samples: int, version: int = 1, **more: Any) -> Progress:
    return Progress(name=name, epoch=1, version=version, samples=samples, **more)


def test_what_others_made_since_they_told_counts() -> None:
    spending = Spending()
    assert spending.likely(0.0, 100, [told("b", 1000, samples_per_s=400.0)], {"a", "b"}) == 1100
    later = spending.likely(0.5, 150, [told("b", 1000, samples_per_s=400.0)], {"a", "b"})
    assert later == 150 + 1000 + 200
    # It has told again: from now on its own pace of late.
    assert spending.likely(1.0, 200, [told("b", 2000)], {"a", "b"}) == 2200
    assert spending.likely(1.1, 200, [told("b", 2000)], {"a", "b"}) == pytest.approx(2300)
    assert spending.likely(99.0, 200, [told("b", 2000)], {"b"}) == 2200 + UNHEARD_S * 1000


def test_who_has_told_no_pace_yet_has_mine() -> None:
    """A run of half a second is over before anybody tells anything."""
    spending = Spending()
    assert spending.likely(0.0, 0, [told("b", 0), told("c", 0)], {"a", "b", "c"}) == 0
    late = spending.likely(0.25, 2000, [told("b", 0), told("c", 0)], {"a", "b", "c"})
    assert late == pytest.approx(6000)
    slow = spending.likely(0.5, 4000, [told("b", 400), told("c", 0)], {"a", "b", "c"})
    assert slow == pytest.approx(4000 + 400 + 4000)
    assert spending.likely(0.6, 4800, [told("b", 400), told("c", 0)], {"a", "b"}) == pytest.approx(
        4800 + 400 + 80
    )


@pytest.mark.parametrize("gone", ["dead", "done"])
def test_who_does_not_train_makes_nothing(gone: str) -> None:
    spending = Spending()
    entry = told("b", 1000, samples_per_s=400.0, done=gone == "done")
    alive = {"a"} if gone == "dead" else {"a", "b"}
    assert spending.likely(0.0, 100, [entry], alive) == 1100
    assert spending.likely(1.0, 100, [entry], alive) == 1100


def test_a_word_from_everybody_who_trains_is_waited_for() -> None:
    before = [told("b", 10), told("c", 10), told("d", 10, done=True)]
    assert not fresh(before, before, {"a", "b", "c", "d"})
    half = [told("b", 10, version=2), *before[1:]]
    assert not fresh(before, half, {"a", "b", "c", "d"})
    assert fresh(before, half, {"a", "b", "d"})  # c is dead
    assert fresh(before, [half[0], told("c", 10, version=2), before[2]], {"a", "b", "c", "d"})


class Finite:
    """As somebody's first workload is: one pass over the data."""

    def __init__(self, *, once: bool) -> None:
        self._only = iter(range(3)) if once else None

    def batches(self, share: object) -> Iterator[int]:
        return self._only if self._only is not None else iter(range(3))


def test_batches_that_end_are_given_again_where_there_is_a_budget() -> None:
    said: list[str] = []
    many = rounds(Finite(once=False), None, said.append, again=lambda: True)  # type: ignore[arg-type]
    assert [next(many) for _ in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]  # type: ignore[comparison-overlap]
    assert said == ["the workload's batches are over after 3, the budget is not: it goes round"]


def test_a_workload_that_does_not_allow_it_and_one_without_a_budget_end() -> None:
    said: list[str] = []
    assert list(rounds(Finite(once=True), None, said.append, again=lambda: True)) == [0, 1, 2]  # type: ignore[arg-type,comparison-overlap]
    said.clear()
    assert list(rounds(Finite(once=False), None, said.append, again=lambda: False)) == [0, 1, 2]  # type: ignore[arg-type,comparison-overlap]
    assert not said
    assert all_there_was(12_800, 30_000) == (
        "the workload has no more batches after 12,800 of 30,000 samples: batches() should go on"
        " until the budget is spent, or give them again"
    )
    assert all_there_was(12_800, None) == "the workload has no more batches after 12,800 samples"
