"""Deliberate mistakes in the driver and on the disk: what must be durable, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from murmurate.core.driver import Delivery, Driver
from murmurate.core.effect import Effect, Save
from murmurate.core.message import Push, Snapshot
from murmurate.study.sim import seams
from murmurate.study.sim.disk import Disk
from murmurate.study.sim.machine import Node
from murmurate.study.sim.mutant import Change, mutant
from murmurate.study.sim.swarm import SimulatedSwarm


@mutant("a restarted node goes on with its old epoch")
def epoch_reuse() -> list[Change]:
    def new_epoch(self: Disk) -> int:
        self.epoch = max(1, self.epoch)
        return self.epoch

    return [(seams.NEW_EPOCH, new_epoch)]


@mutant("the epoch is made durable at the first checkpoint, not at the start")
def epoch_after_send() -> list[Change]:
    original = seams.WRITE_CHECKPOINT.original

    def new_epoch(self: Disk) -> int:
        return self.epoch + 1

    def checkpoint(self: Disk, snapshot: Snapshot, *kept: Any) -> Any:
        written = original(self, snapshot, *kept)
        self.epoch += 1
        return written

    return [(seams.NEW_EPOCH, new_epoch), (seams.WRITE_CHECKPOINT, checkpoint)]


@mutant("an update is sent first and logged afterwards")
def send_before_log() -> list[Change]:
    log, commit = seams.LOG_UPDATE.original, seams.COMMIT_UPDATE.original

    def log_later(self: SimulatedSwarm, node: Node, push: Push, context: frozenset[int]) -> None:
        log(self, node, push, context)
        node.disk.log.pop(push.stamps[0].dot, None)

    def commit_and_log(self: SimulatedSwarm, node: Node, push: Push) -> None:
        commit(self, node, push)
        if self.setting.log_each:
            node.disk.log[push.stamps[0].dot] = push

    return [(seams.LOG_UPDATE, log_later), (seams.COMMIT_UPDATE, commit_and_log)]


@mutant("a checkpoint has new weights and the clock of the one before")
def torn_checkpoint() -> list[Change]:
    original = seams.WRITE_CHECKPOINT.original

    def checkpoint(self: Disk, snapshot: Snapshot, *kept: Any) -> Any:
        if self.checkpoints:
            older = self.checkpoints[-1]
            snapshot = replace(snapshot, clock=older.clock, history=older.history)
        return original(self, snapshot, *kept)

    return [(seams.WRITE_CHECKPOINT, checkpoint)]


@mutant("of a list of effects, what is to be saved is saved last")
def save_after_send() -> list[Change]:
    original = seams.CARRY_OUT.original

    def carry_out(
        self: Driver[Any], effects: Iterable[Effect], now: float, came: Delivery | None = None
    ) -> bool:
        last = sorted(effects, key=lambda effect: isinstance(effect, Save))
        waits: bool = original(self, last, now, came)
        return waits

    return [(seams.CARRY_OUT, carry_out)]


@mutant("a list of effects is carried out from its end")
def effects_out_of_order() -> list[Change]:
    original = seams.CARRY_OUT.original

    def carry_out(
        self: Driver[Any], effects: Iterable[Effect], now: float, came: Delivery | None = None
    ) -> bool:
        waits: bool = original(self, list(effects)[::-1], now, came)
        return waits

    return [(seams.CARRY_OUT, carry_out)]


@mutant("effects go on after something could not be saved")
def save_ignored() -> list[Change]:
    original = seams.SAVE.original

    def save(self: Driver[Any], key: str, value: Any) -> bool:
        original(self, key, value)
        return True

    return [(seams.SAVE, save)]


@mutant("what waits in the inbox at a rejoin is dropped, and its links are never told")
def inbox_lost_at_rejoin() -> list[Change]:
    original = seams.BEGIN_AGAIN.original

    def begin_again(self: Driver[Any], reason: str, now: float) -> None:
        self.inbox.clear()
        original(self, reason, now)

    return [(seams.BEGIN_AGAIN, begin_again)]
