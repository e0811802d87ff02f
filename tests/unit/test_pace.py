"""The pace of messages follows what they cost."""

from __future__ import annotations

import math

import pytest

from murmurate.edge.runtime.pace import (
    COMPANY,
    INTERVAL_S_MAX,
    LOOK_S,
    PACE_S_ENCODED,
    PACE_S_FIRST,
    PACE_S_LONGEST,
    PACE_S_MAX,
    SHARE,
    SHARE_MAX,
    Pace,
)


def looks(
    pace: Pace,
    share: float,
    count: int,
    *,
    update_s: float = 0.01,
    peers: int = 1,
    idle: bool = False,
) -> None:
    """So many looks while communication takes that share, and an update is made between them."""
    for number in range(1, count + 1):
        now = number * LOOK_S
        pace.made(update_s)
        assert pace.due(now)
        pace.look(now, share * now, now, peers=peers, idle=idle)
        assert not pace.due(now)
    pace._look_at = pace._mine_s = pace._all_s = 0.0


def test_at_first_messages_wait_a_little() -> None:
    pace = Pace()
    assert (pace.message_s, pace.interval_s) == (PACE_S_FIRST, 0.0)
    assert math.isnan(pace.communication)
    looks(pace, 0.0, 10)
    assert pace.message_s == 0.0


@pytest.mark.parametrize(
    ("update_s", "longest_s"),
    [(0.002, PACE_S_MAX), (0.02, COMPANY * 0.02), (0.4, PACE_S_LONGEST)],
)
def test_dear_messages_wait_for_company_as_far_as_it_comes(
    update_s: float, longest_s: float
) -> None:
    pace = Pace()
    looks(pace, 2 * SHARE, 20, update_s=update_s)
    assert pace.message_s == pytest.approx(longest_s)
    assert pace.interval_s == 0.0, "updates are made as before"
    assert pace.communication == pytest.approx(2 * SHARE)
    looks(pace, 0.0, 20)
    assert pace.message_s == 0.0


def test_if_that_does_not_do_updates_are_made_less_often_but_not_for_ever() -> None:
    pace = Pace()
    looks(pace, 2 * SHARE_MAX, 1)
    assert pace.interval_s == 0.0, "messages wait first"
    looks(pace, 2 * SHARE_MAX, 40, peers=7)
    assert pace.interval_s == pytest.approx(7 * INTERVAL_S_MAX)
    looks(pace, 0.0, 60)
    assert pace.interval_s == 0.0


def test_what_takes_nothing_from_training_does_not_wait() -> None:
    pace = Pace()
    looks(pace, 0.9, 1, idle=True)
    assert (pace.message_s, pace.interval_s) == (0.0, 0.0)


def test_after_a_pause_it_is_as_at_first() -> None:
    pace = Pace()
    looks(pace, 0.0, 10)
    pace.look(3.0, 0.0, 1.0)
    assert pace.message_s == PACE_S_FIRST


def test_encoded_steps_do_not_wait_longer_the_longer_they_waited() -> None:
    """What waits is added up into one update: a pace that followed its time would never stop."""
    pace = Pace(encoded=True)
    assert pace.message_s <= PACE_S_ENCODED
    looks(pace, 3 * SHARE, 40, update_s=0.001)
    assert pace.message_s == pytest.approx(PACE_S_ENCODED)
    looks(pace, 3 * SHARE, 40, update_s=0.01)
    assert pace.message_s == pytest.approx(COMPANY * 0.01, rel=0.03)
