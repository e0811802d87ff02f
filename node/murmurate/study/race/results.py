"""What one cell came to, from the report of its training; and means over seeds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from murmurate.study.race.race_file import RaceFile

Json = dict[str, Any]
FIGURES = (
    ("accuracy", "accuracy"),
    ("loss", "test loss"),
    ("samples_per_s", "samples/s"),
    ("staleness", "staleness"),
    ("staleness_p99", "p99"),
    ("wait", "waiting"),
    ("bytes", "bytes sent"),
)
"""Of every cell, means of which are in the table: its key, and what a person reads."""
TARGETS = (("target_s", "s to target"), ("target_bytes", "bytes to target"))


def distilled(report: Json) -> Json:
    """What a race keeps of a report."""
    peers = [row for row in report["nodes"] if row["role"] in ("peer", "member")]
    sent = sum(row["bytes_sent"] for row in report["nodes"])
    wall_s = report["wall_s"]
    waits = [row["wait_s"] / wall_s for row in peers] if wall_s else []
    staleness = report.get("staleness") or {}
    return {
        "accuracy": report["accuracy_mean"],
        "loss": report["test_loss_mean"],
        "nc": report["nc"] or report["test_loss_mean"] is None,
        "samples": report["samples"],
        "wall_s": wall_s,
        "samples_per_s": report["samples"] / wall_s if wall_s else None,
        "bytes": sent,
        "staleness": staleness.get("mean") if staleness.get("count") else None,
        "staleness_p99": staleness.get("p99") if staleness.get("count") else None,
        "staleness_predicted": report.get("staleness_predicted"),
        "wait": statistics.fmean(waits) if waits else None,
        "points": points_of(report),
    }


def points_of(report: Json) -> list[list[float | None]]:
    """Seconds, samples of the whole swarm, test loss and accuracy, wherever it was evaluated: of
    the node that was most often, or of the whole model; at the end the mean of all."""
    at = {name: place for place, name in enumerate(report["curve_columns"])}
    columns = [at[name] for name in ("seconds", "samples", "test_loss", "accuracy")]
    best: list[list[float | None]] = []
    for curve in report["curves"].values():
        known = [
            [point[column] for column in columns]
            for point in curve
            if point[at["test_loss"]] is not None and point[at["seconds"]] < report["wall_s"]
        ]
        best = max(best, known, key=len)
    end = [report["wall_s"], report["samples"], report["test_loss_mean"], report["accuracy_mean"]]
    return [*best, end]


def reached(points: Iterable[tuple[float, float]], goal: float) -> float | None:
    """Where the value first was at the goal or above, by straight lines between points; None:
    nowhere. `points` are places and values, in order."""
    before_at = before = None
    for at, value in points:
        if value >= goal:
            if before_at is None or before is None or not math.isfinite(before):
                return at
            part = (goal - before) / (value - before) if value > before else 1.0
            return before_at + part * (at - before_at)
        before_at, before = at, value
    return None


def with_target(result: Json, race: RaceFile) -> Json:
    """Seconds and bytes to the target. Bytes are taken to flow evenly."""
    found = None
    if race.target is not None:
        known = [(p[0], p[3]) for p in result["points"] if p[3] is not None]
        found = reached(known, race.target)
    elif race.target_loss is not None:
        known = [(p[0], -p[2]) for p in result["points"] if p[2] is not None]
        found = reached(known, -race.target_loss)
    part = found / result["wall_s"] if found is not None and result["wall_s"] else None
    sent = None if part is None else part * result["bytes"]
    return result | {"target_s": found, "target_bytes": sent}


def value_of(result: Json) -> float:
    """More is better: the accuracy, or minus the loss where there is none."""
    if result["accuracy"] is not None:
        return float(result["accuracy"])
    return -math.inf if result["loss"] is None else -float(result["loss"])


def spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def rows(
    race: RaceFile, results: Mapping[tuple[str, str, int], Json], rates: Mapping[str, float | None]
) -> list[Json]:
    """A row for each setting and solver: mean and standard deviation over seeds."""
    made = []
    for setting in race.settings:
        for solver in race.solvers:
            found = [results.get((solver, setting, seed)) for seed in race.seeds]
            here = [with_target(each, race) for each in found if each is not None]
            row: Json = {
                "setting": setting,
                "solver": solver,
                "lr": rates.get(solver),
                "seeds": len(here),
                "nc": sum(each["nc"] for each in here),
                "reached": sum(each["target_s"] is not None for each in here),
            }
            for key, _ in (*FIGURES, *TARGETS):
                values = [each[key] for each in here if each[key] is not None]
                row[key] = statistics.fmean(values) if values else None
                row[f"{key}_spread"] = spread(values)
            made.append(row)
    return made


def curve(
    results: Sequence[Json], along: str, what: str
) -> list[tuple[float, float, float, float]]:
    """Of several seeds: place, mean, least and most. Point by point, where all were evaluated
    alike; real processes are not, so there each is taken at equal parts of its own way."""
    x, y = {"seconds": 0, "samples": 1}[along], {"loss": 2, "accuracy": 3}[what]
    ways = [
        [(point[x], point[y]) for point in each["points"] if point[y] is not None]
        for each in results
    ]
    if not all(ways) or not ways:
        return []
    if len({len(way) for way in ways}) > 1:
        parts = sorted({round(part, 3) for way in ways for part in _parts(way)})
        ways = [[_at(way, part) for part in parts] for way in ways]
    made = []
    for points in zip(*ways, strict=True):
        values = [value for _, value in points]
        at = statistics.fmean(place for place, _ in points)
        made.append((at, statistics.fmean(values), min(values), max(values)))
    return made


def _parts(way: Sequence[tuple[float, float]]) -> list[float]:
    """How far each point is from the first to the last."""
    first, last = way[0][0], way[-1][0]
    return [(place - first) / (last - first) if last > first else 1.0 for place, _ in way]


def _at(way: Sequence[tuple[float, float]], part: float) -> tuple[float, float]:
    """Place and value at a part of the way, by straight lines."""
    first, last = way[0][0], way[-1][0]
    place = first + part * (last - first)
    for (a, low), (b, high) in itertools.pairwise(way):
        if b > a and place <= b:
            return place, low + (high - low) * max(0.0, place - a) / (b - a)
    return place, way[-1][1]
