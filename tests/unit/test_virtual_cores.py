"""Cores that nodes share in virtual time, and messages that cost their other threads something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from murmurate.errors import ConfigError
from murmurate.programs.cli.main import main
from murmurate.study.sim.events import Events
from murmurate.study.virtual.costs import cores_said
from murmurate.study.virtual.machine import Cores, Lane

QUICK = ("up", "--virtual", "--workload", "synthetic:1000", "--rule", "sum", "--evaluate-s", "0")


def done_at(count: float | None, *work: tuple[float, float]) -> dict[int, float]:
    """When each (begins, seconds) is done."""
    events, found = Events(), dict[int, float]()
    cores = Cores(events, count)
    for number, (begins, seconds) in enumerate(work):
        events.at(begins, cores.work, seconds, lambda n=number: found.update({n: events.time}))
    events.run_until(1e6)
    return found


@pytest.mark.parametrize(
    ("count", "work", "ends"),
    [
        (None, [(0, 1.0), (0, 2.0), (0, 3.0)], [1.0, 2.0, 3.0]),
        (2, [(0, 1.0), (0, 2.0)], [1.0, 2.0]),
        (1, [(0, 1.0), (0, 1.0)], [2.0, 2.0]),
        # Two of three have a third more each until the first is done, then all they want.
        (2, [(0, 1.0), (0, 1.0), (0, 2.0)], [1.5, 1.5, 2.5]),
        # Half a second alone, then both at half speed: 0.5 s of work take 1 s.
        (1, [(0, 1.0), (0.5, 1.0)], [1.5, 2.0]),
        (0.5, [(0, 1.0)], [2.0]),
        (1, [(0, 1.0), (5, 1.0)], [1.0, 6.0]),
    ],
)
def test_cores_are_shared_equally(
    count: float | None, work: list[tuple[float, float]], ends: list[float]
) -> None:
    found = done_at(count, *work)
    assert [found[number] for number in range(len(work))] == pytest.approx(ends)


def test_no_core_is_idle_and_none_does_more_than_it_can() -> None:
    """As much is done as there are cores, while there is enough to do."""
    work = [(0.1 * k, 0.3 + 0.05 * (k % 7)) for k in range(60)]
    found = done_at(2, *work)
    assert max(found.values()) == pytest.approx(sum(s for _, s in work) / 2, rel=0.05)
    for number, (begins, seconds) in enumerate(work):
        assert found[number] >= begins + seconds - 1e-9


def test_a_lane_does_one_thing_after_another() -> None:
    events, found = Events(), list[tuple[str, float]]()
    lane = Lane(Cores(events))
    for name in "abc":
        lane.work(1.0, lambda n=name: found.append((n, events.time)))
    events.run_until(10.0)
    assert found == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    assert not lane.busy


def report(tmp_path: Path, *options: str) -> dict[str, Any]:
    file = tmp_path / "out.json"
    command = [*QUICK, "--nodes", "4", "--step-s", "0.01", *options, "--report", str(file)]
    assert main(command) == 0
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_four_nodes_on_two_cores_are_half_as_fast_and_no_staler(tmp_path: Path) -> None:
    own = report(tmp_path, "--seconds", "4")
    shared = report(tmp_path, "--seconds", "4", "--cores", "2")
    enough = report(tmp_path, "--seconds", "4", "--cores", "4")
    assert shared["samples"] == pytest.approx(own["samples"] / 2, rel=0.03)
    assert enough["samples"] == pytest.approx(own["samples"], rel=0.01)
    assert shared["staleness"]["mean"] == pytest.approx(3.0, rel=0.05)
    assert (own["cores"], shared["cores"]) == (None, 2.0)


def test_who_waits_after_each_step_leaves_the_core_to_others(tmp_path: Path) -> None:
    """A cycle of 0.01 + 0.1 s: they are in each other's way for 10 ms of it at most."""
    found = report(tmp_path, "--seconds", "6", "--cores", "2", "--slow", "0.1")
    alone = report(tmp_path, "--seconds", "6", "--slow", "0.1")
    assert 0.9 * alone["samples"] < found["samples"] <= alone["samples"]


def test_messages_take_cores_from_training_and_wait_for_company(tmp_path: Path) -> None:
    """Where they cost much a node sends fewer and fuller ones, as a process does (`runtime.pace`):
    what that saves is paid in staleness."""
    free = report(tmp_path, "--seconds", "4", "--cores", "2")
    dear = report(tmp_path, "--seconds", "4", "--cores", "2", "--message-s", "0.002")
    assert dear["samples"] < 0.97 * free["samples"]
    sent = [sum(row["bytes_sent"] for row in each["nodes"]) for each in (free, dear)]
    assert sent[1] < 0.6 * sent[0]
    assert dear["staleness"]["mean"] > free["staleness"]["mean"] + 2
    assert dear["replica_distance_max"] < 1e-5
    assert dear == report(tmp_path, "--seconds", "4", "--cores", "2", "--message-s", "0.002")


def test_who_sleeps_much_speaks_at_once(tmp_path: Path) -> None:
    """Messages take nothing from a training that waits, so none waits for company."""
    found = report(
        tmp_path, "--seconds", "10", "--slow", "gaussian(0.05,0.02)", "--message-s", "0.001"
    )
    assert found["staleness"]["mean"] == pytest.approx(3.0, rel=0.1)
    [sent, made] = [found["nodes"][0][key] for key in ("bytes_sent", "updates_published")]
    assert sent > 0.95 * 3 * made * 4 * 1000


@pytest.mark.parametrize("text", ["0", "-1", "two", "nan", ""])
def test_cores_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--cores '.*': how many all nodes share"):
        cores_said(text)


@pytest.mark.parametrize("option", ["--cores", "--message-s"])
def test_only_gossip_shares_cores(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--virtual", "--mode", "hub", "--rule", "async", option, "1"]) == 2
    assert f"{option}: only with --mode gossip" in capsys.readouterr().err
    assert main(["up", option, "1"]) == 2
    assert option in capsys.readouterr().err
