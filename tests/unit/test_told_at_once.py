"""What is wrong is said before anything is loaded, in one line, by whoever is asked."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from murmurate.edge.disk.checkpoint_files import KEPT, CheckpointFiles
from murmurate.programs.cli import main as command
from murmurate.programs.cli.main import main
from murmurate.training.signals import Stopped

PLAIN = "class Plain:\n    pass\nAlias = Plain\n"


@pytest.mark.parametrize("who", ["node", "coordinator"])
def test_a_class_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], who: str
) -> None:
    file = tmp_path / "plain.py"
    file.write_text(PLAIN)
    for name in ("Plain", "Alias"):
        assert main([who, "--check-config", "--workload", f"{file}:{name}"]) == 0
    capsys.readouterr()
    assert main([who, "--check-config", "--workload", f"{file}:Nope"]) == 2
    said = capsys.readouterr().err
    assert said == f"murmurate: workload {file}:Nope: there is no Nope in {file}\n"
    file.write_text("class (\n")
    assert main([who, "--check-config", "--workload", f"{file}:Plain"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_impossible_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--nodes", "11", "--split", "labels"]) == 2
    assert capsys.readouterr().err == (
        "murmurate: split labels: there are 10 labels for 11 peers; take fewer peers, dataset or"
        " dirichlet(α)\n"
    )
    shard = ["--split", "labels", "--shard", "3/11", "--name", "a"]
    assert main(["node", "--check-config", *shard]) == 2


@pytest.mark.parametrize("signal", [KeyboardInterrupt, Stopped])
def test_a_signal_while_an_error_is_reported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, signal: type[BaseException]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise signal

    monkeypatch.setattr(command, "print", interrupted, raising=False)
    assert main(["up", "--nodes", "11", "--split", "labels"]) == 130


def test_old_checkpoints_go_when_what_lies_beside_does_not_fit(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path, 30.0)

    def write(file: BinaryIO) -> None:
        file.write(b"x")

    def full(_: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for _ in range(3 * KEPT):
        assert files.put(write, {"model.safetensors": full}) is None
    assert len(files.folder.numbers()) == KEPT
    newest = files.folder.numbers()[-1]
    assert newest == 3 * KEPT, "what was written last is there"
    assert files.put(write, {"model.safetensors": write}) is not None
    files.close()
