"""The benchmark runs, and writes what docs/benchmarks.md says; figures are not looked at here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
LIMIT_S = 300


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "run.py"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_quick_run_writes_what_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = bench("core", "exchange", "--quick", "--json", str(out))
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert set(written) >= {
        "format", "date", "machine", "options", "load", "figures", "samples", "seconds", "remarks",
    }  # fmt: skip
    assert set(written["machine"]) >= {"cpu", "cores", "kernel", "python", "torch", "grpcio"}
    assert [each["scenario"] for each in written["load"]] == ["core", "exchange"]
    for figure in written["figures"]:
        assert figure["low"] <= figure["median"] <= figure["high"]
        assert {"scenario", "what", "unit", "goal", "disturbed", "verdict"} <= set(figure)
    names = {(figure["scenario"], figure["what"]) for figure in written["figures"]}
    for other in ("gloo", "tcp"):
        assert ("exchange", f"0.24 MB: murmurate / {other}") in names
    exchanges = written["samples"]["exchange"]["0.24 MB"]
    assert set(exchanges) == {"murmurate", "step", "gloo", "tcp"}
    assert all(len(turns) == 1 for turns in exchanges.values())
    assert str(out) in done.stdout


def test_an_unknown_scenario_is_named() -> None:
    done = bench("unknown")
    assert done.returncode == 2
    assert "'unknown': expected core" in done.stderr


@pytest.mark.slow
def test_a_script_that_is_refused_is_said_and_not_compared(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCH / "scripts.py"), "--script", "lbfgs", "--quick"]
    done = subprocess.run(
        [*command, "--json", str(out)], check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert [figure["what"] for figure in written["figures"]] == ["alone: test loss"]
    assert "refused: optimizer LBFGS" in written["remarks"][0]
