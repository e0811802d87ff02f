"""What goes into a solver and what comes out of it: a member's push, and effects with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch

from murmurate.core.intervals import Runs
from murmurate.core.partition.structure import Held


class Reason(StrEnum):
    """Why something was refused; the names are labels of a metric."""

    OVER = "over"
    NOT_LEASED = "not_leased"
    SHAPES = "shapes"
    NOT_FINITE = "not_finite"
    FUTURE = "future"
    DUPLICATE = "duplicate"
    SAMPLES = "samples"
    EXISTS = "exists"
    FULL = "full"


@dataclass(frozen=True, slots=True, eq=False)
class MemberPush:
    """From a member: what its half of the rule sends up after some steps. The values are the
    solver's from now on."""

    peer: str
    plan: int
    lease: int
    version: int
    steps: int
    samples: int
    values: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class GiveLease:
    """To a member: «train this». The values are its own copy."""

    peer: str
    plan: int
    lease: int
    version: int
    held: Held
    values: Mapping[str, torch.Tensor]
    steps: int | None
    """Local steps until its push; None: as it likes, pushing whenever the last push is done."""


@dataclass(frozen=True, slots=True)
class PushAccepted:
    """To a member: its push is in the model, whole."""

    peer: str
    lease: int
    version: int
    staleness: int | None = None
    """Updates of the weights since the version it was computed on, where a rule counts versions;
    None: whoever asks counts the pushes of others."""


@dataclass(frozen=True, slots=True)
class Refused:
    """To a member: its push or its coming was refused, and nothing was changed."""

    peer: str
    reason: Reason
    sentence: str


@dataclass(frozen=True, slots=True)
class Waits:
    """To a newcomer: there is nothing for it yet, and why."""

    peer: str
    sentence: str


Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DealBatches:
    """To one who takes batches: «train on these, and say in your updates which»."""

    peer: str
    samples: int
    batches: tuple[tuple[int, Batch], ...]
    """With their numbers."""


@dataclass(frozen=True, slots=True)
class SayLease:
    """To the same: «of all that was dealt these are yours», the answer to one beat."""

    peer: str
    beat: int
    numbers: Runs


Effect = GiveLease | PushAccepted | Refused | Waits | DealBatches | SayLease
