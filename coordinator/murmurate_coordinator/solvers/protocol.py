"""What every solver of the coordinator obeys, so that all the rest is written once.

A solver is a pure object: calls come in, effects go out. It has no wire, no thread, no file and no
clock of its own. Streams, silence and freezing (`sessions`), checkpoints, metrics, the report and
virtual time speak to this Protocol and know no rule.

`leases.LeasedSolver` does what all of them have in common; a rule that builds on it is one small
file. The solver names what its members do as `half` (`murmurate.core.values.member_half`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from murmurate.core.batches.dealer import Take
from murmurate.core.partition.structure import Held, Structure
from murmurate.core.values.member_half import MemberHalf
from murmurate.errors import ConfigError
from murmurate_coordinator.solvers.effects import Effect, MemberPush, Reason, Refused

Json = dict[str, Any]
LIFE = 10**9
"""Leases of each life of a coordinator begin at another multiple of this: what was given after the
last checkpoint must not be taken for what is given after a restart."""
FREE = ""
"""The owner of a share that nobody has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a member can do."""

    speed: float = 1.0
    """Relative to the others."""
    memory_bytes: int | None = None
    """For tensors, gradients and optimizer; None: enough for anything."""

    def __post_init__(self) -> None:
        if not (self.speed > 0 and math.isfinite(self.speed)):
            raise ConfigError(f"share {self.speed:g}: must be a number above 0")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ConfigError(f"memory {self.memory_bytes}: must be at least 1 byte")


@dataclass(slots=True, eq=False)
class Lease:
    """What one member was given to train, and what came back of it."""

    number: int
    owner: str
    plan: int
    held: Held
    last: dict[str, torch.Tensor]
    """What it was given or has pushed last, of tensors that others hold too."""
    version: int = 0
    """The number of its pushes that were accepted."""
    steps: int = 0
    samples: int = 0
    done: bool = False
    """It has been pushed, and its owner waits for the others: under a rule with a barrier."""
    base: int = 0
    """Where weights have versions: the plan that its last push was computed on, or the first one it
    was given."""


@dataclass(slots=True)
class PushTotals:
    """What was folded in and what was refused since the run began."""

    plans: int = 0
    pushes: int = 0
    steps: int = 0
    samples: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, eq=False)
class SolverState:
    """All that a solver must not forget but its weights: tensors, and what JSON can hold. Copies:
    what is written does not change meanwhile."""

    tensors: dict[str, torch.Tensor]
    about: Json


class DeclaredRule(Protocol):
    """What a rule of the coordinator says of itself, before anybody has joined."""

    @property
    def mode(self) -> str:
        """Of which it is a rule: ist, hub or batches."""

    @property
    def rule(self) -> str:
        """Its name."""

    @property
    def half(self) -> MemberHalf:
        """What its members do."""

    @property
    def barrier(self) -> bool:
        """Whether all wait for all."""

    @property
    def follows_speed(self) -> bool:
        """Whether what a member is given depends on how fast it is."""

    @property
    def freed(self) -> str:
        """What becomes of what a member had, when it is gone."""

    @property
    def instead(self) -> str:
        """What to take in its place where it adds up everybody's steps; empty: it does not."""

    @property
    def caution(self) -> str:
        """What several members should know before they train; empty: nothing."""

    @property
    def plan_wants_checkpoint(self) -> bool:
        """Whether a restart from before the newest plan would undo what needs no undoing."""


class Solver(DeclaredRule, Protocol):
    """One rule of the coordinator, with its state. Every call is whole when it returns."""

    # -- what it holds -----------------------------------------------------------------------------

    @property
    def structure(self) -> Structure: ...
    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """Of the whole model: they change only by a push that was accepted."""

    @property
    def steps(self) -> int:
        """Local steps to a push, where the half says so."""

    @property
    def plan(self) -> int:
        """A number that grows whenever somebody's part of the model changes."""

    @property
    def members(self) -> Mapping[str, Capacity]: ...
    @property
    def leases(self) -> Mapping[int, Lease]:
        """By number, at most one of each member."""

    @property
    def totals(self) -> PushTotals: ...
    @property
    def shared(self) -> frozenset[str]:
        """Tensors of which several members may hold the same coordinates."""

    def lease_of(self, peer: str) -> Lease | None:
        """What that member trains now."""

    def reserved(self) -> Held:
        """Units that are kept together for a newcomer: nobody else takes them."""

    def coverage(self) -> dict[str, float]:
        """Of each tensor that can be split: the part that was ever trained."""

    def for_evaluation(self) -> dict[str, torch.Tensor]:
        """The weights as they are served."""

    def check(self) -> None:
        """PromiseBroken unless what it promises holds."""

    def more(self) -> Json:
        """Further keys of the report."""

    def check_room(self, members: Mapping[str, Capacity]) -> None:
        """ConfigError unless there is something to train for each of so many."""

    def at_rate(self, factor: float) -> None:
        """From now on a step that it decides itself is so many times its learning rate."""

    # -- what comes in -----------------------------------------------------------------------------

    def join(self, peer: str, capacity: Capacity | None = None) -> list[Effect]:
        """A newcomer. The first effect is a refusal, or there is none."""

    def leave(self, peer: str) -> list[Effect]:
        """It left or died: what it pushed stays, its lease is over."""

    def away(self, peer: str, *, gone: bool = True) -> None:
        """Nobody hears of that member, who may come back or not; `gone` false: it is back."""

    def vacate(self, peer: str) -> None:
        """Nobody came in the place of that member, who left."""

    def again(self, peer: str) -> list[Effect]:
        """What it was given is lost, or was spoilt: the same once more, under another lease."""

    def measured(self, peer: str, speed: float) -> None:
        """How fast a member is."""

    def admits(self, peer: str, plan: int, number: int, version: int) -> Refused | None:
        """Whether such a push would be looked at: asked before its values are taken in."""

    def push(self, push: MemberPush) -> list[Effect]:
        """Fold it in, whole or not at all. The first effect says which."""

    def refuse(self, peer: str, reason: Reason, sentence: str) -> Refused:
        """Nothing is changed, and it is counted."""

    def take(self, peer: str, take: Take, now: float) -> list[Effect]:
        """It says what its weights hold of the batches that are dealt, and what it needs.
        RemoteProtocolError, SchemaMismatch: its stream is over."""

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""

    def close(self) -> bool:
        """Nothing new is begun from now on; whether nothing is out any more."""

    def row(self) -> Json:
        """What is other in the coordinator's own row of the report."""

    def told(self) -> str:
        """What it came to, in words."""

    def wrong(self) -> str:
        """What people should hear of now; empty: nothing new."""

    # -- over a restart ----------------------------------------------------------------------------

    def kept(self, about: Json) -> None:
        """What its state said is durable now."""

    def state(self) -> SolverState:
        """All it must not forget."""

    def begin_life(self) -> None:
        """After a restart: leases from now on have numbers that no earlier life gave."""

    def restore(self, state: SolverState) -> None:
        """The same in its next life: called on a new solver that has the weights. KeyError,
        ValueError, TypeError: it is no such state."""
