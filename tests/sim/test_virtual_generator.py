"""A generator in virtual time: the dealer that coordinators run, and peers with real weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from murmurate.core.batches.dealer import Totals
from murmurate.core.batches.held import HeldBatches
from murmurate.programs.cli.main import main
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads.synthetic import Synthetic


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def world(**more: Any) -> GossipWorld:
    known = {"workload": Synthetic("1000"), "nodes": 4, "rule": "sum", "generator": True}
    return GossipWorld(VirtualTraining(**{**known, **more}))


def consume(it: GossipWorld, total: int, kill_s: float = 0.0) -> None:
    """Until all of them are in updates that all have."""
    if kill_s:
        it.events.at(kill_s, it.kill, "node-1")
    assert it.dealing is not None
    assert it.events.run_until(2000, lambda: it.samples() >= total * it.batch_size)


@pytest.mark.parametrize("kill_s", [0.0, 5.3])
@pytest.mark.parametrize("rate", [None, 3.0])
def test_each_batch_is_in_exactly_one_update(kill_s: float, rate: float | None) -> None:
    total = 100
    it = world(samples=total * Synthetic("1000").batch_size, batches_per_s=rate)
    consume(it, total, kill_s)
    assert it.dealing is not None
    totals = it.dealing.dealer.totals
    assert totals == Totals(batches=total, consumed=total, dealt_again=totals.dealt_again)
    assert bool(totals.dealt_again) == bool(kill_s)
    for name, node in it.nodes.items():
        if not kill_s or name != "node-1":
            assert node.peer.replica.batches == HeldBatches((1, total))


def test_a_generator_that_is_the_bottleneck_sets_the_staleness() -> None:
    """Paper 000: n times the part of the time in which a model is busy, less a half."""
    it = world(nodes=16, batches_per_s=12.0)
    it.events.run_until(100.0)
    rows = [one for one in it.figures() if one.role == "peer"]
    busy = 1.0 - sum(one.wait_s for one in rows) / len(rows) / 100.0
    mean = sum(one.staleness.total for one in rows) / sum(one.staleness.count for one in rows)
    assert busy == pytest.approx(12 / 16, abs=0.02)
    assert mean == pytest.approx(16 * busy - 0.5, rel=0.03)


def test_the_command_says_what_it_came_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    words = ["up", "--virtual", "--generator", "--nodes", "2", "--workload", "synthetic:1000"]
    assert main([*words, "--samples", "480", "--report", str(file)]) == 0
    row = json.loads(file.read_text())["nodes"][-1]
    assert (row["name"], row["role"], row["state"]) == ("generator", "generator", "done")
    assert row["totals"]["consumed"] == row["totals"]["batches"] > 0
    assert main([*words, "--speed", "dealer=3", "--seconds", "1"]) == 2
    assert "node-0, node-1, generator" in capsys.readouterr().err
    assert main([*words, "--rule", "average", "--seconds", "1"]) == 2
    assert "--generator: not with rule average" in capsys.readouterr().err
