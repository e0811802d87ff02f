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


def test_plain_and_adopted_run() -> None:
    command = [sys.executable, str(EXAMPLES / "adopted.py")]
    with subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        address = first.stdout.readline().split()[-1]
        second = subprocess.run(
            [*command, "1", address], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        )
        rest, _ = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == 0
    plain = subprocess.run(
        [sys.executable, str(EXAMPLES / "plain.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    for output in (plain.stdout, rest, second.stdout):
        assert accuracy(output) > 0.95, output
