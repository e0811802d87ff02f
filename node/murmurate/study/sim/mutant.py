"""A mutant: one deliberate mistake with a name. `mutants` has all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from murmurate.study.sim.options import Options
from murmurate.study.sim.seams import Seam

USUAL = Options()

Change = tuple[Seam, Any]
"""A seam, and what stands there while the mistake is in."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake with a name, what it is, and how it is made."""

    name: str
    mistake: str
    changes: Callable[[], list[Change]]
    where: Options = USUAL
    """Runs in which what it concerns is not rare."""


def mutant(
    mistake: str, *, where: Options = USUAL
) -> Callable[[Callable[[], list[Change]]], Mutant]:
    """A mutant that is named as the function that makes it."""

    def named(changes: Callable[[], list[Change]]) -> Mutant:
        return Mutant(changes.__name__.replace("_", "-"), mistake, changes, where)

    return named
