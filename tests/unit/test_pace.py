"""The pace of messages follows what they cost."""

from __future__ import annotations

import math

import pytest

from murmurate.pace import LOOK_S, PACE_S_ALONE, PACE_S_MAX, SHARE, SHARE_MAX, Pace


def looks(pace: Pace, share: float, count: int, *, busy: float = 1.0) -> None:
    """So many looks while communication takes that share of what a process uses of one core."""
    for number in range(1, count + 1):
        now = number * LOOK_S
        assert pace.due(now)
        pace.look(now, share * busy * now, busy * now)
        assert not pace.due(now)
    pace._look_at = pace._mine_s = pace._all_s = 0.0


def test_at_first_nothing_waits() -> None:
    pace = Pace()
    assert (pace.message_s, pace.interval_s) == (0.0, 0.0)
    assert math.isnan(pace.communication)


@pytest.mark.parametrize(("update_s", "longest_s"), [(0.002, PACE_S_MAX), (0.1, PACE_S_ALONE)])
def test_dear_messages_wait_for_company_as_far_as_it_comes(
    update_s: float, longest_s: float
) -> None:
    pace = Pace()
    pace.made(update_s)
    looks(pace, 2 * SHARE, 20)
    assert pace.message_s == longest_s
    assert pace.interval_s == 0.0, "updates are made as before"
    assert pace.communication == pytest.approx(2 * SHARE)
    looks(pace, 0.0, 20)
    assert pace.message_s == 0.0


def test_if_that_does_not_do_updates_are_made_less_often() -> None:
    pace = Pace()
    looks(pace, 2 * SHARE_MAX, 40)
    assert pace.interval_s == 1.0
    looks(pace, 0.0, 60)
    assert pace.interval_s == 0.0


def test_an_idle_processor_has_time_for_messages() -> None:
    pace = Pace()
    looks(pace, 0.9, 10, busy=0.1)
    assert (pace.message_s, pace.interval_s) == (0.0, 0.0)
