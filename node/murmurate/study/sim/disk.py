"""A seeded disk: what is synced survives a crash, nothing else does."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from murmurate.core.clock import Dot
from murmurate.core.forgetting.agreement import Vow
from murmurate.core.message import Generation, Push, Snapshot


class DiskFull(Exception):
    """ENOSPC: nothing was written."""


class PowerCut(Exception):
    """The machine stopped in the middle of a write."""


class Disk:
    """One node's epoch, vow, log of own updates and the last checkpoints."""

    CHECKPOINTS_KEPT = 3

    def __init__(self, rng: random.Random, counts: Counter[str], torn: float = 0.0) -> None:
        self.rng = rng
        self.counts = counts
        self.torn = torn
        self.full = False
        self.wiped = False
        self.epoch = 0
        self.vow: Vow | None = None
        self.history: tuple[Generation, ...] = ()
        self.met: tuple[str, ...] = ()
        self.log: dict[Dot, Push] = {}
        self.checkpoints: list[Snapshot] = []
        self.kept: dict[int, tuple[tuple[Push, ...], tuple[Push, ...]]] = {}
        """Log and store of each checkpoint, where not each update is logged."""
        self._pruned: dict[Dot, Push] = {}

    def new_epoch(self) -> int:
        """A number no earlier life had; durable before it is used."""
        self._room()
        self.epoch += 1
        return self.epoch

    def append(self, push: Push) -> None:
        """Log an update of my own; durable when this returns."""
        self._room()
        self._may_tear()
        self.log[push.stamps[0].dot] = push

    def save(self, key: str, value: Any) -> None:
        self._room()
        if key == "vow":
            self.vow = value
        elif key == "history":
            self.history = value
        elif key == "met":
            self.met = value
        else:
            raise KeyError(key)

    def checkpoint(
        self,
        snapshot: Snapshot,
        log: tuple[Push, ...] = (),
        store: tuple[Push, ...] = (),
    ) -> Snapshot:
        """Written beside the old ones, synced, then renamed: there is always a whole one.

        What the disk has now of it.
        """
        self._room()
        self._may_tear()
        self.checkpoints = [*self.checkpoints[1 - self.CHECKPOINTS_KEPT :], snapshot]
        kept = {**self.kept, id(snapshot): (log, store)}
        self.kept = {id(each): kept[id(each)] for each in self.checkpoints if id(each) in kept}
        return snapshot

    def prune(self, dots: tuple[Dot, ...]) -> None:
        """Not synced: a crash may bring these back, which does no harm."""
        for dot in dots:
            push = self.log.pop(dot, None)
            if push is not None:
                self._pruned[dot] = push

    def has_logged(self, dot: Dot) -> bool:
        return dot in self.log or dot in self._pruned or dot.epoch < self.epoch

    def crash(self) -> None:
        """Lose what was not synced."""
        if self._pruned and self.rng.random() < 0.5:
            self.counts["unsynced write lost"] += 1
            self.log = {**self._pruned, **self.log}
        self._pruned = {}

    def newest_checkpoint(self, flip: float) -> Snapshot | None:
        """The newest whole one: a flipped bit is found by the checksum, and the one before used."""
        if len(self.checkpoints) > 1 and self.rng.random() < flip:
            self.counts["checkpoint damaged"] += 1
            self.checkpoints.pop()
        return self.checkpoints[-1] if self.checkpoints else None

    def wipe_state(self) -> None:
        """Start as a newcomer under the same name: only the epoch counter and the vow are kept."""
        self.log = {}
        self.checkpoints = []
        self.kept = {}
        self.history = self.met = ()
        self._pruned = {}
        self.wiped = True

    def _may_tear(self) -> None:
        """Half a record: its checksum is wrong, so a restart does not find it."""
        if self.torn and self.rng.random() < self.torn:
            self.counts["torn write"] += 1
            raise PowerCut

    def _room(self) -> None:
        if self.full:
            self.counts["disk full"] += 1
            raise DiskFull
