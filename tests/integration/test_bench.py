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


BAD = (
    (("run.py", "unknown", "--quick", "--json", "x"), "'unknown': expected core"),
    (("converge.py", "--quick", "--out", "x", "--rules", "median"), "--rules 'median': expected"),
    (
        ("converge.py", "--quick", "--out", "x", "--text", "no/such/file"),
        "--text no/such/file: there is no such file",
    ),
)
EACH = """
import contextlib, io, json, runpy, sys
told = []
for folder, (script, *words) in json.loads(sys.argv[1]):
    sys.argv = [script, *words]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            runpy.run_path(f"{folder}/{script}", run_name="__main__")
        except SystemExit as end:
            told.append((end.code, said.getvalue()))
print(json.dumps(told))
"""
"""All in one process: to load what each imports takes seconds."""


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    asked = [(str(BENCH), words) for words, _ in BAD]
    command = [sys.executable, "-c", EACH, json.dumps(asked)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for (code, said), (_, says) in zip(json.loads(done.stdout), BAD, strict=True):
        assert code == 2
        assert says in said.splitlines()[-1]


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
