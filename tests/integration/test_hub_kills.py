"""Kills at a hub, under every rule: its own, and a member's. Training goes on, nothing that was
accepted is lost, and staleness is conserved."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.centre import BATCH, Coordinator, batch, model
from torch.nn.functional import cross_entropy

from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.member_half import HUB_RULES, PIPELINED, REQUEST_REPLY, can_pipeline
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.errors import MurmurateError
from murmurate.training.member import Member
from murmurate_coordinator import sessions
from murmurate_coordinator.solvers.hub.hub import HubSolver

LIMIT_S = 120.0
CASES = [
    (rule, protocol)
    for rule, half in HUB_RULES.items()
    for protocol in (
        *([] if half.pipelined else [REQUEST_REPLY]),
        *([PIPELINED] if can_pipeline(rule) else []),
    )
]


class Trains(threading.Thread):
    """A member, until it is told to leave, or dies: then its link ends without a word."""

    def __init__(self, it: Coordinator, name: str) -> None:
        super().__init__(daemon=True)
        self.it, self.member_name = it, name
        self.leaves, self.dies = threading.Event(), threading.Event()
        self.member: Member | None = None
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            self.member = member = Member(
                net,
                optimizer,
                run="test",
                coordinator=self.it.address,
                name=self.member_name,
                mode="hub",
                credentials=PLAINTEXT,
                idle=lambda: self.leaves.is_set() or self.dies.is_set(),
            )
            step = 0
            while not self.leaves.wait(0.002) and not self.dies.is_set():
                step += 1
                x, y = batch(step)
                optimizer.zero_grad()
                cross_entropy(net(x), y).backward()
                optimizer.step()
            if self.dies.is_set():
                link = member._link
                assert link is not None
                link._thread.call(lambda: [task.cancel() for task in asyncio.all_tasks()])
            member.leave(timeout_s=0.0 if self.dies.is_set() else 20.0)
        except (MurmurateError, RuntimeError) as error:
            self.failed = error


def settings(rule: str, protocol: str) -> HubSettings:
    return HubSettings(
        lr=0.02, protocol=protocol, gradients=2 if rule in ("k-of-n", "fedbuff") else 1
    )


@pytest.mark.parametrize(("rule", "protocol"), CASES)
def test_streams_break_a_member_dies_and_another_comes(
    rule: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "GRACE_S", 0.5)
    steps = 1 if HUB_RULES[rule].central else 3
    hub = settings(rule, PIPELINED if HUB_RULES[rule].pipelined else protocol)
    with Coordinator(rule, founders=3, steps=steps, hub=hub) as it:
        loops = [Trains(it, f"m{k}") for k in range(3)]
        for loop in loops:
            loop.start()

        def pushes() -> int:
            return int(it.ask(lambda: it.solver.totals.pushes))

        def until_more(count: int) -> None:
            """So many pushes of everybody who trains."""
            goal, waited = pushes() + count, 0.0
            while pushes() < goal:
                assert not any(loop.failed for loop in loops)
                waited += 0.02
                assert waited < LIMIT_S
                threading.Event().wait(0.02)

        until_more(20)
        loops[1].dies.set()
        loops[1].join(LIMIT_S)
        until_more(12)  # nobody waits for the dead for longer than its grace
        seats = it.centre.members.seats
        assert "m1" not in seats or not seats["m1"].stream  # it said nothing, its stream broke
        before = it.ask(lambda: it.solver.totals.pushes)
        it.stop()  # every stream breaks, with pushes on their way
        it.start()
        loops.append(Trains(it, "late"))
        loops[-1].start()
        until_more(20)
        for loop in loops:
            loop.leaves.set()
        for loop in loops:
            loop.join(LIMIT_S)
            assert not loop.is_alive()
            assert loop.failed is None
        solver = it.solver
        it.ask(solver.check)
        assert solver.totals.pushes >= before + 20
        assert solver.totals.samples == BATCH * solver.totals.steps
        assert all(bool(torch.isfinite(value).all()) for value in it.weights().values())
        if not isinstance(solver, HubSolver):
            return  # fedavg has no versions
        told = it.ask(solver.more)
        books = told["conservation"]
        assert books["gradients"] == solver.totals.pushes
        assert books["updates"] == told["version"]
        if not solver.half.stays:  # request-reply: in integers
            assert books["staleness"] + books["residual"] + books["gaps"] == books["presence"]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "protocol"), CASES)
def test_a_hub_and_a_member_are_killed(rule: str, protocol: str, tmp_path: Path) -> None:
    """`kill -9` of real processes, one after the other; the hub is started again."""
    path = tmp_path / "report.json"
    words = ["up", "--mode", "hub", "--rule", rule, "--nodes", "3", "--samples", "40000"]
    words += [
        "--lr",
        "0.01" if rule == "async-msgd" else "0.05",
        "--slow",
        "0.004",
        "--checkpoint",
        str(tmp_path / "state"),
    ]
    words += ["--kill", "node-1@25%", "--kill", "coordinator@55%", "--report", str(path)]
    words += ["--evaluate-s", "0"]
    if protocol == PIPELINED and not HUB_RULES[rule].pipelined:
        words += ["--hub-protocol", protocol]
    if rule in ("k-of-n", "fedbuff"):
        words += ["--hub-gradients", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "murmurate", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["coordinator_lives"] == 2
    assert report["samples"] >= 40_000
    assert report["accuracy_mean"] > 0.3  # of ten classes
    members = {row["name"]: row for row in report["nodes"][1:]}
    assert members["node-1"]["state"] == "killed"
    for name in ("node-0", "node-2"):  # what was accepted before the kill is in the model
        row = members[name]
        assert row["state"] == "done"
        # A member whose answer was lost takes a step for lost that is in.
        assert row["steps"] - row["steps_lost"] <= row["steps_in_model"] <= row["steps"]
    in_model = sum(row["steps_in_model"] for row in members.values())
    assert in_model == report["nodes"][0]["samples"] // 128
    if rule == "fedavg":
        return
    books = report["conservation"]
    assert books["gradients"] == report["pushes"]
    assert books["updates"] == report["version"]
    if report["protocol"] == REQUEST_REPLY and rule != "ea-wild":  # which never waits
        assert books["staleness"] + books["residual"] + books["gaps"] == books["presence"]
