"""`murmurate plot`: what it reads, and, where matplotlib is, that it draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from murmurate import plot
from murmurate.errors import ConfigError
from murmurate.report import CURVE_MAX, thinned


def report(**more: Any) -> dict[str, Any]:
    return {
        "workload": "digits",
        "mode": "gossip",
        "rule": "sum",
        "samples": 300,
        "wall_s": 10.0,
        "staleness_predicted": 1.0,
        "nodes": [{}, {}],
        "curves": {
            "a": [[0.0, 0, None, None], [5.0, 100, 1.0, 0.5], [10.0, 200, 0.5, 0.75]],
            "b": [[5.0, 50, 1.5, None], [10.0, 100, 0.5, 0.5]],
        },
        "staleness_counts": {"a": [[0, 10], [2, 10]], "b": []},
        **more,
    }


def test_samples_are_those_of_the_swarm() -> None:
    curves = plot.swarm_samples(report()["curves"])
    assert [point[1] for point in curves["a"]] == [0, 150, 300]
    assert curves["b"] == [[5.0, 150, 1.5, None], [10.0, 300, 0.5, 0.5]]


def test_curves_in_a_report_are_short() -> None:
    points = [(100.0 + at, at, None, None) for at in range(10_000)]
    few = thinned(points, 100.0)
    assert len(few) <= CURVE_MAX
    assert few[0] == (0.0, 0, None, None)
    assert few[-1] == (9999.0, 9999, None, None)
    assert thinned(points[:3], 100.0) == [
        (0.0, 0, None, None),
        (1.0, 1, None, None),
        (2.0, 2, None, None),
    ]
    assert thinned([], 0.0) == []


@pytest.mark.parametrize(
    ("text", "problem"), [("", "not JSON"), ("[]", "no curves"), ('{"nodes": []}', "no curves")]
)
def test_a_file_that_is_no_report(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        plot.run(str(file), None)
    with pytest.raises(ConfigError, match="No such file"):
        plot.run(str(tmp_path / "none.json"), None)


def test_it_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'murmurate[lab]'")
    file = tmp_path / "r.json"
    file.write_text(json.dumps(report()))
    assert plot.run(str(file), None) == 0
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    figure = plot.draw(report())
    assert [axes.get_ylabel() for axes in figure.axes[:4]] == [
        "loss",
        "loss",
        "accuracy",
        "accuracy",
    ]
    assert [axes.get_title() for axes in figure.axes[4:]] == ["a", "b"]
    assert len(figure.axes[0].lines) == 2
    with pytest.raises(ConfigError, match="cannot be written"):
        plot.run(str(file), str(tmp_path / "r.unknown"))
