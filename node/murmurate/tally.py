"""What a node has counted so far: the source of its report, its progress and its metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from murmurate.core.effect import Applied, Drop
from murmurate.core.staleness import Summary
from murmurate.io.progress import Progress, Staleness

DROPS_THAT_ARE_REFUSALS = frozenset(("retired",))
"""Of the drops only these are updates that will not be in these weights; others come again."""


class Tally:
    """Counters of one node. Whoever changes them holds the runtime's lock."""

    def __init__(self) -> None:
        self.published = 0
        self.applied = 0
        self.duplicates = 0
        self.rejected: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.staleness = Summary()
        self.samples = 0
        self.loss = math.nan
        self.accuracy = math.nan
        self.wait_s = 0.0
        self.began: float | None = None
        """When the first batch was started."""
        self.ended: float | None = None
        self._compute_s = 0.0
        self._version = 0

    def apply(self, effect: Applied) -> None:
        self.applied += len(effect.dots)
        for staleness in effect.staleness:
            self.staleness.add(staleness)

    def drop(self, effect: Drop) -> None:
        if effect.reason == "duplicate":
            self.duplicates += effect.count
        elif effect.reason in DROPS_THAT_ARE_REFUSALS:
            self.rejected[effect.reason] += effect.count
        else:
            self.dropped[effect.reason] += effect.count

    def publish(self, compute_s: float) -> None:
        """An update was made; it took so long from the weights it was computed on to now."""
        self.published += 1
        self._compute_s += compute_s

    @property
    def compute_s(self) -> float:
        """Mean time from the start of an update's batch to the update."""
        return self._compute_s / self.published if self.published else 0.0

    def training_s(self, now: float) -> float:
        if self.began is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.began)

    def progress(
        self,
        name: str,
        epoch: int,
        now: float,
        *,
        traffic: tuple[int, int],
        last: int = 0,
        done: bool = False,
        settled: bool = False,
    ) -> Progress:
        """All of it at this instant, for the others and for reports."""
        self._version += 1
        training_s = self.training_s(now)
        return Progress(
            name=name,
            epoch=epoch,
            version=self._version,
            samples=self.samples,
            samples_per_s=self.samples / training_s if training_s > 0 else 0.0,
            step_s=self.compute_s,
            loss=self.loss,
            accuracy=self.accuracy,
            published=self.published,
            applied=self.applied,
            duplicates=self.duplicates,
            rejected=sorted_counts(self.rejected.items()),
            staleness=Staleness(
                self.staleness.count,
                self.staleness.mean,
                self.staleness.percentile(50),
                self.staleness.percentile(99),
                self.staleness.largest,
            ),
            bytes_sent=traffic[0],
            bytes_received=traffic[1],
            wait_s=self.wait_s,
            last=last,
            done=done,
            settled=settled,
        )


def sorted_counts(items: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(items))
