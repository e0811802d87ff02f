"""Deadlines that follow what was observed, by table."""

from __future__ import annotations

import pytest

from murmurate.edge.net.deadline import Deadline


def deadline(*took: float) -> Deadline:
    it = Deadline(first=10.0, pause=3.0, most=30.0)
    for seconds in took:
        it.note(seconds)
    return it


@pytest.mark.parametrize(
    ("took", "low", "high"),
    [
        ((), 10.0, 10.0),
        ((0.0,), 3.0, 3.0),
        ((1.0,), 6.0, 6.0),  # 3 + 1 + 4 · 0.5
        ([0.001] * 100, 3.0, 3.01),
        ([1.0] * 100, 4.0, 4.01),  # a steady second: the deviation goes to nothing
        ([16.0] * 3, 30.0, 30.0),
        ([0.0, 1.0] * 100, 5.0, 6.0),  # mean and deviation 1/2
        ([5.0] * 20 + [0.001] * 100, 3.0, 3.01),  # faster again: forgotten
    ],
)
def test_what_was_observed_sets_it(took: tuple[float, ...], low: float, high: float) -> None:
    assert low <= deadline(*took).limit <= high


@pytest.mark.parametrize("gap_s", [0.1, 0.5, 1.0, 4.0])
def test_what_moves_is_never_cut(gap_s: float) -> None:
    """Every gap is within the deadline of that moment, also one pause of a second in between."""
    it = Deadline(first=10.0, pause=3.0, most=30.0)
    for number in range(200):
        gap = gap_s * (0.5 + (number * 7 % 11) / 10) + (1.0 if number % 10 == 9 else 0.0)
        assert gap < it.limit, number
        it.note(gap)


def test_what_became_slower_is_given_more_time_until_it_is_seen_to_move() -> None:
    it = deadline(*[0.01] * 50)
    limits = []
    for _ in range(6):
        limits.append(round(it.limit))
        it.miss()
    assert limits == [3, 6, 12, 24, 30, 30]
    it.note(8.0)
    assert it.limit > 8.0
    for _ in range(1000):
        it.miss()
    assert it.limit == 30.0


def test_a_short_limit_is_kept() -> None:
    """Tests shorten the first deadline; the pause does not make it longer than `most`."""
    assert Deadline(first=0.4, pause=3.0, most=0.4).limit == 0.4
    it = Deadline(first=0.4, pause=3.0, most=0.4)
    it.note(0.0)
    assert it.limit == 0.4
