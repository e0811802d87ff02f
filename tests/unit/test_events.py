"""`study/sim/events.py`: virtual time."""

from __future__ import annotations

import math

import pytest

from murmurate.study.sim.events import Events


def test_what_happens_at_the_same_instant_happens_in_the_order_it_was_asked_for() -> None:
    events, seen = Events(), list[str]()
    for name, time in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        events.at(time, seen.append, name)
    assert not events.run_until(2.0)
    assert seen == ["a", "b", "c"]


def test_what_is_asked_for_in_the_past_happens_now() -> None:
    events, seen = Events(5.0), list[float]()
    events.at(1.0, lambda: seen.append(events.time))
    events.step()
    assert seen == [5.0]


def test_time_goes_on_to_the_end_though_nothing_happens_there() -> None:
    events = Events()
    events.after(3.0, lambda: None)
    events.run_until(2.0)
    assert (events.time, len(events), events.next_time) == (2.0, 1, 3.0)
    events.run_until(4.0)
    assert (events.time, len(events), events.next_time) == (4.0, 0, math.inf)


@pytest.mark.parametrize(("look_every", "stops_at"), [(1, 3), (4, 4)])
def test_it_stops_after_the_event_with_which_it_is_done(look_every: int, stops_at: int) -> None:
    events, seen = Events(), list[int]()
    for number in range(1, 9):
        events.at(number, seen.append, number)
    assert events.run_until(10.0, lambda: len(seen) >= 3, look_every=look_every)
    assert events.time == stops_at


def test_who_waits_can_be_looked_at() -> None:
    events = Events()
    events.at(1.0, print, "a", "b")
    events.at(2.0, print, "c")
    assert sorted(events.pending()) == [("a", "b"), ("c",)]
