"""`core/publishing/rhythm.py`: an update is of as many steps as keep its cost small."""

from __future__ import annotations

import pytest

from murmurate.core.publishing.rhythm import SHARE, STEPS_MAX, Rhythm


@pytest.mark.parametrize(
    ("step_s", "made_s", "folded_s", "members", "steps"),
    [
        (0.010, 0.0002, 0.0001, 2, 4),  # a small model: next to nothing
        (0.100, 0.015, 0.009, 2, 8),  # 24 ms of 800
        (0.100, 0.015, 0.009, 4, 14),
        (0.001, 0.500, 0.500, 2, STEPS_MAX),  # it is never put off for ever
        (0.010, 0.0, 0.0, 16, 4),
    ],
)
def test_updates_cost_a_small_part_of_their_steps(
    step_s: float, made_s: float, folded_s: float, members: int, steps: int
) -> None:
    it = Rhythm(4)
    assert it.steps(members) == 4, "nothing is known yet"
    for _ in range(50):
        it.stepped(step_s)
        it.made(made_s)
        it.folded(3 * folded_s, 3)
    assert it.steps(members) == steps
    if 4 < steps < STEPS_MAX:
        assert (made_s + folded_s * (members - 1)) / (steps * step_s) == pytest.approx(
            SHARE, rel=0.1
        )


def test_one_slow_moment_does_not_change_it() -> None:
    it = Rhythm(4)
    for _ in range(50):
        it.stepped(0.01)
        it.made(0.0005)
    it.made(0.01)
    assert it.steps(2) == 4
