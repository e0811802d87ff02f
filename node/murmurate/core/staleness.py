"""How stale updates were: a summary of what was seen, in updates.

What to expect is `core.theory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from murmurate.errors import LocalProtocolError

VALUES_MAX = 4096
"""Distinct values kept one by one before they are folded into bins."""
BIN_BITS = 8
"""Leading bits a bin keeps: 128 bins for each doubling, so at most 1 part in 128 is cut off."""


class Summary:
    """Staleness seen so far: count, mean, median, 99th percentile, largest.

    Exact always: `count`, `total`, `mean` (of two exact integers) and `largest`.
    Exact until more than 4,096 distinct values were seen: every percentile. After that `folded` is
    true and values from 256 on are kept by their 8 leading bits: a percentile is exact below 256,
    and otherwise too low by less than 1 in 128. Memory is bounded: 4,096 entries, or after folding
    256 + 128 for each doubling up to the largest value.
    """

    __slots__ = ("_counts", "count", "folded", "largest", "total")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.largest = 0
        self.folded = False
        for value in values:
            self.add(value)

    def add(self, value: int) -> None:
        """Count one application."""
        if value < 0:
            raise LocalProtocolError(f"staleness {value}: a number of updates is never negative")
        self.count += 1
        self.total += value
        if value > self.largest:
            self.largest = value
        key = _bin(value) if self.folded else value
        self._counts[key] = self._counts.get(key, 0) + 1
        if len(self._counts) > VALUES_MAX and not self.folded:
            self._fold()

    def merge(self, other: Summary) -> None:
        """Count another summary's applications too (a swarm's from its nodes')."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        if other.folded and not self.folded:
            self._fold()
        for value, times in other._counts.items():
            key = _bin(value) if self.folded else value
            self._counts[key] = self._counts.get(key, 0) + times
        if len(self._counts) > VALUES_MAX and not self.folded:
            self._fold()

    def memory(self) -> list[Any]:
        """All of it, as JSON can hold it."""
        pairs = [list(each) for each in self._counts.items()]
        return [self.count, self.total, self.largest, self.folded, pairs]

    @classmethod
    def remembered(cls, memory: Sequence[Any]) -> Self:
        """What it was when that was its memory."""
        made = cls()
        made.count, made.total, made.largest, made.folded, pairs = memory
        made._counts = {int(value): int(times) for value, times in pairs}
        return made

    @property
    def mean(self) -> float:
        """0.0 when nothing was seen."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: int) -> int:
        """The smallest value with at least `percent` % of all at or below it; 0 when none."""
        if not 0 <= percent <= 100:
            raise LocalProtocolError(f"percentile {percent}, expected 0 to 100")
        if percent == 100:
            return self.largest
        rank = max(1, -(-self.count * percent // 100))
        seen = 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            if seen >= rank:
                return value
        return 0

    def counts(self) -> dict[int, int]:
        """How often each staleness was seen: what a summary is made of, to be pooled elsewhere."""
        return dict(self._counts)

    def report(self) -> dict[str, int | float]:
        """The `staleness` object of a run's report."""
        return {
            "count": self.count,
            "mean": self.mean,
            "p50": self.percentile(50),
            "p99": self.percentile(99),
            "max": self.largest,
        }

    def _fold(self) -> None:
        self.folded = True
        counts: dict[int, int] = {}
        for value, times in self._counts.items():
            key = _bin(value)
            counts[key] = counts.get(key, 0) + times
        self._counts = counts


def _bin(value: int) -> int:
    """The value with all but its leading bits cleared; values of few bits stay as they are."""
    shift = value.bit_length() - BIN_BITS
    return value if shift <= 0 else value >> shift << shift
