"""`murmurate race`: one file, one table; what is missing is done, and nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from murmurate.programs.cli.main import main
from murmurate.study.race import showing, sweep, up_options
from murmurate.study.race.race_file import lines_of, read
from murmurate.study.race.results import curve, reached

ROOT = Path(__file__).parents[2]
FILE = """\
title = "two rules"
seeds = [0, 1]
target_loss = 2.2

[all]
workload = "synthetic:1000"
nodes = 2
seconds = 12

[solvers.sum]
rule = "sum"

[solvers.average]
rule = "average"

[settings.equal]

[settings.slow]
speed = { node-1 = 0.5 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def counted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The cells that are really trained from now on."""
    seen: list[list[str]] = []
    do = sweep.do

    def counting(arguments: Any) -> Any:
        seen.append(list(arguments))
        return do(arguments)

    monkeypatch.setattr(sweep, "do", counting)
    return seen


def test_the_same_file_gives_the_same_table_and_goes_on_where_it_stopped(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = counted(monkeypatch)
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["race", str(file), "--out", str(first), "--jobs", "1"]) == 0
    assert len(done) == 8
    table = capsys.readouterr().out
    assert "two rules: slow" in table
    assert "mean ± standard deviation of 2 seeds" in table

    # As after a kill: two cells are not there, one of them is half a file.
    cells = sorted((first / "cells").iterdir())
    before = (first / "race.json").read_bytes()
    cells[0].unlink()
    cells[5].write_bytes(cells[5].read_bytes()[:100])
    done.clear()
    assert main(["race", str(file), "--out", str(first), "--jobs", "1"]) == 0
    assert len(done) == 2
    assert (first / "race.json").read_bytes() == before

    assert main(["race", str(file), "--out", str(second), "--jobs", "1"]) == 0
    assert (second / "race.json").read_bytes() == before
    assert (second / "race.html").read_bytes() == (first / "race.html").read_bytes()

    found = json.loads(before)
    [sums] = [row for row in found["rows"] if (row["solver"], row["setting"]) == ("sum", "slow")]
    each = [c for c in found["cells"] if (c["solver"], c["setting"]) == ("sum", "slow")]
    assert len(each) == sums["seeds"] == 2
    assert sums["accuracy"] == pytest.approx(sum(c["accuracy"] for c in each) / 2)
    assert sums["staleness_spread"] >= 0
    assert each[0]["points"][-1][1] == each[0]["samples"]
    page = (first / "race.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 8
    assert "src=" not in page
    assert "href=" not in page


def test_rates_are_tuned_for_one_node_and_then_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tuned.toml"
    text = FILE.replace("seeds = [0, 1]", "seeds = [3]").replace("seconds = 12", "seconds = 8")
    text = text.replace("[all]", '[rates]\ntuned = "one-node"\nvalues = [1e-6, 0.1]\n\n[all]')
    path.write_text(text, encoding="utf-8")
    done = counted(monkeypatch)
    assert main(["race", str(path), "--jobs", "1"]) == 0
    tuning, cells = done[:2], done[2:]
    assert all("--nodes=1" in each for each in tuning)
    assert len(cells) == 4
    assert all("--lr=0.1" in each for each in cells), "one hardly learns at a rate of 1e-6"
    assert "tuned once for one node (of 1e-06, 0.1)" in capsys.readouterr().out
    found = json.loads((tmp_path / "tuned-race" / "race.json").read_text(encoding="utf-8"))
    assert found["rates"]["chosen"] == {"sum": 0.1, "average": 0.1}


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('rule = "sum"', 'rule = "summ"', 11, "sum: --rule: train.rule = 'summ': expected"),
        ('rule = "sum"', 'rul = "sum"', 11, "rul: unknown; did you mean rule? there are"),
        ("node-1 = 0.5", "node-7 = 0.5", 19, "--speed 'node-7': one of node-0, node-1"),
        ("seeds = [0, 1]", "seeds = []", 2, "seeds = []: expected whole numbers from 0 on"),
        ("seeds = [0, 1]", "seeds = [-1]", 2, "seeds = [-1]: expected whole numbers"),
        ("target_loss = 2.2", "target = 85", 3, "target = 85: an accuracy, from 0 to 1"),
        ('title = "two rules"', "titel = 1", 1, "titel: unknown; did you mean title?"),
        ('"synthetic:1000"', '"fashoin-mnist"', 6, "synthetic:PARAMETERS"),
        ("seconds = 12", 'time = "now"', 8, "time: unknown"),
        ("seconds = 12", 'checkpoint = "here"', 8, "checkpoint: an option of up, but a race"),
        ("seconds = 12", "seed = 3", 8, "seed: an option of up, but a race decides it by itself"),
        ("[all]", '[rates]\ntuned = "best"\n[all]', 6, "tuned = 'best': expected given, one-node"),
        ("nodes = 2", "nodes = 0", 7, "--nodes: '0' is not a number from 1 on"),
        ("[solvers.sum]", "[rates]\nvalues = [1]\n[solvers.sum]", 11, "values = [1]: rates above"),
        ('[solvers.average]\nrule = "average"', "[solvers.ist]\nmode = 'hubs'", 14, "hubs"),
    ],
)
def test_a_mistake_is_told_with_its_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    line: int,
    says: str,
) -> None:
    path = tmp_path / "wrong.toml"
    assert old in FILE
    path.write_text(FILE.replace(old, new), encoding="utf-8")
    assert main(["race", str(path)]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"murmurate: {path}:{line}: ")
    assert says in first


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["race", str(tmp_path / "none.toml")]) == 2
    assert "No such file" in capsys.readouterr().err
    broken = tmp_path / "broken.toml"
    broken.write_text("title = 'x'\n[all\n", encoding="utf-8")
    assert main(["race", str(broken)]) == 2
    assert f"{broken}:2: not TOML" in capsys.readouterr().err


def test_no_solver_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("seeds = [1]\n", encoding="utf-8")
    assert main(["race", str(path)]) == 2
    assert "no solver; at least one table" in capsys.readouterr().err


def test_lines_of_keys_and_tables() -> None:
    text = 'a = 1\n\n[b."c d"]\n# x = 2\ne.f = 3\n[[g]]\nh = 4\n'
    assert lines_of(text) == {
        ("a",): 1,
        ("b", "c d"): 3,
        ("b", "c d", "e", "f"): 5,
        ("g",): 6,
        ("g", "h"): 7,
    }


def test_the_command_line_of_a_cell() -> None:
    options = {"virtual": True, "speed": {"node-0": 0.5}, "kill": {"node-1": "30%"}}
    options |= {"codec": ["int8", "node-1=topk"], "lr": 0.1, "generator": False}
    assert up_options.arguments_of(options) == [
        "--virtual",
        "--speed=node-0=0.5",
        "--kill=node-1@30%",
        "--codec=int8",
        "--codec=node-1=topk",
        "--lr=0.1",
    ]


def test_quick_is_one_seed_and_a_tenth(file: Path) -> None:
    race = read(file, quick=True)
    assert race.seeds == (0,)
    assert race.base["seconds"] == 1.2
    assert len(race.cells()) == 4


def test_the_example_is_right() -> None:
    race = read(ROOT / "examples" / "race.toml")
    assert len(race.cells()) == 36
    assert len(race.tuning()) == 3


def test_reaching_a_goal_by_straight_lines() -> None:
    points = [(0.0, 0.1), (10.0, 0.5), (20.0, 0.9)]
    assert reached(points, 0.7) == pytest.approx(15.0)
    assert reached(points, 0.1) == 0.0
    assert reached(points, 0.95) is None
    assert reached([(1.0, float("-inf")), (2.0, 0.8)], 0.5) == 2.0


def test_means_of_curves_are_point_by_point() -> None:
    one = {"points": [[0, 0, 2.0, 0.1], [5, 50, 1.0, 0.5]]}
    two = {"points": [[0, 0, 4.0, 0.3], [5, 70, 2.0, 0.7]]}
    first, second = curve([one, two], "samples", "accuracy")
    assert first == pytest.approx((0.0, 0.2, 0.1, 0.3))
    assert second == pytest.approx((60.0, 0.6, 0.5, 0.7))


def test_curves_of_real_processes_keep_their_ends() -> None:
    """Two seeds that were evaluated at other moments, one of them once more."""
    one = {"points": [[0, 0, None, 0.1], [4, 40, None, 0.5]]}
    two = {"points": [[2, 0, None, 0.1], [3, 10, None, 0.3], [6, 60, None, 0.9]]}
    first, middle, last = curve([one, two], "seconds", "accuracy")
    assert first == pytest.approx((1.0, 0.1, 0.1, 0.1))
    assert middle == pytest.approx((2.0, 0.25, 0.2, 0.3))
    assert last == pytest.approx((5.0, 0.7, 0.5, 0.9))
    assert curve([one, {"points": []}], "seconds", "accuracy") == []


def test_curves_as_a_picture(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    race = read(file)
    points = [[0.0, 0, 2.3, 0.1], [6.0, 90, 2.0, 0.3], [12.0, 180, 1.8, 0.5]]
    found = {(cell.solver, cell.setting, cell.seed): {"points": points} for cell in race.cells()}
    assert showing.draw(race, found, tmp_path / "race.png")
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_is_one_line(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not showing.draw(read(file), {}, tmp_path / "race.png")


@pytest.mark.slow
def test_a_race_that_was_killed_goes_on_with_the_missing_cells(file: Path, tmp_path: Path) -> None:
    """kill -9 in the middle, with two processes at work."""
    command = [sys.executable, "-m", "murmurate", "race", str(file), "--jobs", "2"]
    folder = tmp_path / "two-race" / "cells"
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, process_group=0
    ) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if line.startswith("2/8 cells"))
        os.killpg(process.pid, signal.SIGKILL)
    assert said
    there = len([one for one in folder.iterdir() if not one.name.startswith(".")])
    assert 2 <= there < 8
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{there} of 8 cells are there already" in again.stderr
    assert again.stderr.count(" cells: ") == 8 - there
