"""`murmurate up`, the parts that need no process: what is asked for, and what a run comes to."""

from __future__ import annotations

import io
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.unit.dumb_swarm import Swarm

from murmurate.core.figures.progress import Progress, Staleness
from murmurate.core.staleness import Summary
from murmurate.core.values.slowness import Slowness
from murmurate.edge.runtime.shared_machine import cores
from murmurate.errors import ConfigError
from murmurate.programs.keys.config import load
from murmurate.programs.up.child import Child
from murmurate.programs.up.forked import Forked, Loader
from murmurate.programs.up.launch import (
    Kill,
    UpPlan,
    command,
    coordinator_command,
    member_command,
    parse_codecs,
    parse_kill,
    parse_slow,
    plan,
)
from murmurate.programs.up.up import UpRun
from murmurate.watch import report, view
from murmurate.watch.report import History, Sample
from murmurate.watch.view import beyond

NAMES = ["node-0", "node-1", "node-2"]


# -- what was asked for ----------------------------------------------------------------------------


def test_kill() -> None:
    assert parse_kill("node-1@30%", NAMES) == Kill("node-1", 0.3)
    assert parse_kill("node-2@0%", NAMES) == Kill("node-2", 0.0)
    assert parse_kill("node-2@12.5%", NAMES) == Kill("node-2", 0.125)


@pytest.mark.parametrize("text", ["node-1", "node-1@30", "node-1@100%", "node-1@-3%", "@30%", ""])
def test_a_wrong_kill(text: str) -> None:
    with pytest.raises(ConfigError, match="--kill"):
        parse_kill(text, NAMES)


def test_slow() -> None:
    assert parse_slow("node-2=0.09", NAMES) == {"node-2": Slowness("constant", 0.09)}
    assert parse_slow("node-2=.5", NAMES) == {"node-2": Slowness("constant", 0.5)}
    assert parse_slow("x2", NAMES) == dict.fromkeys(NAMES, Slowness("factor", 2.0))


def test_codecs() -> None:
    assert parse_codecs([], NAMES, "sum") == {}
    assert parse_codecs(["int8"], NAMES, "sum") == dict.fromkeys(NAMES, "int8")
    mixed = parse_codecs([f"{NAMES[1]}=topk(0.05)", "bf16"], NAMES, "sum")
    assert mixed == dict.fromkeys(NAMES, "bf16") | {NAMES[1]: "topk(0.05)"}
    made = plan(2, load(), codec=["bf16", "node-1=topk"])
    for number, codec in enumerate(("bf16", "topk")):
        assert f"--codec={codec}" in command(made, number, Path("."))
    assert "--codec=auto" in command(plan(1, load()), 0, Path("."))


@pytest.mark.parametrize(
    ("texts", "rule"),
    [
        (["zip"], "sum"),
        (["nobody=int8"], "sum"),
        (["int8", "bf16"], "sum"),
        (["node-1="], "sum"),
        (["int8"], "average"),
    ],
)
def test_a_wrong_codec(texts: list[str], rule: str) -> None:
    with pytest.raises(ConfigError, match="codec"):
        parse_codecs(texts, NAMES, rule)


@pytest.mark.parametrize("text", ["node-1", "node-1=", "node-1=x", "node-1=-1", "node-1=nan", "=1"])
def test_a_wrong_slow(text: str) -> None:
    with pytest.raises(ConfigError, match="--slow"):
        parse_slow(text, NAMES)


def test_a_plan_names_all_mistakes() -> None:
    with pytest.raises(ConfigError) as wrong:
        plan(2, load(), kill=["node-5@3%", "node-0"], slow=["x"])
    assert len(str(wrong.value).splitlines()) == 3
    with pytest.raises(ConfigError, match="at most once"):
        plan(2, load(), kill=["node-0@3%", "node-0@5%"])


def test_a_node_is_told_everything_by_options(tmp_path: Path) -> None:
    config = load(None, {}, {"train.lr": "0.5", "node.seed": "7", "train.topology": "ring"})
    made = plan(3, config, slow=["node-2=0.09"])
    words = command(made, 2, tmp_path)
    given = dict(word.split("=", 1) for word in words if "=" in word)
    assert given["--name"] == "node-2"
    assert given["--shard"] == "2/3"
    assert given["--slow-s"] == "0.09"
    assert given["--lr"] == "0.5"
    assert given["--peers"] == "-"
    assert given["--threads"] == str(max(1, cores() // 3))
    assert "--samples" not in given
    again = load(
        None,
        {},
        {
            "train.slow_s": given["--slow-s"],
            "train.shard": given["--shard"],
            "train.split": given["--split"],
            "report.weights": given["--weights"],
        },
    )
    assert again.train.slow_s == Slowness("constant", 0.09)
    assert command(made, 0, tmp_path)[:3] == words[:3]


def test_names() -> None:
    assert UpPlan(nodes=3).names == NAMES


def test_the_launcher_is_light() -> None:
    code = (
        "import sys, murmurate.programs.up.up, murmurate.watch.report, murmurate.watch.view\n"
        "assert not {'torch', 'grpc', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- the report ------------------------------------------------------------------------------------


def row(name: str = "a", **more: object) -> report.Json:
    known: dict[str, object] = {
        "samples": 100,
        "samples_per_s": 50.0,
        "loss": 0.5,
        "test_loss": 0.6,
        "accuracy": 0.9,
        "published": 10,
        "applied": 20,
        "staleness": Staleness(20, 1.5, 1, 4, 5),
        "rejected": (("nan", 2),),
        **more,
    }
    return report.node_row(Progress(name=name, epoch=1, version=1, **known))  # type: ignore[arg-type]


def assembled(rows: list[report.Json], **more: object) -> report.Json:
    head = {"run": "r", "mode": "gossip", "rule": "sum", "workload": "digits", "seed": 0}
    given: dict[str, object] = {
        "wall_s": 2.0,
        "distance": 1e-7,
        "staleness": Summary([1, 2]).report(),
        "predicted": 1.4,
        **more,
    }
    return report.assemble(head, rows, **given)  # type: ignore[arg-type]


def test_the_keys_of_the_report_are_a_contract() -> None:
    made = assembled([row("a"), row("b", accuracy=0.7, test_loss=0.8)])
    assert set(made) >= {
        *("run", "mode", "rule", "workload", "seed", "wall_s", "samples", "accuracy_mean"),
        *("accuracy_min", "replica_distance_max", "staleness", "staleness_predicted", "nodes"),
        "test_loss_mean",
    }
    assert set(made["staleness"]) == {"count", "mean", "p50", "p99", "max"}
    for node in made["nodes"]:
        assert set(node) >= {
            *("name", "role", "samples", "samples_per_s", "loss", "accuracy", "updates_published"),
            *("updates_applied", "duplicates", "rejected", "staleness", "wait_s", "test_loss"),
            *("validation_loss", "validation_accuracy"),
        }
        assert set(node["staleness"]) == {"count", "mean", "p50", "p99", "max"}
        assert node["rejected"] == {"nan": 2}
    assert made["samples"] == 200
    assert made["accuracy_mean"] == pytest.approx(0.8)
    assert made["accuracy_min"] == 0.7
    assert made["test_loss_mean"] == pytest.approx(0.7)
    json.dumps(made, allow_nan=False)


def test_not_converged_is_one_class_for_all_or_no_loss() -> None:
    """Paper 002's mark, of those who came to the end."""
    found = {"accuracy_by_class": [0.0, 1.0, 0.0]}
    assert assembled([row("a") | found])["nc"]
    assert assembled([row("a", test_loss=math.nan)])["nc"]
    assert not assembled([row("a") | {"accuracy_by_class": [0.2, 1.0, 0.0]}])["nc"]
    assert not assembled([row("a"), row("b") | found | {"state": "killed"}])["nc"]
    assert not assembled([row("a", accuracy=math.nan, test_loss=math.nan)])["nc"], "never evaluated"


def test_a_classification_report() -> None:
    """002, Table I: 8 of 10 of class 0 were found, among 16 that were taken for it."""
    found = report.by_class([0.8, 0.0, float("nan")], [0.5, 0.0, 0.0])
    assert found["f1_by_class"] == [pytest.approx(8 / 13), 0.0, None]
    assert found["accuracy_by_class"] == [0.8, 0.0, None]


def test_the_end_is_of_those_who_came_to_it() -> None:
    """One that was killed had found its accuracy long before."""
    rows = [
        {**row(), "state": "done"},
        {**row("b", accuracy=0.1, test_loss=9.0), "state": "killed"},
    ]
    made = assembled(rows)
    assert (made["accuracy_mean"], made["accuracy_min"], made["test_loss_mean"]) == (0.9, 0.9, 0.6)
    assert assembled(rows[1:])["accuracy_mean"] == 0.1, "unless nobody did"


def test_what_is_not_known_is_null() -> None:
    nan = float("nan")
    made = assembled([row(loss=nan, test_loss=nan, accuracy=nan)], distance=None, predicted=None)
    assert made["nodes"][0]["loss"] is None
    assert made["nodes"][0]["test_loss"] is None
    assert made["test_loss_mean"] is None
    assert made["accuracy_mean"] is None
    assert made["accuracy_min"] is None
    json.dumps(made, allow_nan=False)


def test_staleness_of_all_is_that_of_one_who_saw_all() -> None:
    rng = random.Random(1)
    seen = [[int(rng.expovariate(0.02)) for _ in range(500)] for _ in range(3)]
    counts = [Summary(values).counts() for values in seen]
    assert counts[0] == dict(Counter(seen[0]))
    assert (
        report.pooled_staleness(counts) == Summary([v for values in seen for v in values]).report()
    )
    assert report.pooled_staleness([])["count"] == 0


def test_distance_of_replicas(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.npy" for name in "abc"]
    a = np.ones(3_000_000, dtype=np.float32)
    b = a.copy()
    b[-1] += 3.0
    for file, weights in zip(files, (a, a, b), strict=True):
        np.save(file, weights)
    assert report.replica_distance_max(files[:1]) is None
    assert report.replica_distance_max(files[:2]) == 0.0
    assert report.replica_distance_max(files) == pytest.approx(3.0 / np.sqrt(3e6), rel=1e-6)


# -- the prediction --------------------------------------------------------------------------------


def test_a_trajectory_lies_beside_its_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--trajectory: needs --report"):
        plan(2, load(), trajectory=True)
    config = load(None, {}, {"report.path": str(tmp_path / "out.json")})
    made = plan(2, config, trajectory=True)
    file = tmp_path / "out.trajectory" / "node-1.safetensors"
    assert f"--trajectory={file}" in command(made, 1, Path("."))
    assert not any("--trajectory" in word for word in command(plan(2, config), 1, Path(".")))


def test_a_counter_between_samples() -> None:
    history = History([Sample(at=1.0, published=10), Sample(at=3.0, published=30)])
    assert [history.at(t, "published") for t in (0.0, 1.0, 2.0, 3.0, 9.0)] == [10, 10, 20, 30, 30]
    assert history.grown(1.0, 2.0, "published") == 10
    history.add(Sample(at=2.0, published=99))  # out of order: not taken
    assert len(history.samples) == 2


@pytest.mark.parametrize(
    ("steps_s", "delay_s", "dies"),
    [
        ([0.05] * 4, 0.0, {}),
        ([0.05] * 4, 0.02, {}),
        ([0.05] * 4, 0.3, {}),
        ([0.05, 0.05, 0.05, 0.4], 0.03, {}),
        ([0.05] * 4, 0.02, {1: 7.0}),
    ],
)
def test_the_prediction_meets_a_dumb_swarm(
    steps_s: list[float], delay_s: float, dies: dict[int, float]
) -> None:
    swarm = Swarm(steps_s, delay_s, dies=dies)
    predicted = report.predicted_staleness(swarm.histories, swarm.rows)
    assert predicted == pytest.approx(swarm.staleness, rel=0.05)


def test_the_prediction_knows_processes_that_stand_still() -> None:
    """As on a busy machine: seconds of delay in which nothing is made make nothing stale."""
    swarm = Swarm([0.01] * 4, 0.005, jitter=0.8, freezes=(4.0, 0.1))
    predicted = report.predicted_staleness(swarm.histories, swarm.rows)
    assert predicted == pytest.approx(swarm.staleness, rel=0.1)


def test_nothing_measured_nothing_predicted() -> None:
    assert report.predicted_staleness({}) is None
    assert report.predicted_staleness({"a": History()}) is None
    assert report.predicted_staleness({"a": History([Sample(at=1.0)])}) is None


# -- what is shown ---------------------------------------------------------------------------------


def shown(picture: object, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_fits_a_terminal() -> None:
    rows = [{**row(f"node-{i}", samples=1_234_567), "state": "training"} for i in range(3)]
    text = shown(view.table(rows, "digits", {"node-0": 12e6}))
    assert "1,234,567" in text
    assert "…" not in text
    assert "12.0" in text


def test_a_line_says_how_it_goes() -> None:
    scene = view.Scene(
        title="digits",
        elapsed_s=12.0,
        part=0.45,
        rows=[{**row(), "state": "training"}, {**row("b"), "state": "killed"}],
        bytes_per_s={"a": 3e6},
    )
    text = view.line(scene)
    for part in ("12.0 s", "45%", "1 nodes", "200 samples", "50/s", "loss 0.500", "90.0%", "1.5"):
        assert part in text
    assert "digits" in shown(view.live(scene))


def test_a_run_ends_with_a_few_lines() -> None:
    text = "\n".join(view.summary(assembled([row()])))
    assert "accuracy 90.0% on average" in text
    assert "(predicted 1.40)" in text
    assert "2 messages rejected: nan" in text


# -- mode ist --------------------------------------------------------------------------------------


def subnets(**more: str) -> Any:
    return load(None, {}, {"train.mode": "ist", "ist.coordinator": "-"} | more)


def test_a_coordinator_and_members_of_unequal_widths() -> None:
    config = subnets(**{"train.rule": "lease", "train.every": "20", "ist.memory": "200MB"})
    made = plan(3, config, widths="4,2,1", kill=["coordinator@20%"], slow=["node-2=0.1"])
    assert made.rule == "lease"
    assert made.kills == (Kill("coordinator", 0.2),)
    words = coordinator_command(made)
    for each in ("coordinator", "--rule=lease", "--founders=3", "--every=20"):
        assert each in words
    words = member_command(made, 2)
    for each in ("--mode=ist", "--width=1.0", "--memory=200000000", "--slow-s=0.1", "--shard=2/3"):
        assert each in words
    assert not [word for word in words if word.startswith(("--rule", "--samples", "--every"))]


def test_the_rule_of_mode_ist_is_async_unless_another_is_asked_for() -> None:
    made = plan(2, subnets())
    assert "--rule=async" in coordinator_command(made)
    assert not [word for word in member_command(made, 0) if word.startswith("--width")]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"widths": "4,2"}, "--widths 4,2: 2 widths for 3 peers"),
        ({"widths": "4,0,1"}, "0 must be above 0"),
        ({"widths": "4,x,1"}, "expected numbers like 4,2,1,1"),
        ({"codec": ["int8"]}, "--codec: only with --mode gossip"),
        ({"generator": True}, "--generator: only with --mode gossip"),
        ({"kill": ["generator@10%"]}, "--kill"),
    ],
)
def test_what_cannot_be_asked_of_mode_ist(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(3, subnets(), **more)


def test_widths_are_for_mode_ist() -> None:
    with pytest.raises(ConfigError, match="--widths: only with --mode ist"):
        plan(2, load(), widths="1,2")


# -- the start -------------------------------------------------------------------------------------


class Heard(Child):
    """A process that has not begun: what it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(name, Forked(Loader(), [os.open(os.devnull, os.O_RDWR) for _ in range(3)]))
        self.said: list[str] = []

    def tell(self, text: str) -> None:
        self.said.append(text)


def test_nobody_goes_before_all_have_heard_from_all(tmp_path: Path) -> None:
    made = plan(2, load())
    up = UpRun(made, view.LiveView(), tmp_path)
    first, second = Heard("node-0"), Heard("node-1")
    up.children = [first, second]
    try:
        for child in up.children:
            child.hear({"event": "ready", "samples": 100})
        up._direct()
        assert (first.said, second.said) == ([""], []), "one founds"
        first.hear({"event": "listening", "address": "here:1"})
        up._direct()
        second.hear({"event": "listening", "address": "here:2"})
        first.hear({"event": "met"})
        up._direct()
        assert (first.said, second.said) == ([""], ["here:1"]), "one has not heard from the other"
        second.hear({"event": "met"})
        up._direct()
        assert (first.said[-1], second.said[-1]) == ("go 100", "go 100")
    finally:
        for child in up.children:
            child.process.close()


def test_who_did_not_come_to_the_end_is_shown_apart() -> None:
    """The summary of survivors at 92.5 % said 83.7 % on average, 57.5 % at least."""
    rows = [
        {**row("a", accuracy=0.575), "state": "killed"},
        {**row("b", accuracy=0.925), "state": "done"},
        {**row("c", accuracy=0.925), "state": "done"},
    ]
    text = "\n".join(view.summary(assembled(rows)))
    assert "92.5% on average, 92.5% at least" in text
    assert "not in that: a killed at 57.5%" in text
    console = Console(file=(file := io.StringIO()), width=120)
    shown = view.LiveView()
    shown.console = console
    shown.end(assembled(rows))
    names = [line.split()[0] for line in file.getvalue().splitlines()[2:5]]
    assert names == ["b", "c", "a"]
    assert "not in that" not in "\n".join(view.summary(assembled(rows[:1])))


def test_of_a_killed_node_counts_what_any_other_has_heard(tmp_path: Path) -> None:
    up = UpRun(plan(2, load()), view.LiveView(), tmp_path)
    killed, other = Heard("node-0"), Heard("node-1")
    up.children = [killed, other]
    try:
        row = report.empty_row("node-0") | {"samples": 640}
        killed.hear({"event": "progress", "at": 1.0, "node": row})
        row = report.empty_row("node-1") | {"samples": 1280}
        other.hear(
            {
                "event": "done",
                "at": 2.0,
                "node": row,
                "settled": True,
                "samples_of": {"node-0": 960, "node-1": 1216},
            }
        )
        assert [row["samples"] for row in up.rows()] == [960, 1280]
    finally:
        for child in up.children:
            child.process.close()


def test_groups_that_do_not_divide_the_nodes_are_one_line() -> None:
    in_step = load(None, {}, {"train.mode": "allreduce", "train.rule": "hierarchical"})
    assert plan(8, in_step).config.train.rule == "hierarchical"
    with pytest.raises(ConfigError) as caught:
        plan(10, in_step)
    assert str(caught.value) == (
        "--group 4: 10 nodes cannot be put into groups of 4; 1, 2, 5, 10 can"
    )


@pytest.mark.parametrize(
    ("samples", "asked", "said"),
    [
        (20_600, 20_000, ""),
        (24_000, 20_000, "20% beyond the 20,000 samples asked for"),
        (24_000, None, ""),
        (100, 20_000, ""),
    ],
)
def test_more_than_was_asked_for_is_said(samples: int, asked: int | None, said: str) -> None:
    text = beyond(samples, asked, 1.5)
    assert text.startswith(said)
    assert bool(text) == bool(said)
