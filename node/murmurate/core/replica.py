"""Weights and their clock, read together and changed together.

Promise: `weights == w0 + sum of the updates in clock`, always. Everything that would break it is an
outcome (duplicate, overlap), not an application. Staleness is counted in the same step that applies
the update, or the number would be wrong.

In the exact form weights and payloads are int64 fixed point: sums are then equal to the bit in any
order (fp32 sums in two orders differ by about 8e-7 relative after 4,000 updates).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from murmurate.core import buffers
from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Part, Stamp
from murmurate.errors import LocalProtocolError

FIXED_POINT_BITS = 32
"""Fraction bits of the exact form: steps of 2.3e-10 up to 2.1e9."""
FIXED_POINT_MAX = 2.0 ** (63 - FIXED_POINT_BITS)


def to_fixed(values: torch.Tensor) -> torch.Tensor:
    """Floating point to int64 fixed point (rounded to nearest)."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    if not largest < FIXED_POINT_MAX:
        raise LocalProtocolError(f"{largest} does not fit fixed point: below {FIXED_POINT_MAX:g}")
    return torch.round(values.double() * 2.0**FIXED_POINT_BITS).to(torch.int64)


def from_fixed(values: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """int64 fixed point back to floating point."""
    return (values.double() / 2.0**FIXED_POINT_BITS).to(dtype)


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
    """One model's flat weights and the clock of what is in them."""

    __slots__ = ("clock", "weights")

    def __init__(self, weights: torch.Tensor, clock: Clock | None = None) -> None:
        if weights.dim() != 1:
            raise LocalProtocolError(f"weights have {weights.dim()} axes, expected one flat buffer")
        self.weights = weights
        self.clock = clock if clock is not None else Clock()

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
        *,
        scale: float = 1.0,
    ) -> Fresh | Duplicate | Overlap:
        """Apply an update, or a sum of updates, unless any of it is there already.

        Inside a sum staleness is counted update by update, in order, as if they had been applied
        one after another.
        """
        plain = payload if isinstance(payload, torch.Tensor) else None
        shape = tuple({p.size for p in payload} if plain is None else plain.shape)
        if plain is None and scale != 1.0:
            raise LocalProtocolError("what is encoded is added as it is, not scaled")
        if not stamps or shape != self.weights.shape:
            raise LocalProtocolError("an update without an id, or of another shape")
        verdict = self.judge(tuple(stamp.dot for stamp in stamps))
        if verdict is not None:
            return verdict
        staleness = self.count(stamps)
        if plain is None:
            for part in payload:
                part.add_to(self.weights)
        elif scale == 1.0:
            self.weights.add_(plain)
        else:
            self.weights.add_(plain, alpha=scale)
        return Fresh(staleness)

    def count(self, stamps: tuple[Stamp, ...]) -> tuple[int, ...]:
        """Put the dots into the clock, one after another; the distance just before each."""
        clock = self.clock
        out = []
        for stamp in stamps:
            out.append(stamp.context.distance(clock))
            clock.add(stamp.dot)
        return tuple(out)

    def adopt(self, weights: torch.Tensor, clock: Clock) -> None:
        """Replace both by a snapshot's."""
        if weights.shape != self.weights.shape or weights.dtype != self.weights.dtype:
            raise LocalProtocolError("a snapshot of another shape or dtype")
        self.weights.copy_(weights)
        self.clock = clock.copy()

    def audit(
        self,
        w0: torch.Tensor,
        updates: Mapping[Dot, torch.Tensor],
        dots: Iterable[Dot] | None = None,
    ) -> float:
        """How far `weights` is from `w0 + sum of updates(clock)`: the largest difference.

        `dots`: the whole set when part of the clock is folded into the baseline.
        """
        wide = torch.float64 if w0.is_floating_point() else torch.int64
        total = w0.to(wide).clone()
        for dot in self.clock if dots is None else dots:
            total += updates[dot].to(wide)
        return float((total - self.weights.to(wide)).abs().max())
