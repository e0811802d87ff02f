"""`murmurate plot`: what it reads, and, where matplotlib is, that it draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from murmurate.errors import ConfigError
from murmurate.study.lab import plot, several
from murmurate.watch.report import (
    CURVE_COLUMNS,
    CURVE_MAX,
    CurvePoint,
    curves,
    swarm_samples,
    thinned,
)


def report(**more: Any) -> dict[str, Any]:
    unknown = [None, None]
    return {
        "workload": "digits",
        "mode": "gossip",
        "rule": "sum",
        "samples": 300,
        "wall_s": 10.0,
        "staleness_predicted": 1.0,
        "nodes": [{}, {}],
        "curve_columns": list(CURVE_COLUMNS),
        "curves": {
            "a": [
                [0.0, 0, 0, None, 2.0, 0.1, *unknown],
                [5.0, 150, 100, 1.0, None, None, *unknown],
                [10.0, 300, 200, 0.5, 0.4, 0.75, *unknown],
            ],
            "b": [
                [5.0, 150, 50, 1.5, *unknown, *unknown],
                [10.0, 300, 100, 0.5, 0.5, 0.7, *unknown],
            ],
        },
        "staleness_counts": {"a": [[0, 10], [2, 10]], "b": []},
        **more,
    }


def point(at: float, samples: int, **more: float) -> CurvePoint:
    return CurvePoint(at, 0, samples, **more)


def test_samples_are_those_of_the_swarm() -> None:
    points = {"a": [point(100.0, 0), point(105.0, 100, loss=1.0)], "b": [point(105.5, 50)]}
    made = curves(points, 100.0, lambda at: 30 * (at - 100))
    assert made["curve_columns"][:4] == ["seconds", "samples", "own_samples", "loss"]
    assert [each[:4] for each in made["curves"]["a"]] == [[0, 0, 0, None], [5, 150, 100, 1.0]]
    assert [each[:4] for each in made["curves"]["b"]] == [[5.5, 165, 50, None]]


def test_samples_of_all_at_any_instant() -> None:
    all_of = {
        "a": [point(0.0, 0), point(10.0, 100)],
        "b": [point(2.0, 0), point(4.0, 10), point(4.0, 10, test_loss=1.0)],  # then it was killed
        "c": [],
    }
    at = swarm_samples(all_of)
    assert [at(when) for when in (-1.0, 0.0, 3.0, 4.0, 5.0, 20.0)] == [0, 0, 35, 50, 60, 110]


def test_curves_in_a_report_are_short() -> None:
    points = [point(100.0 + at, at) for at in range(10_000)]
    few = thinned(points)
    assert len(few) <= CURVE_MAX
    assert few[0] == points[0]
    assert few[-1] == points[-1]
    assert thinned(points[:3]) == points[:3]
    assert thinned([]) == []


@pytest.mark.parametrize("evaluations", [1, 30, 200, 5000])
def test_evaluations_are_not_thinned_away(evaluations: int) -> None:
    """All of them, while they are few: they are what a curve is looked at for."""
    points = [point(float(at), at) for at in range(5_000)]
    found = [point(at + 0.5, at, test_loss=1.0) for at in range(0, 5000, 5000 // evaluations)]
    few = thinned(sorted([*points, *found]))
    assert len(few) <= CURVE_MAX
    assert [each.seconds for each in few] == sorted(each.seconds for each in few)
    kept = [each for each in few if each.evaluated]
    assert kept[-1] == found[-1]
    assert len(kept) == len(found) or len(found) > CURVE_MAX // 3
    assert len(few) - len(kept) >= CURVE_MAX // 3, "and training shows in between"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("[]", "no curves"),
        ('{"nodes": []}', "no curves"),
        ('{"name": "a", "updates_published": 4}', "of one node, and has its last figures only"),
        ('{"mode": "batches", "nodes": []}', "a generator trains nothing, its peers do"),
        ('{"mode": "ist", "curves": {}}', "nothing was trained"),
    ],
)
def test_a_file_that_is_no_report(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"{problem}.*murmurate coordinator --report"):
        plot.run([str(file)], None)
    with pytest.raises(ConfigError, match="No such file"):
        plot.run([str(tmp_path / "none.json")], None)


def test_it_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'murmurate[lab]'")
    file = tmp_path / "r.json"
    file.write_text(json.dumps(report()))
    assert plot.run([str(file)], None) == 0
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    figure = plot.draw(report())
    assert [axes.get_ylabel() for axes in figure.axes[:6]] == [
        *(["training loss"] * 2),
        *(["test loss"] * 2),
        *(["test accuracy"] * 2),
    ]
    labels = [axes.get_xlabel() for axes in figure.axes[4:6]]
    assert labels == ["samples of the whole swarm", "seconds"]
    assert [axes.get_title("left") for axes in figure.axes[6:]] == [
        "staleness at a",
        "staleness at b",
    ]
    lines = figure.axes[2].lines
    assert [list(line.get_xdata()) for line in lines] == [[0, 300], [300]]
    assert [list(line.get_ydata()) for line in lines] == [[2.0, 0.4], [0.5]]
    with pytest.raises(ConfigError, match="cannot be written"):
        plot.run([str(file)], str(tmp_path / "r.unknown"))


def test_what_was_held_out_is_drawn_under_its_name() -> None:
    pytest.importorskip("matplotlib", reason="pip install 'murmurate[lab]'")
    held = report()
    held["curves"]["a"][1][6:] = [0.9, 0.6]
    figure = plot.draw(held)
    assert figure.axes[2].get_ylabel() == "test and validation loss"
    assert figure.axes[4].get_ylabel() == "test and validation accuracy"
    dashed = [line for line in figure.axes[2].lines if line.get_linestyle() == "--"]
    assert [list(line.get_ydata()) for line in dashed] == [[0.9]]


def test_many_nodes() -> None:
    pytest.importorskip("matplotlib", reason="pip install 'murmurate[lab]'")
    one = report()["curves"]["a"]
    many = {f"node-{number}": one for number in range(64)}
    counts = {name: [[0, 1], [1, 2]] for name in many}
    figure = plot.draw(report(curves=many, staleness_counts=counts))
    assert len(figure.axes[0].lines) == 64
    assert len(figure.axes[1].get_legend().get_texts()) == 3
    assert [axes.get_title("left") for axes in figure.axes[6:]] == ["staleness at all 64 nodes"]


def test_curves_without_names_are_of_an_earlier_version(tmp_path: Path) -> None:
    old = report(curves={"a": [[0.0, 0, None, None]]})
    del old["curve_columns"]
    (tmp_path / "r.json").write_text(json.dumps(old))
    with pytest.raises(ConfigError, match="of an earlier version"):
        plot.run([str(tmp_path / "r.json")], None)


def test_several_reports_are_drawn_into_the_same_frames(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'murmurate[lab]'")
    for name in ("sync", "async"):
        (tmp_path / f"{name}.json").write_text(json.dumps(report(nc=name == "async")))
    files = [str(tmp_path / f"{name}.json") for name in ("sync", "async")]
    runs = {name: (report(nc=name == "async"), tmp_path) for name in ("sync", "async")}
    figure = several.draw(plot._figure(several.INCHES), runs, "two")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["sync", "async (NC)"]
    assert len(figure.axes) == 4
    assert plot.run(files, None) == 0
    assert (tmp_path / "sync.png").read_bytes().startswith(b"\x89PNG")


def test_names_of_several_runs() -> None:
    assert several.names(["a/x.json", "b/y.json"]) == ["x", "y"]
    assert several.names(["a/x.json", "b/x.json"]) == ["a/x", "b/x"]
    with pytest.raises(ConfigError, match="the same report twice"):
        several.names(["a/x.json", "a/x.json"])
    points = several.evaluated(report(), "samples", "accuracy")
    assert points == [(0, 0.1), (300, 0.75)]
