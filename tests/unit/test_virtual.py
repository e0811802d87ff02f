"""`murmurate up --virtual`: what may be said, what is refused, one report for one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from murmurate.errors import ConfigError
from murmurate.programs.cli.main import main
from murmurate.programs.keys.config import Config, TrainConfig
from murmurate.study.virtual.plan import plan

IST = Config(train=TrainConfig(mode="ist", rule="async"))
QUICK = ("up", "--virtual", "--workload", "synthetic:2000", "--nodes", "3")


def test_speeds_and_delays() -> None:
    made = plan(
        3,
        Config(),
        speed=["node-0=0.25", "2"],
        delay=["0.1", "node-2=1e1"],
        kill=["node-1@50%"],
    )
    assert made.speeds == {"node-0": 0.25, "node-1": 2.0, "node-2": 2.0}
    assert (made.delay_s, made.delays_s) == (0.1, {"node-2": 10.0})
    assert made.kills[0].part == 0.5


def test_links_and_moments() -> None:
    made = plan(3, Config(), link=["1e6", "node-1=500"], join=["node-2@10"], leave=["node-1@2.5"])
    assert (made.link_bytes_s, made.links_bytes_s) == (1e6, {"node-1": 500.0})
    assert (made.joins_s, made.leaves_s) == ({"node-2": 10.0}, {"node-1": 2.5})


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"speed": ["node-0=0"]}, "--speed 'node-0=0': [NAME=]NUMBER, steps in a second, above 0"),
        ({"speed": ["fast"]}, "--speed 'fast'"),
        ({"speed": ["node-7=1"]}, "--speed 'node-7': one of node-0, node-1, node-2"),
        ({"delay": ["-1"]}, "--delay-s '-1': [NAME=]NUMBER, seconds from 0 on"),
        (
            {"link": ["0"]},
            "--link-bytes-s '0': [NAME=]NUMBER, bytes in a second, above 0 and below 1e15, such as",
        ),
        ({"link": ["node-4=1e6"]}, "--link-bytes-s 'node-4': one of node-0"),
        ({"link": ["1e6"], "config": IST}, "--link-bytes-s: only with --mode gossip"),
        ({"join": ["node-1"]}, "--join 'node-1': NAME@SECONDS, virtual ones above 0, such as"),
        ({"leave": ["node-1@50%"]}, "--leave 'node-1@50%': NAME@SECONDS"),
        ({"join": ["node-1@0"]}, "--join 'node-1@0': NAME@SECONDS"),
        ({"join": ["node-9@1"]}, "--join 'node-9': one of node-0"),
        ({"join": [f"node-{n}@5" for n in range(3)]}, "--join: somebody must be there"),
        ({"leave": [f"node-{n}@5" for n in range(3)]}, "--leave: somebody must stay"),
        ({"join": ["node-1@9"], "leave": ["node-1@5"]}, "--leave node-1@5: it joins at 9 s only"),
        ({"kill": ["node-1"]}, "--kill 'node-1': NAME@PART%"),
        ({"widths": "4,2,0", "config": IST}, "--widths 4,2,0: 0 must be above 0"),
        ({"widths": "4,2,-1", "config": IST}, "--widths 4,2,-1: -1 must be above 0"),
        ({"widths": "4,two,1", "config": IST}, "--widths '4,two,1': expected numbers like"),
        ({"widths": "4,2", "config": IST}, "--widths 4,2: 2 widths for 3 peers"),
        ({"widths": "4,2,1"}, "--widths: only with --mode ist"),
        ({"slow": ["node-0=x0.5"]}, "--slow 'node-0=x0.5': [NAME=]SECONDS"),
        ({"codec": ["int7"]}, "codec 'int7': expected auto"),
        ({"codec": ["node-9=int8"]}, "--codec 'node-9'"),
        ({"refused": {"--generator": "x"}}, "--generator: not with --virtual; x"),
    ],
)
def test_one_clear_line(said: dict[str, object], answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(3, **{"config": Config(), **said})  # type: ignore[arg-type]
    assert str(caught.value).startswith(answer)
    assert "\n" not in str(caught.value)


def test_all_mistakes_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*QUICK, "--speed", "node-9=1", "--slow", "node-0=soon", "--delay-s", "soon"])
    assert code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("murmurate: --") for line in lines)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--validation", "1"), "train.validation = 1.0: expected a part above 0 and below 1"),
        (("--validation", "most"), "train.validation"),
        (("--evaluate-s", "-1"), "train.evaluate_s = -1.0: expected a number from 0 on"),
        (
            ("--workload", "examples/my_workload.py:Spirals", "--validation", "0.1"),
            "lacks hold_out()",
        ),
    ],
)
def test_evaluations_that_cannot_be(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert main([*QUICK, "--seconds", "1", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


def test_only_in_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--speed", "node-0=2"]) == 2
    assert "only with --virtual" in capsys.readouterr().err


def test_the_same_command_gives_the_same_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        options = ("--samples", "1500", "--delay-s", "0.1", "--speed", "node-0=0.5")
        assert main([*QUICK, *options, "--report", str(tmp_path / name)]) == 0
        texts.append((tmp_path / name).read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    report = json.loads(texts[0])
    assert 1500 <= report["samples"] < 1500 + 8
    assert report["virtual"] is True
    assert (report["mode"], report["rule"]) == ("gossip", "shared")
    assert report["staleness"]["mean"] == pytest.approx(report["staleness_predicted"], rel=0.1)
    assert report["replica_distance_max"] < 1e-5
    assert [row["state"] for row in report["nodes"]] == ["done"] * 3
    assert report["nodes"][1]["samples"] == pytest.approx(2 * report["nodes"][0]["samples"], abs=16)
    assert "times real time" in capsys.readouterr().out


def found(report: dict[str, Any], name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Where a node was evaluated: these columns of its curve."""
    points = [dict(zip(report["curve_columns"], p, strict=True)) for p in report["curves"][name]]
    known = ("test_loss", "validation_loss")
    return [
        tuple(p[column] for column in columns)
        for p in points
        if any(p[kind] is not None for kind in known)
    ]


def test_curves_on_the_way(tmp_path: Path) -> None:
    """Evaluated ten times and at the end, without a word about it; the run is the same without."""
    made = {}
    for name, options in (("ten", ()), ("none", ("--evaluate-s", "0"))):
        file = tmp_path / f"{name}.json"
        assert main([*QUICK, "--seconds", "40", *options, "--report", str(file)]) == 0
        made[name] = json.loads(file.read_text(encoding="utf-8"))
    ten, none = made["ten"], made["none"]
    seconds = found(ten, "node-0", "seconds", "samples", "own_samples")
    assert [at for at, *_ in seconds] == [4.0 * part for part in range(11)]
    assert seconds[0] == (0.0, 0, 0)
    assert seconds[-1] == (40.0, ten["samples"], ten["nodes"][0]["samples"])
    losses = found(ten, "node-0", "test_loss", "accuracy", "validation_loss")
    row = ten["nodes"][0]
    assert losses[-1] == (row["test_loss"], row["accuracy"], None)
    assert losses[0][0] is not None
    assert losses[0][0] > row["test_loss"] == pytest.approx(ten["test_loss_mean"])
    assert len(found(ten, "node-1", "test_loss")) == 1, "all are evaluated at the end"
    assert none["nodes"] == ten["nodes"], "looking changes nothing"
    assert len(found(none, "node-0", "test_loss")) == 1


@pytest.mark.parametrize("mode", [(), ("--mode", "ist", "--rule", "async")])
def test_a_validation_part(tmp_path: Path, mode: tuple[str, ...]) -> None:
    """Until the end only what was held out is looked at; then the test data, too."""
    file = tmp_path / "v.json"
    options = ("--seconds", "40", "--validation", "0.2", "--evaluate-s", "15", *mode)
    assert main([*QUICK, *options, "--report", str(file)]) == 0
    report = json.loads(file.read_text(encoding="utf-8"))
    who = "coordinator" if mode else "node-0"
    seen = found(report, who, "seconds", "validation_loss", "test_loss")
    assert [at for at, *_ in seen] == [0, 15, 30, 40]
    assert all(validation is not None for _, validation, _ in seen)
    assert [test is None for *_, test in seen] == [True, True, True, False]
    row = {row["name"]: row for row in report["nodes"]}[who]
    assert seen[-1][1:] == (row["validation_loss"], row["test_loss"])
    assert row["validation_loss"] != row["test_loss"] != row["loss"] is not None


def test_subnets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The coordinator's rules, found by entry point."""
    texts = []
    for name in ("a.json", "b.json"):
        options = ("--mode", "ist", "--rule", "async", "--widths", "4,2,1", "--seconds", "200")
        slow = ("--speed", "node-2=0.5", "--delay-s", "0.1")
        assert main([*QUICK, *options, *slow, "--report", str(tmp_path / name)]) == 0
        texts.append((tmp_path / name).read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    report = json.loads(texts[0])
    assert report["wall_s"] == 200
    rows = {row["name"]: row for row in report["nodes"]}
    assert rows["node-0"]["share"] > rows["node-1"]["share"] > rows["node-2"]["share"]
    assert rows["node-0"]["steps"] == pytest.approx(200, abs=2)
    assert rows["node-2"]["steps"] == pytest.approx(100, abs=2)
    assert rows["coordinator"]["accuracy"] == report["accuracy_mean"] > 0.2
    assert report["pushes"] == rows["coordinator"]["updates_applied"] > 400
    assert report["staleness"]["mean"] == pytest.approx(2, abs=0.1)  # the others' pushes
    assert 0.3 < report["coverage"]["2.weight"] < 0.5
    assert any("of 2.weight was in no subnet" in text for text in report["advice"])
    assert "advice: " in capsys.readouterr().out


def test_more_nodes_than_units(capsys: pytest.CaptureFixture[str]) -> None:
    many = ("up", "--virtual", "--workload", "synthetic:2000", "--nodes", "64", "--mode", "ist")
    assert main([*many, "--seconds", "1"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "units cannot be dealt to 64 peers" in line


def test_a_model_that_cannot_be_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "from murmurate.workloads.synthetic import Synthetic\n"
        "class Mine(Synthetic):\n"
        "    def __init__(self):\n"
        "        super().__init__('2000')\n"
        "    def model(self):\n"
        "        return nn.Linear(64, 10)\n",
        encoding="utf-8",
    )
    mine = f"{tmp_path / 'mine.py'}:Mine"
    assert main(["up", "--virtual", "--workload", mine, "--mode", "ist", "--seconds", "1"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == "murmurate: model: none of its axes can be split"


def test_a_rule_of_the_other_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--mode", "ist", "--rule", "sum"]) == 2
    assert "with mode ist" in capsys.readouterr().err
