"""`murmurate sim --scenario average`: real `Averager`s on a bad network, against a dumb twin.

First a phase with local steps and faults (loss, duplicates, reordering, cuts; by seed also a crash
with restart, a departure in order, or a verdict of death that is wrong), then one without, until
all agree. After every event the promises of `core/averaging.py` are checked against a ledger of
plain totals and plain sets; in the end all must have the mean of what the ledger says remains.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.table import Table

from murmurate.core.averaging import WINDOW, Averager, Merged, Receipt, Share, Stale
from murmurate.core.clock import Clock, Dot
from murmurate.core.topology import neighbours
from murmurate.errors import ConfigError, PromiseBroken
from murmurate.sim.network import Network
from murmurate.sim.options import Faults

PATTERNS = ("neighbours", "pairwise")
"""A turn goes to all neighbours, or to one of them at random (on `full`: to anybody)."""
GRAPHS = ("exponential", "ring", "full")
FATES = ("", "restart", "leave", "restart, leave", "wrong verdict")
SIZE, FAULTS_S, TURN_S, SETTLE_S_MAX = 3, 1.5, 0.1, 60.0
LEAK_MAX, AGREE, ERROR_MAX = 1e-9, 1e-7, 1e-6


class _Lossy(Averager):
    def receive(self, sender: str, share: Share) -> Merged | Stale:
        last = self._received.get(sender)
        if last and last.epoch == share.epoch and share.seq > last.seq + 1:
            part = (share.total - last.total) / (share.seq - last.seq)
            self._received[sender] = replace(last, total=share.total - part)
        return super().receive(sender, share)


class _NoWeights(Averager):
    def estimate(self) -> torch.Tensor:
        return self.held[:-1].clone()


MUTANTS: dict[str, type[Averager]] = {"lossy": _Lossy, "no-weights": _NoWeights}
"""Without running sums: the next share does not bring what was lost. And plain averaging on
directed links: the mass alone is the model. Both must be found."""


@dataclass(slots=True)
class AveragingResult:
    """What one seed came to."""

    seed: int
    nodes: int
    pattern: str
    graph: str
    fate: str
    events: int = 0
    virtual_s: float = 0.0
    merges: int = 0
    staleness_checks: int = 0
    error: float = 0.0
    """In the end, the largest distance of an estimate to the true mean."""
    leak: float = 0.0
    """The largest part of what was put in that ever was missing, or too much."""
    trace_hash: str = ""
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Node:
    """A machine. `basis`: weights, clock and true set its next step is of; a restart finds them."""

    life: int
    averager: Averager
    view: dict[str, int]
    basis: tuple[torch.Tensor, Clock, frozenset[Dot]]
    state: str = "up"


class _Ledger:
    """What really happened, by life; a link is (life of the sender, life of the receiver).

    Lives that are over keep what they held, and their links what is on them. So all of it stays
    what was put in, also when a crash loses mass (more is assigned to a link than was received) or
    makes it count twice (less is).
    """

    def __init__(self, lives: int, result: AveragingResult) -> None:
        self.result = result
        self.put_in, self.volume = np.zeros((2, SIZE + 1))
        self.held = np.zeros((lives, SIZE + 1))
        self.assigned, self.received = np.zeros((2, lives, lives, SIZE + 1))
        self.sent, self.got, self.seen = np.zeros((3, lives, lives), dtype=np.int64)
        self.shares: dict[tuple[int, int, int], tuple[Any, frozenset[Dot]]] = {}
        self.open: dict[tuple[int, str], int] = {}
        self.sets: list[set[Dot]] = []

    def put(self, mass: Any) -> None:
        self.put_in += mass
        self.volume += abs(mass)

    def shared(self, life: int, name: str, to: int, share: Share) -> None:
        if (old := self.open.get((life, name), to)) != to:
            self.settle(life, old)
        self.open[life, name] = to
        if share.seq > self.sent[life, to]:
            self.sent[life, to], self.assigned[life, to] = share.seq, share.total.numpy()
            self.shares[life, to, share.seq] = share.total.numpy(), frozenset(self.sets[life])

    def merged(self, source: int, life: int, share: Share, staleness: int) -> None:
        if share.seq <= self.got[source, life]:
            raise PromiseBroken("mass", f"share {share.seq} was put in after a later one")
        self.got[source, life], self.received[source, life] = share.seq, share.total.numpy()
        theirs = self.shares[source, life, share.seq][1]
        self.stale(life, theirs, staleness)
        self.sets[life] |= theirs
        self.result.merges += 1

    def stale(self, life: int, context: frozenset[Dot], shown: int) -> None:
        self.result.staleness_checks += 1
        if shown != (true := len(context ^ self.sets[life])):
            raise PromiseBroken("P4", f"a staleness is {true}, shown {shown}")

    def settle(self, life: int, to: int, *, in_order: bool = False) -> None:
        """A reclaim: at most what was unconfirmed counts twice; after a last receipt, nothing."""
        seen = self.seen[life, to]
        had, self.assigned[life, to] = (
            self.assigned[life, to, -1],
            self.shares[life, to, seen][0] if seen else 0.0,
        )
        twice = self.received[life, to] - self.assigned[life, to]
        if not 0.0 <= twice[-1] <= had or self.sent[life, to] - seen > WINDOW:
            raise PromiseBroken("departure", f"a weight of {twice[-1]} counts twice, {had} was sent")
        if in_order and twice.any():
            raise PromiseBroken("departure", f"left in order, but {twice} counts twice")

    def check(self, touched: tuple[_Node, ...]) -> None:
        for node in touched:
            self.held[node.life] = node.averager.held.numpy()
            if set(node.averager.clock) != self.sets[node.life]:
                raise PromiseBroken("P4", f"the clock of {node.averager.name} is not its set")
            if not self.held[node.life, -1] > 0.0:
                raise PromiseBroken("mass", f"{node.averager.name} has no weight")
        total = self.held.sum(0) + (self.assigned - self.received).sum((0, 1))
        leak = float((abs(total - self.put_in) / self.volume).max())
        self.result.leak = max(self.result.leak, leak)
        if not leak <= LEAK_MAX:
            raise PromiseBroken("mass", f"{total} is there, {self.put_in} was put in")

    def remains(self, live: list[int]) -> tuple[Any, bool]:
        """What these lives and the links between them have in all; whether the links are empty."""
        links, inside = self.assigned - self.received, np.ix_(live, live)
        empty = not links[inside].any()
        links[inside] = 0.0
        return self.put_in - np.delete(self.held, live, 0).sum(0) - links.sum((0, 1)), empty


class _Swarm:
    """All nodes, the network between them, and one heap of events."""

    def __init__(self, seed: int, nodes: int, pattern: str, kind: type[Averager]) -> None:
        self.rng = rng = random.Random(f"murmurate/average/{seed}/{nodes}/{pattern}")
        fate = rng.choice(FATES if nodes > 2 else FATES[:2])
        self.result = AveragingResult(seed, nodes, pattern, GRAPHS[seed % len(GRAPHS)], fate)
        self.kind, self.time, self.digest = kind, 0.0, hashlib.blake2b(digest_size=8)
        faults = Faults(
            loss=rng.choice((0.0, rng.uniform(0.0, 0.3), 0.3)),
            duplicate=rng.choice((0.0, rng.uniform(0.0, 0.5), 0.5)),
            delay_s=rng.choice((0.002, 0.03, 0.1)),
            reorder_s=rng.choice((0.0, 0.3)),
            late_duplicate_s=rng.choice((0.0, 2.0)),
            one_way=rng.random() < 0.3,
        )
        self.network = Network(faults, rng, self.result.counts)
        self.ledger = _Ledger(nodes + 1, self.result)
        self.lives: dict[tuple[str, int], int] = {}
        self.oldest: dict[tuple[int, str], int] = {}
        self.nodes: dict[str, _Node] = {}
        self.heap: list[tuple[float, int, Callable[..., tuple[_Node, ...]], tuple[Any, ...]]] = []
        names = [f"n{i:02}" for i in range(nodes)]
        for name in names:
            weights = torch.tensor([rng.gauss(0, 10) for _ in range(SIZE)], dtype=torch.float64)
            view = {other: 1 for other in names if other != name}
            self.nodes[name] = self.start(name, 1, view, (weights, Clock(), frozenset()))
            self.at(rng.random() * TURN_S, self.turn, name)
            for _ in range(rng.randrange(7)):
                self.at(rng.random() * FAULTS_S, self.step, name)
        for _ in range(rng.randrange(3)):
            side = set(rng.sample(names, rng.randint(1, nodes - 1)))
            self.at(rng.random() * FAULTS_S, self.cut, side, set(names) - side)
        one, other = rng.sample(names, 2)
        if "restart" in fate:
            self.at(rng.uniform(0.1, 0.6) * FAULTS_S, self.crash, one)
        if "leave" in fate:
            self.at(rng.uniform(0.3, 1.0) * FAULTS_S, self.leave, other)
        if "wrong" in fate:
            self.at(rng.random() * FAULTS_S, self.misjudge, one)

    def at(self, time: float, act: Callable[..., tuple[_Node, ...]], *args: Any) -> None:
        self.result.counts["scheduled"] += 1
        heapq.heappush(self.heap, (time, self.result.counts["scheduled"], act, args))

    def run(self) -> AveragingResult:
        result = self.result
        calm_at = FAULTS_S
        while not (self.network.calm and result.events % 8 == 0 and self.agreed()):
            self.time, _, act, args = heapq.heappop(self.heap)
            if self.time > FAULTS_S:
                self.network.calm_down()
            if self.time > FAULTS_S + SETTLE_S_MAX:
                raise PromiseBroken("mean", f"no agreement {SETTLE_S_MAX} s after the last fault")
