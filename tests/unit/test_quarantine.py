"""Three strikes in a minute, then silence that doubles."""

from __future__ import annotations

from murmurate.edge.net.quarantine import RECORDS_MAX, Quarantine
from murmurate.edge.net.transport import Limits


def test_three_strikes_in_a_minute() -> None:
    quarantine = Quarantine(Limits())
    assert [quarantine.strike("x", now) for now in (0.0, 1.0, 2.0)] == [False, False, True]
    assert quarantine.left_s("x", 12.0) == 50.0
    assert quarantine.left_s("y", 12.0) == 0.0
    assert quarantine.left_s("x", 62.0) == 0.0


def test_three_strikes_in_two_minutes_are_forgiven() -> None:
    quarantine = Quarantine(Limits())
    assert not any(quarantine.strike("x", now) for now in (0.0, 50.0, 100.0, 150.0, 200.0))


def test_it_doubles_up_to_an_hour_and_starts_again_after_one_in_peace() -> None:
    quarantine = Quarantine(Limits())
    now, sentences = 0.0, []
    for _ in range(8):
        while not quarantine.strike("x", now):
            pass
        sentences.append(quarantine.left_s("x", now))
        now += sentences[-1] + 1.0
    assert sentences == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    now += 3600.0
    while not quarantine.strike("x", now):
        pass
    assert quarantine.left_s("x", now) == 60.0


def test_it_remembers_a_bounded_number() -> None:
    quarantine = Quarantine(Limits(strikes=1))
    for i in range(RECORDS_MAX + 1):
        quarantine.strike(f"x{i}", 0.0)
    assert quarantine.left_s("x0", 1.0) == 0.0
    assert quarantine.left_s("x1", 1.0) > 0.0
