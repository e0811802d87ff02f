"""What a run comes to: the report of `murmurate up`, its figures and its prediction.

The keys are a contract: they only grow. Unknown numbers are null. All pure but the reading of
weight files, and without torch.

A node's events carry samples of its counters, taken at instants that all nodes of one machine share
(their monotonic clock is one). From those come rates and compute times; delays, in updates, each
node has found itself (`core.figures.staleness_forecast`). So the prediction uses no staleness that
was measured.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from murmurate.core.figures.learning import LearningWarning
from murmurate.core.figures.progress import Progress
from murmurate.core.staleness import Summary
from murmurate.core.theory import gossip_expected_unequal, overlapping

CHUNK = 1 << 20
WINDOW_S = 1.0
"""Rates are taken over windows of this length, so that a node that died counts while it lived."""

DONE = "done"
"""The state of a node that came to the end."""
CURVE_MAX = 400
"""Points of a curve in a report."""

Json = dict[str, Any]


class CurvePoint(NamedTuple):
    """A node at one instant. What was not found out then is None: a test loss stands where it was
    evaluated and nowhere else."""

    seconds: float
    samples: int
    """Of the whole swarm."""
    own_samples: int
    loss: float | None = None
    """Of training, lately."""
    test_loss: float | None = None
    accuracy: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None

    @property
    def evaluated(self) -> bool:
        return any(each is not None for each in self[4:])


CURVE_COLUMNS = CurvePoint._fields


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
        "test_loss": number(progress.test_loss),
        "accuracy": number(progress.accuracy),
        "validation_loss": number(progress.validation_loss),
        "validation_accuracy": number(progress.validation_accuracy),
        "updates_published": progress.published,
        "updates_applied": progress.applied,
        "duplicates": progress.duplicates,
        "rejected": dict(progress.rejected),
        "staleness": asdict(progress.staleness),
        "wait_s": progress.wait_s,
        "step_s": progress.step_s,
        "delay_s": number(progress.delay_s),
        "cc_ratio": None,
        "bytes_sent": progress.bytes_sent,
        "bytes_received": progress.bytes_received,
        "bytes_by_codec": dict(progress.bytes_by_codec),
        **by_class((), ()),
        "delay_updates": 0.0,
        "overtaken_updates": 0.0,
        "catching_up": progress.catching_up,
        "warnings": warnings_json(progress.warnings),
    }


def by_class(recall: Sequence[float], precision: Sequence[float]) -> Json:
    """The keys of a row about each class: a classification report, as 002's Table I."""
    f1 = [2 * p * r / (p + r) if p + r else 0.0 for p, r in zip(precision, recall, strict=False)]
    kinds = {"accuracy_by_class": recall, "precision_by_class": precision, "f1_by_class": f1}
    return {key: [number(each) for each in values] for key, values in kinds.items()}


def warnings_json(warnings: Iterable[LearningWarning]) -> list[Json]:
    """What goes wrong with a node's learning: `reason` is a word of the program, `text` says what
    to do."""
    return [each._asdict() for each in warnings]


def warned(rows: Iterable[Json]) -> list[str]:
    """Each warning of these nodes once, in a line; of several nodes, as the first says it."""
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        for each in row.get("warnings", ()):
            by_reason.setdefault(each["reason"], []).append((row["name"], each["text"]))
    return [
        f"{said[0][0]}{f' and {len(said) - 1} more' if said[1:] else ''}: {said[0][1]}"
        for _, said in sorted(by_reason.items())
    ]


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

    def grown(self, start: float, end: float, what: str) -> float:
        return self.at(end, what) - self.at(start, what)

    def grown_in_all(self, what: str) -> float:
        ends = self.samples[:1] + self.samples[-1:]
        return float(getattr(ends[-1], what) - getattr(ends[0], what)) if ends else 0.0


# -- prediction ----------------------------------------------------------------------------------


def predicted_staleness(
    nodes: Mapping[str, History], rows: Mapping[str, Json] | None = None
) -> float | None:
    """Mean staleness the theory expects at these rates, compute times and delays.

    What is made while an update is computed: window by window, weighted by the applications in
    each. What is made while it is on its way: of every update a node takes in, as many of its own
    as `rows` say; exact whatever the rates, as it is a mean of counts. And those that overtake,
    for each of the third nodes. What a node itself made meanwhile, of parts that take turns: over
    its whole life, as a window may end in the middle. None when nothing was measured.
    """
    times = [sample.at for history in nodes.values() for sample in history.samples]
    if not times:
        return None
    computing = weight = 0.0
    start, end = min(times), max(times)
    while start < end:
        stop = min(start + WINDOW_S, end)
        made = {name: each.grown(start, stop, "published") for name, each in nodes.items()}
        made = {name: count for name, count in made.items() if count > 0}
        applied = sum(each.grown(start, stop, "applied") for each in nodes.values())
        if made:
            expected = gossip_expected_unequal(
                [count / (stop - start) for count in made.values()],
                [max(0.0, nodes[n].grown(start, stop, "compute_s") / made[n]) for n in made],
                0.0,
            )
            computing += applied * expected
            weight += applied
        start = stop
    if not weight:
        return None
    return computing / weight + _of_own_parts(nodes.values()) + _on_the_way(rows or {})


def _of_own_parts(nodes: Iterable[History]) -> float:
    rates, means_s = [], []
    for each in nodes:
        made, life_s = (each.grown_in_all(what) for what in ("published", "at"))
        if made > 0:
            rates.append(made / life_s)
            means_s.append(each.grown_in_all("compute_s") / made)
    return overlapping(rates, means_s)


def _on_the_way(rows: Mapping[str, Json]) -> float:
    """What delays add to the mean staleness."""
    made = sum(row["updates_published"] for row in rows.values())
    applied = sum(row["updates_applied"] for row in rows.values())
    if not made or not applied:
        return 0.0
    nodes = applied / made  # that took part, on average
    added = 0.0
    for row in rows.values():
        taken_in = row["updates_applied"] - row["updates_published"]
        added += taken_in * row["delay_updates"] / made
        added += taken_in * row["overtaken_updates"] * 2 * max(0.0, nodes - 2) / applied
    return added


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
    # What a node that was killed had found on the way is of its weights then, not of the end.
    ended = [row for row in rows if row.get("state", DONE) == DONE] or rows
    accuracies = [row["accuracy"] for row in ended if row["accuracy"] is not None]
    losses = [row["test_loss"] for row in ended if row["test_loss"] is not None]
    return {
        **head,
        "wall_s": wall_s,
        "samples": sum(row["samples"] for row in rows),
        "accuracy_mean": sum(accuracies) / len(accuracies) if accuracies else None,
        "accuracy_min": min(accuracies, default=None),
        "test_loss_mean": sum(losses) / len(losses) if losses else None,
        "replica_distance_max": distance,
        "staleness": staleness,
        "staleness_predicted": predicted,
        "cc_ratio": next((row["cc_ratio"] for row in rows if row.get("cc_ratio")), None),
        "nc": any(row["accuracy"] is not None and came_to_nothing(row) for row in ended),
        "nodes": list(rows),
    }


def came_to_nothing(row: Json) -> bool:
    """Of a model that was evaluated: NC, as paper 002 marks it. Its loss is no number, or it says
    one class whatever it is shown."""
    return row["test_loss"] is None or says_one_class(row)


def says_one_class(row: Json) -> bool:
    classes = [each for each in row.get("accuracy_by_class", ()) if each is not None]
    return len(classes) > 2 and sum(each > 0 for each in classes) <= 1


def curves(
    points: Mapping[str, Sequence[CurvePoint]],
    began: float = 0.0,
    samples: Callable[[float], float] | None = None,
) -> Json:
    """The keys of a report: by node, in seconds from the beginning, at most so many of each.
    `samples`: how many the whole swarm had at an instant, if the points do not have it yet."""
    made: dict[str, list[list[Any]]] = {}
    for name, each in points.items():
        made[name] = [
            list(
                point._replace(
                    seconds=round(point.seconds - began, 3),
                    samples=round(samples(point.seconds)) if samples else point.samples,
                )
            )
            for point in thinned(each)
        ]
    return {"curve_columns": list(CURVE_COLUMNS), "curves": made}


def centred_curves(
    whole: Mapping[str, Sequence[CurvePoint]],
    members: Mapping[str, Sequence[CurvePoint]],
    began: float,
) -> Json:
    """Of a coordinator and its members. Samples are those in the model: the coordinator knows them,
    members only roughly."""
    centre = {
        name: [point._replace(samples=point.own_samples) for point in each]
        for name, each in whole.items()
    }
    made = curves(centre, began)
    more = curves(members, began, swarm_samples(whole))
    return made | {"curves": made["curves"] | more["curves"]}


def swarm_samples(points: Mapping[str, Sequence[CurvePoint]]) -> Callable[[float], float]:
    """How many samples all of these had at any instant: straight lines between points, flat before
    and after."""

    def own(curve: Sequence[CurvePoint], at: float) -> float:
        place = bisect.bisect_right(curve, at, key=lambda point: point.seconds)
        if place in (0, len(curve)):
            return curve[min(place, len(curve) - 1)].own_samples
        before, after = curve[place - 1], curve[place]
        part = (at - before.seconds) / (after.seconds - before.seconds)
        return before.own_samples + part * (after.own_samples - before.own_samples)

    known = [curve for curve in points.values() if curve]
    return lambda at: sum(own(curve, at) for curve in known)


def thinned(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """At most so many of them, in order, the last included. Evaluations are rare and stay, as far
    as they are half of it."""
    evaluated = _every_so_many([each for each in points if each.evaluated], CURVE_MAX // 2)
    others = [each for each in points if not each.evaluated]
    kept = [*evaluated, *_every_so_many(others, CURVE_MAX - len(evaluated))]
    return sorted(kept, key=lambda point: (point.seconds, point.own_samples, point.evaluated))


def _every_so_many(points: Sequence[CurvePoint], most: int) -> list[CurvePoint]:
    every = max(1, -(-len(points) // (most - 1)))
    return [*points[:-1:every], *points[-1:]]
