"""Deliberate mistakes: the simulator is worth what it finds, so each of these must be found.

A mutant changes the production core (or the driver) for the time of a run. `murmurate sim --mutant
NAME` must fail; `make sim` checks that all of them do within 500 seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from murmurate.core import gate, membership, message, outbox, store
from murmurate.core import peer as peer_module
from murmurate.core.agreement import Agreement
from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.effect import Adopted
from murmurate.core.knowledge import Knowledge
from murmurate.core.message import Digest, Push, Rumour, Snapshot, Stamp
from murmurate.core.peer import Peer
from murmurate.core.replica import Replica
from murmurate.core.runs import Runs
from murmurate.core.standing import Standing
from murmurate.core.store import Store
from murmurate.errors import ConfigError
from murmurate.sim.disk import Disk
from murmurate.sim.machine import Node
from murmurate.sim.swarm import Swarm

Change = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake with a name, what it is, and how it is made."""

    name: str
    mistake: str
    changes: Callable[[], list[Change]]


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, mistake: str) -> Callable[[Callable[[], list[Change]]], None]:
    def register(changes: Callable[[], list[Change]]) -> None:
        MUTANTS[name] = Mutant(name, mistake, changes)

    return register


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """The core with one mistake in it; None: as it is."""
    if name is None:
        yield
        return
    if name not in MUTANTS:
        raise ConfigError(f"mutant {name!r}: one of {', '.join(sorted(MUTANTS))}")
    undo: list[Change] = []
    try:
        for owner, attribute, value in MUTANTS[name].changes():
            undo.append((owner, attribute, owner.__dict__[attribute]))
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in reversed(undo):
            setattr(owner, attribute, value)


@mutant("no-dedupe", "an update that is there already is applied again")
def _() -> list[Change]:
    return [
        (Peer, "_is_new", lambda self, dot: True),
        (Replica, "judge", lambda self, dots: None),
    ]


@mutant("dedupe-forgets", "only the last 8 ids are remembered, so late duplicates get through")
def _() -> list[Change]:
    original = Peer.fold

    def fold(self: Peer, sender: str, message: Push | Snapshot, now: float) -> Any:
        effects = original(self, sender, message, now)
        if isinstance(message, Push):
            recent = _recent.setdefault(id(self), [])
            recent += message.dots
            del recent[:-8]
        return effects

    _recent: dict[int, list[Dot]] = {}
    return [
        (Peer, "fold", fold),
        (Peer, "_is_new", lambda self, dot: dot not in _recent.get(id(self), ())),
        (Replica, "judge", lambda self, dots: None),
    ]


@mutant("counters", "staleness from the highest number of each origin instead of sets")
def _() -> list[Change]:
    def distance(self: Clock, other: Clock) -> int:
        keys = {*self.keys(), *other.keys()}
        return self.apart + other.apart + sum(abs(self.last(*k) - other.last(*k)) for k in keys)

    return [(Clock, "distance", distance)]


@mutant("epoch-reuse", "a restarted node goes on with its old epoch")
def _() -> list[Change]:
    def new_epoch(self: Disk) -> int:
        self.epoch = max(1, self.epoch)
        return self.epoch

    return [(Disk, "new_epoch", new_epoch)]


@mutant("epoch-after-send", "the epoch is made durable at the first checkpoint, not at the start")
def _() -> list[Change]:
    original = Disk.checkpoint

    def new_epoch(self: Disk) -> int:
        return self.epoch + 1

    def checkpoint(self: Disk, snapshot: Snapshot, *kept: Any) -> None:
        original(self, snapshot, *kept)
        self.epoch += 1

    return [(Disk, "new_epoch", new_epoch), (Disk, "checkpoint", checkpoint)]


@mutant("send-before-log", "an update is sent first and logged afterwards")
def _() -> list[Change]:
    log, commit = Swarm._log, Swarm._commit

    def log_later(self: Swarm, node: Node, push: Push, context: frozenset[int]) -> None:
        log(self, node, push, context)
        node.disk.log.pop(push.stamps[0].dot, None)

    def commit_and_log(self: Swarm, node: Node, push: Push) -> None:
        commit(self, node, push)
        if self.setting.log_each:
            node.disk.log[push.stamps[0].dot] = push

    return [(Swarm, "_log", log_later), (Swarm, "_commit", commit_and_log)]


@mutant("prune-too-early", "updates are let go of without looking at what others have")
def _() -> list[Change]:
    return [(Knowledge, "everywhere", lambda self, mine, names: mine)]


@mutant("prune-undurable", "updates are let go of when all have them, though a crash can undo that")
def _() -> list[Change]:
    original = Knowledge.note

    def note(self: Knowledge, name: str, clock: Clock, durable: Clock, **kw: Any) -> None:
        original(self, name, clock, clock.copy(), **kw)

    return [(Knowledge, "note", note), (Standing, "safe_clock", lambda self: self._replica.clock)]


@mutant("torn-snapshot", "a snapshot has the weights of now and the clock of a moment ago")
def _() -> list[Change]:
    clocks: dict[int, Clock] = {}

    def snapshot(self: Replica) -> Any:
        before = clocks.get(id(self.weights))
        clocks[id(self.weights)] = self.clock.copy()
        same = before is not None and before.generation == self.clock.generation
        return self.weights.clone(), before if same else self.clock.copy()

    return [(Replica, "snapshot", snapshot)]


@mutant("torn-checkpoint", "a checkpoint has new weights and the clock of the one before")
def _() -> list[Change]:
    original = Disk.checkpoint

    def checkpoint(self: Disk, snapshot: Snapshot, *kept: Any) -> None:
        if self.checkpoints:
            older = self.checkpoints[-1]
            torn = replace(snapshot, clock=older.clock, history=older.history)
            _truths[id(torn)] = torn
            _pairs.append((snapshot, torn))
            snapshot = torn
        original(self, snapshot, *kept)

    _truths: dict[int, Snapshot] = {}
    _pairs: list[tuple[Snapshot, Snapshot]] = []
    restored = Swarm._start

    def start(self: Swarm, node: Node, *args: Any, **kw: Any) -> None:
        for whole, torn in _pairs:
            if id(whole) in self.truth.snapshots:
                self.truth.snapshots[id(torn)] = self.truth.snapshots[id(whole)]
        restored(self, node, *args, **kw)
        if node.peer is not None:
            self.truth.check(node.peer)

    return [(Disk, "checkpoint", checkpoint), (Swarm, "_start", start)]


@mutant("late-context", "the context is taken when the update is ready, not when its batch began")
def _() -> list[Change]:
    original = Peer.prepare
    return [(Peer, "prepare", lambda self, delta, context: original(self, delta, self.context()))]


@mutant("receiver-context", "staleness of all updates in a sum against the clock before the sum")
def _() -> list[Change]:
    def count(self: Replica, stamps: tuple[Stamp, ...]) -> tuple[int, ...]:
        before = self.clock.copy()
        out = tuple(stamp.context.distance(before) for stamp in stamps)
        for stamp in stamps:
            self.clock.add(stamp.dot)
        return out

    return [(Replica, "count", count)]


@mutant("one-context-per-sum", "all updates of a sum get the context of the first")
def _() -> list[Change]:
    original = message.summed

    def summed(pushes: list[Push]) -> Push:
        push = original(pushes)
        context = push.stamps[0].context
        stamps = tuple(
            Stamp(s.dot, context if s.dot not in context else s.context) for s in push.stamps
        )
        return Push(stamps, push.payload)

    return [(outbox, "summed", summed), (store, "summed", summed)]


@mutant("overlap-applied", "a sum is applied although part of it is there already")
def _() -> list[Change]:
    original = Peer.fold

    def fold(self: Peer, sender: str, message: Push | Snapshot, now: float) -> Any:
        if isinstance(message, Push) and self.synced:
            new = tuple(stamp for stamp in message.stamps if self._is_new(stamp.dot))
            generation = self.baseline.number
            if 0 < len(new) < len(message.stamps) and new[0].context.generation == generation:
                message = Push(new, message.payload)
        return original(self, sender, message, now)

    return [(Peer, "fold", fold)]


@mutant("digest-merged", "a clock that was only told about is taken for one's own")
def _() -> list[Change]:
    original = Peer._on_digest

    def on_digest(self: Peer, sender: str, message: Digest, now: float) -> Any:
        effects = original(self, sender, message, now)
        if self.synced and message.clock.generation == self.clock.generation:
            self.clock.merge(message.clock)
        return effects

    return [(Peer, "_on_digest", on_digest)]


@mutant("fold-while-cut", "an epoch is closed as soon as one member agrees")
def _() -> list[Change]:
    original = Agreement._on_accepted

    def on_accepted(self: Agreement, sender: str, message: Any) -> Any:
        attempt = self._attempt
        if attempt is not None and attempt.value is not None:
            for name in (*attempt.value.roster, *(self.current.roster if self.current else ())):
                attempt.accepted[name] = None
        return original(self, sender, message)

    def choose(self: Agreement, attempt: Any, old: Any, now: float, view: Any) -> Any:
        mine = attempt.promises.get(self.name)
        if mine is not None:
            attempt.promises.update(dict.fromkeys((*attempt.roster, *attempt.promises), mine))
        return choosing(self, attempt, old, now, view)

    def propose(self: Agreement, attempt: Any, now: float, view: Any) -> Any:
        if self.name in attempt.promises:
            for name in attempt.roster:
                attempt.promises.setdefault(name, attempt.promises[self.name])
        return proposing(self, attempt, now, view)

    choosing, proposing = Agreement._choose, Agreement._propose
    return [
        (Agreement, "_on_accepted", on_accepted),
        (Agreement, "_choose", choose),
        (Agreement, "_propose", propose),
    ]


@mutant("no-fold", "finished epochs are never folded, so clocks grow with history")
def _() -> list[Change]:
    return [(Standing, "finished", lambda self, now: ())]


@mutant("lift-forgets", "a context from before the baseline is taken for one of now")
def _() -> list[Change]:
    original = Clock.lifted

    def lifted(self: Clock, generation: int, folds: dict[Key, Runs]) -> Clock:
        clock = original(self, generation, folds)
        clock.apart = 0
        return clock

    return [(Clock, "lifted", lifted)]


@mutant("no-gate", "payloads are applied without a look at shape, type and numbers")
def _() -> list[Change]:
    return [
        (gate, "payload_problem", lambda *_: ""),
        (peer_module, "payload_problem", lambda *_: ""),
    ]


@mutant("anyone-may-speak-for-me", "updates under my own id are taken from others")
def _() -> list[Change]:
    return [(gate.Gate, "check_mine", lambda self, what, clock, seq: None)]


@mutant("own-twice", "after a snapshot the whole log is folded in, also what the snapshot has")
def _() -> list[Change]:
    original = Peer._adopt

    def adopt(self: Peer, sender: str, snapshot: Snapshot, now: float) -> Any:
        log = [push for push in self.log if push.stamps[0].dot in snapshot.clock]
        effects = original(self, sender, snapshot, now)
        if effects and isinstance(effects[0], Adopted):
            for push in log:
                self.replica.weights.add_(push.payload)
        return effects

    return [(Peer, "_adopt", adopt)]


@mutant("snapshot-forgets", "after a snapshot my own updates that it lacks are not folded in again")
def _() -> list[Change]:
    original = Store.cover

    def cover(self: Store, wanted: dict[Dot, None]) -> Any:
        pushes, lacking = original(self, wanted)
        return ([], []) if _adopting else (pushes, lacking)

    adopting = Peer._adopt
    _adopting: list[bool] = []

    def adopt(self: Peer, sender: str, snapshot: Snapshot, now: float) -> Any:
        _adopting.append(True)
        try:
            return adopting(self, sender, snapshot, now)
        finally:
            _adopting.pop()

    return [(Store, "cover", cover), (Peer, "_adopt", adopt)]


@mutant("no-repair", "what got lost is never asked for")
def _() -> list[Change]:
    return [(Peer, "_repair", lambda self, others, now: [])]


@mutant("left-returns", "an old rumour brings back a member that has left")
def _() -> list[Change]:
    def newer(a: Rumour, b: Rumour) -> bool:
        if a.epoch != b.epoch:
            return a.epoch > b.epoch
        return a.state != b.state or a.incarnation > b.incarnation

    return [(membership, "newer", newer)]
