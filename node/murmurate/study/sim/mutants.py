"""Deliberate mistakes: the simulator is worth what it finds, so each of these must be found.

A mutant changes the production core, the driver or the disk for the time of a run, at named seams.
`murmurate sim --mutant NAME` must fail; `make sim` checks that all do within 500 seeds, of such
runs as each names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from murmurate.errors import ConfigError
from murmurate.study.sim import mistakes_in_core, mistakes_in_driver
from murmurate.study.sim.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    each.name: each
    for room in (mistakes_in_core, mistakes_in_driver)
    for each in vars(room).values()
    if isinstance(each, Mutant)
}


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """The core with one mistake in it; None: as it is."""
    if name is None:
        yield
        return
    if name not in MUTANTS:
        raise ConfigError(f"mutant {name!r}: one of {', '.join(sorted(MUTANTS))}")
    undo: list[tuple[Any, str, Any]] = []
    try:
        for seam, value in MUTANTS[name].changes():
            for owner in seam.owners:
                undo.append((owner, seam.attribute, vars(owner)[seam.attribute]))
                setattr(owner, seam.attribute, value)
        yield
    finally:
        for owner, attribute, before in reversed(undo):
            setattr(owner, attribute, before)
