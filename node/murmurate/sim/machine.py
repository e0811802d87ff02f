"""One simulated machine: a disk that survives, a process that may not, a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from murmurate.core.clock import Clock
from murmurate.core.message import Decided, Push, Snapshot
from murmurate.core.peer import Peer
from murmurate.sim.disk import Disk


class Node:
    """One machine: a disk that survives, a process that may not, and a clock of its own."""

    __slots__ = (
        "batch",
        "busy",
        "disk",
        "drift",
        "inbox",
        "leaving_until",
        "life",
        "name",
        "offset",
        "paused",
        "peer",
        "pending",
        "step_s",
        "stopped",
        "was_away",
    )

    def __init__(self, name: str, disk: Disk, rng: random.Random, step_s: float) -> None:
        self.name = name
        self.disk = disk
        self.peer: Peer | None = None
        self.life = 0
        self.offset = rng.random() * 1000.0
        self.drift = rng.uniform(0.95, 1.05)
        self.step_s = step_s * rng.choice((0.7, 1.0, 1.0, 1.5))
        self.paused: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self.inbox: list[tuple[str, Push | Snapshot | Decided]] = []
        self.batch: tuple[Clock, frozenset[int]] | None = None
        self.pending: torch.Tensor | None = None
        self.busy: set[str] = set()
        self.leaving_until = 0.0
        self.stopped = False
        """Will not come back: left for good, or its disk is gone."""
        self.was_away = False
        """Crashed, paused or cut off at some time: only then may others close without it."""

    def now(self, time: float) -> float:
        """This machine's monotonic clock: its own zero, its own speed."""
        return self.offset + time * self.drift
