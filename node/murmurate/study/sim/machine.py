"""One simulated machine: a disk that survives, a process that may not, a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from murmurate.core.clock import Clock
from murmurate.core.driver import Driver
from murmurate.core.gossip.peer import Peer
from murmurate.study.sim.disk import Disk


class Node:
    """One machine: a disk that survives, a process that may not, and a clock of its own."""

    __slots__ = (
        "batch",
        "busy",
        "disk",
        "drift",
        "driver",
        "keep_soon",
        "last_epoch",
        "leaving_until",
        "life",
        "name",
        "offset",
        "paused",
        "pending",
        "step_s",
        "stopped",
        "unread",
        "was_away",
    )

    def __init__(self, name: str, disk: Disk, rng: random.Random, step_s: float) -> None:
        self.name = name
        self.disk = disk
        self.driver: Driver[Peer] | None = None
        """Of the process that runs now, if any."""
        self.life = 0
        self.last_epoch = 0
        """Of its last life, whatever its disk remembers."""
        self.offset = rng.random() * 1000.0
        self.drift = rng.uniform(0.95, 1.05)
        self.step_s = step_s * rng.choice((0.7, 1.0, 1.0, 1.5))
        self.paused: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self.unread = 0
        """Messages whose links were not told yet that they are read."""
        self.keep_soon = False
        """A checkpoint is due at the next step, whatever the time."""
        self.batch: tuple[Clock, frozenset[int]] | None = None
        self.pending: torch.Tensor | None = None
        self.busy: set[str] = set()
        self.leaving_until = 0.0
        self.stopped = False
        """Will not come back: left for good, or its disk is gone."""
        self.was_away = False
        """Crashed, paused or cut off at some time: only then may others close without it."""

    @property
    def peer(self) -> Peer | None:
        """Of the life that goes on now, if any."""
        return self.driver.peer if self.driver is not None and self.driver.alive else None

    def begin_life(self) -> None:
        """Nothing is in progress, and all links are new."""
        self.life += 1
        self.batch = None
        self.pending = None
        self.busy = set()
        self.leaving_until = 0.0
        self.keep_soon = False

    def read_one(self) -> None:
        self.unread -= 1

    def now(self, time: float) -> float:
        """This machine's monotonic clock: its own zero, its own speed."""
        return self.offset + time * self.drift
