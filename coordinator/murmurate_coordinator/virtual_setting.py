"""What a coordinator's run in virtual time is told, and what it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.recipe import Recipe
from murmurate.errors import ConfigError
from murmurate.study.virtual.costs import Costs
from murmurate.workloads import Evaluation
from murmurate_coordinator.members import GRACE_S, VACANT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSetting:
    """One run. Seconds are virtual; a peer of speed 1 makes a step in one."""

    rule: str
    peers: int
    seconds: float
    mode: str = "ist"
    hub: HubSettings | None = None
    """What a rule of mode hub is told."""
    steps: int = 10
    """J: local steps for one lease."""
    step_s: Callable[[str], float] | None = None
    """The time of the next step of a member, for studies of delays; None: as its speed says."""
    own_samples: int | None = None
    """The stop rule of 002: a member leaves when it has trained on so many, the last one goes on.
    None: one budget for all."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """By name (node-0, …); 1 for the others. node-0 is the coordinator, which trains too (001)."""
    costs: Costs = field(default_factory=Costs)
    """Of a step, and of a push that the coordinator folds in, at speed 1."""
    widths: Mapping[str, float] = field(default_factory=dict)
    """How large their subnets are, relative to each other; 1 for the others."""
    memory_bytes: int | None = None
    """Of each member, for its subnet."""
    delay_s: float = 0.0
    seed: int = 0
    split: str = "none"
    batch_size: int | None = None
    delays_s: Mapping[str, float] = field(default_factory=dict)
    """Of some members' links to the coordinator."""
    joins: tuple[tuple[float, str], ...] = ()
    leaves: tuple[tuple[float, str], ...] = ()
    kills: tuple[tuple[float, str], ...] = ()
    """Who joins, leaves or dies when, besides those that are there from the start."""
    notice_s: float = GRACE_S
    """After that the coordinator takes one that died for dead."""
    vacant_s: float = VACANT_S
    """So long units of one that is gone are kept for a newcomer, where one partition is kept."""
    recipe: Recipe = field(default_factory=Recipe)
    """How the rate changes on the way; the optimizer is the workload's."""
    spent: Callable[[], float] = lambda: 0.0
    """The part of the budget, if the rate goes by it."""
    push_s: float = 0.0
    """Between two pushes that nobody asked for (`async`): real members take 1 to 2 s."""

    def __post_init__(self) -> None:
        if self.peers < 1:
            raise ConfigError(f"peers {self.peers}: must be at least 1")
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ConfigError(f"seconds {self.seconds:g}: must be a number above 0")
        if not (self.delay_s >= 0 and math.isfinite(self.delay_s)):
            raise ConfigError(f"delay {self.delay_s:g}: must be a number from 0 on")
        for name, speed in self.speeds.items():
            if not (speed > 0 and math.isfinite(speed)):
                raise ConfigError(f"speed {name}={speed:g}: must be a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualOutcome:
    rule: str
    seed: int
    evaluation: Evaluation
    """Of the full model as it is."""
    masked: Evaluation
    """With zeros where nobody ever trained."""
    samples: int
    steps: Mapping[str, int]
    """Made by each peer, whether they got into the model or not."""
    plans: int
    pushes: int
    refused: Mapping[str, int]
    coverage: Mapping[str, float]
