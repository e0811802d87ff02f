"""The examples run, and adopting Murmurate is as small a change as the README says."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 180


def accuracy(output: str) -> float:
    found = re.search(r"accuracy ([\d.]+)", output)
    assert found is not None, output
    return float(found[1])


def weights(output: str) -> float:
    found = re.search(r"sum of the weights (\S+)", output)
    assert found is not None, output
    return float(found[1])


def test_adopting_takes_a_few_lines() -> None:
    plain, adopted = (
        [line.strip() for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]
        for name in ("plain.py", "adopted.py")
    )
    code = plain[plain.index("import sys") :]
    changes = [
        line
        for line in difflib.ndiff(code, adopted[adopted.index("import sys") :])
        if line[0] in "+-" and line[2:]
    ]
    assert all(line[0] == "+" for line in changes), changes
    assert len([line for line in changes if "print" not in line]) <= 3, changes


WHEN_TOLD = """
import runpy, sys
import torch._dynamo, murmurate.training.join  # before the first one starts: that takes seconds
print("loaded", flush=True)
sys.argv = ["adopted.py", "1", "2", sys.stdin.readline().strip()]
runpy.run_path({path!r}, run_name="__main__")
"""


def test_adopted_runs_in_two_processes() -> None:
    path = str(EXAMPLES / "adopted.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    later = [sys.executable, "-c", WHEN_TOLD.format(path=path)]
    with subprocess.Popen(later, **pipes) as second:  # type: ignore[call-overload]
        assert second.stdout.readline() == "loaded\n"
        command = [sys.executable, path, "0", "2"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, **pipes) as first:  # type: ignore[call-overload]
            said = re.search(r"at (\S+) waits until 2 members", first.stderr.readline())
            assert said is not None
            address = said[1]
            joined, _ = second.communicate(f"{address}\n", timeout=TIMEOUT_S)
            rest, _ = first.communicate(timeout=TIMEOUT_S)
    assert (first.returncode, second.returncode) == (0, 0)
    assert accuracy(rest) > 0.9
    assert accuracy(joined) > 0.9
    assert abs(weights(rest) - weights(joined)) < 1e-3, "one model, whoever ended first"


def test_plain_runs() -> None:
    plain = subprocess.run(
        [sys.executable, str(EXAMPLES / "plain.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert accuracy(plain.stdout) > 0.95
