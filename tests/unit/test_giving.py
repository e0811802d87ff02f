"""Giving snapshots: one copy for several, kept for who broke off, never too many."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
import torch

from murmurate.core.clock import Clock
from murmurate.core.message import Generation, Snapshot
from murmurate.edge.net.transport import Transport
from murmurate.edge.runtime.snapshot_giver import ALONE_S, GIFTS_MAX, KEEP_S, SHARE_S, Giving

LIVE = ("a", "b", "c", "d")


class Giver:
    """A giver without a network: `sent` is what went out, `at` the time."""

    def __init__(self, size: int = 8) -> None:
        self.at = 0.0
        self.sent: list[tuple[str, Snapshot]] = []
        self.made = 0
        self.whole = True
        self.blocked: set[str] = set()
        self.weights = torch.zeros(size)
        self.giving = Giving(
            cast("Transport", self),
            self.weights,
            make=self._make,
            carry=self._carry,
            do=self._do,
            now=lambda: self.at,
        )

    def free(self, to: str) -> bool:
        return to not in self.blocked

    def _make(self) -> Snapshot | None:
        self.made += 1
        self.weights += 1.0
        if not self.whole:
            return None
        return Snapshot(self.weights.clone(), Clock(), (Generation(0, ("g",)),))

    def _carry(self, to: str, snapshot: Snapshot) -> bool:
        self.sent.append((to, snapshot))
        return True

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def asked(self, *names: str) -> None:
        for name in names:
            self.giving.asked(name)

    @property
    def to(self) -> list[str]:
        return [to for to, _ in self.sent]


@pytest.mark.parametrize("size", [8, 1 << 20])
def test_it_goes_out_as_it_was_made(size: int) -> None:
    giver = Giver(size)
    giver.asked("a")
    ((to, snapshot),) = giver.sent
    assert to == "a"
    assert torch.equal(snapshot.weights, giver.weights)


def test_who_asks_within_a_second_gets_the_same() -> None:
    giver = Giver()
    giver.asked("a", "b")
    giver.at = SHARE_S + 0.1
    giver.asked("c")
    assert giver.to == ["a", "b", "c"]
    assert giver.sent[0][1] is giver.sent[1][1] is not giver.sent[2][1]
    assert giver.made == 2


def test_a_large_one_is_let_go_of_as_soon_as_nobody_waits_for_it() -> None:
    giver = Giver(1 << 20)
    giver.asked("a", "b")
    giver.giving.landed("a")
    giver.asked("c")
    assert giver.made == 1, "it is still under way to b"
    giver.giving.landed("b")
    giver.giving.landed("c")
    giver.asked("d")
    assert giver.made == 2


def test_one_at_a_time_however_often_it_is_asked() -> None:
    giver = Giver()
    giver.asked("a", "a", "a")
    assert giver.to == ["a"]
    giver.giving.landed("a")
    giver.asked("a")
    assert giver.to == ["a", "a"]


def test_what_broke_off_goes_on_with_the_same() -> None:
    giver = Giver()
    giver.asked("a")
    giver.giving.lost("a")
    giver.at = 10.0
    giver.giving.sweep(LIVE)
    assert giver.to == ["a"], "it has not asked again"
    giver.asked("a")
    assert giver.to == ["a", "a"]
    assert giver.sent[0][1] is giver.sent[1][1]


def test_who_asks_again_before_its_link_is_back_is_not_forgotten() -> None:
    giver = Giver()
    giver.asked("a", "a")
    giver.giving.sweep(LIVE)
    assert giver.to == ["a"]
    giver.giving.lost("a")
    giver.blocked = {"a"}
    giver.giving.sweep(LIVE)
    assert giver.to == ["a"]
    giver.blocked = set()
    giver.giving.sweep(LIVE)
    assert giver.to == ["a", "a"]
    giver.giving.sweep(LIVE)
    assert giver.to == ["a", "a"]


@pytest.mark.parametrize("gone", [False, True])
def test_it_is_not_kept_for_ever(gone: bool) -> None:
    giver = Giver()
    giver.asked("a")
    giver.giving.lost("a")
    giver.at = SHARE_S if gone else KEEP_S
    giver.giving.sweep(("b",) if gone else LIVE)
    giver.asked("a")
    assert giver.made == 2


def test_memory_for_them_is_bounded() -> None:
    giver = Giver()
    for number in range(6):
        giver.at = 2.0 * number
        giver.giving.sweep(LIVE)
        giver.asked(f"n{number}")
    assert giver.made == len(giver.sent) == GIFTS_MAX
    giver.giving.landed("n0")
    giver.giving.sweep(LIVE)
    giver.asked("n5")
    assert giver.to == ["n0", "n1", "n5"]


def test_nothing_to_give() -> None:
    giver = Giver()
    giver.whole = False
    giver.asked("a")
    assert giver.sent == []
    giver.whole = True
    giver.asked("a")
    assert giver.to == ["a"]


def test_it_is_busy_until_it_is_there_but_not_for_long() -> None:
    giver = Giver(1 << 20)
    assert not giver.giving.busy()
    giver.asked("a")
    assert giver.giving.busy()
    giver.giving.landed("a")
    assert not giver.giving.busy()
    giver.asked("b")
    giver.at += ALONE_S
    assert not giver.giving.busy(), "a slow link must not keep updates for ever"
