"""What the figures of a node, a member and a coordinator are read from: one instant of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from murmurate.core.figures.counters import Tally
from murmurate.core.figures.progress import Progress
from murmurate.core.figures.staleness_forecast import Outlook
from murmurate.core.staleness import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How checkpoints go."""

    age_s: float
    """Since the last durable one, or since the start when there is none yet."""
    every_s: float
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInstant:
    """A node, its lock held: `tally` and `outlook` are its own and go on changing afterwards."""

    name: str
    run: str
    rule: str
    topology: str
    now: float
    tally: Tally
    outlook: Outlook
    ready: bool = False
    parameters: int = 0
    inbox_updates: int = 0
    outbox_bytes: int = 0
    lag: int = 0
    members: Mapping[str, int] = field(default_factory=dict)
    foresees: bool = False
    """Whether a prediction of staleness means anything: part of a swarm, and of updates."""
    replica_distance: float = math.nan
    bytes_sent: int = 0
    bytes_received: int = 0
    pace_s: float = 0.0
    communication: float = math.nan
    keeping: Keeping | None = None
    certificate_expiry_s: float = math.nan


class MemberSource(Protocol):
    """A member of independent subnet training."""

    tally: Tally

    @property
    def steps_lost(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def run(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def lease(self) -> int: ...
    @property
    def connected(self) -> bool: ...
    @property
    def plan(self) -> int: ...
    @property
    def share(self) -> float: ...
    @property
    def staleness(self) -> Summary: ...
    def progress(self) -> Progress: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorInstant:
    """A coordinator, read by the thread that owns its sessions."""

    name: str
    run: str
    rule: str
    ready: bool = False
    plan: int = 0
    leases: int = 0
    revoked: int = 0
    pushes: int = 0
    steps: int = 0
    samples: int = 0
    parameters: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    """Pushes and streams, by reason."""
    members: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    coverage: Mapping[str, float] = field(default_factory=dict)
    advice: Mapping[str, int] = field(default_factory=dict)
    staleness: Summary = field(default_factory=Summary)
    loss: float = math.nan
    test_loss: float = math.nan
    accuracy: float = math.nan
    validation_loss: float = math.nan
    validation_accuracy: float = math.nan
    accuracy_plain: float = math.nan
    bytes_sent: int = 0
    bytes_received: int = 0
    keeping: Keeping | None = None
