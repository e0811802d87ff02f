"""Deliberate mistakes in the driver and on the disk: what must be durable, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from murmurate.core.driver import Delivery, Driver
from murmurate.core.effect import Effect, Save
from murmurate.study.sim import seams
from murmurate.study.sim.disk import Disk, Saved
from murmurate.study.sim.mutant import Change, mutant
from murmurate.study.sim.options import Options


@mutant("a restarted node goes on with its old epoch")
def epoch_reuse() -> list[Change]:
    def new_epoch(self: Disk, least: int = 1) -> int:
        self.epoch = max(least, self.epoch)
        return self.epoch

    return [(seams.NEW_EPOCH, new_epoch)]


@mutant("the epoch is made durable at the first checkpoint, not at the start")
def epoch_after_send() -> list[Change]:
    original = seams.WRITE_CHECKPOINT.original

    def new_epoch(self: Disk, least: int = 1) -> int:
        return max(self.epoch + 1, least)

    def checkpoint(self: Disk, saved: Saved) -> Any:
        written = original(self, saved)
        self.epoch += 1
        return written

    return [(seams.NEW_EPOCH, new_epoch), (seams.WRITE_CHECKPOINT, checkpoint)]


@mutant("who comes back without its memory takes up the epoch it had")
def who_forgot_takes_up_its_old_epoch() -> list[Change]:
    return [(seams.EPOCH_AFTER, lambda clock_ms, told: max(1, told))]


@mutant("a checkpoint has new weights and the clock of the one before")
def torn_checkpoint() -> list[Change]:
    original = seams.WRITE_CHECKPOINT.original

    def checkpoint(self: Disk, saved: Saved) -> Any:
        if self.checkpoints:
            older = self.checkpoints[-1].snapshot
            torn = replace(saved.snapshot, clock=older.clock, history=older.history)
            saved = replace(saved, snapshot=torn)
        return original(self, saved)

    return [(seams.WRITE_CHECKPOINT, checkpoint)]


@mutant("a checkpoint has weights and clock, and not the updates that somebody may lack")
def checkpoint_without_log() -> list[Change]:
    original = seams.WRITE_CHECKPOINT.original

    def checkpoint(self: Disk, saved: Saved) -> Any:
        return original(self, replace(saved, log=()))

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


@mutant(
    "what waits in the inbox at a rejoin is dropped, and its links are never told",
    where=Options(long=True, drain=True, forget_after_s=1.0, nodes=(4, 5), topology="full"),
)
def inbox_lost_at_rejoin() -> list[Change]:
    original = seams.BEGIN_AGAIN.original

    def begin_again(self: Driver[Any], reason: str, now: float) -> None:
        self.inbox.clear()
        original(self, reason, now)

    return [(seams.BEGIN_AGAIN, begin_again)]
