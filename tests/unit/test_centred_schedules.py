"""Schedules and slowness where there is a coordinator: by what of the budget is spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from murmurate.core.values.recipe import Recipe, Schedule
from murmurate.core.values.slowness import parse_slowness
from murmurate.programs.cli.main import main
from murmurate.workloads import load
from murmurate_coordinator.config import load as load_config
from murmurate_coordinator.own_member import command
from murmurate_coordinator.virtual import VirtualSubnets
from murmurate_coordinator.virtual_setting import VirtualSetting

NOTHING_LEARNED = "multistep(0.002,0.004,0.006,0.008,0.01,0.012)"
"""A millionth of the rate from the beginning on."""


def trained(tmp_path: Path, *words: str) -> dict[str, Any]:
    path = tmp_path / "report.json"
    usual = ("up", "--virtual", "--nodes", "3", "--samples", "30000", "--report", str(path))
    assert main([*usual, *words]) == 0
    report: dict[str, Any] = json.loads(path.read_text())
    return report


@pytest.mark.parametrize("mode", ["hub async", "hub easgd", "hub fedavg-async", "ist async"])
def test_the_rate_follows_whoever_makes_the_steps(tmp_path: Path, mode: str) -> None:
    words = ("--mode", mode.split()[0], "--rule", mode.split()[1])
    usual = trained(tmp_path, *words)["accuracy_mean"]
    stopped = trained(tmp_path, *words, "--schedule", NOTHING_LEARNED)["accuracy_mean"]
    assert usual > 0.7
    assert stopped < 0.5


def test_a_hub_goes_by_samples_that_are_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load("digits")
    world: VirtualSubnets
    recipe = Recipe(schedule=Schedule("linear"))
    samples = 100 * workload.batch_size
    setting = VirtualSetting(
        rule="async",
        mode="hub",
        peers=2,
        seconds=25.5,
        steps=1,
        recipe=recipe,
        spent=lambda: world.solver.totals.samples / samples,
    )
    rates: list[float] = []
    world = VirtualSubnets(workload, setting)
    monkeypatch.setattr(world.solver, "at_rate", rates.append)
    world.run()
    assert len(rates) == 50
    assert rates == pytest.approx([1 - k / 100 for k in range(50)])


@pytest.mark.parametrize("mode", ["hub", "ist", "allreduce"])
def test_slowness_is_drawn_in_every_mode(tmp_path: Path, mode: str) -> None:
    rule = ("--rule", "flat" if mode == "allreduce" else "async")
    words = ("--mode", mode, *rule, "--slow", "node-1=exponential(1,2)")
    report = trained(tmp_path, *words)
    assert report["slow_s"]["node-1"] == "exponential(1,2)"
    assert trained(tmp_path, *words) == report  # drawn by the seed
    steps = {row["name"]: row["samples"] for row in report["nodes"]}
    share = steps["node-1"] / steps["node-0"]
    if mode == "allreduce":  # all at the pace of the slowest
        assert share == 1
        assert report["wall_s"] / (report["samples"] / 128 / 3) == pytest.approx(4, rel=0.35)
    else:  # 1 s a step, and 3 s more on average
        assert share == pytest.approx(0.25, rel=0.5)


def test_a_constant_wait_is_what_it_says() -> None:
    assert parse_slowness("0.5").seconds(1.0, None) == 0.5  # type: ignore[arg-type]


def test_a_coordinator_has_a_budget_to_go_by(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", "--mode", "hub", "--schedule", "cosine"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "say samples or seconds" in said
    good = ["coordinator", "--mode", "hub", "--schedule", "cosine", "--samples", "9"]
    assert main([*good, "--check-config"]) == 0
    node = ("node", "--mode", "hub", "--coordinator", "127.0.0.1:9", "--warmup", "0.1")
    assert main([*node, "--check-config"]) == 0  # what is spent comes from the hub
    assert main(["node", "--mode", "hub", "--batch-warmup", "0.1", "--check-config"]) == 2


def test_its_own_member_follows_the_same_schedule() -> None:
    given = {"coordinator.train": "true", "train.schedule": "poly(0.5)", "train.samples": "9"}
    config = load_config(None, {}, {**given, "coordinator.listen": "127.0.0.1:0"})
    words = command(config)
    assert words[words.index("--schedule") + 1] == "poly(0.5)"
