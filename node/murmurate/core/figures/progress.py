"""How far each node has got, as everyone knows it: a board of the newest word of each.

Nodes tell their own progress and pass on what they heard. Nobody's training depends on it, except
for the end: a budget counts the samples of the whole swarm, and `done` with `last` tells the others
when they have everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from murmurate.core.figures.learning import LearningWarning
from murmurate.core.values.limits import (
    Amount,
    ByName,
    Checked,
    Few,
    Figure,
    Finite,
    FromZero,
    Line,
    Name,
    Number,
    Octets,
    WireNames,
)

NAMES_MAX = 1024
REASONS_MAX = 64
SKETCH_BYTES = 256
NEIGHBOURS_MAX = 80
MADE_MAX = 256
WARNINGS_MAX = 16
BATCHES_MAX = 16
SPEED_MAX = 1e18
"""Samples in a second: a figure that is shown. Nobody's updates weigh more or less by it."""
STEP_S_MAX = 1e9
"""Thirty years: what others forecast of such a step would be no number."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """Over all applications, own included, in updates (`core.staleness.Summary.report`); not
    what was applied before a node that came or came back was level with the others."""

    count: Number = 0
    mean: Amount = 0.0
    p50: Number = 0
    p99: Number = 0
    max: Number = 0


class Neighbour(NamedTuple):
    """What passed between the teller and one of its peers."""

    name: Name
    sent_bytes: Number = 0
    applied: Number = 0
    """Of that peer's updates; and their staleness, all together."""
    staleness: Number = 0


Counts = Annotated[
    tuple[Annotated[tuple[Name, Number], WireNames("reason", "count")], ...],
    Few(REASONS_MAX),
    ByName(),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Checked):
    """«So far have I got.» Of two words of one name the higher (epoch, version) is the newer."""

    name: Name
    epoch: Number
    version: Number
    samples: Number = 0
    samples_per_s: Annotated[float, FromZero(SPEED_MAX)] = 0.0
    step_s: Annotated[float, FromZero(STEP_S_MAX)] = 0.0
    """Mean compute time of an update."""
    loss: Figure = math.nan
    """Of training, as it was logged last (`core.figures.training_loss`). NaN: unknown, here and in
    the next four, which are of the last evaluation."""
    test_loss: Figure = math.nan
    accuracy: Figure = math.nan
    """On the test set, like `test_loss`."""
    validation_loss: Figure = math.nan
    """On a part of the training data that nobody trains on, if one was asked for."""
    validation_accuracy: Figure = math.nan
    published: Number = 0
    applied: Number = 0
    """Own updates included."""
    duplicates: Number = 0
    rejected: Counts = ()
    """Reason and count, sorted by reason."""
    staleness: Staleness = field(default_factory=Staleness)
    bytes_sent: Number = 0
    bytes_received: Number = 0
    wait_s: Amount = 0.0
    last: Number = 0
    """The number of the last update, when done."""
    done: bool = False
    """Nothing more will be published."""
    settled: bool = False
    """Everything the others made is in."""
    bytes_by_codec: Counts = ()
    """Of the bytes sent those of tensors, by codec, sorted."""
    at: Figure = 0.0
    """The teller's wall clock."""
    delay_s: Figure = math.nan
    """Of others' updates, until they arrive (`core.figures.staleness_forecast`)."""
    fastest_delay_s: Figure = math.nan
    """Of each one's fastest, on average."""
    later_updates: Figure = math.nan
    """Its own that it made between those and the others, on average."""
    staleness_now: Figure = math.nan
    staleness_predicted: Figure = math.nan
    lag: Number = 0
    """Updates it has heard of that are not in its weights."""
    sketch: Annotated[bytes, Octets(SKETCH_BYTES, SKETCH_BYTES, empty=True)] = b""
    """Its weights in a few numbers, of the instant `sketch_at` (`core.figures.sketches`)."""
    sketch_at: Number = 0
    neighbours: Annotated[tuple[Neighbour, ...], Few(NEIGHBOURS_MAX), ByName()] = ()
    """Sorted by name."""
    made_at: Annotated[tuple[Annotated[float, Finite()], ...], Few(MADE_MAX)] = ()
    """When its newest updates were made, by its wall clock; the last is number `last`."""
    catching_up: Number = 0
    """Updates applied before it was level with the others; of those `staleness` has nothing."""
    warnings: Annotated[tuple[LearningWarning, ...], Few(WARNINGS_MAX), ByName()] = ()
    """What goes wrong with its learning now, sorted by reason."""
    steps: Number = 0
    """Local steps it has made, in earlier lives too that this one goes on from."""
    stopped: bool = False
    """Somebody said there that the run is over."""
    first_batches: Annotated[tuple[Number, ...], Few(BATCHES_MAX)] = ()
    """What its first batches were, in a number each (`core.figures.same_batches`)."""
    meeting: Line = ""
    """Where it waits for others to train in step with it, or trains so; empty: it does not."""


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
