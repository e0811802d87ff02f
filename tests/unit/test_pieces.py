"""`core/gossip/pieces.py`: what no checkpoint separates is kept as one sum, and a swarm of which
every node falls back to a checkpoint of its own, old or new, loses nothing that one of them has."""

from __future__ import annotations

import random

import pytest
from tests.unit.test_awaited import Nodes
from tests.unit.test_peer import weights

from murmurate.core.clock import Dot
from murmurate.core.effect import Adopted
from murmurate.core.gossip.past import Past
from murmurate.core.message import Snapshot

KEPT = 3


class Powered(Nodes):
    """Three checkpoints of each are kept, and they are written when a test says so."""

    def __init__(self, names: str) -> None:
        super().__init__(KEPT)
        for name in names:
            if name != "a":
                self.start(name, seeds="a")
        self.run(0.5)

    def checkpoint(self, *names: str) -> None:
        if names:
            super().checkpoint(*names)

    def trains(self, seconds: float, rng: random.Random) -> None:
        for _ in range(round(seconds / 0.1)):
            for name in list(self.peers):
                if rng.random() < 0.7:
                    self.publish(name)
            self.run(0.1)

    def power_comes_back(self, rng: random.Random, fallback: int) -> set[Dot]:
        """Each falls back by up to so many files; what all their checkpoints have together."""
        there: set[Dot] = set()
        for name in list(self.peers):
            self.crash(name)
            files = self.files[name]
            newest = rng.randrange(min(fallback, len(files) - 1) + 1)
            del files[len(files) - newest :]
            there.update(files[-1][0].clock)
        self.wire.clear()
        for name in self.files:
            self.start(name, seeds=[other for other in self.files if other != name])
        return there

    def pushes(self, name: str) -> int:
        return len(self[name].log) + len(self[name].store)

    def assert_lost_nothing_of(self, there: set[Dot]) -> None:
        self.run(20.0)
        clocks = [peer.clock for peer in self.peers.values()]
        assert all(clock == clocks[0] for clock in clocks)
        assert not any(effect.given_up for effect in self.effects(Adopted))
        history = self["a"].baseline
        lost = [dot for dot in there if dot not in clocks[0] and not history.folded(dot)]
        assert not lost
        for peer in self.peers.values():
            assert peer.replica.weights.tolist() == self["a"].replica.weights.tolist()


def test_what_is_kept_does_not_grow_with_the_time_between_checkpoints() -> None:
    """Four lives of 500 updates each since the oldest checkpoint: a handful of sums are kept."""
    nodes, rng = Powered("abcd"), random.Random(1)
    kept: list[int] = []
    for _ in range(KEPT + 1):
        for name in "abcd":
            nodes.checkpoint(name)
            nodes.trains(2.0, rng)
    for _ in range(5):
        nodes.trains(20.0, rng)
        kept.append(max(nodes.pushes(name) for name in "abcd"))
    pieces = 4 * (4 * KEPT + 1)
    assert max(kept) < 2 * pieces, "a quarter more, and those that are under way"
    updates = sum(nodes[name].log.updates for name in "abcd")
    assert updates > 10 * max(kept), "they are all there"
    nodes.run(2.0)
    nodes.assert_converged()


@pytest.mark.parametrize("seed", range(12))
def test_power_is_lost_and_each_falls_back_to_another_file(seed: int) -> None:
    nodes, rng = Powered("abc" if seed % 3 else "abcde"), random.Random(seed)
    names = list(nodes.peers)
    nodes.checkpoint(*names)
    for _ in range(rng.randrange(8, 30)):
        if rng.random() < 0.7:
            nodes.checkpoint(rng.choice(names))
        nodes.trains(rng.choice((0.1, 0.3, 1.0, 2.0)), rng)
        if rng.random() < 0.2:  # some of it is lost on its way
            nodes.lost = lambda *_: rng.random() < 0.3
        else:
            nodes.heal()
    nodes.heal()
    there = nodes.power_comes_back(rng, fallback=KEPT - 1)
    nodes.assert_lost_nothing_of(there)


def test_a_checkpoint_that_is_being_written_separates_too() -> None:
    """Its clock is older than what its node told the others meanwhile."""
    nodes, rng = Powered("abc"), random.Random(3)
    nodes.checkpoint(*"abc")
    nodes.trains(1.0, rng)
    b = nodes["b"]
    snapshot, account = b.snapshot(), b.account(nodes.now)
    nodes.trains(3.0, rng)
    for name in "abc":
        nodes.checkpoint(name) if name != "b" else None
        for push in (*nodes[name].log, *nodes[name].store):
            inside = sum(dot in snapshot.clock for dot in push.dots)
            assert inside in (0, len(push.dots)), (name, push.dots)
    file: tuple[Snapshot, Past] = (snapshot, Past(log=account.log, store=account.store))
    nodes.files["b"].append(file)
    b.checkpointed(snapshot.clock, kept=2)
    there = nodes.power_comes_back(rng, fallback=0)
    nodes.assert_lost_nothing_of(there)


def test_a_sum_stands_in_the_place_of_the_newest_in_it() -> None:
    """The oldest are the first to go, where the store is full."""
    nodes, rng = Powered("abc"), random.Random(4)
    nodes.checkpoint(*"abc")
    nodes.trains(3.0, rng)
    for name in "abc":
        for kept in (nodes[name].log, nodes[name].store):
            newest: dict[str, int] = {}
            for push in kept:
                last: Dot = push.dots[-1]
                assert newest.get(last.origin, 0) < last.seq
                newest[last.origin] = last.seq
                total = sum((weights(dot)[0] for dot in push.dots), 0)
                assert int(push.payload[0]) == total
            assert kept.nbytes == sum(push.nbytes for push in kept)
