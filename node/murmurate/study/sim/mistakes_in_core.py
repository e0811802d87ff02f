"""Deliberate mistakes in the core: duplicates, staleness, snapshots, votes and members."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.effect import Adopted
from murmurate.core.gossip.comparison import Comparison
from murmurate.core.gossip.known_clocks import Knowledge
from murmurate.core.gossip.peer import Peer
from murmurate.core.gossip.snapshots import Snapshots
from murmurate.core.gossip.store import Store
from murmurate.core.intervals import Runs
from murmurate.core.message import Delta, Digest, Push, Rumour, Snapshot, Stamp
from murmurate.core.replica import Replica
from murmurate.study.sim import seams
from murmurate.study.sim.mutant import Change, mutant


@mutant("an update that is there already is applied again")
def no_dedupe() -> list[Change]:
    return [
        (seams.IS_NEW, lambda self, dot: True),
        (seams.REPLICA_JUDGE, lambda self, dots: None),
    ]


@mutant("only the last 8 ids are remembered, so late duplicates get through")
def dedupe_forgets() -> list[Change]:
    original = seams.FOLD.original

    def fold(self: Peer, sender: str, message: Push | Snapshot, now: float) -> Any:
        effects = original(self, sender, message, now)
        if isinstance(message, Push):
            recent = _recent.setdefault(id(self.state), [])
            recent += message.dots
            del recent[:-8]
        return effects

    _recent: dict[int, list[Dot]] = {}
    return [
        (seams.FOLD, fold),
        (seams.IS_NEW, lambda self, dot: dot not in _recent.get(id(self), ())),
        (seams.REPLICA_JUDGE, lambda self, dots: None),
    ]


@mutant("staleness from the highest number of each origin instead of sets")
def counters() -> list[Change]:
    def distance(self: Clock, other: Clock) -> int:
        keys = {*self.keys(), *other.keys()}
        return self.apart + other.apart + sum(abs(self.last(*k) - other.last(*k)) for k in keys)

    return [(seams.CLOCK_DISTANCE, distance)]


@mutant("updates are let go of without looking at what others have")
def prune_too_early() -> list[Change]:
    return [(seams.KNOWN_EVERYWHERE, lambda self, mine, names: mine)]


@mutant("updates are let go of when all have them, though a crash can undo that")
def prune_undurable() -> list[Change]:
    original = seams.NOTE_CLOCK.original

    def note(self: Knowledge, name: str, clock: Clock, durable: Clock, **kw: Any) -> None:
        original(self, name, clock, clock.copy(), **kw)

    return [(seams.NOTE_CLOCK, note), (seams.CHECKPOINTED, lambda self, clock, kept: None)]


@mutant("updates are summed up when all have them, though a checkpoint has a part of them")
def sum_too_early() -> list[Change]:
    return [(seams.KNOWN_CUTS, lambda self, names: [])]


@mutant("a snapshot has the weights of now and the clock of a moment ago")
def torn_snapshot() -> list[Change]:
    clocks: dict[int, Clock] = {}

    def snapshot(self: Replica) -> Any:
        before = clocks.get(id(self.weights))
        clocks[id(self.weights)] = self.clock.copy()
        same = before is not None and before.generation == self.clock.generation
        return self.weights.clone(), before if same else self.clock.copy()

    return [(seams.REPLICA_SNAPSHOT, snapshot)]


@mutant("the context is taken when the update is ready, not when its batch began")
def late_context() -> list[Change]:
    original = seams.PUBLISH.original

    def publish(self: Peer, delta: Delta, context: Clock, *how: Any, **named: Any) -> Any:
        return original(self, delta, self.context(), *how, **named)

    return [(seams.PUBLISH, publish)]


@mutant("staleness of all updates in a sum against the clock before the sum")
def receiver_context() -> list[Change]:
    def count(self: Replica, stamps: tuple[Stamp, ...]) -> tuple[int, ...]:
        before = self.clock.copy()
        out = tuple(stamp.context.distance(before) for stamp in stamps)
        for stamp in stamps:
            self.clock.add(stamp.dot)
        return out

    return [(seams.REPLICA_COUNT, count)]


@mutant("all updates of a sum get the context of the first")
def one_context_per_sum() -> list[Change]:
    original = seams.PUSHES_SUMMED.original

    def summed(pushes: list[Push]) -> Push:
        push = original(pushes)
        context = push.stamps[0].context
        stamps = tuple(
            Stamp(s.dot, context if s.dot not in context else s.context, s.batches)
            for s in push.stamps
        )
        return Push(stamps, push.payload)

    return [(seams.PUSHES_SUMMED, summed)]


@mutant("a sum is applied although part of it is there already")
def overlap_applied() -> list[Change]:
    original = seams.FOLD.original

    def fold(self: Peer, sender: str, message: Push | Snapshot, now: float) -> Any:
        if isinstance(message, Push) and self.synced:
            new = tuple(stamp for stamp in message.stamps if self.state.is_new(stamp.dot))
            generation = self.baseline.number
            if 0 < len(new) < len(message.stamps) and new[0].context.generation == generation:
                message = Push(new, message.payload)
        return original(self, sender, message, now)

    return [(seams.FOLD, fold)]


@mutant("a clock that was only told about is taken for one's own")
def digest_merged() -> list[Change]:
    original = seams.ON_DIGEST.original

    def on_digest(self: Comparison, sender: str, message: Digest, now: float) -> Any:
        effects = original(self, sender, message, now)
        state = self.state
        if state.synced and message.clock.generation == state.clock.generation:
            state.clock.merge(message.clock)
        return effects

    return [(seams.ON_DIGEST, on_digest)]


@mutant("an epoch is closed as soon as one member agrees")
def fold_while_cut() -> list[Change]:
    def some(votes: Container[str], roster: Iterable[str], forgot: Any = ()) -> bool:
        return any(name in votes for name in roster)

    return [(seams.IS_MAJORITY, some), (seams.IS_UNANIMOUS, some)]


@mutant("who comes back without its memory votes at once")
def who_forgot_votes_at_once() -> list[Change]:
    return [(seams.HAS_VOTE, lambda self, name, memory: name in self.roster)]


@mutant("finished epochs are never folded, so clocks grow with history")
def no_fold() -> list[Change]:
    return [(seams.FINISHED, lambda self, now: ())]


@mutant("a context from before the baseline is taken for one of now")
def lift_forgets() -> list[Change]:
    original = seams.CLOCK_LIFTED.original

    def lifted(self: Clock, generation: int, folds: dict[Key, Runs]) -> Clock:
        clock: Clock = original(self, generation, folds)
        clock.apart = 0
        return clock

    return [(seams.CLOCK_LIFTED, lifted)]


@mutant("payloads are applied without a look at shape, type and numbers")
def no_gate() -> list[Change]:
    return [(seams.PAYLOAD_PROBLEM, lambda *_: "")]


@mutant("updates under my own id are taken from others")
def anyone_may_speak_for_me() -> list[Change]:
    return [(seams.CHECK_MINE, lambda self, what, clock, seq: None)]


@mutant("after a snapshot the whole log is folded in, also what the snapshot has")
def own_twice() -> list[Change]:
    original = seams.ADOPT.original

    def adopt(self: Snapshots, sender: str, snapshot: Snapshot, now: float) -> Any:
        log = [push for push in self.state.log if push.stamps[0].dot in snapshot.clock]
        effects = original(self, sender, snapshot, now)
        if effects and isinstance(effects[0], Adopted):
            for push in log:
                self.state.replica.weights.add_(push.payload)
        return effects

    return [(seams.ADOPT, adopt)]


@mutant("after a snapshot my own updates that it lacks are not folded in again")
def snapshot_forgets() -> list[Change]:
    original = seams.STORE_COVER.original

    def cover(self: Store, wanted: dict[Dot, None]) -> Any:
        pushes, lacking = original(self, wanted)
        return ([], []) if _adopting else (pushes, lacking)

    adopting = seams.ADOPT.original
    _adopting: list[bool] = []

    def adopt(self: Snapshots, sender: str, snapshot: Snapshot, now: float) -> Any:
        _adopting.append(True)
        try:
            return adopting(self, sender, snapshot, now)
        finally:
            _adopting.pop()

    return [(seams.STORE_COVER, cover), (seams.ADOPT, adopt)]


@mutant("a snapshot brings updates, but not the batches in them")
def batches_not_merged() -> list[Change]:
    original = seams.ADOPT.original

    def adopt(self: Snapshots, sender: str, snapshot: Snapshot, now: float) -> Any:
        before = self.state.replica.batches
        effects = original(self, sender, snapshot, now)
        self.state.replica.batches = before
        return effects

    return [(seams.ADOPT, adopt)]


@mutant("of a sum only the first update says which batches are in it")
def batches_lost_in_sums() -> list[Change]:
    original = seams.PUSHES_SUMMED.original

    def summed(pushes: list[Push]) -> Push:
        push: Push = original(pushes)
        first, *others = push.stamps
        return push.stamped((first, *(Stamp(s.dot, s.context) for s in others)))

    return [(seams.PUSHES_SUMMED, summed)]


@mutant("what got lost is never asked for")
def no_repair() -> list[Change]:
    return [(seams.ASK_FOR_MISSING, lambda self, others, now: [])]


@mutant("an old rumour brings back a member that has left")
def left_returns() -> list[Change]:
    def newer(a: Rumour, b: Rumour) -> bool:
        if a.epoch != b.epoch:
            return a.epoch > b.epoch
        return a.state != b.state or a.incarnation > b.incarnation

    return [(seams.NEWER_RUMOUR, newer)]
