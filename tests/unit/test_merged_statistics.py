"""What is published of running statistics: against a twin that adds everything up from the start,
and what it comes to after joins, deaths, delays and wrong beliefs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from murmurate.core.publishing.statistics import LOOP, PULL, MergedStatistics

ALL = slice(None)


@dataclass
class Sent:
    at: int
    by: int
    change: torch.Tensor


@dataclass
class Net:
    """Nodes with a replica each. An update of another is there `delay` rounds later."""

    nodes: int
    size: int = 3
    delay: int = 0
    mixed: bool = False
    sent: list[Sent] = field(default_factory=list)
    believed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = torch.ones(self.size, dtype=torch.float64)
        self.variances = torch.zeros(self.size, dtype=torch.bool)
        self.peers = {i: self._peer() for i in range(self.nodes)}
        self.now = 0
        self._with_all, self._there = self.first.clone(), 0
        """What is with all of them, and of how many updates."""

    def _peer(self) -> MergedStatistics:
        return MergedStatistics(self.first.clone(), self.variances, mixed=self.mixed)

    def seen(self, by: int) -> list[Sent]:
        return [s for s in self.sent if s.by == by or s.at + self.delay <= self.now]

    def merged(self, by: int) -> torch.Tensor:
        while self._there < len(self.sent) and self.sent[self._there].at + self.delay <= self.now:
            self._with_all += self.sent[self._there].change
            self._there += 1
        out = self._with_all.clone()
        for each in self.sent[self._there :]:
            if each.by == by:
                out += each.change
        return out

    def publish(self, by: int) -> torch.Tensor:
        peer = self.peers[by]
        for _ in range(len(self.peers) - 1):
            peer.heard(2.0 * self.delay + 1.0)
        members = self.believed.get(by, len(self.peers))
        change = peer.update(self.merged(by), ALL, members)
        peer.published(ALL)
        self.sent.append(Sent(self.now, by, change))
        return change

    def round(self) -> None:
        self.now += 1
        for by in list(self.peers):
            self.publish(by)

    def join(self, by: int) -> None:
        self.peers[by] = self._peer()
        self.peers[by].adopt(self.merged(0))

    def mean(self) -> torch.Tensor:
        return torch.stack([peer.own for peer in self.peers.values()]).mean(0)

    def off(self) -> float:
        """How far the swarm's are from the mean of the own ones."""
        return float((self.merged(0) - self.mean()).abs().max())


@pytest.mark.parametrize("seed", range(8))
def test_it_publishes_what_a_twin_makes_of_the_whole_history(seed: int) -> None:
    rng = random.Random(seed)
    net = Net(nodes=rng.randint(2, 5), delay=rng.randint(0, 3))
    own: dict[int, list[list[float]]] = {by: [[1.0] * net.size] for by in net.peers}
    for _ in range(20):
        net.now += 1
        for by, peer in net.peers.items():
            for _ in range(rng.randint(0, 3)):
                peer.own += torch.tensor([rng.gauss(0.0, 1.0) for _ in range(net.size)])
            before, now = own[by][-1], peer.own.tolist()
            own[by].append(now)
            there = [
                1.0 + sum(float(s.change[k]) for s in net.sent if s in net.seen(by))
                for k in range(net.size)
            ]
            pull = min(PULL, LOOP / (2.0 + 2.0 * net.delay))
            wanted = [
                (n - b + pull * (n - w)) / len(net.peers)
                for n, b, w in zip(now, before, there, strict=True)
            ]
            assert net.publish(by).tolist() == pytest.approx(wanted, abs=1e-9)


def _wander(net: Net, rng: random.Random, rounds: int, to: float = 5.0) -> None:
    """The own ones run to a value, as running averages do, each with noise of its own."""
    for _ in range(rounds):
        for peer in net.peers.values():
            noise = torch.tensor([rng.gauss(0.0, 0.1) for _ in range(net.size)])
            peer.own += 0.3 * (to + noise - peer.own)
        net.round()


@pytest.mark.parametrize(("delay", "off"), [(0, 0.1), (4, 0.2), (100, 0.5)])
@pytest.mark.parametrize("nodes", [2, 16])
def test_the_swarms_are_the_mean_of_the_own_ones(nodes: int, delay: int, off: float) -> None:
    """The way is of 4. Where it takes 100 rounds, pulling at what is on its way anyhow adds a
    tenth, which is mended like everything else."""
    net = Net(nodes=nodes, delay=delay)
    _wander(net, random.Random(0), 40)
    for _ in range(delay):  # what is on its way arrives
        net.round()
    assert net.off() < off


def test_a_long_way_makes_the_pull_weaker_and_nothing_swings() -> None:
    """At a pull of 0.05 whatever the way, this swings ever further."""
    net = Net(nodes=4, delay=60)
    for by, peer in net.peers.items():
        peer.own += float(by)
        peer.published(ALL)  # lost: nobody was told
    for _ in range(900):
        net.round()
        assert net.off() <= 1.6, "it begins with 1.5"
    assert net.off() < 0.2


def test_what_joins_deaths_and_wrong_beliefs_leave_behind_is_mended() -> None:
    rng = random.Random(1)
    net = Net(nodes=3)
    net.believed = {1: 1, 2: 9}
    _wander(net, rng, 20)
    net.believed = {}
    net.join(3)
    _wander(net, rng, 5, to=-2.0)
    del net.peers[1]
    net.join(4)
    _wander(net, rng, 100, to=7.0)
    assert net.off() < 0.1


def test_alone_the_swarms_are_the_own_ones() -> None:
    net = Net(nodes=1)
    _wander(net, random.Random(2), 3)
    assert net.off() < 1e-12
    net.peers[0].alone = True
    net.peers[0].own += 1.0
    assert net.peers[0].shown(net.merged(0)).equal(net.peers[0].own)


def test_where_weights_are_mixed_each_gives_all_of_its_change() -> None:
    net = Net(nodes=4, mixed=True)
    net.peers[0].own += 1.0
    assert net.publish(0).tolist() == pytest.approx([1.0 + PULL] * 3)


def test_a_part_at_a_time() -> None:
    net = Net(nodes=2, size=5)
    peer = net.peers[0]
    peer.own += torch.arange(5)
    parts = []
    for place in (slice(0, 2), slice(2, 5)):
        parts.append(peer.update(net.merged(0), place, 2))
        peer.published(place)
        assert not peer.update(peer.own, place, 2).any()
    net.peers[1].own += torch.arange(5)
    torch.testing.assert_close(torch.cat(parts), net.peers[1].update(net.merged(1), ALL, 2))


def test_frozen_ones_publish_nothing() -> None:
    net = Net(nodes=3)
    net.round()
    assert not any(sent.change.any() for sent in net.sent)


def test_a_variance_is_never_below_zero_for_who_looks() -> None:
    peer = MergedStatistics(torch.tensor([2.0, 2.0, 2.0]), torch.tensor([False, True, True]))
    merged = torch.tensor([-1.0, -1.0, 0.5])
    assert peer.shown(merged).tolist() == [-1.0, 2.0, 0.5]
    assert peer.update(merged, ALL, 2).tolist() == pytest.approx([0.075, 0.075, 0.0375])


def test_numbers_that_are_none_are_not_kept() -> None:
    own = torch.tensor([float("nan"), float("inf"), 3.0])
    peer = MergedStatistics(own, torch.zeros(3, dtype=torch.bool))
    peer.mend(torch.tensor([1.0, 2.0, 9.0]))
    assert peer.own.tolist() == [1.0, 2.0, 3.0]
