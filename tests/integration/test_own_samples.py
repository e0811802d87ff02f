"""Paper 002's stop rule at a hub: each member ends by itself, and the slow one finishes alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from murmurate.programs.cli.main import main

OWN, BATCH = 1_280, 128


@pytest.mark.parametrize("rule", ["async", "sync"])
def test_each_member_of_a_hub_ends_after_its_own_samples(rule: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    words = ["up", "--mode", "hub", "--rule", rule, "--nodes", "2", "--own-samples", str(OWN)]
    words += ["--slow", "node-1=0.05", "--evaluate-s", "0", "--report", str(path)]
    assert main(words) == 0
    report: dict[str, Any] = json.loads(path.read_text())
    centre, *members = report["nodes"]
    assert [each["state"] for each in (centre, *members)] == ["done"] * 3
    for each in members:
        assert each["samples"] == OWN, "to the step, and whatever the other did"
        lost = each["steps_lost"] * BATCH
        assert each["samples"] - lost <= each["samples_in_model"], each
    assert centre["samples"] >= sum(each["samples"] for each in members) - 2 * BATCH


def test_it_is_this_or_a_budget_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--mode", "hub", "--own-samples", "5", "--samples", "10"]) == 2
    assert "either this, or samples" in capsys.readouterr().err
