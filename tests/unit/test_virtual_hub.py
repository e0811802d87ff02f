"""What a hub in virtual time has for 002's studies: delays, its stop rule, rates, trajectories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from murmurate.edge.disk import trajectory
from murmurate.programs.cli.main import main

HUB = ["up", "--virtual", "--mode=hub", "--workload=synthetic:1000", "--nodes=3", "--seed=1"]


def trained(tmp_path: Path, *options: str) -> dict[str, Any]:
    file = tmp_path / "r.json"
    assert main([*HUB, *options, f"--report={file}"]) == 0
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def samples_of(report: dict[str, Any]) -> dict[str, int]:
    return {row["name"]: row["samples"] for row in report["nodes"]}


def test_a_delay_after_each_step_makes_a_member_slower(tmp_path: Path) -> None:
    found = trained(tmp_path, "--rule=async", "--seconds=60", "--slow=node-0=2")
    ours = samples_of(found)
    assert 3 * ours["node-0"] == pytest.approx(ours["node-1"], rel=0.1)
    drawn = trained(tmp_path, "--rule=async", "--seconds=60", "--slow=gaussian(1,0.3)")
    assert samples_of(drawn)["node-1"] == pytest.approx(ours["node-1"] / 2, rel=0.15)
    again = trained(tmp_path, "--rule=async", "--seconds=60", "--slow=gaussian(1,0.3)")
    assert again == drawn


@pytest.mark.parametrize("rule", ["async", "sync", "ea-wild"])
def test_each_ends_after_its_own_samples_and_the_slow_one_goes_on_alone(
    tmp_path: Path, rule: str
) -> None:
    found = trained(tmp_path, f"--rule={rule}", "--own-samples=640", "--speed=node-0=0.25")
    assert set(samples_of(found).values()) == {640, 3 * 640}
    assert found["samples"] == 3 * 640
    rest = trained(tmp_path, f"--rule={rule}", f"--samples={3 * 640}", "--speed=node-0=0.25")
    if rule != "sync":  # in step all have the same in both
        assert samples_of(rest)["node-1"] > 640 > samples_of(rest)["node-0"]


def test_rates_follow_a_schedule_where_members_decide(tmp_path: Path) -> None:
    plain = trained(tmp_path, "--rule=ea-wild", "--samples=4000")
    warm = trained(tmp_path, "--rule=ea-wild", "--samples=4000", "--warmup=0.5", "--schedule=poly")
    assert warm["test_loss_mean"] != plain["test_loss_mean"]
    same = trained(tmp_path, "--rule=ea-wild", "--samples=4000", "--schedule=constant")
    assert same["test_loss_mean"] == plain["test_loss_mean"]


@pytest.mark.parametrize(
    "mode", [["--mode=hub", "--rule=async"], ["--mode=gossip"], ["--mode=allreduce"]]
)
def test_a_trajectory_is_of_the_instants_of_evaluation(tmp_path: Path, mode: list[str]) -> None:
    file = tmp_path / "r.json"
    options = [*HUB, *mode, "--seconds=20", "--trajectory", f"--report={file}"]
    assert main(options) == 0
    report = json.loads(file.read_text(encoding="utf-8"))
    [(name, kept)] = report["trajectory"].items()
    read = trajectory.read(tmp_path / kept)
    column = report["curve_columns"].index("test_loss")
    seconds = [point[0] for point in report["curves"][name] if point[column] is not None]
    assert np.allclose(read.at_s, seconds, atol=1e-3)
    assert read.about["workload"] == "synthetic:1000"
    assert len(read.weights) == 11
    # Rule `shared` publishes every few steps: not each point is another one.
    assert len({row.tobytes() for row in read.weights}) > 5


def test_a_trajectory_needs_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*HUB, "--trajectory"]) == 2
    assert "--trajectory: needs --report FILE" in capsys.readouterr().err
    assert main([*HUB, "--own-samples=5", "--samples=10"]) == 2
    assert "either this, or samples" in capsys.readouterr().err
