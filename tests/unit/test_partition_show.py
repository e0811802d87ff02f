"""`murmurate partition`: what it shows, and what it refuses in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from murmurate.programs.cli.main import main


def test_it_shows_axes_and_shares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "--workload", "digits", "--peers", "3", "--widths", "2,1,1"]) == 0
    out = capsys.readouterr().out
    assert "8 4 4" in out
    assert "16 8 8" in out
    assert "0.weight[16, :, :, :]" in out
    assert "7.weight[:, 128]" in out  # 32 channels of 2 x 2
    assert "100.0%" in out
    assert "averaged: 7.bias" in out


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--widths", "1,0"], "--widths 1,0: 0 must be above 0"),
        (["--widths", "1,-1"], "--widths 1,-1: -1 must be above 0"),
        (["--widths", "1,2,3"], "--widths 1,2,3: 3 widths for 2 peers"),
        (["--widths", "a,b"], "--widths 'a,b': expected numbers like 4,2,1,1"),
        (["--peers", "33"], "32 units cannot be dealt to 33 peers, one each"),
        (["--workload", "digitz"], "did you mean digits?"),
    ],
)
def test_what_it_refuses(more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "--peers", "2", *more]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_the_coordinator_package_is_imported_without_torch() -> None:
    code = "import murmurate_coordinator, sys; assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
