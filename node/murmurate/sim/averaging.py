"""`murmurate sim --scenario average`: real `Averager`s on a bad network, against a dumb twin.

First a phase with steps and faults, by seed also a crash with restart and a departure in order;
then one without, until all agree. After every event the promises of `core/averaging.py` are checked
against plain totals and plain sets; in the end all must have the mean of what these say remains.
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
from murmurate.sim.options import Options, draw

PATTERNS = ("neighbours", "pairwise")
"""A turn goes to all neighbours, or to one of them at random (on `full`: to anybody)."""
GRAPHS = ("exponential", "ring", "full")
SIZE, FAULTS_S, TURN_S, SETTLE_S_MAX = 3, 1.5, 0.1, 60.0
LEAK_MAX, ERROR_MAX = 1e-9, 1e-6


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
"""No running sums: the next share does not bring what was lost. Plain averaging on directed links:
the mass alone is the model. Both must be found."""


@dataclass(slots=True)
class AveragingResult:
    """What one seed came to. `leak`: the largest part ever missing of what was put in."""

    seed: int
    nodes: int
    pattern: str
    graph: str
    events: int = 0
    merges: int = 0
    staleness_checks: int = 0
    error: float = 0.0
    leak: float = 0.0
    settle_s: float = 0.0
    trace_hash: str = ""
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Node:
    """A machine; gone when nobody is left in its view (name -> epoch). `basis`: weights, clock and
    true set that its next step is of, and that a restart finds on its disk."""

    averager: Averager
    life: int
    view: dict[str, int]
    basis: tuple[torch.Tensor, Clock, frozenset[Dot]]


class _Truth:
    """What really happened, by life; a link is (life of the sender, life of the receiver).

    Lives that are over keep what they held, and their links what is on them. So all of it stays
    what was put in, also when a crash loses mass (a link was assigned more than was received) or
    makes it count twice (less).
    """

    def __init__(self, lives: int, result: AveragingResult) -> None:
        self.result = result
        self.put_in, self.held = np.zeros(SIZE + 1), np.zeros((lives, SIZE + 1))
        self.assigned, self.received = np.zeros((2, lives, lives, SIZE + 1))
        self.sent, self.got, self.seen = np.zeros((3, lives, lives), dtype=np.int64)
        self.shares: dict[tuple[int, int, int], tuple[Any, frozenset[Dot]]] = {}
        self.sets: list[set[Dot]] = []

    def shared(self, life: int, to: int, share: Share) -> None:
        if share.seq > self.sent[life, to]:
            self.sent[life, to], self.assigned[life, to] = share.seq, share.total.numpy()
            self.shares[life, to, share.seq] = share.total.numpy(), frozenset(self.sets[life])

    def merged(self, source: int, life: int, share: Share, staleness: int) -> None:
        if share.seq <= self.got[source, life]:
            raise PromiseBroken("mass", f"share {share.seq} was put in after a later one")
        self.got[source, life], self.received[source, life] = share.seq, share.total.numpy()
        self.stale(life, self.shares[source, life, share.seq][1], staleness)
        self.sets[life] |= self.shares[source, life, share.seq][1]
        self.result.merges += 1

    def stale(self, life: int, context: frozenset[Dot], shown: int) -> None:
        self.result.staleness_checks += 1
        if shown != (true := len(context ^ self.sets[life])):
            raise PromiseBroken("P4", f"a staleness is {true}, shown {shown}")

    def reclaimed(self, life: int, to: int, *, in_order: bool) -> None:
        """At most the unconfirmed shares count twice; after a last receipt nothing does."""
        seen, got, sent = self.seen[life, to], self.got[life, to], self.sent[life, to]
        self.assigned[life, to] = self.shares[life, to, seen][0] if seen else 0.0
        if not seen <= got <= sent <= seen + WINDOW or (in_order and seen != got):
            raise PromiseBroken("departure", f"{seen} shares confirmed, {got} there, {sent} sent")

    def check(self, touched: list[_Node]) -> None:
        for node in touched:
            self.held[node.life], clock = node.averager.held.numpy(), node.averager.clock
            true = self.sets[node.life]
            if len(clock) != len(true) or not all(dot in clock for dot in true):
                raise PromiseBroken("P4", f"the clock of {node.averager.name} is not its set")
        total = self.held.sum(0) + (self.assigned - self.received).sum((0, 1))
        leak = float(abs(total - self.put_in).max() / abs(self.put_in).max())
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

    def __init__(self, result: AveragingResult, kind: type[Averager]) -> None:
        self.result, self.kind, self.time, self.look_at = result, kind, 0.0, 0
        self.rng = rng = random.Random(f"average/{result.seed}/{result.nodes}/{result.pattern}")
        self.network = Network(draw(rng, Options()).faults, rng, result.counts)
        self.truth = _Truth(result.nodes + 1, result)
        self.lives: dict[tuple[str, int], int] = {}
        self.open: dict[tuple[int, str], int] = {}
        self.newest: Counter[tuple[int, str]] = Counter()
        self.heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        names = [f"n{i:02}" for i in range(result.nodes)]
        self.nodes = {name: self.start(name, names) for name in names}
        for node in self.nodes.values():
            self.at(rng.random() * TURN_S, self.turn, node)
            for _ in range(rng.randrange(7)):
                self.at(rng.random() * FAULTS_S, self.step, node)
        for _ in range(rng.randrange(3)):
            side = set(rng.sample(names, rng.randint(1, len(names) - 1)))
            self.at(rng.random() * FAULTS_S, self.network.cut, side, set(names) - side)
        leaver, *others = rng.sample(list(self.nodes.values()), len(names))
        if rng.random() < 0.5:
            self.at(rng.random() * FAULTS_S, self.restart, others[0])
        if rng.random() < 0.5:
            start = rng.uniform(0.2, 0.8) * FAULTS_S
            for other in others:
                self.at(start + rng.random() * 0.2 * FAULTS_S, self.part, leaver, other)

    def start(self, name: str, names: list[str]) -> _Node:
        weights = torch.tensor([self.rng.gauss(0, 10) for _ in range(SIZE)], dtype=torch.float64)
        node = _Node(
            self.kind(weights, name, 0), 0, dict.fromkeys(names, 1), (weights, Clock(), frozenset())
        )
        del node.view[name]
        self.restart(node)
        return node

    def restart(self, node: _Node) -> None:
        """A crash: the new life has the weights of the last step. The others learn of it later."""
        weights, clock, dots = node.basis
        name, epoch = node.averager.name, node.averager.epoch + 1
        node.averager = self.kind(weights, name, epoch, clock)
        node.life = self.lives[name, epoch] = len(self.truth.sets)
        self.truth.sets.append(set(dots))
        self.truth.put_in += node.averager.held.numpy()
        self.truth.held[node.life] = node.averager.held.numpy()

    def at(self, time: float, act: Callable[..., object], *args: Any) -> None:
        self.result.counts["scheduled"] += 1
        heapq.heappush(self.heap, (time, self.result.counts["scheduled"], act, args))

    def run(self) -> None:
        digest = hashlib.blake2b(digest_size=8)
        while not self.agreed():
            self.time, _, act, args = heapq.heappop(self.heap)
            if self.time > FAULTS_S:
                self.network.calm_down()
            act(*args)
            touched = [node for node in args if isinstance(node, _Node)]
            self.truth.check(touched)
            digest.update(f"{self.time} {act.__name__}".encode())
            for node in touched:
                digest.update(node.averager.held.numpy().tobytes())
            self.result.events += 1
        self.result.settle_s = self.time - FAULTS_S
        self.result.trace_hash = digest.hexdigest()

    def agreed(self) -> bool:
        """Nothing on the way, same clocks, same weights; then these must be the true mean."""
        if not self.network.calm or self.result.events < self.look_at:
            return False
        live = [node for node in self.nodes.values() if node.view]
        remains, quiet = self.truth.remains([node.life for node in live])
        late = self.time > FAULTS_S + SETTLE_S_MAX
        if not quiet and not late:
            return False
        self.look_at = self.result.events + 2 * len(live)
        models = np.stack([node.averager.estimate().numpy() for node in live])
        same = all(node.averager.clock == live[0].averager.clock for node in live)
        if not late and not (same and np.ptp(models, 0).max() < ERROR_MAX):
            return False
        self.result.error = float(abs(models - remains[:-1] / remains[-1]).max())
        if late or self.result.error > ERROR_MAX:
            raise PromiseBroken("mean", f"{self.result.error} beside it, same clocks: {same}")
        return True

    def turn(self, node: _Node) -> None:
        me = node.averager
        self.at(self.time + TURN_S * self.rng.uniform(0.5, 1.5), self.turn, node)
        waiting = [to for to, weight in me.unseen().items() if weight and to in node.view]
        partners = sorted({*self.near(node), *waiting})  # also where the graph leads no more
        if self.result.pattern == "pairwise" and partners:
            partners = [self.rng.choice(partners)]
        for name in partners:
            to = self.lives[name, node.view[name]]
            if (old := self.open.get((node.life, name), to)) != to:
                self.truth.reclaimed(node.life, old, in_order=False)
            self.open[node.life, name] = to
        for name, share in me.share({name: node.view[name] for name in partners}).items():
            self.truth.shared(node.life, self.open[node.life, name], share)
            self.post(me.name, name, share)

    def near(self, node: _Node) -> tuple[str, ...]:
        name = node.averager.name
        return neighbours(self.result.graph, name, [name, *node.view])

    def post(self, sender: str, to: str, message: Share | Receipt) -> None:
        for time in self.network.arrivals(sender, to, self.time):
            self.at(time, self.deliver, self.nodes[to], sender, message)

    def deliver(self, node: _Node, sender: str, message: Share | Receipt) -> None:
        if not node.view:
            return
        me, life, source = node.averager, node.life, self.lives[sender, message.epoch]
        valid = message.to_epoch == me.epoch
        if isinstance(message, Receipt):
            me.confirm(sender, message)
        else:
            outcome = me.receive(sender, message)
            valid = valid and source >= self.newest[life, sender]
            if isinstance(outcome, Merged):
                if not valid:
                    raise PromiseBroken("lives", f"{me.name} took a share of another life")
                self.newest[life, sender] = source
                self.truth.merged(source, life, message, outcome.staleness)
            if sender not in self.near(node):  # no shares go back
                self.post(me.name, sender, me.receipt(sender, message.epoch))
        if valid:
            seen = message.seq if isinstance(message, Receipt) else message.seen
            self.truth.seen[life, source] = max(seen, self.truth.seen[life, source])
        if sender in node.view:
            node.view[sender] = max(message.epoch, node.view[sender])

    def step(self, node: _Node) -> None:
        delta = torch.tensor([self.rng.gauss(0, 1) for _ in range(SIZE)], dtype=torch.float64)
        weight, true = float(node.averager.held[-1]), self.truth.sets[node.life]
        dot, staleness = node.averager.local(delta, node.basis[1])
        self.truth.stale(node.life, node.basis[2], staleness)
        self.truth.put_in[:-1] += delta.numpy() * weight
        true.add(dot)
        node.basis = node.averager.estimate(), node.averager.clock.copy(), frozenset(true)

    def part(self, leaver: _Node, other: _Node) -> None:
        """Leaving in order: last receipts both ways, then each takes back the rest and forgets."""
        pairs = ((leaver, other), (other, leaver))
        for a, b in pairs:
            receipt = b.averager.receipt(a.averager.name, a.averager.epoch)
            a.averager.confirm(b.averager.name, receipt)
            self.truth.seen[a.life, b.life] = receipt.seq
        for a, b in pairs:
            name = b.averager.name
            a.averager.reclaim(name)
            a.averager.forget(name, b.averager.epoch)
            if (to := self.open.get((a.life, name))) is not None:
                self.truth.reclaimed(a.life, to, in_order=to == b.life)
            self.newest[a.life, name] = b.life + 1
            del a.view[name]


def run(
    seed: int, *, nodes: int = 8, pattern: str = "neighbours", kind: type[Averager] = Averager
) -> AveragingResult:
    """One seed; `PromiseBroken` when anything does not hold. `kind`: `Averager` or a mutant."""
    if nodes < 3 or pattern not in PATTERNS:
        raise ConfigError(f"{nodes} nodes, pattern {pattern!r}: from 3 on; {', '.join(PATTERNS)}")
    result = AveragingResult(seed, nodes, pattern, GRAPHS[seed % len(GRAPHS)])
    try:
        _Swarm(result, kind).run()
    except PromiseBroken as broken:
        where = f"seed {seed}, {nodes} nodes, {pattern} on {result.graph}, event {result.events}"
        raise PromiseBroken(broken.promise, f"{broken.detail} ({where})") from broken
    return result


def report(seed: int = 0, seeds: int = 100) -> Table:
    """What `murmurate sim` prints: for each pattern the same seeds, with 3 to 9 nodes."""
    heads = ("pattern", "seeds", "events", "merges", "staleness checks", "lost", "duplicated")
    table = Table(*heads, "worst final error", "worst leak", title="gossip of weights")
    for pattern in PATTERNS:
        runs = [run(s, nodes=3 + s % 7, pattern=pattern) for s in range(seed, seed + seeds)]
        sums = Counter[str]()
        for one in runs:
            sums.update(one.counts)
            sums.update(events=one.events, merges=one.merges, checks=one.staleness_checks)
        lost, twice = sums["lost"] + sums["cut off"], sums["duplicated"] + sums["late duplicate"]
        figures = (seeds, sums["events"], sums["merges"], sums["checks"], lost, twice)
        worst = max(one.error for one in runs), max(one.leak for one in runs)
        table.add_row(pattern, *(f"{n:,}" for n in figures), *(f"{x:.1e}" for x in worst))
    return table
