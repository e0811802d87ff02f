"""Links of a known width: when a message has left, when it is there, and whose turn it is."""

from __future__ import annotations

import random

import pytest

from murmurate.study.sim.network import Steady
from murmurate.study.virtual.links import VirtualLinks


def links(bytes_s: float | None, delay_s: float = 0.0, **widths: float) -> VirtualLinks:
    return VirtualLinks(Steady(delay_s, {}), bytes_s, widths)


def test_one_after_another_on_the_senders_link() -> None:
    it = links(100.0, delay_s=0.5)
    assert it.send("a", "b", 200, 1.0) == (3.0, 3.5)
    assert it.send("a", "c", 100, 1.0) == (4.0, 4.5)
    assert not it.free("a", "c", 3.9)
    assert it.free("a", "c", 4.0)
    assert it.free("a", "d", 1.0), "it would leave behind the others"


def test_one_after_another_on_the_receivers_link() -> None:
    it = links(100.0)
    assert it.send("a", "c", 100, 0.0) == (1.0, 1.0)
    assert it.send("b", "c", 100, 0.0) == (1.0, 2.0)


def test_a_wide_sender_serves_others_while_a_narrow_receiver_takes_its_time() -> None:
    it = links(None, b=10.0)
    assert it.send("a", "b", 100, 0.0) == (0.0, 10.0)
    assert not it.free("a", "b", 9.9)
    assert it.free("a", "c", 0.0)
    assert it.send("a", "c", 100, 0.0) == (0.0, 0.0)


def test_a_narrow_sender_leaves_its_receiver_room_for_others() -> None:
    it = links(None, b=10.0)
    assert it.send("b", "a", 100, 0.0) == (10.0, 10.0)
    assert it.send("c", "a", 100, 1.0) == (1.0, 1.0)


def test_what_is_small_does_not_wait_for_what_is_large() -> None:
    it = links(10.0, delay_s=0.5)
    it.send("a", "b", 100, 0.0)
    assert it.send("a", "b", 0, 1.0) == (1.0, 1.5)
    assert it.send("c", "b", 10, 2.0) == (3.0, 11.5)


def test_without_a_width_there_is_the_delay_alone() -> None:
    it = links(None, delay_s=0.25)
    assert not it.narrow
    assert it.send("a", "b", 10**12, 1.0) == (1.0, 1.25)


@pytest.mark.parametrize("seed", range(20))
def test_no_link_ever_carries_more_than_its_width(seed: int) -> None:
    """Over any stretch that ends with an arrival, out and in."""
    rng = random.Random(seed)
    widths = {name: rng.uniform(10, 100) for name in "abcd"}
    it = links(None, delay_s=rng.random(), **widths)
    now = 0.0
    sent: dict[str, list[tuple[float, float, int]]] = {name: [] for name in "abcd"}
    came: dict[str, list[tuple[float, float, int]]] = {name: [] for name in "abcd"}
    for _ in range(60):
        now += rng.expovariate(1.0)
        source, target = rng.sample("abcd", 2)
        nbytes = rng.randrange(1, 200)
        left, there = it.send(source, target, nbytes, now)
        assert left >= now + nbytes / widths[source] * (1 - 1e-9)
        assert there >= left
        sent[source].append((now, left, nbytes))
        came[target].append((now, there, nbytes))
    for kept in (sent, came):
        for name, messages in kept.items():
            for begin, _, _ in messages:
                after = [each for each in messages if each[0] >= begin]
                bound = begin + sum(nbytes for _, _, nbytes in after) / widths[name]
                assert max(end for _, end, _ in after) >= bound * (1 - 1e-9)
