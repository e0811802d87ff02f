"""How long one who is done waits for the others."""

from __future__ import annotations

import math

from murmurate.core.figures.patience import (
    LEAST_S,
    OTHER_PLANS_S,
    STANDS_STILL_S,
    Patience,
)
from murmurate.core.figures.progress import Progress


def told(name: str, steps: int) -> Progress:
    return Progress(name=name, epoch=1, version=1, steps=steps)


def test_whoever_is_on_its_way_to_as_many_steps_is_waited_for() -> None:
    patience = Patience(1000, 500.0, now=0.0)
    for second in range(300):
        assert patience.waits_for([told("a", 3 * second)], float(second)) == ["a"]
    assert 30 < patience.left_s("a", 299.0) < 40


def test_not_longer_than_one_has_trained_oneself() -> None:
    patience = Patience(1000, 100.0, now=0.0)
    assert patience.waits_for([told("a", 1)], 99.0) == ["a"]
    assert patience.waits_for([told("a", 2)], 100.0) == []
    short = Patience(1000, 1.0, now=0.0)
    assert short.waits_for([told("a", 1)], LEAST_S - 1) == ["a"]


def test_whoever_has_other_plans_is_not_waited_for() -> None:
    patience = Patience(1000, 500.0, now=0.0)
    board = [told("endless", 50_000), told("alike", 1100)]
    assert patience.waits_for(board, OTHER_PLANS_S - 1) == ["endless", "alike"]
    assert patience.waits_for(board, OTHER_PLANS_S + 1) == ["alike"], "it may be evaluating"


def test_whoever_stands_still_is_given_up() -> None:
    patience = Patience(1000, 5000.0, now=0.0)
    assert patience.waits_for([told("a", 900)], 0.0) == ["a"]
    assert patience.waits_for([told("a", 901)], 100.0) == ["a"]
    assert patience.waits_for([told("a", 901)], 99.0 + STANDS_STILL_S) == ["a"]
    assert patience.waits_for([told("a", 901)], 101.0 + STANDS_STILL_S) == []
    assert math.isnan(patience.left_s("b", 1.0))
