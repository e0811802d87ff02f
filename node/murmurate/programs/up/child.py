"""A process of `murmurate up` as the launcher sees it. Without torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from typing import IO, Any

from murmurate.programs.up.forked import Forked
from murmurate.watch import report

LINE_BYTES_MAX = 4 << 20
RATE_S = 2.0

STARTING, READY, WAITING, TRAINING, DONE, KILLED, DIED, STOPPED = (
    "starting",
    "ready",
    "waiting",
    "training",
    "done",
    "killed",
    "died",
    "stopped",
)
ENDED = (DONE, KILLED, DIED, STOPPED)


class Child:
    """One process, what it has said so far, and what has become of it."""

    def __init__(self, name: str, process: Forked) -> None:
        self.name = name
        self.process = process
        self.state = STARTING
        self.address = ""
        self.metrics: str | None = None
        self.budget = 0
        """Of the whole swarm, as its workload would have it."""
        self.row: report.Json = report.empty_row(name)
        self.history = report.History()
        self.curve: list[report.CurvePoint] = []
        """Samples of the whole swarm are filled in for the report."""
        self.counts: dict[int, int] = {}
        self.settled = False
        self.samples_of: dict[str, int] = {}
        """At the end: what it has heard that each node has trained on."""
        self.told = False
        """Where the coordinator is."""
        self.met = False
        """Whether it has heard from all others."""
        self.code: int | None = None
        self.errors: list[str] = []
        self._bytes: list[tuple[float, int]] = []

    def tell(self, text: str) -> None:
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it is gone, which its exit code will tell

    def hear(self, event: Mapping[str, Any]) -> None:
        match event.get("event"):
            case "ready":
                self.state = READY
                self.budget = int(event["samples"])
            case "listening":
                self.state = WAITING
                self.address = str(event["address"])
                self.metrics = event.get("metrics")
            case "met":
                self.met = True
            case "progress" | "done" as kind:
                self.row = dict(event["node"])
                at, row = float(event["at"]), self.row
                self.history.add(
                    report.Sample(
                        at=at,
                        published=row["updates_published"],
                        applied=row["updates_applied"],
                        compute_s=row["step_s"] * row["updates_published"],
                    )
                )
                if kind == "progress":
                    self.curve.append(report.CurvePoint(at, 0, row["samples"], row["loss"]))
                if "staleness_counts" in event:
                    self.counts = {int(value): int(n) for value, n in event["staleness_counts"]}
                self._bytes.append((at, row["bytes_sent"]))
                while self._bytes[-1][0] - self._bytes[0][0] > RATE_S:
                    self._bytes.pop(0)
                if kind == "done":
                    self.settled = bool(event["settled"])
                    self.samples_of = dict(event.get("samples_of", {}))
                    self.state = DONE if self.state == TRAINING else self.state

            case "began" | "evaluated":
                found = {key: event.get(key) for key in report.CURVE_COLUMNS[3:]}
                point = report.CurvePoint(float(event["at"]), 0, int(event["samples"]), **found)
                self.curve.append(point)

    @property
    def bytes_per_s(self) -> float:
        if len(self._bytes) < 2 or self.state != TRAINING:
            return 0.0
        (start, before), (end, after) = self._bytes[0], self._bytes[-1]
        return (after - before) / (end - start) if end > start else 0.0


class Pipe:
    """Lines from a pipe that is never waited for."""

    def __init__(self, child: Child, pipe: IO[bytes], hear: Any) -> None:
        self.child = child
        self.hear = hear
        self.closed = False
        self._pipe = pipe
        self._rest = b""

    def lines(self) -> Iterator[str]:
        try:
            part = os.read(self._pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        self.closed = not part
        *lines, self._rest = (self._rest + part).split(b"\n")
        if self.closed or len(self._rest) > LINE_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line.strip():
                yield line.decode(errors="replace")


def why(code: int) -> str:
    if code < 0:
        return signal.Signals(-code).name
    known = {0: "it left before the end", 2: "configuration", 3: "checkpoint", 4: "network"}
    return known.get(code, f"exit code {code}")
