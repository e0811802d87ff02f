"""`core/figures/update_intervals.py`: members whose updates are of very different lengths."""

from __future__ import annotations

import pytest

from murmurate.core.figures.progress import Progress
from murmurate.core.figures.update_intervals import ENOUGH, UpdateIntervals


def told(name: str, steps: int, updates: int, epoch: int = 1) -> Progress:
    return Progress(name=name, epoch=epoch, version=1, steps=steps, published=updates)


@pytest.mark.parametrize(
    ("mine", "steps", "said"),
    [(16, 4, True), (16, 64, True), (4, 4, False), (4, 3, False), (4, 7, False), (4, 8, True)],
)
def test_only_another_length_is_said(mine: int, steps: int, said: bool) -> None:
    intervals = UpdateIntervals(mine)
    assert intervals.look([told("b", 1000, 7)], "a") == ""  # from here on it is counted
    heard = intervals.look([told("b", 1000 + steps * ENOUGH, 7 + ENOUGH)], "a")
    assert bool(heard) == said
    if said:
        begins = f"every {mine} was asked for here, and an update is of {steps} of b local steps"
        assert heard.startswith(begins)
        assert intervals.look([told("b", 9000, 500)], "a") == ""  # once


def test_what_is_not_known_yet_or_of_this_node_is_not_said() -> None:
    intervals = UpdateIntervals(16)
    intervals.look([told("a", 0, 0), told("b", 0, 0)], "a")
    assert intervals.look([told("a", 400, 400), told("b", ENOUGH - 1, ENOUGH - 1)], "a") == ""
    # Another life of it begins to be counted anew: its steps are of both lives, its updates not.
    assert intervals.look([told("b", 10_000, ENOUGH, epoch=2)], "a") == ""


def test_who_publishes_nothing_has_no_interval() -> None:
    intervals = UpdateIntervals(16)
    for steps in (0, 1000):
        assert intervals.look([told("b", steps, 0)], "a") == ""
