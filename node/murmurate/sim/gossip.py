"""Gossip in virtual time: the production core trains a real workload, n peers in one process.

Each peer has a model, an optimizer and data of its own, as a process has. What is simulated is
time (a step takes 1 / speed) and the network. Arrivals are folded between two steps, as the
training thread of a node does it. Peers begin at random phases, by the rng seed, which decides
everything else too.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from murmurate.core.clock import Clock
from murmurate.core.effect import Applied, Deliver, Drop, Effect, Rejoin, Send, Verdict
from murmurate.core.layout import Layout
from murmurate.core.message import Generation, Part, Push
from murmurate.core.mixing import MixingPeer
from murmurate.core.peer import Peer, PeerConfig
from murmurate.core.replica import Replica
from murmurate.errors import ConfigError, PromiseBroken
from murmurate.sim.events import Events
from murmurate.sim.task import Encodes, Figures, Task
from murmurate.workloads import Share, parse_split

RULES = {"sum": Peer, "average": MixingPeer}
TICK_S = 0.1
BUFFER_BYTES = 64 << 20
SETTLE_TICKS = 2000
"""So long the last updates have to arrive everywhere."""


@dataclass(slots=True, eq=False)
class _Node:
    peer: Peer | MixingPeer
    model: nn.Module
    layout: Layout
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    batches: Iterator[tuple[torch.Tensor, ...]]
    figures: Figures
    step_s: float
    encoder: Encodes | None = None
    context: Clock | None = None
    gained: torch.Tensor | None = None
    """By steps that are not published yet (`since`: how many), and what encoding has left out."""
    since: int = 0
    inbox: list[Deliver] = field(default_factory=list)


class GossipWorld:
    """All peers of one run. Implements `task.Engine`."""

    def __init__(self, task: Task) -> None:
        if task.rule not in RULES:
            raise ConfigError(f"rule {task.rule!r}: expected one of {', '.join(RULES)}")
        if task.encoders and task.rule != "sum":
            raise ConfigError(f"codec: rule {task.rule!r} exchanges weights as they are")
        self.task = task
        self.events = Events()
        self.network = task.network()
        self.every = task.every or 1
        self.batch_size = task.workload.batch_size
        self.training = True
        self._said: list[str] = []
        fastest = max(task.speed(name) for name in task.names)
        longest = max([task.delay_s, *task.delays_s.values()])
        # The protocol's own intervals (probes, digests) suit a local network. Where links or steps
        # are slower, a peer's clock is: so many virtual seconds are one of its own.
        self.tempo = max(1.0, 10 * longest, 5 / fastest)
        torch.manual_seed(task.seed)
        first = task.workload.model()
        self.nodes = {
            name: self._node(number, name, first) for number, name in enumerate(task.names)
        }
        for name, node in self.nodes.items():
            rng = random.Random(f"phase/{task.seed}/{name}")
            others = [other for other in self.nodes if other != name]
            self._carry_out(node, node.peer.join(others, 0.0))
            self.events.at(rng.random() * TICK_S * self.tempo, self._tick, node)
            self.events.at(rng.random() * node.step_s, self._begin, node)

    def _node(self, number: int, name: str, first: nn.Module) -> _Node:
        task = self.task
        model = copy.deepcopy(first)
        layout, parameters = Layout.of(model)
        peer = RULES[task.rule](
            name,
            1,
            Replica(layout.gather(parameters).clone()),
            rng=random.Random(f"peer/{task.seed}/{name}"),
            config=self._config(layout.nbytes),
            history=(Generation(0, tuple(sorted(task.names))),),
        )
        share = Share(
            index=number,
            count=task.nodes,
            split=parse_split(task.split),
            seed=task.seed,
            batch_size=self.batch_size,
        )
        batches = task.workload.batches(share)
        optimizer = task.workload.optimizer(model)
        step_s = 1.0 / task.speed(name)
        make = task.encoders.get(name)
        return _Node(
            peer,
            model,
            layout,
            parameters,
            optimizer,
            batches,
            Figures(name),
            step_s,
            make(layout.size) if make is not None else None,
        )

    def _config(self, nbytes: int) -> PeerConfig:
        return PeerConfig(
            topology=self.task.topology,
            log_bytes_max=max(BUFFER_BYTES, nbytes),
            # All peers are in this process: what one keeps of another's is the same memory.
            store_bytes_max=BUFFER_BYTES // 2,
            prune_applied=True,
        )

    @property
    def now(self) -> float:
        """As peers know it."""
        return self.events.time / self.tempo

    # -- a peer's own events -----------------------------------------------------------------------

    def _begin(self, node: _Node) -> None:
        """What has arrived is folded in, then a batch is started: its context is this instant's."""
        if node.figures.state != "training":
            return
        self._drain(node)
        if not self.training:
            return
        if node.context is None:
            node.context = node.peer.context()
        self.events.after(node.step_s, self._finish, node)

    def _finish(self, node: _Node) -> None:
        if node.figures.state != "training" or not self.training:
            return
        self._step(node)
        if node.since >= self.every:
            self._publish(node)
        self._begin(node)

    def _step(self, node: _Node) -> None:
        weights = node.peer.replica.weights
        ahead = weights if node.gained is None else weights + node.gained
        node.layout.scatter(ahead, node.parameters)
        node.optimizer.zero_grad()
        loss = self.task.workload.loss(node.model, next(node.batches))
        loss.backward()  # type: ignore[no-untyped-call]
        node.optimizer.step()
        node.gained = node.layout.gained(node.parameters, weights)
        node.since += 1
        figures = node.figures
        figures.loss = float(loss.detach())
        figures.steps += 1
        figures.samples += self.batch_size

    def _publish(self, node: _Node) -> None:
        """As a node does it (`Swarm._publish`): encoded, and what encoding leaves out is in what
        the next update gained."""
        assert node.gained is not None
        # `gained` may be a buffer of the layout that the next step writes: this one is sent.
        delta = node.gained.clone()
        if node.encoder is None:
            node.gained = None
            self._commit(node, delta)
        else:
            node.gained = delta - self._commit(node, node.encoder.encode(delta)).payload

    def _publish_rest(self, node: _Node, share: float) -> None:
        """As a node does it at the end (`Swarm._publish_rest`)."""
        assert node.encoder is not None
        assert node.gained is not None
        update = node.encoder.encode_last(node.gained * share)
        node.gained = None
        if update is not None:
            self._commit(node, update)

    def _commit(self, node: _Node, update: torch.Tensor | Part) -> Push:
        peer = node.peer
        context = peer.context() if node.context is None else node.context
        node.context, node.since = None, 0
        if isinstance(peer, Peer):
            push = peer.prepare(update, context)
        else:
            assert isinstance(update, torch.Tensor)
            push = peer.prepare(update, context)
        self._carry_out(node, peer.commit(push))
        node.figures.published += 1
        self._pump(node)
        return push

    def _tick(self, node: _Node) -> None:
        if node.figures.state == "killed":
            return
        self.events.after(TICK_S * self.tempo, self._tick, node)
        if not self.training:
            self._drain(node)
        self._carry_out(node, node.peer.tick(self.now))
        self._pump(node)

    def _drain(self, node: _Node) -> None:
        arrived, node.inbox = node.inbox, []
        for one in arrived:
            self._carry_out(node, node.peer.fold(one.sender, one.message, self.now))
        if arrived:
            self._pump(node)

    # -- messages ----------------------------------------------------------------------------------

    def _pump(self, node: _Node) -> None:
        peer = node.peer
        for to in peer.ready(self.now):
            while (message := peer.take(to, self.now)) is not None:
                self._count(node, message)
                self._transmit(peer.name, to, message, carried=True)
                if isinstance(peer, MixingPeer):
                    break

    def _count(self, node: _Node, message: Any) -> None:
        """The numbers of a message; headers and small messages are not counted."""
        by_codec = node.figures.bytes_by_codec
        parts = message.parts if isinstance(message, Push) else ()
        for part in parts:
            by_codec[part.codec] += part.nbytes
        if not parts:
            plain = "fp32" if node.layout.dtype == torch.float32 else "fp64"
            by_codec[plain] += node.layout.nbytes
        node.figures.bytes_sent = by_codec.total()

    def _transmit(self, source: str, target: str, message: Any, *, carried: bool = False) -> None:
        for time in self.network.arrivals(source, target, self.events.time):
            self.events.at(time, self._arrive, source, target, message, carried)

    def _arrive(self, source: str, target: str, message: Any, carried: bool) -> None:
        sender, node = self.nodes[source], self.nodes[target]
        if carried and sender.figures.state != "killed":
            sender.peer.landed(target, message)  # this network never says what it lost
        if node.figures.state == "killed":
            return
        self._carry_out(node, node.peer.receive(source, message, self.now))
        if not isinstance(message, Push):  # passed on when it is folded, not before
            self._pump(node)

    def _carry_out(self, node: _Node, effects: list[Effect]) -> None:
        figures = node.figures
        for effect in effects:
            if isinstance(effect, Send):
                self._transmit(node.peer.name, effect.to, effect.message)
            elif isinstance(effect, Deliver):
                node.inbox.append(effect)
            elif isinstance(effect, Applied):
                figures.applied += len(effect.dots)
                for staleness in effect.staleness:
                    figures.staleness.add(staleness)
            elif isinstance(effect, Drop):
                if effect.reason == "duplicate":
                    figures.duplicates += effect.count
                else:
                    figures.rejected[effect.reason] += effect.count
            elif isinstance(effect, Rejoin):
                raise PromiseBroken("virtual", f"{figures.name} was voted out: {effect.reason}")
            elif isinstance(effect, Verdict) and effect.state == "dead":
                self._said.append(f"{figures.name}: {effect.name} is dead ({effect.reason})")

    # -- for whoever watches -----------------------------------------------------------------------

    def figures(self) -> list[Figures]:
        return [node.figures for node in self.nodes.values()]

    def samples(self) -> int:
        return sum(node.figures.samples for node in self.nodes.values())

    def kill(self, name: str) -> None:
        self.nodes[name].figures.state = "killed"

    def news(self) -> list[str]:
        said, self._said = self._said, []
        return said[:1]

    def finish(self) -> dict[str, Any]:
        self.training = False
        live = [node for node in self.nodes.values() if node.figures.state == "training"]
        for node in live:
            if node.since:
                self._publish(node)
            if node.gained is not None:  # each its share of the rests (`Swarm._share_rest`)
                self._publish_rest(node, 1.0 / len(live))
        for _ in range(SETTLE_TICKS):
            if all(not node.inbox and node.peer.caught_up() and node.peer.even() for node in live):
                break
            self.events.run_until(self.events.time + TICK_S * self.tempo)
        for node in live:
            node.layout.scatter(node.peer.replica.weights, node.parameters)
            found = self.task.workload.evaluate(node.model)
            node.figures.accuracy, node.figures.accuracy_of = found.accuracy, found.accuracy_of
            node.figures.state = "done"
        return {"replica_distance_max": _distance([node.peer.replica.weights for node in live])}


def _distance(replicas: list[torch.Tensor]) -> float | None:
    if len(replicas) < 2:
        return None
    worst = 0.0
    for a, b in itertools.combinations([replica.double() for replica in replicas], 2):
        size = float(a.norm())
        worst = max(worst, float((a - b).norm()) / (size or 1.0))
    return worst
