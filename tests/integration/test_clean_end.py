"""The README's loop as it stands there: what is in the models when its `with` block has ended."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from tests.integration.flock import flock, sgd, small, wait_for

import murmurate
from murmurate.core.gossip import folding
from murmurate.training.swarm import Swarm


class Loop(threading.Thread):
    """One script: `with join(…)`, so many steps, and nothing after it."""

    def __init__(self, name: str, steps: int, peers: list[str], **join: Any) -> None:
        super().__init__()
        self.name, self.steps, self.peers, self.join_with = name, steps, peers, join
        self.busy_s = self.pause_s = 0.0
        self.at = threading.Event()
        """It is about to make its last steps."""
        self.go = threading.Event()
        self.over = threading.Event()
        self.address = ""
        self.model = small()
        self.swarm: Swarm

    def run(self) -> None:
        optimizer = sgd(self.model)
        data = torch.Generator().manual_seed(hash(self.name))
        with murmurate.join(
            self.model, optimizer, run="end", name=self.name, peers=self.peers, **self.join_with
        ) as self.swarm:
            self.address = self.swarm.address
            for step in range(self.steps):
                if step == self.steps - 8:
                    self.at.set()
                    assert self.go.wait(60)
                    time.sleep(self.busy_s)
                x = torch.randn(16, 8, generator=data)
                optimizer.zero_grad()
                ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
                optimizer.step()
                if self.over.wait(self.pause_s):
                    break

    def numbers(self) -> torch.Tensor:
        return torch.cat([each.detach().reshape(-1) for each in self.model.parameters()])


def started(*loops: Loop) -> None:
    loops[0].start()
    wait_for(lambda: bool(loops[0].address))
    for loop in loops[1:]:
        loop.peers = [loops[0].address]
        loop.start()
    for loop in loops:
        assert loop.at.wait(60)


def ended_alike(*loops: Loop) -> None:
    for loop in loops:
        loop.join(90)
        assert not loop.is_alive()
    for loop in loops[1:]:
        torch.testing.assert_close(loop.numbers(), loops[0].numbers(), rtol=0, atol=1e-6)


def test_loops_that_end_apart_end_with_one_model(caplog: pytest.LogCaptureFixture) -> None:
    """One is evaluating while the others end, which is longer than a leave lasts."""
    loops = [Loop(name, 40, []) for name in ("a", "b", "c")]
    loops[1].busy_s = 7.0
    started(*loops)
    for loop in loops:
        loop.go.set()
    ended_alike(*loops)
    assert "a has done its 40 steps and waits for b" in caplog.text


def test_whoever_trains_on_is_not_waited_for_and_a_line_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("murmurate.core.figures.patience.OTHER_PLANS_S", 0.5)
    long, short = Loop("long", 100_000, []), Loop("short", 20, [])
    long.pause_s = 0.002
    long.start()
    wait_for(lambda: bool(long.address))
    wait_for(lambda: long.swarm.progress().steps > 200)
    short.peers = [long.address]
    short.go.set()
    short.start()
    short.join(60)
    assert not short.is_alive()
    assert "short ends after waiting" in caplog.text
    assert "though long (" in caplog.text
    assert "still trains" in caplog.text
    # What it made is not gone with it.
    clock = short.swarm.clock
    wait_for(lambda: len(long.swarm.clock) >= len(clock))
    assert long.swarm.runtime.look(lambda here: here.peer.others.never_came()) == {}
    long.over.set()
    long.join(30)


def test_work_that_left_with_its_maker_is_missed_aloud(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leaves in a hurry says who lacks its work; whoever lacks it says so at its end."""
    monkeypatch.setattr(folding, "APART_MAX", 0)  # else 2,000 of them would wait there
    monkeypatch.setattr(folding, "SUMS_MAX", -1)
    with flock(2) as (busy, leaver):
        for _ in range(400):  # more than waits at one that does not fold
            leaver.step()
        leaver.swarm.leave(timeout_s=0.3)
        assert "n1 leaves, and its last updates are not known to be with n0" in caplog.text
        wait_for(lambda: busy.swarm.members["n1"] == "left")
        assert not busy.swarm.finish(timeout_s=2.0)
        assert "n0 ends without the last updates of n1 (" in caplog.text
