"""The dumb twin: plain Python sets and sums kept beside the compact clocks.

Every promise is checked here against what really happened, without any of the core's cleverness. A
broken one raises `PromiseBroken` with its number from docs/promises.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from murmurate.core.batches.held import HeldBatches
from murmurate.core.clock import Dot
from murmurate.core.gossip.peer import Peer
from murmurate.core.intervals import Runs
from murmurate.core.message import Generation, Snapshot
from murmurate.errors import PromiseBroken

Values = tuple[float, ...]
RELATIVE_ERROR = 1e-6
"""Floating-point replicas: how far a sum may be off, relative to the sum of all sizes."""


def without(context: frozenset[int], gone: set[int]) -> frozenset[int]:
    """A context in terms of sets from which `gone` was taken, that all have.

    What it lacked of them still counts, whoever applies its update: it is marked by a number that
    no set has.
    """
    return (context - gone) | {-1 - one for one in gone - context}


@dataclass(slots=True)
class Held:
    """What one node really has: the ids, and their sum."""

    ids: set[int] = field(default_factory=set)
    sums: list[float] = field(default_factory=list)

    def copy(self) -> Held:
        return Held(set(self.ids), list(self.sums))


class Truth:
    """Everything that was ever published, and what each node has of it."""

    def __init__(self, w0: torch.Tensor) -> None:
        self.w0: list[float] = w0.tolist()
        self.floating = w0.is_floating_point()
        self.dots: dict[Dot, int] = {}
        self.names: list[Dot] = []
        self.values: list[Values] = []
        self.contexts: dict[int, frozenset[int]] = {}
        self.batches: list[Runs] = []
        self.forgotten_batches = HeldBatches()
        self.held: dict[str, Held] = {}
        self.snapshots: dict[int, tuple[Snapshot, Held]] = {}
        self.kept: dict[int, frozenset[Dot]] = {}
        self.retired: set[int] = set()
        self.left: dict[str, set[tuple[str, int]]] = {}
        self.size = 1.0
        self.forgotten = 0
        self.staleness_checks = 0
        self.applied = 0
        self.staleness_sum = 0
        self._checks = 0

    # -- what happens ----------------------------------------------------------------------------

    def starts(self, name: str, held: Held | None = None) -> None:
        self.held[name] = held if held is not None else Held(set(), list(self.w0))
        self.left[name] = set()

    def stops(self, name: str) -> None:
        del self.held[name]

    def context(self, name: str) -> frozenset[int]:
        return frozenset(self.held[name].ids)

    def next_batches(self) -> Runs:
        """What the next update says it was computed on: a batch of its own, and now and then the
        one of the update before it, as if a generator had dealt that again."""
        newest = len(self.names) + 1
        return (newest - (newest % 5 == 0), newest)

    def published(self, dot: Dot, values: Values, context: frozenset[int], batches: Runs) -> None:
        """An update was made: from now on its id means this and nothing else."""
        if dot in self.dots:
            raise PromiseBroken("P2", f"{dot} names two different updates")
        self.dots[dot] = len(self.names)
        self.names.append(dot)
        self.values.append(values)
        self.batches.append(batches)
        self.size += max(abs(value) for value in self.values[-1])
        self.contexts[self.dots[dot]] = context

    def applied_at(self, name: str, dots: tuple[Dot, ...], staleness: tuple[int, ...]) -> None:
        held = self.held[name]
        ids, sums = held.ids, held.sums
        for dot, claimed in zip(dots, staleness, strict=True):
            one = self.dots.get(dot)
            if one is None:
                raise PromiseBroken("P2", f"{name} applied {dot}, which was never published")
            if one in ids:
                raise PromiseBroken("P1", f"{name} applied {dot} twice")
            context = self.contexts.get(one)
            if context is None:
                raise PromiseBroken("P1", f"{name} applied {dot}, which is in the baseline")
            true = len(context ^ ids)
            self.staleness_checks += 1
            if true != claimed:
                raise PromiseBroken("P4", f"{name}: staleness of {dot} is {true}, shown {claimed}")
            self.staleness_sum += true
            ids.add(one)
            for i, value in enumerate(self.values[one]):
                sums[i] += value
        self.applied += len(dots)

    def snapshot_made(
        self, name: str, snapshot: Snapshot, kept: frozenset[Dot] = frozenset()
    ) -> None:
        """`kept`: of a checkpoint, what its node then kept of its own updates."""
        self.snapshots[id(snapshot)] = (snapshot, self.held[name].copy())
        self.kept[id(snapshot)] = kept

    def adopted(
        self,
        name: str,
        snapshot: Snapshot,
        kept: tuple[Dot, ...],
        retired: tuple[Dot, ...],
        given_up: tuple[Dot, ...],
    ) -> None:
        before = self.held[name].ids
        after = self.snapshots[id(snapshot)][1].copy()
        self.retired.update(self.dots[dot] for dot in retired)
        for dot in kept:
            self._include(after, dot)
        lost = before - after.ids - self.retired - {self.dots[dot] for dot in given_up}
        if lost:
            raise PromiseBroken("P3", f"{name} lost {self._list(lost)} when it took a snapshot")
        self.held[name] = after

    def restored(self, name: str, snapshot: Snapshot | None) -> None:
        """After a restart: what the checkpoint has."""
        held = self.snapshots[id(snapshot)][1].copy() if snapshot else Held(set(), list(self.w0))
        self.starts(name, held)

    def _include(self, held: Held, dot: Dot) -> None:
        one = self.dots[dot]
        if one not in held.ids:
            held.ids.add(one)
            for i, value in enumerate(self.values[one]):
                held.sums[i] += value

    def verdict(self, name: str, about: tuple[str, int], state: str) -> None:
        """A member that left in some life is not alive again in the same life."""
        left = self.left[name]
        if state == "left":
            left.add(about)
        elif about in left:
            raise PromiseBroken("membership", f"{name} says {about} is {state}, but it has left")

    def forget(self, generation: Generation, snapshots: set[int]) -> set[int]:
        """Leave out what everyone has in its baseline, or a long run's sets would grow for ever.

        Only where nobody can come back from before it. `snapshots`: ids of those still needed.
        """
        gone = {
            self.dots[Dot(origin, epoch, seq)]
            for (origin, epoch), runs in generation.folds
            for i in range(0, len(runs), 2)
            for seq in range(runs[i], runs[i + 1] + 1)
        }
        self.snapshots = {key: self.snapshots[key] for key in snapshots if key in self.snapshots}
        self.kept = {key: self.kept[key] for key in self.snapshots}
        for held in (*self.held.values(), *(held for _, held in self.snapshots.values())):
            held.ids -= gone
        self.contexts = {
            one: without(ids, gone) for one, ids in self.contexts.items() if one not in gone
        }
        self.forgotten += len(gone)
        for one in gone:
            self.forgotten_batches = self.forgotten_batches.add(self.batches[one])
        return gone

    # -- what must hold --------------------------------------------------------------------------

    def check(self, peer: Peer) -> None:
        """Weights and clock of one node are those of its true set."""
        if not peer.synced:
            return
        held = self.held[peer.name]
        count = len(held.ids) + self.forgotten
        if len(peer.clock) != count:
            raise PromiseBroken(
                "P4", f"{peer.name}: its clock has {len(peer.clock)} updates, it {count}"
            )
        weights = peer.replica.weights.tolist()
        if weights != held.sums and not self._close(weights, held.sums):
            raise PromiseBroken(
                "P5", f"{peer.name}: weights {weights} are not the sum {held.sums} of its updates"
            )
        self._checks += 1
        if self._checks % 32 == 0:
            self.check_clock(peer)

    def check_kept(self, peer: Peer, snapshot: Snapshot | None) -> None:
        """What a node kept one by one when it wrote a checkpoint, its next life can give too."""
        for dot in self.kept[id(snapshot)] if snapshot is not None else ():
            if dot in peer.clock and dot not in peer.log:
                raise PromiseBroken("P3", f"{peer.name} came back without {dot} by itself")

    def check_clock(self, peer: Peer) -> None:
        """Dot by dot: what the clock says above the baseline is what the node has."""
        held = self.held[peer.name].ids
        shown = {self.dots[dot] for dot in peer.clock if dot in self.dots}
        if not shown <= held:
            raise PromiseBroken("P4", f"{peer.name}: its clock claims {self._list(shown - held)}")
        base = len(held) + self.forgotten - len(shown)
        if peer.clock.base != base:
            raise PromiseBroken("P4", f"{peer.name}: its baseline is not {base}")
        batches = self.forgotten_batches
        for one in held:
            batches = batches.add(self.batches[one])
        if peer.replica.batches != batches:
            raise PromiseBroken(
                "P4", f"{peer.name}: holds batches {peer.replica.batches}, its updates {batches}"
            )

    def _close(self, weights: list[float], sums: list[float]) -> bool:
        return self.floating and all(
            abs(a - b) <= RELATIVE_ERROR * self.size for a, b in zip(weights, sums, strict=True)
        )

    def same_everywhere(self, peers: list[Peer]) -> bool:
        """All live peers have the same updates."""
        if not all(peer.synced for peer in peers):
            return False
        first = self.held[peers[0].name].ids
        return all(self.held[peer.name].ids == first for peer in peers[1:])

    def final(self, peers: list[Peer], must_have: set[int]) -> None:
        """After the calm: same set, same weights, nothing lost that a live node had."""
        for peer in peers:
            self.check(peer)
            self.check_clock(peer)
        first = self.held[peers[0].name].ids
        lost = must_have - first - self.retired
        if lost:
            raise PromiseBroken("P3", f"{self._list(lost)} vanished")
        weights = peers[0].replica.weights
        for peer in peers[1:]:
            if not self._close_tensors(weights, peer.replica.weights):
                raise PromiseBroken("P5", f"{peers[0].name} and {peer.name} differ in weights")

    def _close_tensors(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch.equal(a, b) or self._close((a / 2).tolist(), (b / 2).tolist())

    def _list(self, ids: set[int]) -> str:
        names = [str(self.names[one]) for one in sorted(ids)]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return ", ".join(names[:5]) + more
