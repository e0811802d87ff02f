"""Nodes that share a machine share its cores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from murmurate.edge.runtime import shared_machine
from murmurate.edge.runtime.shared_machine import SharedMachine
from murmurate.programs.roles import threads
from murmurate.programs.roles.threads import LOOK_S, ThreadShare

HOLD = """
import sys
from pathlib import Path
from murmurate.edge.runtime.shared_machine import SharedMachine
held = SharedMachine(Path(sys.argv[1]))
print("here", flush=True)
sys.stdin.read()
"""


def test_each_node_is_counted_while_it_lives(tmp_path: Path) -> None:
    mine = SharedMachine(tmp_path / "s")
    assert mine.nodes() == 1
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"here\n"
    assert mine.nodes() == 2
    third = SharedMachine(tmp_path / "s")
    assert mine.nodes() == third.nodes() == 3
    third.close()
    other.kill()  # without a word: the kernel lets go of its lock
    other.communicate()
    assert mine.nodes() == 1
    assert len(list((tmp_path / "s").iterdir())) == 1, "what the dead left is removed"


def test_where_nothing_can_be_written_a_node_is_alone(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("not a folder")
    assert SharedMachine(tmp_path / "s").nodes() == 1


class Machine:
    """Stands for `SharedMachine`."""

    there = 1

    def nodes(self) -> int:
        return self.there


@pytest.fixture
def torch_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    import torch

    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(threads, "SharedMachine", Machine)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return given


def test_threads_follow_the_nodes_that_come_and_go(
    torch_threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    share = ThreadShare(0, said.append)
    now = 10.0
    for there in (1, 2, 2, 16, 1):
        monkeypatch.setattr(Machine, "there", there)
        share.look(now)
        share.look(now + LOOK_S / 2)  # not so soon again
        now += LOOK_S
    assert torch_threads == [4, 1, 8]
    assert said == [
        (
            "2 nodes share the 8 cores of this machine: torch gets 4 threads here instead of 8"
            " (--threads to choose)"
        ),
        (
            "16 nodes share the 8 cores of this machine: torch gets 1 thread here instead of 4"
            " (--threads to choose)"
        ),
    ]


@pytest.mark.parametrize("choice", ["--threads", "OMP_NUM_THREADS"])
def test_a_choice_is_kept(
    torch_threads: list[int], monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(Machine, "there", 4)
    if choice == "OMP_NUM_THREADS":
        monkeypatch.setenv(choice, "3")
    share = ThreadShare(3 if choice == "--threads" else 0, said.append)
    share.look(10.0)
    assert torch_threads == ([3] if choice == "--threads" else [])
    assert not said


def test_cores_are_those_this_process_may_use() -> None:
    assert shared_machine.cores() >= 1
