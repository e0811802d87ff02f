"""Whom to ask for a snapshot, and when somebody else."""

from __future__ import annotations

import random

from murmurate.core.gossip.snapshot_request import Asking

LIVE = ("a", "b", "c", "me")
OTHERS = ["a", "b", "c"]
WAIT_S = 2.0


def asking() -> tuple[Asking, random.Random]:
    return Asking(WAIT_S), random.Random(0)


def test_one_is_asked_and_has_a_while_to_begin() -> None:
    it, rng = asking()
    giver = it.whom(OTHERS, LIVE, 0.0, rng)
    assert giver in OTHERS
    assert it.whom(OTHERS, LIVE, WAIT_S - 0.1, rng) is None
    assert it.whom(OTHERS, LIVE, WAIT_S, rng) not in (giver, None)


def test_nobody_else_is_asked_while_it_comes() -> None:
    it, rng = asking()
    giver = it.whom(OTHERS, LIVE, 0.0, rng)
    assert giver is not None
    it.began(giver)
    for now in (1.0, 10.0, 1000.0):
        assert it.whom(OTHERS, LIVE, now, rng) is None
    assert it.wants(giver)
    assert not any(it.wants(name) for name in OTHERS if name != giver)
    it.came(giver)
    assert it.whom(OTHERS, LIVE, 1000.0, rng) is not None


def test_when_the_giver_is_gone_another_is_asked_at_once() -> None:
    it, rng = asking()
    giver = it.whom(OTHERS, LIVE, 0.0, rng)
    assert giver is not None
    it.began(giver)
    left = [name for name in OTHERS if name != giver]
    another = it.whom(left, left, 0.1, rng)
    assert another in left
    assert it.whom(left, left, 0.2, rng) is None, "it has a while, too"
    it.broke(giver, again=True)
    assert it.whom(left, left, 0.3, rng) is None, "of the one before nothing is expected"


def test_the_same_giver_goes_on_after_its_link_broke() -> None:
    it, rng = asking()
    for _ in range(20):
        giver = it.whom(OTHERS, LIVE, 0.0, rng)
        assert giver is not None
        it.began(giver)
        it.broke(giver, again=True)
        assert it.whom(OTHERS, LIVE, 0.0, rng) == giver
        assert it.whom(OTHERS, LIVE, WAIT_S, rng) not in (giver, None), "once"
        it = Asking(WAIT_S)


def test_who_gave_nonsense_is_not_asked_again_if_there_is_another() -> None:
    it, rng = asking()
    giver = it.whom(OTHERS, LIVE, 0.0, rng)
    assert giver is not None
    it.began(giver)
    it.broke(giver, again=False)
    assert it.whom(OTHERS, LIVE, 0.0, rng) not in (giver, None)
    alone, rng = asking()
    assert alone.whom(["a"], LIVE, 0.0, rng) == "a"
    alone.began("a")
    alone.broke("a", again=False)
    assert alone.whom(["a"], LIVE, 0.0, rng) == "a"


def test_one_that_comes_late_after_all_is_taken() -> None:
    it, rng = asking()
    first = it.whom(OTHERS, LIVE, 0.0, rng)
    second = it.whom(OTHERS, LIVE, WAIT_S, rng)
    assert first is not None
    assert second is not None
    it.began(first)
    assert not it.wants(second)
    assert it.whom(OTHERS, LIVE, 100.0, rng) is None


def test_nobody_is_there() -> None:
    it, rng = asking()
    assert it.whom([], ("me",), 0.0, rng) is None


def test_one_that_was_asked_for_may_be_on_its_way_until_it_is_here() -> None:
    it, rng = asking()
    assert not it.awaits(LIVE, 0.0)
    giver = it.whom(OTHERS, LIVE, 0.0, rng)
    assert giver is not None
    assert it.awaits(LIVE, WAIT_S - 0.1)
    assert not it.awaits(LIVE, WAIT_S), "nothing came"
    assert not it.comes(LIVE)
    it.began(giver)
    assert it.comes(LIVE)
    assert it.awaits(LIVE, 1000.0)
    assert not it.awaits([name for name in LIVE if name != giver], 1000.0)
    it.came(giver)
    assert not it.comes(LIVE)
    assert not it.awaits(LIVE, 0.1), "though nobody else is asked so soon"


def test_after_one_that_never_came_the_next_must_begin_first() -> None:
    """Whoever has me ask and gives nothing must not make me wait again and again."""
    it, rng = asking()
    it.whom(OTHERS, LIVE, 0.0, rng)
    it.whom(OTHERS, LIVE, WAIT_S, rng)
    assert not it.awaits(LIVE, WAIT_S)
    giver = it.whom(OTHERS, LIVE, 2 * WAIT_S, rng)
    assert giver is not None
    assert not it.awaits(LIVE, 2 * WAIT_S)
    it.began(giver)
    assert it.awaits(LIVE, 3 * WAIT_S)
    it.came(giver)
    it.whom(OTHERS, LIVE, 10 * WAIT_S, rng)
    assert it.awaits(LIVE, 10 * WAIT_S)
