"""What surrounds one node of `gossip.GossipWorld`: its publisher's background, its driver's ports.

As `edge.runtime` does it for a process, with virtual time in the place of threads and sockets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from murmurate.core.clock import Clock
from murmurate.core.driver import Driver, Life, Seen
from murmurate.core.effect import Applied, Drop, Verdict
from murmurate.core.figures.training_loss import TrainingLoss
from murmurate.core.gossip.protocol import GossipPeer
from murmurate.core.layout import Layout
from murmurate.core.message import Push, Snapshot
from murmurate.core.publishing.likeness import Likeness
from murmurate.core.publishing.own_update import OwnUpdate
from murmurate.core.values.slowness import Slowness
from murmurate.edge.runtime.training_port import Folds, LifeNow
from murmurate.errors import PromiseBroken
from murmurate.study.virtual.speaking import carry
from murmurate.study.virtual.task import Figures
from murmurate.training.publisher import Publisher
from murmurate.training.recipes import RateSchedule

if TYPE_CHECKING:
    from murmurate.study.virtual.dealing import NodeBatches
    from murmurate.study.virtual.gossip import GossipWorld
    from murmurate.study.virtual.speaking import Speaking


@dataclass(slots=True, eq=False)
class VirtualNode:
    model: nn.Module
    layout: Layout
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    batches: Iterator[tuple[torch.Tensor, ...]]
    figures: Figures
    step_s: float
    slowness: Slowness
    chance: random.Random
    """What its slowness is drawn from."""
    rates: RateSchedule
    fold_s: float = 0.0
    """Its time for each message that it folds in."""
    loss: TrainingLoss = field(default_factory=TrainingLoss)
    leaves_by: float = 0.0
    """By its own clock, once it is leaving."""
    driver: Driver[GossipPeer] = field(init=False)
    publisher: Publisher = field(init=False)
    source: NodeBatches | None = None
    """Where a generator deals the batches."""
    likeness: Likeness = field(init=False)
    speaking: Speaking | None = None
    """Where messages cost its other threads something."""

    def wait_s(self) -> float:
        """What is waited after its next step."""
        return self.slowness.seconds(self.step_s, self.chance)

    @property
    def peer(self) -> GossipPeer:
        return self.driver.peer


class VirtualBackground:
    """What a node's publisher asks of the node beside it, in virtual time."""

    def __init__(self, world: GossipWorld, node: VirtualNode) -> None:
        self._world = world
        self._node = node
        self.name = node.figures.name

    @property
    def interval_s(self) -> float:
        """Least time between two updates."""
        speaking = self._node.speaking
        return 0.0 if speaking is None else speaking.pace.interval_s

    @property
    def synced(self) -> bool:
        return self._node.peer.synced

    @property
    def weights(self) -> torch.Tensor:
        return self._node.peer.replica.weights

    def context(self) -> Clock:
        return self._node.peer.context()

    def has_room(self, nbytes: int, *, sparing: bool = False, fresh: bool = False) -> bool:
        """As a process has it: not while what was published before waits for its link."""
        peer = self._node.peer
        if not self._world.links.narrow and self._node.speaking is None:
            return peer.synced  # nothing waits, ever
        return peer.synced and peer.room(nbytes, sparing=sparing, fresh=fresh)

    def under_way(self, number: int) -> bool:
        return self._node.peer.links.under_way(number)

    def gives_snapshot(self) -> bool:
        return False

    def life(self) -> LifeNow:
        return LifeNow(self._node.peer.epoch, self._node.peer.seq, self.synced)

    def members_live(self) -> int:
        return len(self._node.peer.membership.live())

    def commit(self, update: OwnUpdate) -> None:
        node, now = self._node, self._world.now
        node.likeness.arrived(self.weights)
        node.driver.publish(
            update.delta, update.context, now, update.batches, written=update.written
        )
        node.figures.published += 1
        if node.speaking is not None:
            node.speaking.made(update.worth)
        if node.likeness.published(self.weights):
            node.figures.learning.compare(node.likeness)
            self._world.warn(node)
        self._world.pump(node)

    def waiting(self) -> list[Any]:
        return [each.message for each in self._node.driver.inbox]

    def fold(self, count: int) -> Folds:
        driver, now = self._node.driver, self._world.now
        applied = []
        began = False
        for _ in range(count):
            message = driver.inbox[0].message
            folded = driver.fold(now)
            if folded is not None and folded.changed:
                applied.append(message)
                began = began or folded.began
        self._world.pump(self._node)
        return Folds(changed=bool(applied), began=began, applied=tuple(applied))

    def step_taken_back(self) -> None:
        self._node.figures.rejected["own_step"] += 1


class VirtualPorts:
    """The ports of one peer's driver: a network in virtual time, and figures that count."""

    def __init__(self, world: GossipWorld, node: VirtualNode) -> None:
        self._world = world
        self._node = node

    def meet(self, to: str) -> None:
        """Names are addresses here."""

    def post(self, to: str, message: Any) -> None:
        nbytes = self._count(message) if isinstance(message, Snapshot) else 0
        self._world.transmit(self._node, to, message, nbytes)

    def free(self, to: str) -> bool:
        world, speaking = self._world, self._node.speaking
        if speaking is not None and not speaking.free(to):
            return False
        return world.links.free(self._node.figures.name, to, world.events.time)

    def carry(self, to: str, message: Any) -> bool:
        carry(self._world, self._node, to, message, self._count(message))
        return True

    def _count(self, message: Any) -> int:
        """The numbers of a message; headers and small messages are not counted."""
        figures, layout = self._node.figures, self._node.layout
        by_codec = figures.bytes_by_codec
        parts = message.parts if isinstance(message, Push) else ()
        nbytes = sum(part.nbytes for part in parts) or layout.nbytes
        for part in parts:
            by_codec[part.codec] += part.nbytes
        if not parts:
            plain = "fp32" if layout.dtype == torch.float32 else "fp64"
            by_codec[plain] += layout.nbytes
        figures.bytes_sent += nbytes
        return nbytes

    def begin_again(self, reason: str, now: float) -> Life[GossipPeer] | None:
        raise PromiseBroken("virtual", f"{self._node.figures.name} was voted out: {reason}")

    def saw(self, effect: Seen) -> None:
        figures = self._node.figures
        match effect:
            case Applied(dots, staleness):
                figures.applied += len(dots)
                for each in staleness:
                    figures.staleness.add(each)
            case Drop(_, "duplicate", _, count):
                figures.duplicates += count
            case Drop(_, reason, _, count):
                figures.rejected[reason] += count
            case Verdict(name, _, "dead", reason):
                self._world.said.append(f"{figures.name}: {name} is dead ({reason})")
            case _:
                pass  # the others are not counted here
