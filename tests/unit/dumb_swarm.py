"""A swarm in plain time, to hold predictions of staleness against. Its clocks are counts of each
origin's updates, which links that keep their order make exact.

Nodes never wait and fold arrivals in between steps. Each has a real `Outlook`, told what a node
would tell it. Nodes may stand still now and then, as processes do on a busy machine: then they
neither make nor receive.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

from murmurate.core.figures.progress import Progress
from murmurate.core.figures.staleness_forecast import Outlook
from murmurate.watch.report import History, Json, Sample

Dot = tuple[int, int]
Clock = list[int]


def _after(pauses: list[tuple[float, float]], at: float) -> float:
    """The end of the pause in which this time lies, if it does."""
    return next((end for start, end in pauses if start <= at < end), at)


@dataclass
class Node:
    step_s: float
    wrong_s: float = 0.0
    """Its wall clock."""
    clock: Clock = field(default_factory=list)
    begun: list[tuple[float, Clock]] = field(default_factory=list)
    """When its last steps were begun, and on what: as many as there are parts, the oldest first."""
    inbox: list[tuple[float, Dot, Clock]] = field(default_factory=list)
    coming: list[tuple[float, Dot]] = field(default_factory=list)
    """Arrivals its outlook does not know of yet."""
    made: int = 0
    applied: int = 0
    stale: int = 0
    spent_s: float = 0.0
    ends: float = 0.0
    sampled: float = 0.0
    told: float = 0.0
    frozen: list[tuple[float, float]] = field(default_factory=list)
    outlook: Outlook = field(default_factory=lambda: Outlook(random.Random(0)))
    history: History = field(default_factory=History)
    live: list[tuple[float, float]] = field(default_factory=list)
    """What it held to be measured and predicted, now and then."""

    def thawed(self, at: float) -> float:
        """When it gets to what happens at this time."""
        return _after(self.frozen, at)

    def fold(self, dot: Dot, context: Clock) -> None:
        self.stale += sum(abs(a - b) for a, b in zip(context, self.clock, strict=True))
        origin, seq = dot
        assert self.clock[origin] == seq - 1
        self.clock[origin] = seq
        self.applied += 1

    @property
    def row(self) -> Json:
        delay, overtaken = self.outlook.delays_so_far
        return {
            "updates_published": self.made,
            "updates_applied": self.applied,
            "delay_updates": delay,
            "overtaken_updates": overtaken,
        }


class Swarm:
    def __init__(
        self,
        steps_s: list[float],
        delay_s: float,
        *,
        span_s: float = 20.0,
        dies: dict[int, float] | None = None,
        unequal_s: dict[tuple[int, int], float] | None = None,
        wrong_s: list[float] | None = None,
        jitter: float = 0.0,
        freezes: tuple[float, float] | None = None,
        stalls: tuple[float, float] | None = None,
        parts: int = 1,
        seed: int = 2,
    ) -> None:
        """`jitter`: delays are exponential around so much of themselves. `freezes`: so often a
        second each node stands still, for so long on average; `stalls`: the same of each link.
        `parts`: of its model each node publishes one in a step, in turn."""
        self.delay_s, self.unequal_s, self.jitter = delay_s, unequal_s or {}, jitter
        self.span_s, self.dies = span_s, dies or {}
        self.rng = random.Random(seed)
        self.nodes = [Node(step_s) for step_s in steps_s]
        for node, wrong in zip(self.nodes, wrong_s or [0.0] * len(steps_s), strict=True):
            node.wrong_s, node.ends = wrong, self.rng.uniform(0, node.step_s)
            node.clock = [0] * len(steps_s)
            node.begun = [(0.0, list(node.clock))] * parts
            node.frozen = self._pauses(freezes)
        pairs = itertools.permutations(range(len(steps_s)), 2)
        self.stalled = {pair: self._pauses(stalls) for pair in pairs}
        self.last: dict[tuple[int, int], float] = {}
        """Arrivals of one link keep their order."""
        while (first := min(self.nodes, key=lambda node: node.ends)).ends < span_s:
            self._step(self.nodes.index(first), first)

    def _pauses(self, often: tuple[float, float] | None) -> list[tuple[float, float]]:
        pauses: list[tuple[float, float]] = []
        at = 0.0
        while often is not None and at < self.span_s:
            at += self.rng.expovariate(often[0])
            pauses.append((at, at := at + self.rng.expovariate(1 / often[1])))
        return pauses

    def _step(self, number: int, node: Node) -> None:
        now, dies = node.ends, self.dies.get(number, self.span_s)
        node.made += 1
        started, context = node.begun.pop(0)
        node.spent_s += now - started
        dot = (number, node.made)
        node.outlook.make(now + node.wrong_s)
        for other, peer in enumerate(self.nodes):
            if peer is not node and now < self.dies.get(other, self.span_s):
                self._send(number, other, now, dot, context)
        node.fold(dot, context)
        node.inbox.sort(key=lambda item: item[0])
        while node.inbox and node.inbox[0][0] <= now:
            _, coming, its_context = node.inbox.pop(0)
            node.fold(coming, its_context)
        node.begun.append((now, list(node.clock)))
        self._account(number, node, now)
        node.ends = node.thawed(now + node.step_s * self.rng.uniform(0.7, 1.3))
        if node.ends >= dies:
            node.ends = self.span_s + 1

    def _send(self, here: int, there: int, now: float, dot: Dot, context: Clock) -> None:
        delay_s = self.unequal_s.get((here, there), self.delay_s)
        if self.jitter:
            delay_s *= 1 - self.jitter + self.rng.expovariate(1 / self.jitter)
        came = _after(self.stalled[here, there], now + delay_s)
        came = max(self.nodes[there].thawed(came), self.last.get((here, there), 0.0))
        self.last[here, there] = came
        self.nodes[there].inbox.append((came, dot, context))
        self.nodes[there].coming.append((came, dot))

    def _account(self, number: int, node: Node, now: float) -> None:
        if now >= node.sampled:
            node.sampled = (now // 0.25 + 1) * 0.25
            node.history.add(
                Sample(at=now, published=node.made, applied=node.applied, compute_s=node.spent_s)
            )
        if now < node.told:
            return
        node.told = now + 0.5
        node.outlook.count(now, node.made, node.spent_s, node.applied, node.stale)
        node.live.append((node.outlook.staleness(), node.outlook.predicted()))
        word = Progress(
            name=str(number),
            epoch=1,
            version=node.made,
            published=node.made,
            last=node.made,
            step_s=node.spent_s / node.made,
            at=now + node.wrong_s,
            fastest_delay_s=node.outlook.fastest_s(now),
            later_updates=node.outlook.later_updates(now),
            made_at=node.outlook.made_at,
        )
        for peer in self.nodes:
            if peer is not node:
                for came, (origin, seq) in [each for each in peer.coming if each[0] <= now]:
                    peer.outlook.arrive(str(origin), 1, seq, came + peer.wrong_s)
                peer.coming = [each for each in peer.coming if each[0] > now]
                peer.outlook.hear(word, now)

    @property
    def staleness(self) -> float:
        """The true mean over all applications."""
        return sum(node.stale for node in self.nodes) / sum(node.applied for node in self.nodes)

    @property
    def histories(self) -> dict[str, History]:
        return {f"node-{number}": node.history for number, node in enumerate(self.nodes)}

    @property
    def rows(self) -> dict[str, Json]:
        return {f"node-{number}": node.row for number, node in enumerate(self.nodes)}
