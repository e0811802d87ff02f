"""Independent subnet training as a person uses it: `up --mode ist`, nodes, an example."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_up import PATIENCE_S, run

EXAMPLE = Path(__file__).parents[2] / "examples/subnet.py"
MURMURATE = [sys.executable, "-m", "murmurate"]


def check_whole(report: dict[str, Any]) -> None:
    """The whole model's curve: what was evaluated under its names, the members' training loss."""
    whole = report["curves"]["coordinator"]
    points = [dict(zip(report["curve_columns"], point, strict=True)) for point in whole]
    found = [point for point in points if point["test_loss"] is not None]
    centre = report["nodes"][0]
    assert len(found) >= 2, "on the way, too"
    assert found[-1]["test_loss"] == centre["test_loss"] == report["test_loss_mean"]
    assert found[-1]["accuracy"] == centre["accuracy"]
    assert found[-1]["samples"] == report["samples"]
    assert 0 < centre["loss"] != centre["test_loss"]
    members = [row for row in report["nodes"][1:] if row["state"] == "done"]
    assert all(row["loss"] is not None and row["test_loss"] is None for row in members)


def test_unequal_members_one_of_them_killed_and_a_coordinator_that_comes_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out.json"
    done = run(
        *("up", "--mode", "ist", "--rule", "async", "--nodes", "3", "--widths", "4,2,1"),
        *("--workload", "digits", "--samples", "150000", "--report", str(path)),
        *("--kill", "node-1@20%", "--kill", "coordinator@50%", "--slow", "node-2=0.002"),
        *("--checkpoint", str(tmp_path / "kept"), "--checkpoint-every-s", "0.5"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(path.read_text())
    assert (written["mode"], written["rule"]) == ("ist", "async")
    assert written["samples"] >= 150_000
    assert written["accuracy_mean"] > 0.9
    check_whole(written)
    assert written["coordinator_lives"] == 2
    for key in ("plan", "plans", "pushes", "coverage", "leases", "refused", "accuracy_plain"):
        assert key in written, key
    centre, *members = written["nodes"]
    assert centre["role"] == "coordinator"
    assert [row["role"] for row in members] == ["member"] * 3
    assert [row["state"] for row in members] == ["done", "killed", "done"]
    assert all(row["share"] > 0 for row in members)
    for row in (members[0], members[2]):
        assert row["steps_in_model"] + row["steps_lost"] == row["steps"]
        assert row["samples"] > 0
    assert members[0]["staleness"]["count"] == members[0]["updates_applied"] > 0
    assert "the coordinator is started again from its checkpoint" in done.stdout


def test_a_mistake_is_told_in_one_line_each() -> None:
    done = run("up", "--mode", "ist", "--widths", "4,0", "--nodes", "2", "--codec", "int8")
    assert done.returncode == 2
    assert "--widths 4,0: 0 must be above 0" in done.stderr
    assert "--codec: only with --mode gossip" in done.stderr
    done = run("node", "--mode", "ist", "--check-config")
    assert done.returncode == 2
    assert "mode ist needs one" in done.stderr


def test_the_example_and_a_node_with_figures_train_with_a_coordinator(tmp_path: Path) -> None:
    """Three kinds of process: the coordinator, a loop of one's own, `murmurate node`."""
    path = tmp_path / "out.json"
    words = ("--listen", "127.0.0.1:0", "--founders", "2", "--samples", "40000")
    with started("coordinator", *words, "--report", str(path)) as centre:
        address = said(centre, r"coordinator listens at (\S+)")
        node = ("node", "--mode", "ist", "--coordinator", address, "--threads", "1")
        with started("node", *node[1:], "--metrics", "127.0.0.1:0", "--name", "other") as other:
            command = [sys.executable, str(EXAMPLE), "0", address]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as example:
                page = said(other, r"trains [\d.]+% of the model, figures at (\S+)")
                with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
                    figures = answer.read().decode()
                for name in ("plan_number", "subnet_share_ratio", "updates_applied_total"):
                    assert re.search(rf"^murmurate_{name} [\d.]+", figures, re.M), name
                out, _ = example.communicate(timeout=PATIENCE_S)
            said(other, r"(other ends \(coordinator: samples\))")
            assert other.wait(PATIENCE_S) == 0
        assert example.returncode == 0
        assert re.search(r"\d+% of the model, \d+ steps, loss", out)
        assert centre.wait(PATIENCE_S) == 0
    written = json.loads(path.read_text())
    assert {row["name"] for row in written["nodes"]} == {"coordinator", "example-0", "other"}
    assert set(written["curves"]) == {"coordinator", "example-0", "other"}
    found = [
        dict(zip(written["curve_columns"], point, strict=True))
        for point in written["curves"]["coordinator"]
    ]
    assert found[-1]["samples"] == written["samples"]
    assert found[-1]["accuracy"] == pytest.approx(written["accuracy_mean"])
    assert 0 <= found[0]["seconds"] <= found[-1]["seconds"]
    counted = sum(times for _, times in written["staleness_counts"]["coordinator"])
    assert counted == written["staleness"]["count"]
    picture = run("plot", str(path))
    if importlib.util.find_spec("matplotlib") is not None:
        assert picture.returncode == 0, picture.stderr
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*MURMURATE, *words], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], pattern: str) -> str:
    """Of what it writes to standard error, the first that is like this."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"{pattern} was not said: {lines}")
