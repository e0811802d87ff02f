"""What a run comes to: the report of `murmurate up`, its figures and its prediction.

The keys are a contract: they only grow. Unknown numbers are null. All pure but the reading of
weight files, and without torch.

A node's events carry samples of its counters, taken at instants that all nodes of one machine share
(their monotonic clock is one). From those come the rates, and the delays of the prediction: what
node i had published at an instant, less what node j held of it then, is on its way; by Little's law
that number is the delay times the rate of i. So the prediction uses no staleness that was measured.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from murmurate.core.staleness import Summary
from murmurate.io.progress import Progress

CHUNK = 1 << 20
WINDOW_S = 1.0
"""Rates are taken over windows of this length, so that a node that died counts while it lived."""

CURVE_MAX = 400
"""Points of a curve in a report."""

Json = dict[str, Any]
Point = tuple[float, int, float | None, float | None]
"""Seconds, own samples, loss, accuracy."""


def number(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None


def node_row(progress: Progress) -> Json:
    """One entry of `nodes[]`, from what a node knows of itself."""
    return {
        "name": progress.name,
        "role": "peer",
        "samples": progress.samples,
        "samples_per_s": progress.samples_per_s,
        "loss": number(progress.loss),
        "accuracy": number(progress.accuracy),
        "updates_published": progress.published,
        "updates_applied": progress.applied,
        "duplicates": progress.duplicates,
        "rejected": dict(progress.rejected),
        "staleness": asdict(progress.staleness),
        "wait_s": progress.wait_s,
        "step_s": progress.step_s,
        "bytes_sent": progress.bytes_sent,
        "bytes_received": progress.bytes_received,
        "bytes_by_codec": dict(progress.bytes_by_codec),
        "accuracy_by_class": [],
    }


def empty_row(name: str) -> Json:
    """Of a node that has not said anything yet."""
    return node_row(Progress(name=name, epoch=0, version=0))


# -- samples -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One node's counters at one instant."""

    at: float
    """Monotonic seconds."""
    samples: int = 0
    published: int = 0
    applied: int = 0
    compute_s: float = 0.0
    """Of all its updates together."""
    known: Mapping[str, int] = field(default_factory=dict)
    """The newest update it holds of each node."""


class History:
    """The samples of one node, in order of time."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self.samples: list[Sample] = []
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        if not self.samples or sample.at > self.samples[-1].at:
            self.samples.append(sample)

    def at(self, when: float, what: str) -> float:
        """A counter at any instant: straight lines between samples, flat before and after."""
        if not self.samples:
            return 0.0
        place = bisect.bisect_right(self.samples, when, key=lambda sample: sample.at)
        if place in (0, len(self.samples)):
            return float(getattr(self.samples[min(place, len(self.samples) - 1)], what))
        before, after = self.samples[place - 1], self.samples[place]
        part = (when - before.at) / (after.at - before.at)
        low, high = getattr(before, what), getattr(after, what)
        return float(low + part * (high - low))

    def rate(self, when: float, what: str) -> float:
        """How fast a counter grows there: over half a window to each side, if there is as much."""
        start = max(self.samples[0].at, when - WINDOW_S / 2)
        end = min(self.samples[-1].at, when + WINDOW_S / 2)
        return self.grown(start, end, what) / (end - start) if end > start else 0.0

    def grown(self, start: float, end: float, what: str) -> float:
        return self.at(end, what) - self.at(start, what)


# -- prediction ----------------------------------------------------------------------------------


def measured_delays_s(
    nodes: Mapping[str, History], every: int = 1, span: tuple[float, float] | None = None
) -> dict[tuple[str, str], float]:
    """The mean one-way delay of an update from one node to another, by (origin, receiver).

    A node samples itself just after a step: on the line through such points its count is on average
    1 / (2 every) above what another one meets at an instant that has nothing to do with its steps.
    What is left is noise both ways: a delay near 0 may come out a little below.
    """
    start, end = span or (-math.inf, math.inf)
    delays: dict[tuple[str, str], float] = {}
    for (origin, made), (receiver, held) in itertools.permutations(nodes.items(), 2):
        if len(made.samples) < 2:
            continue
        first, last = max(start, made.samples[0].at), min(end, made.samples[-1].at)
        waiting = rates = 0.0
        for sample in held.samples:
            if not first <= sample.at < last or not sample.known.get(origin):
                continue
            rate = made.rate(sample.at, "published")
            if rate > 0:
                waiting += made.at(sample.at, "published") - 0.5 / every - sample.known[origin]
                rates += rate
        if rates:
            delays[origin, receiver] = waiting / rates
    return delays


def expected_staleness(
    rates: Mapping[str, float],
    compute_s: Mapping[str, float],
    delays_s: Mapping[tuple[str, str], float],
) -> float:
    """Mean staleness of 000 when each pair of nodes has its own delay.

    An update of i, begun mu_i before it was made, knows what k made until L_ki before that. Where
    it is folded in, L_ij after it was made, it meets what k made until L_kj before that. So at j

        sum over k != i of lambda_k |mu_i + L_ij + L_ki - L_kj|

    with L_jj = 0, and the mean over all j and, by their rates, all i. With one delay for all it is
    `core.staleness.gossip_expected_unequal`.
    """
    total = math.fsum(rates.values())
    if total == 0:
        return 0.0
    return math.fsum(
        rates[i]
        * rates[k]
        * abs(
            compute_s[i]
            + delays_s.get((i, j), 0.0)
            + delays_s.get((k, i), 0.0)
            - delays_s.get((k, j), 0.0)
        )
        for i, j, k in itertools.product(rates, repeat=3)
        if k != i
    ) / (total * len(rates))


def predicted_staleness(nodes: Mapping[str, History], every: int = 1) -> float | None:
    """Mean staleness the theory expects at these rates, compute times and delays.

    Window by window, weighted by the applications in each; None when nothing was measured.
    """
    times = [sample.at for history in nodes.values() for sample in history.samples]
    if not times:
        return None
    total = weight = 0.0
    start, end = min(times), max(times)
    while start < end:
        stop = min(start + WINDOW_S, end)
        made = {name: each.grown(start, stop, "published") for name, each in nodes.items()}
        made = {name: count for name, count in made.items() if count > 0}
        applied = sum(each.grown(start, stop, "applied") for each in nodes.values())
        if made:
            expected = expected_staleness(
                {name: count / (stop - start) for name, count in made.items()},
                {
                    name: nodes[name].grown(start, stop, "compute_s") / count
                    for name, count in made.items()
                },
                measured_delays_s(nodes, every, (start, stop)),
            )
            total += applied * expected
            weight += applied
        start = stop
    return total / weight if weight else None


# -- the whole -----------------------------------------------------------------------------------


def pooled_staleness(counts: Iterable[Mapping[int, int]]) -> Json:
    """The staleness of all applications of all nodes, exact as each node's own."""
    pool = Summary()
    for each in counts:
        for value, times in each.items():
            other = Summary([value])
            other.count, other.total = times, value * times
            other._counts = {value: times}
            pool.merge(other)
    return dict(pool.report())


def replica_distance_max(files: Sequence[Path]) -> float | None:
    """The largest relative distance |a - b| / |a| of any two of these weights."""
    import numpy as np

    replicas = [np.load(file, mmap_mode="r", allow_pickle=False).reshape(-1) for file in files]
    if len(replicas) < 2:
        return None
    if len({replica.shape for replica in replicas}) > 1:
        return math.inf
    worst = 0.0
    for a, b in itertools.combinations(replicas, 2):
        apart = size = 0.0
        for start in range(0, len(a), CHUNK):
            left = a[start : start + CHUNK].astype(np.float64)
            right = b[start : start + CHUNK].astype(np.float64)
            apart += float(np.sum((left - right) ** 2))
            size += float(np.sum(left**2))
        worst = max(worst, math.sqrt(apart / size) if size else math.sqrt(apart))
    return worst


def assemble(
    head: Mapping[str, object],
    rows: Sequence[Json],
    *,
    wall_s: float,
    distance: float | None,
    staleness: Json,
    predicted: float | None,
) -> Json:
    """The report. `head` is run, mode, rule, workload, seed."""
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    return {
        **head,
        "wall_s": wall_s,
        "samples": sum(row["samples"] for row in rows),
        "accuracy_mean": sum(accuracies) / len(accuracies) if accuracies else None,
        "accuracy_min": min(accuracies, default=None),
        "replica_distance_max": distance,
        "staleness": staleness,
        "staleness_predicted": predicted,
        "nodes": list(rows),
    }


def thinned(points: Sequence[Point], began: float) -> list[Point]:
    """At most so many of them, the last included, in seconds from the beginning."""
    every = max(1, -(-len(points) // (CURVE_MAX - 1)))
    few = [*points[:-1:every], *points[-1:]]
    return [(round(at - began, 3), *rest) for at, *rest in few]  # type: ignore[misc]


def counts(summary: Summary) -> dict[int, int]:
    """How often each staleness was seen: what a summary is made of, to be pooled elsewhere."""
    return dict(summary._counts)
