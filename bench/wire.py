"""A push over the wire, against bare TCP, torch.distributed and one protobuf message.

Each contender is a pair of processes on loopback (`carriers.py`); the pairs take turns in random
order. Time: from the call in the origin, whose tensor is in memory, to the moment the peer has the
whole tensor (`Ears.received`). The peer compares every byte with what it must be, outside of the
time, then says so to the origin (a byte, a small message, the answer of the call), which sends the
next.

CPU: both processes, all threads, kernel included, until the origin knows that it has landed. RSS:
the highest of the first transfer of a fresh pair beyond what the process had before there was a
payload, so at the origin the tensor itself is in it.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from actors import Actor
from report import Effort, Goal, Report, Scenario, ratios

SIZES = {"0.24 MB": 240_000, "4 MB": 4_000_000, "100 MB": 100_000_000}
BURSTS = {"0.24 MB": 30, "4 MB": 10, "100 MB": 1}
"""Pushes of one sample, each begun when the one before is there; their median counts."""
CONTENDERS = ("murmurate", "tcp", "gloo", "unary")
LARGE = "100 MB"
GOALS = {
    ("100 MB", "tcp"): Goal(value=0.30, floor=0.22),
    ("4 MB", "tcp"): Goal(value=0.20, floor=0.14),
    ("0.24 MB", "tcp"): Goal(value=0.10, floor=0.06),
    ("100 MB", "unary"): Goal(value=7.0, floor=5.0),
}
CPU = Goal(value=1.2, floor=1.6, at_most=True)
RSS = {
    "origin_rss": Goal(value=1.1, floor=1.2, at_most=True),
    "peer_rss": Goal(value=1.5, floor=2.0, at_most=True),
}


class Pair:
    """Two processes of one contender, and a way between them."""

    def __init__(self, contender: str) -> None:
        self.peer = self._actor("peer", contender)
        self.origin = self._actor("origin", contender, self.peer.hear()["address"])
        if contender == "murmurate":
            self.peer.tell(address=self.origin.hear()["address"])
        self.seq = 1

    @staticmethod
    def _actor(role: str, contender: str, address: str = "") -> Actor:
        script = str(Path(__file__).with_name("carriers.py"))
        return Actor([sys.executable, script, role, contender, address])

    def push(self, nbytes: int, times: int = 1) -> dict[str, float]:
        order = {"nbytes": nbytes, "seq": self.seq, "times": times}
        self.seq += times
        self.peer.ask(**order)
        sent = self.origin.ask(**order)
        got = self.peer.hear()
        assert len(got["at"]) == len(sent["began"]) == times
        took = [at - began for at, began in zip(got["at"], sent["began"], strict=True)]
        return {
            "seconds": statistics.median(took),
            "cpu_s": got["cpu_s"] + sent["cpu_s"],
            "origin_rss": sent["rss"] / nbytes,
            "peer_rss": got["rss"] / nbytes,
        }

    def end(self) -> None:
        self.origin.end()
        self.peer.end()


def wire(report: Report, effort: Effort) -> None:
    contenders = [name for name in CONTENDERS if not (effort.quick and name == "unary")]
    pairs = {contender: Pair(contender) for contender in contenders}
    for size in effort.sizes(SIZES):
        here = [name for name in contenders if name != "unary" or size == LARGE]
        for name in here:
            pairs[name].push(SIZES[size], BURSTS[size])  # warms up
        samples = effort.interleaved(
            {name: lambda n=name, s=size: pairs[n].push(SIZES[s], BURSTS[s]) for name in here}
        )
        report.keep(size, samples)
        seconds = {name: [each["seconds"] for each in samples[name]] for name in here}
        for name in here:
            report.add(f"{size}: {name}", (s * 1e3 for s in seconds[name]), unit="ms")
        for name in here[1:]:
            report.add(
                f"{size}: murmurate / {name}",
                ratios(seconds[name], seconds["murmurate"]),
                unit="x",
                goal=GOALS.get((size, name)),
            )
        if size == LARGE:
            for name in here:
                used = [each["cpu_s"] / (SIZES[size] / 1e9) for each in samples[name]]
                goal = CPU if name == "murmurate" else None
                report.add(f"{size}: CPU, {name}", used, unit="s/GB", goal=goal)
    for pair in pairs.values():
        pair.end()
    if LARGE in effort.sizes(SIZES):
        _memory(report, effort.few(3))


def _memory(report: Report, effort: Effort) -> None:
    """Peaks of the first large transfer of two fresh processes, in sizes of the payload."""

    def first(contender: str) -> dict[str, Any]:
        pair = Pair(contender)
        pair.push(SIZES["0.24 MB"])  # opens the link
        taken = pair.push(SIZES[LARGE])
        pair.end()
        return {key: taken[key] for key in RSS}

    names = ("murmurate", "unary")
    samples = effort.interleaved({name: lambda n=name: first(n) for name in names})
    report.keep("memory", samples)
    for key, goal in RSS.items():
        for name in names:
            report.add(
                f"{LARGE}: peak RSS, {key.removesuffix('_rss')}, {name}",
                (each[key] for each in samples[name]),
                unit="x",
                goal=goal if name == "murmurate" else None,
            )


SCENARIOS: dict[str, Scenario] = {"wire": wire}


if __name__ == "__main__":
    import run

    sys.exit(run.main(SCENARIOS, __doc__))
