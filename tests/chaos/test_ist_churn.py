"""Members of a coordinator come, leave and are killed, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from murmurate_coordinator.names import RULES

pytestmark = pytest.mark.chaos

MURMURATE = [sys.executable, "-m", "murmurate"]
WORKLOAD = os.environ.get("CHAOS_IST_WORKLOAD", "digits")
FULL = os.environ.get("CHAOS_FULL") == "1"
EVENTS = (("kill", "join", "leave", "join") * 8)[: 30 if FULL else 12]
SAMPLES = int(os.environ.get("CHAOS_IST_SAMPLES", 50_000 * len(EVENTS)))
"""An event every 3 s or so."""
RUN_RULES = RULES if FULL else ("async", "lease")
LOSS = 0.02
"""Of the accuracy as it is reported, at most."""
PATIENCE_S = 600.0


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*MURMURATE, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as it:
        try:
            yield it
        finally:
            if it.poll() is None:
                it.kill()


class Crew:
    """Members of one run."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.members: list[subprocess.Popen[bytes]] = []
        self.count = 0

    def join(self) -> None:
        words = ("--workload", WORKLOAD, "--threads", "1", "--slow-s", "0.02", "--width", "1")
        who = ("--shard", f"{self.count % 8}/8", "--name", f"member-{self.count}")
        node = [*MURMURATE, "node", "--mode", "ist", "--coordinator", self.address]
        self.members.append(subprocess.Popen([*node, *words, *who], stderr=subprocess.DEVNULL))
        self.count += 1

    def leave(self, how: signal.Signals) -> None:
        gone = self.members.pop(0)
        gone.send_signal(how)
        gone.wait(PATIENCE_S)

    def end(self) -> None:
        for each in self.members:
            if each.poll() is None:
                each.kill()
            each.wait()


def run(rule: str, events: tuple[str, ...]) -> dict[str, Any]:
    """The coordinator's report of a run in which these happen, spread over its budget."""
    words = ("--workload", WORKLOAD, "--rule", rule, "--founders", "4", "--samples", str(SAMPLES))
    with process("coordinator", "--events", "--listen", "127.0.0.1:0", *words) as centre:
        assert centre.stdout is not None
        crew: Crew | None = None
        left = list(events)
        deadline = time.monotonic() + PATIENCE_S
        try:
            for line in centre.stdout:
                assert time.monotonic() < deadline
                said = json.loads(line)
                if said["event"] == "listening":
                    crew = Crew(said["address"])
                    for _ in range(4):
                        crew.join()
                elif said["event"] == "done":
                    report: dict[str, Any] = said["report"]
                    assert not left, f"{len(left)} events did not happen: the run was too short"
                    return report
                elif said["event"] == "progress" and crew is not None and left:
                    part = said["node"]["samples"] / SAMPLES
                    if part * (len(events) + 1) >= len(events) - len(left) + 1:
                        match left.pop(0):
                            case "kill":
                                crew.leave(signal.SIGKILL)
                            case "leave":
                                crew.leave(signal.SIGTERM)
                            case "join":
                                crew.join()
        finally:
            if crew is not None:
                crew.end()
    raise AssertionError("the coordinator ended without a report")


@pytest.mark.parametrize("rule", RUN_RULES)
def test_accuracy_with_churn_is_that_of_a_calm_run(rule: str) -> None:
    calm, churned = run(rule, ()), run(rule, EVENTS)
    keys = ("accuracy_mean", "accuracy_plain", "plans", "pushes", "refused", "leases_revoked")
    for name, it in (("calm", calm), ("churn", churned)):
        figures = {key: it[key] for key in (*keys, "wall_s", "samples")}
        print(f"{rule} {name}: {figures}")
    assert churned["samples"] >= SAMPLES
    assert not set(churned["refused"]) - {"over"}, churned["refused"]
    assert churned["accuracy_mean"] >= calm["accuracy_mean"] - LOSS
