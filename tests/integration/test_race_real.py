"""`murmurate race` with real processes: cells one at a time, and none twice after a kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
