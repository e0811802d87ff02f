"""`murmurate race` in processes of its own: none of its cells is done twice after a kill -9, and
none goes on without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILE = """\
time = "real"
seeds = [0]

[all]
workload = "synthetic:1000"
nodes = 2
samples = 4000

[solvers.sum]
rule = "sum"

[solvers.hub]
mode = "hub"
rule = "async"
"""


def test_real_processes_race_and_a_killed_race_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "real.toml"
    file.write_text(FILE, encoding="utf-8")
    command = [sys.executable, "-m", "murmurate", "race", str(file)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("1/2 cells: sum") for line in process.stderr)
        process.kill()
    folder = tmp_path / "real-race"
    [there] = [one for one in (folder / "cells").iterdir() if not one.name.startswith(".")]
    before = there.read_bytes()

    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1 of 2 cells are there already" in again.stderr
    assert again.stderr.count(" cells: ") == 1
    assert there.read_bytes() == before
    assert "one seed; real time" in again.stdout
    found = json.loads((folder / "race.json").read_text(encoding="utf-8"))
    assert [row["solver"] for row in found["rows"]] == ["sum", "hub"]
    for row in found["rows"]:
        assert row["seeds"] == 1
        assert row["samples_per_s"] > 0
        assert row["bytes"] > 0
        assert row["staleness"] is not None
    page = (folder / "race.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "src=" not in page


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def below(pid: int) -> list[int]:
    """All that it started, and they."""
    return [each for one in children(pid) for each in [one, *below(one)]]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("how", "by"),
    [("real", signal.SIGKILL), ("virtual", signal.SIGKILL), ("virtual", signal.SIGINT)],
)
def test_cells_under_way_end_with_their_race(how: str, by: signal.Signals, tmp_path: Path) -> None:
    """Else they would share the machine with those of the race that is started again, or who
    interrupts it would wait for them."""
    file = tmp_path / "long.toml"
    text = FILE.replace("samples = 4000", "seconds = 100000").replace("real", how)
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "murmurate", "race", str(file), "--jobs", "2"]
    under_way: set[int] = set()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as race:
        until = time.monotonic() + 60
        while len(under_way) < 3 and time.monotonic() < until:
            under_way |= set(below(race.pid))
            time.sleep(0.01)
        race.send_signal(by)
        try:
            race.wait(60)
        except subprocess.TimeoutExpired:
            race.kill()
    try:
        assert race.returncode == (130 if by == signal.SIGINT else -by)
        assert len(under_way) >= 3
        while any(map(lives, under_way)) and time.monotonic() < until + 30:
            time.sleep(0.05)
        assert not [each for each in under_way if lives(each)]
    finally:
        for each in filter(lives, under_way):
            os.kill(each, signal.SIGKILL)
