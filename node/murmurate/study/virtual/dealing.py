"""The mini-batch generator in virtual time: the dealer that coordinators run (`core.batches`), and
what a node's feed is there. Batches go out one after another, as many in a second as it makes.

A node has one batch ahead of the one it trains on. It says what it holds at its ticks, so its lease
always holds while it lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from murmurate.core.batches.dealer import Dealer, Take
from murmurate.core.batches.held import runs_of
from murmurate.core.intervals import Runs
from murmurate.study.virtual.task import Figures, VirtualTraining
from murmurate.workloads import DataShare, parse_split

if TYPE_CHECKING:
    from murmurate.study.virtual.gossip import GossipWorld
    from murmurate.study.virtual.node import VirtualNode

Batch = tuple[torch.Tensor, ...]
LINGER_S = 0.2
"""As in `training.feed`: after so long without a batch, steps that wait for more are published."""
GRACE_S = 5.0
"""A node that was killed is taken for gone after this, as sessions do it."""


class NodeBatches(Iterator[Batch]):
    """The batches of one node, and what becomes of its steps (`training.background.Source`)."""

    def __init__(self) -> None:
        self.ready: deque[tuple[int, Batch]] = deque()
        self.waits: Callable[[], None] | None = None
        """What goes on when the next one is there, and since when it waits."""
        self.since_s = 0.0
        self.back: list[int] = []
        self.spent: list[int] = []
        self._open: list[int] = []
        self._current: Batch | None = None

    def begin(self) -> bool:
        """A batch is started, if there is one."""
        if not self.ready:
            return False
        number, self._current = self.ready.popleft()
        self._open.append(number)
        return True

    def __next__(self) -> Batch:
        assert self._current is not None
        return self._current

    def may_publish(self) -> bool:
        return True

    def batches(self) -> Runs:
        return runs_of(self._open)

    def published(self) -> None:
        self._open.clear()

    def dropped(self) -> None:
        self.back += self._open
        self._open.clear()

    def undone(self) -> None:
        self.spent += self._open
        self._open.clear()


class VirtualDealing:
    """The generator of one run."""

    def __init__(self, world: GossipWorld, task: VirtualTraining) -> None:
        self._world = world
        self._size = task.workload.batch_size
        self.dealer = Dealer(None if task.samples is None else -(-task.samples // self._size))
        share = DataShare(0, 1, parse_split("none"), task.seed, self._size)
        torch.manual_seed(task.seed)
        self._made = task.workload.batches(share)
        self._stock: dict[int, Batch] = {}
        self._each_s = 0.0 if task.batches_per_s is None else 1.0 / task.batches_per_s
        self._free_s = 0.0

    def samples(self) -> int:
        """In updates that all have."""
        return self.dealer.totals.consumed * self._size

    def figures(self) -> Figures:
        totals = self.dealer.totals
        state = "done" if self.dealer.over else "training"
        more = {"totals": asdict(totals)}
        return Figures("generator", role="generator", state=state, more=more)

    def join(self, node: VirtualNode) -> None:
        self.dealer.join(node.figures.name)
        self.say(node, more=1)

    def gone(self, name: str) -> None:
        """It was killed, or has left."""
        self._world.events.after(GRACE_S * self._world.tempo, self.dealer.leave, name)

    def say(self, node: VirtualNode, *, more: int = 0) -> None:
        """What a node holds and needs."""
        source, held = node.source, node.peer.replica.batches
        assert source is not None
        take = Take(
            more=more,
            here=held.numbers,
            twice=held.repeated,
            back=runs_of(source.back),
            spent=runs_of(source.spent),
        )
        source.back.clear()
        source.spent.clear()
        self.dealer.take(node.figures.name, take, self._world.now)
        self._deal()

    def settle(self) -> None:
        """Draw the conclusions, now and then."""
        self.dealer.settle(self._world.now)
        self._stock = {n: batch for n, batch in self._stock.items() if self.dealer.needs(n)}
        self._deal()

    def _deal(self) -> None:
        events = self._world.events
        for name, numbers in self.dealer.deal().items():
            for number in numbers:
                if number not in self._stock:  # what came back is kept until it is done
                    self._stock[number] = next(self._made)
                there_s = max(events.time, self._free_s)
                self._free_s = there_s + self._each_s
                events.at(there_s, self._arrive, name, number, self._stock[number])

    def _arrive(self, name: str, number: int, batch: Batch) -> None:
        source = self._world.nodes[name].source
        assert source is not None
        source.ready.append((number, batch))
        waits, source.waits = source.waits, None
        if waits is not None:
            waits()
