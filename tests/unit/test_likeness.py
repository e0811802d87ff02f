"""Whether the others move as I do: gains that are made up, with the rule's own momentum in them."""

from __future__ import annotations

import math

import pytest
import torch

from murmurate.core.figures.latch import Latch
from murmurate.core.publishing import likeness as subject
from murmurate.core.publishing.likeness import Likeness

SIZE = 600
BETA = 0.8


class MadeUpSwarm:
    """n nodes that publish in turn, by rule `shared`; node 0 is watched. A gain is what all have in
    common, what is a node's own, and noise."""

    def __init__(
        self, seed: int, *, n: int = 5, common: float, own: float, noise: float, turn: float = 0.0
    ) -> None:
        """`turn`: by how much the common direction changes with each round."""
        self._rng = torch.Generator().manual_seed(seed)
        self._n, self._noise, self._turn, self._size = n, noise, turn, common
        self._common = self._random()
        ways = [self._random() for _ in range(n)]
        middle = torch.stack(ways).mean(0)
        self._own = [own * (way - middle) for way in ways]
        self._momentum = torch.zeros(SIZE)
        self.weights = torch.zeros(SIZE)
        self.likeness = Likeness(SIZE)

    def _random(self) -> torch.Tensor:
        return torch.randn(SIZE, generator=self._rng) / math.sqrt(SIZE)

    def round(self) -> bool:
        if self._turn:
            self._common += self._turn * self._random()
            self._common /= self._common.norm()
        measured = False
        for node in range(self._n):
            gain = self._size * self._common + self._own[node] + self._noise * self._random()
            update = (1.0 - BETA) / self._n * gain + BETA * self._momentum
            if node == 0:
                self.likeness.gained(gain)
                self.likeness.arrived(self.weights)
            self._momentum += (update - self._momentum) / self._n
            self.weights += update
            if node == 0:
                measured = self.likeness.published(self.weights)
        return measured


def told(swarm: MadeUpSwarm, rounds: int = 120) -> set[str]:
    """What was said at any time."""
    said = set()
    for _ in range(rounds):
        swarm.round()
        for what in ("unlike", "alike", "timid"):
            if getattr(swarm.likeness, what):
                said.add(what)
    return said


@pytest.mark.parametrize("n", [2, 5, 16])
@pytest.mark.parametrize("noise", [0.0, 1.0, 5.0])
def test_data_of_different_kinds_is_seen_for_what_it_is(n: int, noise: float) -> None:
    for seed in range(3):
        swarm = MadeUpSwarm(seed, n=n, common=0.3, own=3.0, noise=noise, turn=0.5)
        assert told(swarm) == {"unlike"}, (seed, swarm.likeness.own.mean)
        assert swarm.likeness.own.mean > 0 > swarm.likeness.others.mean


@pytest.mark.parametrize("n", [2, 5, 16])
@pytest.mark.parametrize(("common", "noise"), [(1.0, 1.0), (1.0, 5.0), (0.1, 5.0), (0.0, 1.0)])
def test_like_data_is_never_taken_for_different(n: int, common: float, noise: float) -> None:
    for seed in range(4):
        swarm = MadeUpSwarm(seed, n=n, common=common, own=0.0, noise=noise, turn=0.3)
        assert "unlike" not in told(swarm), seed


def test_like_data_is_seen_where_there_is_more_than_noise() -> None:
    for seed in range(5):
        assert told(MadeUpSwarm(seed, common=1.0, own=0.0, noise=1.0, turn=0.1)) == {"alike"}
        assert told(MadeUpSwarm(seed, common=0.0, own=0.0, noise=1.0)) == set()


def test_who_goes_straight_on_could_take_longer_steps() -> None:
    assert told(MadeUpSwarm(0, common=1.0, own=0.0, noise=0.1), 60) == {"alike"}
    swarm = MadeUpSwarm(0, common=1.0, own=0.0, noise=0.1)
    assert told(swarm) == {"alike", "timid"}
    swarm._turn = 5.0
    told(swarm, 120)
    assert not swarm.likeness.timid


def test_nothing_is_said_of_few_publications() -> None:
    swarm = MadeUpSwarm(0, common=0.3, own=3.0, noise=0.0)
    assert told(swarm, subject.EVIDENCE + subject.IN_A_ROW - 2) == set()


def test_a_change_of_data_ends_it() -> None:
    swarm = MadeUpSwarm(0, common=0.3, own=3.0, noise=1.0)
    told(swarm)
    assert swarm.likeness.unlike
    swarm._own = [torch.zeros(SIZE)] * 5
    told(swarm)
    assert not swarm.likeness.unlike


def test_what_cannot_be_compared_is_left_out() -> None:
    """Alone, after a snapshot, after a step that was taken back, and with a gain that is none."""
    it = Likeness(SIZE)
    weights, gain = torch.zeros(SIZE), torch.ones(SIZE)
    assert not it.published(weights), "no gain was told: another rule, or alone"
    for number in range(3):  # nobody else adds anything
        it.gained(gain)
        it.arrived(weights)
        weights += 1.0
        assert not it.published(weights), number
    it.gained(gain)
    it.forget()
    it.arrived(weights + 100.0)
    assert not it.published(weights)
    it.gained(gain)
    it.arrived(weights)  # and it could not be used
    it.gained(gain)
    it.arrived(weights + 5.0)
    assert not it.published(weights), "since when is not known"
    for bad in (torch.zeros(SIZE), torch.full((SIZE,), math.nan)):
        it.gained(bad)
        it.arrived(weights)
        assert not it.published(weights)
    assert it.own.count == 0


@pytest.mark.parametrize("size", [1, 100, 8192, 8193, 50_890, 1_000_000])
def test_it_looks_at_few_numbers_wherever_they_are(size: int) -> None:
    stride = subject._stride(size)
    assert -(-size // stride) <= subject.COORDINATES_MAX
    assert stride == 1 or all(stride % width for width in (10, 28, 64, 84, 120, 784))
    it = Likeness(size, slice(size // 2, size))
    it.gained(torch.arange(float(size)))
    assert it._gain is not None
    assert float(it._gain[0]) == size // 2, "only in its own part"


def test_a_latch_turns_after_several_looks() -> None:
    latch = Latch(3)
    seen = [latch.look(begins=b, ends=False) for b in (True, True, False, True, True)]
    assert not any(seen)
    assert latch.look(begins=True, ends=False)
    assert all(latch.look(begins=False, ends=e) for e in (True, True, False, True, True))
    assert not latch.look(begins=True, ends=True)
