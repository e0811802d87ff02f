"""Gossip in virtual time: the production core trains a real workload, n peers in one process.

Each peer has a model, an optimizer and data of its own, as a process has. What is simulated is
time (`study.virtual.costs`) and the network. Arrivals are folded between two steps, as the
training thread of a node does it: those that are there, once; what comes while they are folded
waits for the next step. Peers begin at random phases, by the rng seed, which decides everything
else too.
"""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import torch
from torch import nn

from murmurate.core.codecs.choice import AUTO, Choice
from murmurate.core.driver import Driver, Life, NoDisk, Ports
from murmurate.core.gossip.config import COMPANY_MAX, PeerConfig
from murmurate.core.gossip.protocol import GossipPeer
from murmurate.core.gossip.ways import WAYS, data_problem, strength_problem
from murmurate.core.layout import Layout
from murmurate.core.message import Decided, Generation
from murmurate.core.publishing.likeness import Likeness
from murmurate.core.publishing.rule import Making
from murmurate.core.replica import Replica
from murmurate.errors import ConfigError
from murmurate.study.sim.events import Events
from murmurate.study.virtual.dealing import LINGER_S, NodeBatches, VirtualDealing
from murmurate.study.virtual.links import VirtualLinks
from murmurate.study.virtual.machine import Cores
from murmurate.study.virtual.node import VirtualBackground, VirtualNode, VirtualPorts
from murmurate.study.virtual.speaking import speaking_of
from murmurate.study.virtual.task import Figures, VirtualTraining
from murmurate.training.coding import coding_for
from murmurate.training.gain import OptimizerGain
from murmurate.training.moments import layout_of
from murmurate.training.publisher import Publisher
from murmurate.training.recipes import RateSchedule
from murmurate.training.statistics import ModelStatistics, first_weights
from murmurate.workloads import DataShare, parse_split
from murmurate.workloads.growing import GrowingBatches, batches_of
from murmurate.workloads.measuring import measured

TICK_S = 0.1
BUFFER_BYTES = 64 << 20
SETTLE_TICKS = 2000
"""So long the last updates have to arrive everywhere."""
LEAVE_S = 5.0
"""As a process has it: one that leaves stays so long, on its own clock, for those who lack what it
has."""
GONE = ("awaited", "killed", "left")
"""States of a node that hears nothing."""


class GossipWorld:
    """All peers of one run. Implements `task.Engine`."""

    def __init__(self, task: VirtualTraining) -> None:
        if task.rule not in WAYS:
            raise ConfigError(f"rule {task.rule!r}: expected one of {', '.join(WAYS)}")
        if what := data_problem(task.rule, task.data):
            raise ConfigError(f"peers_data {task.data!r}: {what}")
        if what := strength_problem(task.rule, task.strength):
            raise ConfigError(f"strength {task.strength}: {what}")
        coded = any(not choice.plain for choice in task.codecs.values())
        if coded and not WAYS[task.rule].sends_updates:
            raise ConfigError(f"codec: rule {task.rule!r} exchanges weights as they are")
        self.task = task
        self.events = Events()
        self.dealing = VirtualDealing(self, task) if task.generator else None
        self.cores = Cores(self.events, task.cores)
        self.links = VirtualLinks(task.network(), task.link_bytes_s, task.links_bytes_s)
        self.batch_size = task.workload.batch_size
        self.training = True
        self.said: list[str] = []
        self.warnings: list[str] = []
        self.warned: set[str] = set()
        quickest_s = min(task.step_s(name) for name in task.names)
        longest = max([task.delay_s, *task.delays_s.values()])
        torch.manual_seed(task.seed)
        first = task.workload.model()
        self.model_s = self.links.slowest_s(Layout.of(first)[0].nbytes, task.names)
        """What a whole model takes over the narrowest link."""
        # The protocol's own intervals (probes, digests) suit a local network. Where links or steps
        # are slower, a peer's clock is: so many virtual seconds are one of its own.
        self.tempo = max(1.0, 10 * longest, 5 * quickest_s, self.model_s)
        self.nodes = {
            name: self._node(number, name, first) for number, name in enumerate(task.names)
        }
        self.founders = [name for name in task.names if not task.joins_s.get(name)]
        for name in self.founders:
            self._start(self.nodes[name], self.founders)
        for name, seconds in task.joins_s.items():
            if seconds:
                self.nodes[name].figures.state = "awaited"
                self.events.at(seconds, self._join, self.nodes[name])
        for name, seconds in task.leaves_s.items():
            self.events.at(seconds, self._leave, self.nodes[name])

    def _node(self, number: int, name: str, first: nn.Module) -> VirtualNode:
        task = self.task
        model = copy.deepcopy(first)
        optimizer = task.workload.optimizer(model)
        layout, parameters = layout_of(model, [optimizer], task.data)
        layout.line_up(parameters)  # as a node does
        share = DataShare(
            index=number,
            count=task.nodes,
            split=parse_split(task.split),
            seed=task.seed,
            batch_size=self.batch_size,
        )
        node = VirtualNode(
            model,
            layout,
            parameters,
            optimizer,
            batches_of(task.workload.batches, share, task.recipe.batch_warmup),
            Figures(name),
            step_s=task.step_s(name),
            slowness=task.slowness(name),
            chance=random.Random(f"slow/{task.seed}/{name}"),
            rates=RateSchedule(optimizer, task.recipe),
        )
        if self.dealing is not None:
            node.batches = node.source = NodeBatches()
        node.fold_s = task.fold_s(name)
        way = WAYS[task.rule]
        gain = OptimizerGain(optimizer, parameters)
        every = task.every or way.steps(task.data, gain.kind)
        node.likeness = Likeness(layout.trained)
        node.figures.learning.summed = bool(way.warning)
        node.figures.learning.data = task.data
        making = Making(
            size=layout.size,
            dtype=layout.dtype,
            every=every,
            data=task.data,
            likeness=node.likeness,
        )
        rule = way.publishing()(making)
        # Links that take no time for a message have nothing to say.
        choice = task.codecs.get(name, Choice(AUTO) if self.links.narrow else Choice())
        node.publisher = Publisher(
            VirtualBackground(self, node),
            layout,
            parameters,
            rule,
            gain,
            every=every,
            coding=coding_for(choice, layout, rule),
            statistics=ModelStatistics(model, layout, mixed=not way.sends_updates),
        )
        node.publisher.source = node.source
        ports = VirtualPorts(self, node)
        node.driver = Driver(Ports(network=ports, disk=NoDisk(), lives=ports, watch=ports))
        node.speaking = speaking_of(self, node, self.cores)
        return node

    def _start(self, node: VirtualNode, known: list[str], *, late: bool = False) -> None:
        """A life begins, at a phase of its own. `late`: its weights are still to come."""
        name = node.figures.name
        rng = random.Random(f"phase/{self.task.seed}/{name}")
        others = [other for other in known if other != name]
        node.driver.begin(Life(self._peer(node, late=late), others), self.now)
        self.pump(node)
        self.events.after(rng.random() * TICK_S * self.tempo, self._tick, node)
        if self.dealing is not None:
            self.dealing.join(node)
        self.events.after(rng.random() * node.step_s, self._begin, node)

    def _peer(self, node: VirtualNode, *, late: bool) -> GossipPeer:
        task, name = self.task, node.figures.name
        start = WAYS[task.rule].kind()
        return start(
            name,
            1,
            Replica(first_weights(node.layout, node.parameters, node.model)),
            rng=random.Random(f"peer/{task.seed}/{name}"),
            config=self._config(node.layout.nbytes),
            history=() if late else (Generation(0, tuple(sorted(self.founders))),),
            synced=not late,
        )

    def _config(self, nbytes: int) -> PeerConfig:
        return PeerConfig(
            topology=self.task.topology,
            waiting_max=COMPANY_MAX,
            # Comparing clocks costs a peer as much as there are others, and nothing is lost here.
            digest_interval_s=max(0.5, self.task.nodes / 16),
            snapshot_wait_s=max(2.0, 4 * self.model_s / self.tempo),
            log_bytes_max=max(BUFFER_BYTES, nbytes),
            # All peers are in this process: what one keeps of another's is the same memory.
            store_bytes_max=BUFFER_BYTES // 2,
            strength=self._strength(),
        )

    def _strength(self) -> float:
        usual = WAYS[self.task.rule].strength or 0.0
        return usual if self.task.strength is None else self.task.strength

    @property
    def now(self) -> float:
        """As peers know it."""
        return self.events.time / self.tempo

    # -- a peer's own events -----------------------------------------------------------------------

    def _begin(self, node: VirtualNode) -> None:
        """What has arrived is folded in, then a batch is started: its context is this instant's."""
        if node.figures.state != "training":
            return
        if self.training and node.peer.synced and not self._has_batch(node):
            return
        folding_s = node.fold_s * self.fold(node)
        if folding_s:
            node.figures.more["folding_s"] = node.figures.more.get("folding_s", 0.0) + folding_s
        if self.training:
            if node.peer.synced:
                self._compute(node, folding_s)
            else:  # its weights are on their way: it looks again, a step's time later
                self.events.after(folding_s + node.step_s, self._begin, node)
                node.figures.wait_s += node.step_s

    def _compute(self, node: VirtualNode, folding_s: float) -> None:
        """What a step takes, on a core of its own or on those that all share; then its wait."""
        work_s, wait_s = folding_s + node.step_s, node.wait_s()
        if self.task.cores is None and node.speaking is None:
            self.events.after(folding_s + (node.step_s + wait_s), self._finish, node)
            return

        def computed(since: float) -> None:
            if node.speaking is not None:
                node.speaking.trained(work_s, self.events.time - since)
            self.events.after(wait_s, self._finish, node)

        self.cores.work(work_s, computed, self.events.time)

    def _has_batch(self, node: VirtualNode) -> bool:
        """Whether there is one; if not, the node goes on when it comes."""
        dealing, source = self.dealing, node.source
        if dealing is None or source is None:
            return True
        if source.begin():
            dealing.say(node, more=1)
            return True
        source.since_s = self.events.time

        def begin() -> None:
            node.figures.wait_s += self.events.time - source.since_s
            self._begin(node)

        source.waits = begin
        return False

    def fold(self, node: VirtualNode) -> int:
        """Fold in what has arrived; how many messages that were."""
        waiting = sum(not isinstance(each.message, Decided) for each in node.driver.inbox)
        node.publisher.fold()
        return waiting

    def _finish(self, node: VirtualNode) -> None:
        if node.figures.state != "training" or not self.training:
            return
        self._step(node)
        self.published(node)
        own = self.task.own_samples
        if own is not None and node.figures.samples >= own and self._others_train(node):
            self._leave(node)
        self._begin(node)

    def published(self, node: VirtualNode) -> None:
        """A step was made; its update too, if one is due."""
        node.publisher.publish_if_due()

    def _others_train(self, node: VirtualNode) -> bool:
        others = (each for each in self.nodes.values() if each is not node)
        return any(other.figures.state == "training" for other in others)

    def _step(self, node: VirtualNode) -> None:
        size = self._follow_recipe(node)
        node.publisher.look.ahead()
        node.optimizer.zero_grad()
        loss = self.task.workload.loss(node.model, next(node.batches))
        loss.backward()  # type: ignore[no-untyped-call]
        node.optimizer.step()
        node.publisher.stepped()
        figures = node.figures
        node.loss.add(loss)
        figures.steps += 1
        figures.learning.note_loss(float(loss.detach()), figures.steps)
        self.warn(node)
        figures.samples += size
        figures.more["steps_per_update"] = figures.steps / max(1, figures.published)

    def _follow_recipe(self, node: VirtualNode) -> int:
        """Rate and batch size of this part of the budget; the size."""
        if self.task.recipe.changes:
            part = self.task.part(self.samples(), self.events.time)
            node.rates.at(part)
            if isinstance(node.batches, GrowingBatches):
                node.batches.at(part)
                return node.batches.size
        return self.batch_size

    def _tick(self, node: VirtualNode) -> None:
        state = node.figures.state
        if state in GONE:
            return
        self.events.after(TICK_S * self.tempo, self._tick, node)
        if not self.training or state == "leaving":
            node.publisher.fold()
        if self.dealing is not None:
            self._tick_of_batches(node, self.dealing)
        node.driver.tick(self.now)
        if node.speaking is not None:
            node.speaking.tick()
        self.pump(node)
        if state == "leaving" and (node.peer.others.settled() or self.now > node.leaves_by):
            node.figures.state = "left"
            if self.dealing is not None:
                self.dealing.gone(node.figures.name)

    def _tick_of_batches(self, node: VirtualNode, dealing: VirtualDealing) -> None:
        """It says what it holds; who only waits folds in meanwhile, and publishes steps that wait
        for more, as a feed does."""
        source = node.source
        if source is not None and source.waits is not None:
            self.fold(node)
            if self.events.time > source.since_s + LINGER_S * self.tempo:
                node.publisher.publish_all()
        dealing.say(node)
        there = (each for each in self.nodes.values() if each.figures.state not in GONE)
        if node is next(there, None):  # once in a tick
            dealing.settle()

    # -- coming and going --------------------------------------------------------------------------

    def _join(self, node: VirtualNode) -> None:
        """A newcomer asks those who are there for a snapshot, as a process does."""
        there = [name for name, other in self.nodes.items() if other.figures.state == "training"]
        if not self.training or node.figures.state != "awaited" or not there:
            return
        node.figures.state = "training"
        self._start(node, there, late=True)

    def _leave(self, node: VirtualNode) -> None:
        """What is left is published; it says that it goes, and stays until all have what it made
        (`training.ending`)."""
        if not self.training or node.figures.state != "training":
            return
        node.publisher.publish_all()
        node.publisher.look.at_weights()
        node.figures.state = "leaving"
        node.leaves_by = self.now + LEAVE_S
        node.driver.leave(self.now)
        self.pump(node)

    # -- messages ----------------------------------------------------------------------------------

    def transmit(
        self, node: VirtualNode, target: str, message: Any, nbytes: int, *, carried: bool = False
    ) -> None:
        """Hand a message to the network. `carried`: by a link, which says when it is there."""
        source = node.figures.name
        left, there = self.links.send(source, target, nbytes, self.events.time)
        if left > self.events.time:
            self.events.at(left, self._link_free, node)
        there_at = self._reach if carried else self._arrive
        self.events.at(there, there_at, source, target, message, carried)

    def _reach(self, source: str, target: str, message: Any, carried: bool) -> None:
        """It is at the other machine, whose threads take it in."""
        speaking = self.nodes[target].speaking
        if speaking is None:
            self._arrive(source, target, message, carried)
        else:
            speaking.receive(lambda: self._arrive(source, target, message, carried))

    def pump(self, node: VirtualNode) -> None:
        """Hand over what waits at a node, as often as its pace allows."""
        if node.speaking is None:
            node.driver.pump(self.now)
        else:
            node.speaking.pump()

    def _link_free(self, node: VirtualNode) -> None:
        if node.figures.state not in GONE:
            self.pump(node)

    def _arrive(self, source: str, target: str, message: Any, carried: bool) -> None:
        sender, node = self.nodes[source], self.nodes[target]
        if carried and sender.figures.state not in GONE:
            sender.peer.landed(target, message)  # this network never says what it lost
            if self.links.narrow:
                self.pump(sender)
        if node.figures.state in GONE:
            return
        node.driver.receive(source, message, self.now)
        self.pump(node)

    def warn(self, node: VirtualNode) -> None:
        """Say what began to go wrong with the learning, once for all nodes."""
        for reason, text in node.figures.learning.news():
            if reason not in self.warned:
                self.warned.add(reason)
                self.warnings.append(f"{node.figures.name}: {text}")

    # -- for whoever watches -----------------------------------------------------------------------

    def figures(self) -> list[Figures]:
        for node in self.nodes.values():
            node.figures.loss = node.loss.mean()
        rows = [node.figures for node in self.nodes.values()]
        return rows if self.dealing is None else [*rows, self.dealing.figures()]

    def samples(self) -> int:
        if self.dealing is not None:
            return self.dealing.samples()
        return sum(node.figures.samples for node in self.nodes.values())

    def kill(self, name: str) -> None:
        self.nodes[name].figures.state = "killed"
        if self.dealing is not None:
            self.dealing.gone(name)

    def evaluate(self, *, validation: bool = False) -> Figures | None:
        """The replica of the first that lives, in a copy of its model: all others have nearly the
        same, and training must not notice. At the end everybody is evaluated (`finish`)."""
        for node in self.nodes.values():
            if node.figures.state == "training":
                model = copy.deepcopy(node.model)
                node.layout.scatter(node.peer.replica.weights, Layout.of(model)[1])
                found = measured(self.task.workload, model, validation=validation)
                node.figures.evaluated(found, validation=validation)
                return node.figures
        return None

    def weights(self) -> tuple[str, Layout, torch.Tensor] | None:
        for name, node in self.nodes.items():
            if node.figures.state in ("training", "done"):
                return name, node.layout, node.peer.replica.weights
        return None

    def news(self) -> list[str]:
        said, self.said = self.said, []
        warnings, self.warnings = self.warnings, []
        return [*said[:1], *warnings]

    def finish(self) -> dict[str, Any]:
        live = self.settle()
        for node in live:
            node.layout.scatter(node.peer.replica.weights, node.parameters)
            for validation in (False, True) if self.task.validates else (False,):
                found = measured(self.task.workload, node.model, validation=validation)
                node.figures.evaluated(found, validation=validation)
            node.figures.state = "done"
        return {"replica_distance_max": _distance([node.peer.replica.weights for node in live])}

    def settle(self) -> list[VirtualNode]:
        """Nothing more is trained, all is published, and what is on its way arrives. Who is
        there."""
        self.training = False
        there = [node for node in self.nodes.values() if node.figures.state == "training"]
        live = [node for node in there if node.peer.synced]
        for node in live:  # as `Ending` does it
            publisher = node.publisher
            if publisher.unpublished.steps:
                publisher.publish()
            if publisher.encoded and publisher.unpublished.residual:
                publisher.publish_rest(1.0 / len(live))
        for _ in range(SETTLE_TICKS):
            if all(
                not node.driver.inbox and node.peer.others.caught_up() and node.peer.others.even()
                for node in live
            ):
                break
            self.events.run_until(self.events.time + TICK_S * self.tempo)
        for node in live:
            node.publisher.look.at_weights()
        return live


def _distance(replicas: list[torch.Tensor]) -> float | None:
    if len(replicas) < 2:
        return None
    worst = 0.0
    for a, b in itertools.combinations([replica.double() for replica in replicas], 2):
        size = float(a.norm())
        worst = max(worst, float((a - b).norm()) / (size or 1.0))
    return worst
