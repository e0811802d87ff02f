"""The pure parts of bench/time_to_accuracy.py: the link it measures over, what it calls reached."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
SIZE = 1000


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its folder is no package of the project: it is imported as its scripts import it."""
    monkeypatch.syspath_prepend(str(BENCH))
    names = {"switch": "Switch", "judge": "at_end reached", "conductor": "steps_in"}
    yield SimpleNamespace(
        **{
            name: getattr(importlib.import_module(f"race.{module}"), name)
            for module, words in names.items()
            for name in words.split()
        }
    )
    for name in [name for name in sys.modules if name.partition(".")[0] in ("race", "report")]:
        del sys.modules[name]


def packet(to: str, number: int = 0) -> bytes:
    head = bytearray(20)
    head[0] = 0x45
    head[16:20] = bytes(map(int, to.split(".")))
    return bytes(head) + number.to_bytes(2, "big").ljust(SIZE - 20, b"-")


def test_a_packet_takes_the_delay_and_its_time_on_the_cable(race: Any) -> None:
    switch = race.Switch(ADDRESSES, 0.02, SIZE * 100)
    switch.enter(packet("10.0.0.2"), 1.0)
    assert switch.due == pytest.approx(1.03)
    assert switch.leave(1.029) == []
    assert [port for port, _ in switch.leave(1.0301)] == [1]
    assert switch.due is None


def test_packets_to_one_peer_follow_each_other_others_do_not_wait(race: Any) -> None:
    switch = race.Switch(ADDRESSES, 0.02, SIZE * 100)
    for number in range(3):
        switch.enter(packet("10.0.0.2", number), 0.0)
    switch.enter(packet("10.0.0.3", 9), 0.0)
    out = [(at, port) for at in (0.0301, 0.0401, 0.0501) for port, _ in switch.leave(at)]
    assert out == [(0.0301, 1), (0.0301, 2), (0.0401, 1), (0.0501, 1)]


def test_what_finds_the_queue_full_is_lost_as_on_a_real_one(race: Any) -> None:
    switch = race.Switch(ADDRESSES, 0.0, SIZE * 100)
    for number in range(50):
        switch.enter(packet("10.0.0.1", number), 0.0)
    assert 10 <= len(switch.leave(10.0)) <= 12  # a tenth of a second of 100 packets a second
    assert switch.dropped >= 38


def test_what_is_for_nobody_goes_nowhere(race: Any) -> None:
    switch = race.Switch(ADDRESSES, 0.0, 1e6)
    switch.enter(packet("224.0.0.1"), 0.0)
    switch.enter(bytes([0x60]) + bytes(60), 0.0)
    assert switch.leave(9.0) == []


def test_reached_is_a_mean_of_three_points_between_which_lines_are_straight(race: Any) -> None:
    curve = [(float(t), 0.1 * t) for t in range(11)]
    assert race.reached(curve, 0.45) == pytest.approx(5.5)  # the mean is that of a second before
    assert race.reached(curve, 0.95) is None
    assert race.reached([(0.0, 0.0), (1.0, 0.9), (2.0, 0.0), (3.0, 0.0)], 0.5) is None


def test_the_end_is_the_mean_of_the_last_tenth(race: Any) -> None:
    curve = [(2.0 * n, 0.0 if n < 18 else 0.3 * (n - 17)) for n in range(21)]
    assert race.at_end(curve) == pytest.approx((0.3 + 0.6 + 0.9) / 3)


def test_steps_of_a_life_that_was_restarted_add_up(race: Any) -> None:
    lines = [json.dumps({"steps": steps}) for steps in (0, 10, 20, 0, 5)]
    assert race.steps_in("\n".join(lines) + "\n" + '{"steps"') == 25
