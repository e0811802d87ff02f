"""How far each node has got, as everyone knows it: a board of the newest word of each.

Nodes tell their own progress and pass on what they heard. Nobody's training depends on it, except
for the end: a budget counts the samples of the whole swarm, and `done` with `last` tells the others
when they have everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from murmurate.core.clock import Limits, name_problem
from murmurate.core.runs import SEQ_MAX
from murmurate.errors import RemoteProtocolError

NAMES_MAX = 1024
REASONS_MAX = 64
SKETCH_BYTES = 256
NEIGHBOURS_MAX = 80
MADE_MAX = 256


@dataclass(frozen=True, slots=True)
class Staleness:
    """Over all applications, own included, in updates (`core.staleness.Summary.report`)."""

    count: int = 0
    mean: float = 0.0
    p50: int = 0
    p99: int = 0
    max: int = 0


class Neighbour(NamedTuple):
    """What passed between the teller and one of its peers."""

    name: str
    sent_bytes: int = 0
    applied: int = 0
    """Of that peer's updates; and their staleness, all together."""
    staleness: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """«So far have I got.» Of two words of one name the higher (epoch, version) is the newer."""

    name: str
    epoch: int
    version: int
    samples: int = 0
    samples_per_s: float = 0.0
    step_s: float = 0.0
    """Mean compute time of an update."""
    loss: float = math.nan
    """NaN: unknown; the same for accuracy."""
    accuracy: float = math.nan
    published: int = 0
    applied: int = 0
    """Own updates included."""
    duplicates: int = 0
    rejected: tuple[tuple[str, int], ...] = ()
    """Reason and count, sorted by reason."""
    staleness: Staleness = field(default_factory=Staleness)
    bytes_sent: int = 0
    bytes_received: int = 0
    wait_s: float = 0.0
    last: int = 0
    """The number of the last update, when done."""
    done: bool = False
    """Nothing more will be published."""
    settled: bool = False
    """Everything the others made is in."""
    bytes_by_codec: tuple[tuple[str, int], ...] = ()
    """Of the bytes sent those of tensors, by codec, sorted."""
    at: float = 0.0
    """The teller's wall clock."""
    delay_s: float = math.nan
    """Of others' updates, until they arrive (`watch.outlook`)."""
    fastest_delay_s: float = math.nan
    """Of each one's fastest, on average."""
    later_updates: float = math.nan
    """Its own that it made between those and the others, on average."""
    staleness_now: float = math.nan
    staleness_predicted: float = math.nan
    lag: int = 0
    """Updates it has heard of that are not in its weights."""
    sketch: bytes = b""
    """Its weights in a few numbers, of the instant `sketch_at` (`watch.sketch`)."""
    sketch_at: int = 0
    neighbours: tuple[Neighbour, ...] = ()
    """Sorted by name."""
    made_at: tuple[float, ...] = ()
    """When its newest updates were made, by its wall clock; the last is number `last`."""

    def __post_init__(self) -> None:
        if problem := name_problem(self.name, Limits().name_bytes_max):
            raise RemoteProtocolError("progress.name", problem)
        for name in _COUNTS:
            _check_count(name, getattr(self, name))
        for name in ("samples_per_s", "step_s", "wait_s"):
            _check_amount(name, getattr(self, name))
        seen = self.staleness
        _check_amount("staleness.mean", seen.mean)
        for value in (seen.count, seen.p50, seen.p99, seen.max):
            _check_count("staleness", value)
        _check_counts("rejected", self.rejected)
        _check_counts("bytes_by_codec", self.bytes_by_codec)
        if len(self.sketch) not in (0, SKETCH_BYTES):
            raise RemoteProtocolError("progress.sketch", f"expected 0 or {SKETCH_BYTES} bytes")
        _check_neighbours(self.neighbours)
        if len(self.made_at) > MADE_MAX or not all(map(math.isfinite, self.made_at)):
            raise RemoteProtocolError("progress.made_at", f"at most {MADE_MAX} times expected")


_COUNTS = (
    "epoch",
    "version",
    "samples",
    "published",
    "applied",
    "duplicates",
    "bytes_sent",
    "bytes_received",
    "last",
    "lag",
    "sketch_at",
)


class Board:
    """The newest progress of each name; at most 1,024 names."""

    def __init__(self) -> None:
        self._newest: dict[str, Progress] = {}

    def merge(self, progress: Progress) -> bool:
        """Whether it was news. A name beyond the limit is not taken in."""
        known = self._newest.get(progress.name)
        if known is None:
            if len(self._newest) >= NAMES_MAX:
                return False
        elif (progress.epoch, progress.version) <= (known.epoch, known.version):
            return False
        self._newest[progress.name] = progress
        return True

    def get(self, name: str) -> Progress | None:
        return self._newest.get(name)

    def __len__(self) -> int:
        return len(self._newest)

    def __iter__(self) -> Iterator[Progress]:
        """Sorted by name."""
        return iter([self._newest[name] for name in sorted(self._newest)])


def _check_count(field: str, value: int) -> None:
    if not 0 <= value <= SEQ_MAX:
        raise RemoteProtocolError(f"progress.{field}", f"{value}, expected 0 to {SEQ_MAX}")


def _check_counts(field: str, counts: tuple[tuple[str, int], ...]) -> None:
    if len(counts) > REASONS_MAX:
        raise RemoteProtocolError(f"progress.{field}", f"at most {REASONS_MAX} reasons")
    previous = ""
    for reason, times in counts:
        if problem := name_problem(reason, Limits().name_bytes_max):
            raise RemoteProtocolError(f"progress.{field}", problem)
        if reason <= previous:
            raise RemoteProtocolError(f"progress.{field}", f"{reason!r} is not in order")
        _check_count(field, times)
        previous = reason


def _check_neighbours(neighbours: tuple[Neighbour, ...]) -> None:
    if len(neighbours) > NEIGHBOURS_MAX:
        raise RemoteProtocolError("progress.neighbours", f"at most {NEIGHBOURS_MAX}")
    previous = ""
    for name, *counts in neighbours:
        if problem := name_problem(name, Limits().name_bytes_max):
            raise RemoteProtocolError("progress.neighbours", problem)
        if name <= previous:
            raise RemoteProtocolError("progress.neighbours", f"{name!r} is not in order")
        for count in counts:
            _check_count("neighbours", count)
        previous = name


def _check_amount(field: str, value: float) -> None:
    if not 0.0 <= value < math.inf:
        raise RemoteProtocolError(f"progress.{field}", f"{value}, expected 0 or more")
