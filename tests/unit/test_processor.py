"""A thread that sleeps is told from one that stands in line for the processor."""

from __future__ import annotations

import math
import sys
import threading
import time

import pytest

from murmurate.edge.runtime.thread_load import IDLE, Demand, wanted_s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts it on Linux")
LOOK_S = 0.2


def test_one_that_works_and_one_that_sleeps() -> None:
    demand = Demand()
    assert not demand.idle(time.monotonic()), "nothing is known yet"
    demand.thread = threading.get_native_id()
    assert not demand.idle(time.monotonic())
    until = time.monotonic() + LOOK_S
    while time.monotonic() < until:
        pass
    assert not demand.idle(time.monotonic())
    time.sleep(LOOK_S)
    assert demand.idle(time.monotonic()), f"it slept, wants less than {IDLE:.0%}"


def test_of_a_thread_that_is_not_there_nothing_is_known() -> None:
    assert math.isnan(wanted_s(2**30))
    demand = Demand()
    demand.thread = 2**30
    assert not demand.idle(1.0)
    assert not demand.idle(2.0)
