"""What work costs in virtual time: steps by their batch, folding, one push at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from murmurate.core.theory import folding_rates
from murmurate.errors import ConfigError
from murmurate.programs.cli.main import main
from murmurate.study.virtual.calibration import line
from murmurate.study.virtual.costs import SaidCosts, parse_costs

QUICK = ("up", "--virtual", "--workload", "synthetic:1000", "--rule", "sum", "--evaluate-s", "0")


def report(tmp_path: Path, *options: str) -> dict[str, Any]:
    file = tmp_path / "out.json"
    assert main([*QUICK, *options, "--report", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def steps(found: dict[str, Any]) -> list[float]:
    return [row["updates_published"] for row in found["nodes"]]


@pytest.mark.parametrize(
    ("step", "fold", "found"),
    [
        (None, None, SaidCosts()),
        ("0.5", None, SaidCosts(step=(0.5, 0.0))),
        ("0.002+1e-5", "3e-4", SaidCosts(step=(0.002, 1e-5), fold_s=3e-4)),
        ("2e-3+.5", "0", SaidCosts(step=(0.002, 0.5))),
        ("measured", "measured", SaidCosts(step=None, fold_s=None)),
    ],
)
def test_what_may_be_said(step: str | None, fold: str | None, found: SaidCosts) -> None:
    assert parse_costs(step, fold) == found


@pytest.mark.parametrize(
    ("step", "fold", "says"),
    [
        ("0", None, "--step-s '0': A[+B], seconds for a step"),
        ("-1", None, "--step-s '-1'"),
        (
            "1e-9",
            None,
            "--step-s '1e-9': A[+B], seconds for a step and for each sample of its batch, such as",
        ),
        ("1+", None, "--step-s '1+'"),
        ("1+2+3", None, "--step-s '1+2+3'"),
        ("soon", None, "--step-s 'soon'"),
        (None, "-1", "--fold-s '-1': seconds from 0 on"),
        (None, "nan", "--fold-s 'nan'"),
    ],
)
def test_what_may_not_be_said(step: str | None, fold: str | None, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_costs(step, fold)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_only_in_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--step-s", "0.1"]) == 2
    assert "--step-s" in capsys.readouterr().err


def test_a_batch_costs_as_the_formula_says(tmp_path: Path) -> None:
    """A step takes a + b × batch: 0.1 + 0.32 s with a batch of 32, 0.1 + 2.56 s with one of 256.
    Without costs both would make as many steps."""
    made = {}
    for batch in ("32", "256"):
        options = ("--nodes", "2", "--batch-size", batch, "--seconds", "60")
        made[batch] = steps(report(tmp_path, *options, "--step-s", "0.1+0.01"))
        assert steps(report(tmp_path, *options)) == [59, 59]
    for batch, step_s in (("32", 0.42), ("256", 2.66)):
        # A node begins at a phase of its own, within one step.
        assert made[batch] == pytest.approx([60 / step_s - 1] * 2, abs=1.01)


def test_costs_of_one_second_are_what_it_was_without(tmp_path: Path) -> None:
    options = ("--nodes", "3", "--seconds", "20", "--speed", "node-1=0.5", "--delay-s", "0.2")
    assert report(tmp_path, *options, "--step-s", "1", "--fold-s", "0") == report(
        tmp_path, *options
    )


def test_a_faster_node_works_faster_at_all_of_it(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        *("--nodes", "2", "--seconds", "100", "--speed", "node-0=2"),
        *("--step-s", "1", "--fold-s", "0.1"),
    )
    expected = folding_rates([0.5, 1.0], [0.05, 0.1])
    assert steps(found) == pytest.approx([100 * rate for rate in expected], rel=0.03)


@pytest.mark.parametrize("nodes", [4, 8])
def test_folding_takes_time_and_makes_nothing_staler(tmp_path: Path, nodes: int) -> None:
    """A cycle is a step and n - 1 folds; updates are n - 1 stale with and without."""
    found = report(
        tmp_path, "--nodes", str(nodes), "--seconds", "60", "--step-s", "1", "--fold-s", "0.05"
    )
    cycle_s = 1 + 0.05 * (nodes - 1)
    assert steps(found) == pytest.approx([60 / cycle_s] * nodes, rel=0.05)
    assert found["staleness"]["mean"] == pytest.approx(nodes - 1, rel=0.06)
    assert found["staleness_predicted"] == pytest.approx(nodes - 1, rel=1e-9)
    folding = found["nodes"][0]["folding_s"]
    assert folding == pytest.approx(60 * (1 - 1 / cycle_s), rel=0.1)


def test_a_coordinator_folds_one_push_at_a_time(tmp_path: Path) -> None:
    """4 members push after 5 steps of 0.1 s; the coordinator takes 0.5 s for each push. It is the
    bottleneck: 2 pushes a second, however many members there are."""
    file = tmp_path / "out.json"
    options = ("--workload", "digits", "--mode", "ist", "--rule", "async", "--nodes", "4")
    more = ("--every", "5", "--seconds", "12", "--step-s", "0.1", "--fold-s", "0.5")
    free = ("--every", "5", "--seconds", "12", "--step-s", "0.1")
    found = {}
    for name, costs in (("dear", more), ("free", free)):
        command = ["up", "--virtual", *options, *costs, "--evaluate-s", "0", "--report", str(file)]
        assert main(command) == 0
        found[name] = json.loads(file.read_text(encoding="utf-8"))["pushes"]
    assert found["dear"] == pytest.approx(23, abs=2)
    assert found["free"] > 60


def test_folding_rates_add_up() -> None:
    compute_s, fold_s = [1.0, 2.0, 0.5], [0.1, 0.05, 0.2]
    rates = folding_rates(compute_s, fold_s)
    for rate, each_s, fold in zip(rates, compute_s, fold_s, strict=True):
        assert rate * each_s + fold * (sum(rates) - rate) == pytest.approx(1.0)
    assert folding_rates([2.0], [0.0]) == [0.5]
    with pytest.raises(ConfigError, match="fold"):
        folding_rates([0.1, 0.1, 10.0], [0.01, 0.01, 9.0])


def test_a_line_through_two_measured_points() -> None:
    costs = line((32, 0.42), (256, 2.66), fold_s=0.01)
    assert (costs.step_s, costs.sample_s, costs.fold_s) == pytest.approx((0.1, 0.01, 0.01))
    steep = line((32, 0.1), (256, 2.0))
    assert steep.step_s == 0.0
    assert steep.of_step(32) == pytest.approx(0.1)
    assert line((32, 0.2), (256, 0.1)).sample_s == 0.0


def test_measured_costs_are_in_the_report(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        *("--nodes", "2", "--seconds", "0.2", "--step-s", "measured", "--fold-s", "measured"),
    )
    assert 0 < found["costs"]["step_s"] + found["costs"]["sample_s"] < 1
    assert 0 < found["costs"]["fold_s"] < 1
