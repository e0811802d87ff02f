"""A seeded disk: what is synced survives a crash, nothing else does."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from murmurate.core.forgetting.vow import Vow
from murmurate.core.message import Generation, Push, Snapshot


class DiskFull(Exception):
    """ENOSPC: nothing was written."""


class PowerCut(Exception):
    """The machine stopped in the middle of a write."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint: weights and clock, and the updates that somebody may lack."""

    snapshot: Snapshot
    log: tuple[Push, ...]
    store: tuple[Push, ...]
    epoch: int
    """Of the life that wrote it."""


class Disk:
    """One node's epoch, vow and last checkpoints."""

    CHECKPOINTS_KEPT = 3

    def __init__(self, rng: random.Random, counts: Counter[str], torn: float = 0.0) -> None:
        self.rng = rng
        self.counts = counts
        self.torn = torn
        self.full = False
        self.wiped = False
        self.epoch = 0
        self.memory = 0
        """The life since which this disk has had the vow; 0: none began on it."""
        self.vow: Vow | None = None
        self.history: tuple[Generation, ...] = ()
        self.met: tuple[str, ...] = ()
        self.checkpoints: list[Saved] = []

    def new_epoch(self, least: int = 1) -> int:
        """A number no earlier life had; durable before it is used."""
        self._room()
        self.epoch = max(self.epoch + 1, least)
        return self.epoch

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

    def checkpoint(self, saved: Saved) -> Saved:
        """Written beside the old ones, synced, then renamed: there is always a whole one.

        What the disk has now of it.
        """
        self._room()
        self._may_tear()
        self.checkpoints = [*self.checkpoints[1 - self.CHECKPOINTS_KEPT :], saved]
        return saved

    def newest_checkpoint(self, flip: float) -> Saved | None:
        """The newest whole one: a flipped bit is found by the checksum, and the one before used."""
        if len(self.checkpoints) > 1 and self.rng.random() < flip:
            self.counts["checkpoint damaged"] += 1
            self.checkpoints.pop()
        return self.checkpoints[-1] if self.checkpoints else None

    def wipe_state(self) -> None:
        """Start as a newcomer under the same name: only the epoch counter and the vow are kept."""
        self.checkpoints = []
        self.history = self.met = ()
        self.wiped = True

    def lose(self) -> None:
        """All is gone: what is left is a name."""
        self.wipe_state()
        self.epoch = self.memory = 0
        self.vow = None

    def _may_tear(self) -> None:
        """Half a file: its checksum is wrong, so a restart does not find it."""
        if self.torn and self.rng.random() < self.torn:
            self.counts["torn write"] += 1
            raise PowerCut

    def _room(self) -> None:
        if self.full:
            self.counts["disk full"] += 1
            raise DiskFull
