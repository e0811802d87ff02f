"""Numbers seen: a set by the bit, in bounded memory."""

from __future__ import annotations

import random

import pytest

from murmurate.core.batches import numbers_seen
from murmurate.core.batches.numbers_seen import PAGE_BITS, NumbersSeen


def test_it_is_a_set() -> None:
    rng = random.Random(0)
    twin, seen = set(), NumbersSeen()
    for _ in range(2000):
        number = rng.randrange(3 * PAGE_BITS)
        assert (number in seen) == (number in twin)
        twin.add(number)
        seen.add(number)
    assert all(number in seen for number in twin)


def test_the_oldest_page_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers_seen, "PAGES_MAX", 2)
    seen = NumbersSeen()
    for number in (0, PAGE_BITS, 2 * PAGE_BITS):
        seen.add(number)
    assert [number in seen for number in (0, PAGE_BITS, 2 * PAGE_BITS)] == [False, True, True]
