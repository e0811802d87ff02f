"""`murmurate sim --scenario average`: real `Averager`s on a bad network, against a dumb twin.

First a phase with steps and faults, by seed also a crash with restart and a departure in order;
then one without, until all agree. After every event the promises of
`core/gossip/average/push_sum.py` are checked against plain totals and plain sets; in the end all
must have the mean of what these say remains.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE
from rich.table import Table

from murmurate.core.clock import Clock, Dot
from murmurate.core.gossip.average.push_sum import (
    Averager,
    IsFar,
    Merged,
    Receipt,
    Share,
    Stale,
    mass,
)
from murmurate.core.topology import neighbours
from murmurate.errors import ConfigError, PromiseBroken
from murmurate.study.sim import mixing
from murmurate.study.sim.events import Events
from murmurate.study.sim.network import Network
from murmurate.study.sim.options import Faults

PATTERNS = ("neighbours", "pairwise")
"""A turn goes to all neighbours, or to one of them at random (on `full`: to anybody)."""
GRAPHS = ("exponential", "ring", "full")
SIZE, FAULTS_S, TURN_S = 3, 1.5, 0.1
SETTLE_S_MAX = 1.0
"""Times nodes squared, as a ring mixes: 0.12 for 20 nodes in a ring, 0.26 in the slowest seed."""
LEAK_MAX, ERROR_MAX = 1e-9, 1e-6
Life = tuple[str, int]
_neighbours = lru_cache(maxsize=1 << 12)(neighbours)


class _Lossy(Averager):
    """Nothing is sent again: the next share takes the place of what was lost."""

    def assign(self, partner: str, epoch: int, part: float) -> Share | None:
        if partner in self.ties:
            self.ties[partner].share = None
        return super().assign(partner, epoch, part)

    def receive(self, sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
        tie = self.ties.get(sender)
        if tie is not None and tie.epoch == share.epoch and share.seq > tie.taken:
            tie.taken = share.seq - 1
        return super().receive(sender, share, is_far)


class _Twice(Averager):
    """The last share is applied twice when it comes twice."""

    def receive(self, sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
        tie = self.ties.get(sender)
        if tie is not None and (tie.epoch, tie.taken) == (share.epoch, share.seq):
            tie.taken -= 1
        return super().receive(sender, share, is_far)


class _NoWeights(Averager):
    """Plain averaging on directed links: every model counts half."""

    def put_in(self, model: torch.Tensor, weight: float, *, unshared: bool = False) -> None:
        self.weight += weight
        self.model = torch.lerp(self.model, model, 0.5)


MUTANTS: dict[str, type[Averager]] = {
    "lossy": _Lossy,
    "no-weights": _NoWeights,
    "share-twice": _Twice,
}


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
    trace_hash: str = ""
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Node:
    """A machine; gone when nobody is left in its view (name -> epoch). `basis`: weights, clock and
    true set that its next step is of, and that a restart finds on its disk."""

    averager: Averager
    view: dict[str, int]
    basis: tuple[torch.Tensor, Clock, frozenset[Dot]]
    life: Life


@dataclass(slots=True)
class _Link:
    """From one life to another: all its shares (the mass up to it, true set), and up to which of
    them it was given and received."""

    shares: list[tuple[Any, frozenset[Dot]]] = field(default_factory=lambda: [(0.0, frozenset())])
    given: int = 0
    received: int = 0

    def mass(self) -> Any:
        """Of what is on its way; for ever, where a life has ended."""
        return self.shares[self.given][0] - self.shares[self.received][0]


class _Swarm:
    """Nodes, a network, one heap of events; and the truth, by life. Lives that are over keep what
    they held, and their links what is on them: all of it together is always what was put in."""

    def __init__(self, result: AveragingResult, kind: type[Averager]) -> None:
        self.result, self.kind = result, kind
        self.look_at = 0
        self.rng = rng = random.Random(f"average/{result.seed}/{result.nodes}/{result.pattern}")
        faults = Faults(
            loss=rng.choice((0.0, rng.uniform(0.0, 0.3), 0.3)),
            duplicate=rng.choice((0.0, rng.uniform(0.0, 0.5), 0.5)),
            delay_s=rng.choice((0.002, 0.03, 0.1)),
            reorder_s=rng.choice((0.0, 0.3)),
            late_duplicate_s=rng.choice((0.0, 2.0)),
            one_way=rng.random() < 0.3,
        )
        self.network = Network(faults, rng, result.counts)
        self.events = Events()
        self.nodes: dict[str, _Node] = {}
        self.put_in = np.zeros(SIZE + 1)
        self.lives: dict[Life, Averager] = {}
        self.sets: dict[Life, set[Dot]] = {}
        self.clocks: defaultdict[str, Clock] = defaultdict(Clock)
        self.links: defaultdict[tuple[Life, Life], _Link] = defaultdict(_Link)
        self.oldest: Counter[tuple[Life, str]] = Counter()
        names = [f"n{i:02}" for i in range(result.nodes)]
        for name in names:
            weights, view = self.vector(), {other: 1 for other in names if other != name}
            node = _Node(kind(weights, name, 0), view, (weights, Clock(), frozenset()), (name, 0))
            self.nodes[name] = node
            self.restart(node)
            self.at(rng.random() * TURN_S, self.turn, node)
            for _ in range(rng.randrange(7)):
                self.at(rng.random() * FAULTS_S, self.step, node)
        for _ in range(rng.randrange(3)):
            side = set(rng.sample(names, rng.randint(1, len(names) - 1)))
            self.at(rng.random() * FAULTS_S, self.network.cut, side, set(names) - side)
        leaver, *others = rng.sample(list(self.nodes.values()), len(names))
        if rng.random() < 0.5:
            self.at(rng.random() * FAULTS_S, self.restart, others[0])
        for other in others if rng.random() < 0.5 else ():
            self.at(rng.uniform(0.7, 1.0) * FAULTS_S, self.part, leaver, other)

    def vector(self) -> torch.Tensor:
        return torch.tensor([self.rng.gauss(0, 1) for _ in range(SIZE)], dtype=torch.float64)

    @property
    def time(self) -> float:
        return self.events.time

    def at(self, time: float, act: Callable[..., object], *args: Any) -> None:
        self.events.at(time, act, *args)

    def run(self) -> None:
        digest = hashlib.blake2b(digest_size=8)
        while not self.agreed():
            if self.events.next_time > FAULTS_S:
                self.network.calm_down()
            act, args = self.events.step()
            digest.update(f"{self.time} {act.__name__}".encode())
            for me in (node.averager for node in args if isinstance(node, _Node)):
                digest.update(me.mass.numpy().tobytes())
                true, last = self.sets[me.name, me.epoch], self.clocks[me.name]
                if len(me.clock) != len(true) or (me.clock != last and set(me.clock) != true):
                    raise PromiseBroken("P4", f"the clock of {me.name} is not its set")
                self.clocks[me.name] = me.clock.copy()
            total = sum(one.mass.numpy() for one in self.lives.values())
            total += sum(k.mass() for k in self.links.values() if k.given != k.received)
            leak = float(abs(total - self.put_in).max() / abs(self.put_in).max())
            if not leak <= LEAK_MAX:
                raise PromiseBroken("mass", f"{total} is there, {self.put_in} was put in")
            self.result.leak = max(self.result.leak, leak)
            self.result.events += 1
        self.result.trace_hash = digest.hexdigest()

    def agreed(self) -> bool:
        """Nothing on the way, same clocks, same weights; then these must be the true mean."""
        if self.time > FAULTS_S + SETTLE_S_MAX * self.result.nodes**2:
            raise PromiseBroken("mean", f"no agreement at {self.time:.1f} s")
        if not self.network.calm or self.result.events < self.look_at:
            return False
        live = [node.averager for node in self.nodes.values() if node.view]
        remains = self.put_in - sum(o.mass.numpy() for o in self.lives.values() if o not in live)
        for (a, b), link in self.links.items():
            if link.given != link.received:
                if self.lives[a] in live and self.lives[b] in live:
                    return False
                remains -= link.mass()
        self.look_at = self.result.events + 2 * len(live)
        models = np.stack([one.model.numpy() for one in live])
        if np.ptp(models, 0).max() > ERROR_MAX or any(o.clock != live[0].clock for o in live):
            return False
        self.result.error = float(abs(models - remains[:-1] / remains[-1]).max())
        if self.result.error > ERROR_MAX:
            raise PromiseBroken("mean", f"they agree {self.result.error} beside it")
        return True

    def restart(self, node: _Node) -> None:
        """A crash: the new life has the weights of the last step. The others learn of it later."""
        weights, clock, dots = node.basis
        node.life = life = node.life[0], node.life[1] + 1
        self.result.counts["restart"] += life[1] > 1
        node.averager = self.lives[life] = self.kind(weights.clone(), *life, clock)
        self.put_in += node.averager.mass.numpy()
        self.sets[life] = set(dots)

    def step(self, node: _Node) -> None:
        me, delta, true = node.averager, self.vector(), self.sets[node.life]
        self.put_in[:-1] += (delta * me.weight).numpy()
        dot, staleness = me.local(delta, node.basis[1])
        self.stale(node.basis[2] ^ true, staleness)
        true.add(dot)
        node.basis = me.model.clone(), me.clock.copy(), frozenset(true)

    def stale(self, difference: frozenset[Dot], shown: int) -> None:
        self.result.staleness_checks += 1
        if shown != len(difference):
            raise PromiseBroken("P4", f"a staleness is {len(difference)}, shown {shown}")

    def turn(self, node: _Node) -> None:
        me, life = node.averager, node.life
        self.at(self.time + TURN_S * self.rng.uniform(0.5, 1.5), self.turn, node)
        waiting = [to for to in me.ties if me.unconfirmed(to) and to in node.view]
        partners = sorted({*self.near(node), *waiting})  # also where the graph leads no more
        if self.result.pattern == "pairwise" and partners:
            partners = [self.rng.choice(partners)]
        for name, share in turn(me, {name: node.view[name] for name in partners}).items():
            link = self.links[life, (name, share.to_epoch)]
            if share.seq == len(link.shares):
                total = link.shares[-1][0] + mass(share.model, share.weight).numpy()
                link.shares.append((total, frozenset(self.sets[life])))
                link.given = share.seq
            self.post(me.name, name, share)

    def near(self, node: _Node) -> tuple[str, ...]:
        return _neighbours(self.result.graph, node.life[0], (node.life[0], *node.view))

    def post(self, sender: str, to: str, message: Share | Receipt) -> None:
        for time in self.network.arrivals(sender, to, self.time):
            self.at(time, self.deliver, self.nodes[to], sender, message)

    def deliver(self, node: _Node, sender: str, message: Share | Receipt) -> None:
        if not node.view:
            return
        me, life, source = node.averager, node.life, (sender, message.epoch)
        valid = message.to_epoch == me.epoch
        if isinstance(message, Share):
            valid = valid and message.epoch >= self.oldest[life, sender]
            outcome = me.receive(sender, message)
            if isinstance(outcome, Merged):
                link = self.links[source, life]
                if not valid or message.seq <= link.received:
                    raise PromiseBroken("lives", f"{life} took {message.seq} of {source}")
                self.oldest[life, sender], link.received = message.epoch, message.seq
                self.stale(link.shares[message.seq][1] ^ self.sets[life], outcome.staleness)
                self.sets[life] |= link.shares[message.seq][1]
                self.result.merges += 1
            self.post(me.name, sender, me.receipt(sender, message.epoch))
        else:
            me.confirm(sender, message)
        if sender in node.view:
            node.view[sender] = max(message.epoch, node.view[sender])

    def part(self, leaver: _Node, other: _Node) -> None:
        """One leaves another: neither gives to the other any more, or waits for it."""
        for a, b in ((leaver, other), (other, leaver)):
            a.averager.let_go(b.life[0])
            del a.view[b.life[0]]
        self.result.counts["departure"] += not leaver.view


def turn(me: Averager, partners: Mapping[str, int]) -> dict[str, Share]:
    """A turn with these partners (name -> epoch): equal parts for those who have confirmed their
    last share, the last one again for the others."""
    ties = {name: me.ties.get(name) for name in partners}
    new = {
        name for name, tie in ties.items() if not tie or tie.epoch < partners[name] or not tie.share
    }
    shares = {}
    for name, epoch in sorted(partners.items()):
        share = me.assign(name, epoch, 1.0 / (len(new) + 1))
        new.discard(name)
        if share is not None:
            shares[name] = share
    return shares


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
    """What `murmurate sim` prints: for each pattern the same seeds, with 3 to 7 nodes; then the
    real peers."""
    heads = ("pattern", "seeds", "events", "merges", "checks", "lost", "twice", "error", "leak")
    table = Table(*heads, title="gossip of weights", box=SIMPLE, collapse_padding=True)
    table.caption = "checks of staleness; messages lost and twice; the worst final error and leak"
    for pattern in PATTERNS:
        runs = [run(s, nodes=3 + s // 3 % 5, pattern=pattern) for s in range(seed, seed + seeds)]
        sums = Counter[str]()
        for one in runs:
            sums.update(one.counts)
            sums.update(events=one.events, merges=one.merges, checks=one.staleness_checks)
        lost, twice = sums["lost"] + sums["cut off"], sums["duplicated"] + sums["late duplicate"]
        figures = (seeds, sums["events"], sums["merges"], sums["checks"], lost, twice)
        worst = max(one.error for one in runs), max(one.leak for one in runs)
        table.add_row(pattern, *(f"{n:,}" for n in figures), *(f"{x:.1e}" for x in worst))
    table.add_row(*mixing.figures(range(seed, seed + seeds)))
    return table
