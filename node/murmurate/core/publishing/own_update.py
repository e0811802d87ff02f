"""An update as its origin makes it: what the steps of a span came to, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass

from murmurate.core.clock import Clock
from murmurate.core.intervals import Runs
from murmurate.core.message import Delta


@dataclass(frozen=True, slots=True, eq=False)
class OwnUpdate:
    """Not in the weights yet."""

    delta: Delta
    context: Clock
    """Of the weights that the first step was computed on."""
    compute_s: float = 0.0
    worth: int = 1
    """Of so many updates, had there been room for each."""
    batches: Runs = ()
    """Of a generator, that it was computed on."""
    written: bool = False
    """No step made it: weights were restored."""
