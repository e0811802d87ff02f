"""Real processes: `murmurate up`, `node` and `status` as a person uses them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from murmurate.edge.disk import trajectory
from murmurate.study.lab import landscape

MURMURATE = [sys.executable, "-m", "murmurate"]
PATIENCE_S = 120.0
"""How long anything may take on a machine that has other things to do."""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MURMURATE, *words], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*MURMURATE, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def events(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What a node says, as it comes."""
    assert process.stdout is not None
    deadline = time.monotonic() + PATIENCE_S
    text = b""
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more came in {PATIENCE_S} s"
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            return
        *lines, text = (text + part).split(b"\n")
        yield from (json.loads(line) for line in lines)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def nodes_of(launcher: int) -> list[int]:
    """The processes of `up`: all are forked from one that has loaded everything."""
    return [each for loader in children(launcher) for each in children(loader)]


def check_curves(report: dict[str, Any]) -> None:
    """Each figure under its own name, where it was found, over samples of all and time."""
    for node in report["nodes"]:
        curve = [
            dict(zip(report["curve_columns"], p, strict=True))
            for p in report["curves"][node["name"]]
        ]
        for key in ("seconds", "samples", "own_samples"):
            values = [point[key] for point in curve]
            assert values == sorted(values), f"{key} of {node['name']}"
        assert all(point["own_samples"] <= point["samples"] for point in curve)
        assert all(point["validation_loss"] is None for point in curve)
        assert curve[-1]["samples"] <= report["samples"]
        found = [point for point in curve if point["test_loss"] is not None]
        assert len(found) < len(curve) / 2, "not at every point, but where it was evaluated"
        assert [point["accuracy"] is None for point in found] == [False] * len(found)
        if node["state"] == "done":
            last = found[-1]
            assert (last["test_loss"], last["accuracy"]) == (node["test_loss"], node["accuracy"])
            assert last["own_samples"] == node["samples"]
            assert len(found) >= 2, "on the way, too"
            assert node["loss"] != node["test_loss"]


def test_a_swarm_trains_loses_a_node_and_ends_with_equal_replicas(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = run(
        *("up", "--nodes", "3", "--samples", "60000", "--kill", "node-1@30%"),
        *("--slow", "node-2=0.002", "--report", str(file), "--trajectory"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(file.read_text())
    states = {node["name"]: node["state"] for node in report["nodes"]}
    assert states == {"node-0": "done", "node-1": "killed", "node-2": "done"}
    assert report["samples"] >= 60_000
    assert report["accuracy_min"] > 0.8  # a short run
    assert report["replica_distance_max"] < 1e-5
    alive = [node for node in report["nodes"] if node["state"] == "done"]
    assert alive[0]["updates_applied"] == alive[1]["updates_applied"]
    assert report["staleness"]["count"] >= sum(node["staleness"]["count"] for node in alive)
    assert report["staleness_predicted"] > 0
    assert report["run"] == "murmurate"
    assert "node-1 killed at" in done.stdout
    check_curves(report)
    assert "accuracy" in done.stdout
    kept = {name: trajectory.read(tmp_path / file) for name, file in report["trajectory"].items()}
    assert set(kept) == {"node-0", "node-2"}, "of those that came to the end"
    first, second = (each.weights for each in kept.values())
    way = np.linalg.norm(first[-1] - first[0])
    apart = np.linalg.norm(first[0] - second[0])
    assert apart < 0.5 * way, "all start near the founder's weights, whoever is first"
    assert np.allclose(first[-1], second[-1], atol=1e-5)
    assert min(len(first), len(second)) >= 3
    around = landscape.of_report(report, tmp_path, grid=3)
    assert around.end_loss == pytest.approx(alive[0]["test_loss"], rel=1e-3)
    assert around.loss.max() > around.end_loss


def test_all_begin_together(tmp_path: Path) -> None:
    """Nobody does the work while others load: `up` lets them go, so that none has to wait for N."""
    file = tmp_path / "out.json"
    done = run("up", "--nodes", "3", "--samples", "60000", "--report", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(file.read_text())
    assert len(report["curves"]) == 3
    for name, points in report["curves"].items():
        first, last = (
            dict(zip(report["curve_columns"], points[at], strict=True)) for at in (0, -1)
        )
        assert first["own_samples"] == 0
        assert first["samples"] < 30_000, f"{name} came when others had done much of it"
        assert last["own_samples"] > 3_000, f"{name} had little to do"


def test_a_node_leaves_when_it_is_told_to(tmp_path: Path) -> None:
    report, weights = tmp_path / "node.json", tmp_path / "weights.npy"
    words = ("node", "--events", "--name", "solo", "--threads", "1")
    with started(*words, "--report", str(report), "--weights", str(weights)) as process:
        told = events(process)
        listening = next(event for event in told if event["event"] == "listening")
        status = run("status", listening["address"])
        assert status.returncode == 0, status.stderr
        assert "solo" in status.stdout
        assert "alive" in status.stdout
        other = run("node", "--listen", listening["address"])
        assert other.returncode == 2
        assert "cannot listen there" in other.stderr
        next(event for event in told if event["event"] == "progress")
        process.send_signal(signal.SIGTERM)
        assert [event["event"] for event in told][-1] == "done"
        assert process.wait(PATIENCE_S) == 0
    row = json.loads(report.read_text())
    assert row["name"] == "solo"
    assert row["samples"] > 0
    assert row["updates_published"] > 0
    assert np.load(weights, allow_pickle=False).ndim == 1


def test_nodes_do_not_outlive_their_launcher() -> None:
    with started("up", "--nodes", "2", "--seconds", "600") as process:
        assert process.stdout is not None
        while b"2 nodes" not in process.stdout.readline():
            assert process.poll() is None
        nodes = nodes_of(process.pid)
        assert len(nodes) == 2
        process.kill()
        process.wait()
        wait_until(lambda: all(gone(pid) for pid in nodes))


def test_ctrl_c_leaves_nobody_behind() -> None:
    with started("up", "--nodes", "2", "--seconds", "600") as process:
        assert process.stdout is not None
        wait_until(lambda: len(nodes_of(process.pid)) == 2)
        nodes = nodes_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert all(gone(pid) for pid in nodes)


@pytest.mark.parametrize("mode", ["gossip", "ist"])
def test_missing_data_is_one_line_and_nothing_is_started(mode: str) -> None:
    done = run("up", "--mode", mode, "--nodes", "2", "--workload", "word2vec")
    assert (done.returncode, done.stdout) == (2, "")
    said = "murmurate: workload word2vec: data: expected a text file (plain, .gz or .bz2): any will"
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("mode", ["gossip", "ist"])
def test_when_all_nodes_find_something_wrong(mode: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Workload:\n    name = 'mine'\n")
    mine = f"{tmp_path}/mine.py:Workload"
    done = run("up", "--mode", mode, "--nodes", "2", "--workload", mine)
    assert done.returncode == 2
    assert "lacks batch_size" in done.stdout


def test_status_of_nobody_and_of_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    done = run("status", address)
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert address in done.stderr
