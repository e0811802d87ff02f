"""From lines to figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tests.chaos.lab import Process


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    assert ordered, "nothing was measured"
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def dead_at(node: Process, name: str, since: float) -> float | None:
    """When this node took that one for dead."""
    for line in node.lines("verdict"):
        if line["at"] >= since and line["who"] == name and line["state"] == "dead":
            return float(line["at"])
    return None


def verdicts(
    nodes: Iterable[Process], state: str, since: float = 0.0, until: float = math.inf
) -> list[str]:
    """Who was taken for that, by whom and why."""
    return [
        f"{node.name} says {line['who']} is {state}: {line['why']}"
        for node in nodes
        for line in node.lines("verdict")
        if line["state"] == state and since <= line["at"] < until
    ]


def made_by(nodes: Sequence[Process], when: float) -> dict[str, int]:
    """Per life, at least all the updates it had made at that time."""
    made: dict[str, int] = {}
    for node in nodes:
        lines = node.lines("steps")
        after = [line for line in lines if line["at"] >= when]
        life, seq = (after[0] if after else lines[-1])["mine"]
        made[life] = seq
    return made


def has_all(node: Process, made: dict[str, int]) -> float | None:
    """When this node first had all of these, for good or not; None: not yet."""
    for line in node.lines("steps"):
        upto = line["upto"]
        if all(upto.get(life, 0) >= seq for life, seq in made.items()):
            return float(line["at"])
    return None


def rate(nodes: Sequence[Process], since: float, until: float) -> float:
    """Steps per second of the slowest of them."""
    return min(len(node.steps(since, until)) for node in nodes) / (until - since)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
