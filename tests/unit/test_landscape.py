"""Trajectories stay small, and the landscape around them is the one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from murmurate import workloads
from murmurate.core.layout import Layout, tracked
from murmurate.edge.disk import trajectory
from murmurate.edge.disk.trajectory import POINTS_MAX, POINTS_MIN, Trajectory
from murmurate.errors import ConfigError
from murmurate.study.lab import landscape, plot
from murmurate.workloads.digits import Digits


def test_points_are_few_evenly_spaced_and_the_ends_are_there() -> None:
    kept = Trajectory(3)
    for tick in range(100_000):
        now = 50 + tick / 10
        if kept.due(now):
            kept.take(now, tick, np.full(3, tick))
        assert len(kept) < POINTS_MAX
    kept.take(50 + 10_000, 100_000, np.full(3, 100_000))
    assert POINTS_MAX / 3 <= len(kept) <= POINTS_MAX
    assert (kept.at_s[0], kept.samples[0], kept._weights[0][0]) == (0, 0, 0)
    assert (kept.at_s[-1], kept.samples[-1], kept._weights[-1][0]) == (10_000, 100_000, 100_000)
    gaps = np.diff(kept.at_s[:-1])
    assert gaps.max() < 1.05 * gaps.min()


def test_large_models_have_fewer_points() -> None:
    assert Trajectory(61_706).points_max == POINTS_MAX
    assert POINTS_MIN < Trajectory(5_000_000).points_max < POINTS_MAX
    assert Trajectory(10_000_000_000).points_max == POINTS_MIN


def test_what_was_taken_does_not_change_with_the_weights(tmp_path: Path) -> None:
    weights = torch.zeros(4)
    kept = Trajectory(4)
    kept.take(0.0, 0, weights.numpy())
    weights.add_(1.0)
    kept.take(1.0, 8, weights.numpy())
    kept.save(tmp_path / "a.safetensors", {"workload": "digits"})
    read = trajectory.read(tmp_path / "a.safetensors")
    assert read.weights.dtype == np.float32
    assert read.weights.tolist() == [[0.0] * 4, [1.0] * 4]
    assert read.about == {"workload": "digits"}


def test_the_plane_is_that_of_a_singular_value_decomposition() -> None:
    rng = np.random.default_rng(1)
    points = (rng.standard_normal((30, 5)) @ rng.standard_normal((5, 100_000))).astype(np.float32)
    found = landscape.plane(points)
    centred = points - points.mean(axis=0, dtype=np.float64)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    assert found.explained == pytest.approx(tuple(values[:2] ** 2 / (values**2).sum()), rel=1e-4)
    for mine, theirs in zip(found.axes, axes, strict=False):
        assert abs(mine @ theirs) == pytest.approx(1.0, abs=1e-4)
    assert found.axes @ found.axes.T == pytest.approx(np.eye(2), abs=1e-6)
    assert found.feet == pytest.approx(centred @ found.axes.T, rel=1e-3, abs=1e-2)
    assert found.feet[-1, 0] > found.feet[0, 0], "training goes to the right"


@pytest.mark.parametrize("points", [np.zeros((5, 4)), np.outer(np.arange(5.0), np.ones(4))])
def test_points_without_a_plane(points: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="on a line"):
        landscape.plane(points.astype(np.float32))


def bowl() -> landscape.Landscape:
    """Two nodes on their way down a bowl in 50 dimensions, a little beside a plane."""
    rng = np.random.default_rng(0)
    way = np.zeros((20, 50))
    way[:, 0] = np.linspace(-4, 0, 20)
    way[:, 1] = np.sin(np.linspace(0, 3, 20))
    paths = {
        name: (way + 0.01 * rng.standard_normal(way.shape)).astype(np.float32) for name in "ab"
    }
    return landscape.survey(paths, lambda weights: float((weights**2).sum()), grid=11)


def test_the_loss_on_the_grid_is_that_of_the_plane() -> None:
    found = bowl()
    assert sum(found.explained) > 0.99
    assert found.loss.shape == (11, 11)
    assert found.first[0] < min(path[:, 0].min() for path in found.paths.values())
    assert found.first[-1] > max(path[:, 0].max() for path in found.paths.values())
    assert {name: path.shape for name, path in found.paths.items()} == {"a": (20, 2), "b": (20, 2)}
    second = np.diff(found.loss, n=2, axis=1) / np.diff(found.first)[0] ** 2
    assert second == pytest.approx(2.0, abs=1e-6), "a bowl, along each line"
    assert found.end_foot_loss < found.end_loss < 0.1, "beside the plane it is a little higher"
    start = landscape.heights(found, found.paths["a"][:1])
    assert start == pytest.approx(16.0, rel=0.05)


def test_heights_between_points_of_the_grid() -> None:
    found = bowl()
    x, y = np.meshgrid(found.first, found.second)
    slope = landscape.Landscape(
        first=found.first,
        second=found.second,
        loss=2 * x - 3 * y,
        paths={},
        explained=(0.5, 0.5),
        end_loss=0.0,
        end_foot_loss=0.0,
    )
    corner = [found.first[-1], found.second[-1]]
    places = np.array([[0.1, 0.2], [-1.23, 0.4], corner])
    expected = 2 * places[:, 0] - 3 * places[:, 1]
    assert landscape.heights(slope, places) == pytest.approx(expected, abs=1e-6)


# -- from files ------------------------------------------------------------------------------------


def kept(folder: Path, **about: str) -> dict[str, Any]:
    """A report whose two nodes trained digits for some steps, and their files."""
    workload = Digits()
    torch.manual_seed(0)
    model = workload.model()
    layout, parameters = landscape_layout(model)
    words = {"workload": "digits", "schema": layout.schema, **about}
    rng = torch.Generator().manual_seed(1)
    files = {}
    for name in ("node-0", "node-1"):
        points = Trajectory(layout.size)
        for step in range(4):
            noise = 0.1 * step * torch.randn(layout.size, generator=rng)
            points.take(float(step), step, (layout.gather(parameters) + noise).numpy())
        points.save(folder / f"{name}.safetensors", {k: v for k, v in words.items() if v})
        files[name] = f"{name}.safetensors"
    return {"trajectory": files}


def landscape_layout(model: torch.nn.Module) -> Any:
    from murmurate.core.layout import Layout

    return Layout.of(model)


def test_from_the_files_of_a_report(tmp_path: Path) -> None:
    found = landscape.of_report(kept(tmp_path), tmp_path, grid=3)
    assert np.isfinite(found.loss).all()
    assert {len(path) for path in found.paths.values()} == {4}
    workload = Digits()
    workload.shorten_test(landscape.SAMPLES_MAX)
    model = workload.model()
    layout, parameters = landscape_layout(model)
    ends = [trajectory.read(tmp_path / f"node-{n}.safetensors").weights[-1] for n in (0, 1)]
    layout.scatter(torch.from_numpy(np.mean(ends, axis=0)), parameters)
    assert found.end_loss == pytest.approx(workload.evaluate(model).loss, rel=1e-4)


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"schema": "another"}, "is not any more"),
        ({"schema": ""}, "does not say its schema"),
        ({"workload": "digitz"}, "did you mean digits"),
    ],
)
def test_a_trajectory_of_something_else(tmp_path: Path, about: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        landscape.of_report(kept(tmp_path, **about), tmp_path, grid=3)


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    report = kept(tmp_path)
    file = tmp_path / "node-1.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"node-1.safetensors: .*murmurate up --trajectory"):
        landscape.of_report(report, tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match=r"node-1\.safetensors"):
        landscape.of_report(report, tmp_path)


def normed(folder: Path, more: str = "") -> str:
    """A workload with batch-norm; `more`: lines of its model's constructor."""
    (folder / "normed.py").write_text(
        "import torch\n"
        "from murmurate.workloads.digits import Digits\n"
        "class Normed(Digits):\n"
        "    def model(self):\n"
        "        flat, norm = torch.nn.Flatten(), torch.nn.BatchNorm1d(10)\n"
        f"        {more or 'pass'}\n"
        "        return torch.nn.Sequential(flat, torch.nn.Linear(64, 10), norm)\n"
    )
    return f"{folder / 'normed.py'}:Normed"


def test_running_statistics_are_part_of_a_landscape(tmp_path: Path) -> None:
    spec = normed(tmp_path)
    model = workloads.load(spec).model()
    layout, parameters = Layout.of(model, statistics=True)
    loss = landscape._loss({"workload": spec, "schema": layout.schema}, layout.size)
    running = [each.tensor for each in tracked(model).values()]
    flat = layout.gather([*parameters, *running]).double()
    far = flat.clone()
    far[layout.statistics] *= -3.0
    assert loss(flat.numpy()) != loss(far.numpy())
    assert np.isfinite(loss(far.numpy())), "a variance below zero is none"


def test_buffers_that_were_not_kept_are_missed(tmp_path: Path) -> None:
    spec = normed(tmp_path, "norm.register_buffer('scale', torch.ones(1))")
    layout, _ = Layout.of(workloads.load(spec).model(), statistics=True)
    with pytest.raises(ConfigError, match="scale is no weight"):
        landscape._loss({"workload": spec, "schema": layout.schema}, layout.size)


def test_it_draws_a_map_and_a_surface(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'murmurate[lab]'")
    found = bowl()
    figure = plot.draw_landscape(found, "a bowl")
    figure.savefig(tmp_path / "bowl.png")
    assert (tmp_path / "bowl.png").read_bytes().startswith(b"\x89PNG")
    assert "40 points of 2 trajectories" in figure.get_suptitle()
    part, more = found.explained
    assert f"{100 * (part + more):.1f} % of their variance" in figure.get_suptitle()
    flat = figure.axes[0]
    assert flat.get_xlabel() == f"PC 1, {part:.1%} of the variance"
    assert [text.get_text() for text in flat.get_legend().get_texts()] == ["a", "b", "start", "end"]


def test_runs_of_several_reports_lie_in_one_plane(tmp_path: Path) -> None:
    runs = {}
    for name in ("sync", "async"):
        folder = tmp_path / name
        folder.mkdir()
        runs[name] = kept(folder), folder
    runs["async"][0]["trajectory"].pop("node-1")
    found = landscape.of_runs(runs, grid=3)
    assert list(found.paths) == ["sync, node-0", "sync, node-1", "async"]
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ConfigError, match="of digits and lstm; expected one workload"):
        landscape.of_runs({**runs, "b": (kept(other, workload="lstm"), other)})
