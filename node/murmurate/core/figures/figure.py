"""A figure: one thing that is counted or measured, its name, and who shows it how.

Units are in the names, as Prometheus wants it: `…_seconds`, `…_bytes`, `…_updates`, `…_ratio`; a
counter's `_total` is added where it is shown. What is not known (a loss before the first step) is
NaN or None, and is not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from murmurate.core.figures.counters import NAMES_MAX, OTHER
from murmurate.core.staleness import Summary

if TYPE_CHECKING:
    from murmurate.core.figures.sources import CoordinatorInstant, MemberSource, NodeInstant

S = TypeVar("S")
STALENESS_BOUNDS = (
    *(0, 1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255, 383, 511),
    *(1023, 2047, 4095, 16383, 65535),
)
"""Upper bounds one below numbers of few bits: so counts are exact even where `Summary` bins."""


class FigureKind(StrEnum):
    """What Prometheus calls the type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts up to each bound (and beyond the last), not added up; and the sum of all values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


Value: TypeAlias = float | Mapping[str, float] | Mapping[str, str] | Histogram | None
"""A number; numbers by label; words (of an info); a histogram; None: not known."""


@dataclass(frozen=True, slots=True)
class Shown(Generic[S]):
    """How one kind of process shows a figure: its help, and how it is read from what is known."""

    help: str
    read: Callable[[S], Value]
    from_start: tuple[str, ...] = ()
    """Labels that are there at 0 before the first: else nobody sees the first as a change."""

    def value(self, source: S) -> Value:
        """Of this instant; nothing in it changes later."""
        value = self.read(source)
        return dict.fromkeys(self.from_start, 0) | value if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `label`: what its numbers are told apart by, if there are several."""

    name: str
    kind: FigureKind
    label: str = ""
    node: Shown[NodeInstant] | None = None
    member: Shown[MemberSource] | None = None
    coordinator: Shown[CoordinatorInstant] | None = None


def few(
    values: Mapping[str, float],
    of_rest: Callable[[Iterable[float]], float],
    most: int = NAMES_MAX,
) -> dict[str, float]:
    """By name, in order of the names; of those beyond the limit one figure."""
    names = sorted(values)
    out = {name: values[name] for name in names[:most]}
    if rest := names[most:]:
        out[OTHER] = of_rest(values[name] for name in rest)
    return out


def staleness_histogram(seen: Summary) -> Histogram:
    counts = [0] * (len(STALENESS_BOUNDS) + 1)
    place = 0
    for value, times in sorted(seen.counts().items()):
        while place < len(STALENESS_BOUNDS) and value > STALENESS_BOUNDS[place]:
            place += 1
        counts[place] += times
    return Histogram(STALENESS_BOUNDS, counts, seen.total)
