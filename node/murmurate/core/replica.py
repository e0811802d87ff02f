"""Weights and their clock, read together and changed together.

Promise: `weights == w0 + sum of the updates in clock`, always. Everything that would break it is an
outcome (duplicate, overlap), not an application. Staleness is counted in the same step that applies
the update, or the number would be wrong.

The simulator mostly uses int64 fixed point, and no node does: sums are equal to the bit in any
order (fp32 sums in two orders differ by about 8e-7 relative after 4,000 updates).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from murmurate.core import buffers
from murmurate.core.batches.held import NO_BATCHES, HeldBatches
from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Part, Stamp
from murmurate.errors import LocalProtocolError


@dataclass(frozen=True, slots=True)
class Fresh:
    """It was applied; staleness of each update, in the order of the stamps."""

    staleness: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """All of it was there already; nothing changed."""

    count: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """A sum of which some updates were there: nothing changed, the others are still missing."""

    missing: tuple[Dot, ...]


class Replica:
    """One model's flat weights, the clock of what is in them, and the batches of its updates."""

    __slots__ = ("batches", "clock", "weights")

    def __init__(
        self,
        weights: torch.Tensor,
        clock: Clock | None = None,
        batches: HeldBatches = NO_BATCHES,
    ) -> None:
        if weights.dim() != 1:
            raise LocalProtocolError(f"weights have {weights.dim()} axes, expected one flat buffer")
        self.weights = weights
        self.clock = clock if clock is not None else Clock()
        self.batches = batches

    def context(self) -> Clock:
        """The clock of these weights, to be taken when a batch is started."""
        return self.clock.copy()

    def snapshot(self) -> tuple[torch.Tensor, Clock]:
        """Weights and clock of one instant."""
        return buffers.clone(self.weights, once=True), self.clock.copy()

    def judge(self, dots: tuple[Dot, ...]) -> Duplicate | Overlap | None:
        """What would speak against applying updates with these ids; None: nothing."""
        have = [dot in self.clock for dot in dots]
        if not any(have):
            return None
        if all(have):
            return Duplicate(len(dots))
        return Overlap(tuple(dot for dot, there in zip(dots, have, strict=True) if not there))

    def fold(
        self,
        stamps: tuple[Stamp, ...],
        payload: torch.Tensor | tuple[Part, ...],
    ) -> Fresh | Duplicate | Overlap:
        """Apply an update, or a sum of updates, unless any of it is there already.

        Inside a sum staleness is counted update by update, in order, as if they had been applied
        one after another.
        """
        plain = payload if isinstance(payload, torch.Tensor) else None
        shape = tuple({p.size for p in payload} if plain is None else plain.shape)
        if not stamps or shape != self.weights.shape:
            raise LocalProtocolError("an update without an id, or of another shape")
        verdict = self.judge(tuple(stamp.dot for stamp in stamps))
        if verdict is not None:
            return verdict
        staleness = self.count(stamps)
        if plain is None:
            for part in payload:
                part.add_to(self.weights)
        else:
            self.weights.add_(plain)
        return Fresh(staleness)

    def count(self, stamps: tuple[Stamp, ...]) -> tuple[int, ...]:
        """Put the dots into the clock, one after another, and the batches beside it; the distance
        just before each."""
        clock = self.clock
        out = []
        for stamp in stamps:
            out.append(stamp.context.distance(clock))
            clock.add(stamp.dot)
            self.batches = self.batches.add(stamp.batches)
        return tuple(out)
