"""bench/converge.py: a sweep that is stopped goes on, and tells what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
LIMIT_S = 300


def converge(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "converge.py"), "--quick", "--jobs", "1", "--seeds", "1"]
    return subprocess.run(
        [*command, "--out", str(out), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


WHAT = ("--workloads", "transformer-adam", "--rules", "shared,synchronous", "--nodes", "1,2")


@pytest.mark.slow
def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "cells.jsonl"
    first = converge(out, *WHAT, "--regimes", "equal")
    assert first.returncode == 0, first.stderr
    lines = out.read_text().splitlines()
    assert len(lines) == 3  # alone, and two rules
    out.write_text("\n".join(lines[:2]) + "\n" + lines[2][:40])  # the machine went down
    second = converge(out, *WHAT, "--regimes", "equal,narrow")
    assert second.returncode == 0, second.stderr
    assert "3 of 5 cells to do" in second.stderr
    assert "transformer-adam, narrow; alone" in second.stdout
    rows = json.loads(out.with_suffix(".json").read_text())
    assert {(row["rule"], row["regime"]) for row in rows} == {
        ("alone", "equal"), ("shared", "equal"), ("synchronous", "equal"),
        ("shared", "narrow"), ("synchronous", "narrow"),
    }  # fmt: skip
    assert all(row["value"] < 0 for row in rows), "a loss, and no accuracy"
    third = converge(out, *WHAT, "--regimes", "equal,narrow")
    assert "to do" not in third.stderr
