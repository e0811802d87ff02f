"""Which batches of a generator are in some weights: the union of what their updates say.

An update carries the numbers of the batches it was computed on, and the union stands beside the
clock: weights, clock and batches are read together and change together. So whoever asks a node
what it holds of a generator's batches learns the truth, however an update came there: by itself, in
a sum, in a snapshot or from a checkpoint, and also when its origin's life left the clocks long ago.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from murmurate.core.intervals import Runs, runs_add, runs_common, runs_minus
from murmurate.core.values.limits import AnyNumber, Ascending, Few

STAMP_RUNS_MAX = 1024
"""Of the batches in one update: steps add up while links are slower than the training."""
HELD_RUNS_MAX = 4096
"""Of all that some weights hold. Batches are dealt in order, so there are about as many holes as
are being trained on, and one for each whose result was not finite."""

BatchRuns = Annotated[tuple[AnyNumber, ...], Few(2 * HELD_RUNS_MAX), Ascending(empty=True)]


@dataclass(frozen=True, slots=True)
class HeldBatches:
    """Numbers of batches; a value, so that a snapshot may share it."""

    numbers: Runs = ()
    repeated: Runs = ()
    """Of these: in two updates or more, so trained on twice."""

    def add(self, batches: Runs) -> HeldBatches:
        """With those of one more update."""
        if not batches:
            return self
        twice = runs_both(self.numbers, batches)
        return HeldBatches(
            runs_union(self.numbers, batches),
            runs_union(self.repeated, twice) if twice else self.repeated,
        )


NO_BATCHES = HeldBatches()


def runs_union(a: Runs, b: Runs) -> Runs:
    """The numbers of both."""
    for i in range(0, len(b), 2):
        a = runs_add(a, b[i], b[i + 1])
    return a


def runs_both(a: Runs, b: Runs) -> Runs:
    """The numbers that are in the one and the other."""
    return runs_minus(b, runs_minus(b, a)) if runs_common(a, b) else ()


def runs_of(numbers: Iterable[int]) -> Runs:
    """Single numbers as runs."""
    out: list[int] = []
    for number in sorted(set(numbers)):
        if out and number == out[-1] + 1:
            out[-1] = number
        else:
            out += (number, number)
    return tuple(out)
