"""What a member was given to train, and all it did under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from murmurate.core.partition.structure import Held
from murmurate.edge.net.subnet_values import Values


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease as its owner sees it. Steps, samples and seconds count since it was given."""

    plan: int
    number: int
    version: int
    """Of its pushes that are in."""
    held: Held
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    pushed: int = 0
    """Steps that were in the last push."""
    taken: int = 0
    """… and in the last one that is in the model."""
    valid: bool = True
    done: bool = False
    """Its J steps are pushed: something else comes."""


class Gift(NamedTuple):
    """A subnet that has arrived whole."""

    lease: HeldLease
    values: Values
