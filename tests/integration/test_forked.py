"""What `murmurate up` forks is a process like any other, and nothing of it stays behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from murmurate.programs.up.forked import Forked, Loader

PATIENCE_S = 120.0

DRAWN = """
import os, random
import numpy

class Workload:
    def __init__(self, *_):
        with open("drawn", "a") as file:
            print(random.random(), numpy.random.random(), os.getcwd(), file=file)
"""


@pytest.fixture(scope="module")
def loader() -> Iterator[Loader]:
    it = Loader()
    yield it
    it.close()


def said(process: Forked) -> tuple[int, str, str]:
    """All that it writes until it ends; both pipes hold so much."""
    process.stdin.close()
    code = process.wait(PATIENCE_S)
    out, err = process.stdout.read().decode(), process.stderr.read().decode()
    process.close()
    return code, out, err


def begun(loader: Loader, name: str) -> Forked:
    """A node that waits to be told whom to join."""
    process = loader.fork(name, ["node", "--events", "--peers=-", "--samples=100"])
    assert select.select([process.stdout], [], [], PATIENCE_S)[0]
    assert b'"ready"' in process.stdout.readline()
    assert process.poll() is None
    return process


def test_it_says_what_the_command_says(loader: Loader) -> None:
    code, out, err = said(loader.fork("version", ["--version"]))
    assert (code, err) == (0, "")
    assert out.startswith("murmurate ")
    code, out, err = said(loader.fork("wrong", ["node", "--lr=-1"]))
    assert (code, out) == (2, "")
    assert err.startswith("murmurate: ")
    code, out, err = said(loader.fork("unknown", ["nothing"]))
    assert (code, out) == (2, "")
    assert "invalid choice: 'nothing'" in err


def test_it_has_a_name_a_group_and_nothing_of_the_others(loader: Loader) -> None:
    one, two = begun(loader, "node-0"), begun(loader, "a-name-that-is-too-long")
    try:
        assert one.pid is not None
        assert two.pid is not None
        names = [Path(f"/proc/{each.pid}/comm").read_text() for each in (one, two)]
        assert names == ["node-0\n", "a-name-that-is-\n"]
        groups = {os.getpgid(each) for each in (one.pid, two.pid)}
        assert len(groups | {os.getpgid(0)}) == 3, "Ctrl-C is for the launcher"
        sessions = {os.getsid(each) for each in (one.pid, two.pid)}
        assert sessions == {os.getsid(0)}, "or Linux would share the processors out among them"
        one.stdin.close()  # if anybody else held that pipe it would not notice
        assert one.wait(PATIENCE_S) == 0
        assert two.poll() is None
    finally:
        for each in (one, two):
            each.kill()
            each.wait()
            each.close()


def test_all_is_loaded_by_one_thread_and_torch_has_not_worked_yet(loader: Loader) -> None:
    """Locks of other threads would be held for ever in what is forked."""
    begun(loader, "first").close()
    assert loader.process is not None
    assert len(os.listdir(f"/proc/{loader.process.pid}/task")) == 1
    maps = Path(f"/proc/{loader.process.pid}/maps").read_text()
    assert "libtorch_cpu" in maps


def test_each_draws_for_itself(
    loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    text = DRAWN.replace('"drawn"', repr(str(tmp_path / "drawn")))
    file.write_text(text, encoding="utf-8")
    words = ["node", "--insecure", "--samples=1", f"--workload={file}:Workload"]
    for name in ("one", "two"):
        assert said(loader.fork(name, words))[0] == 2
    drawn = [line.split() for line in (tmp_path / "drawn").read_text().splitlines()]
    assert len(drawn) >= 2
    assert len({one for one, *_ in drawn}) == len(drawn), "random"
    assert len({one for _, one, *_ in drawn}) == len(drawn), "numpy"
    assert {one for *_, one in drawn} == {os.getcwd()}


def test_a_signal_before_it_has_begun_reaches_it() -> None:
    fresh = Loader()
    try:
        process = fresh.fork("early", ["node", "--events", "--peers=-"])
        assert process.pid is None, "all is still being loaded"
        process.kill()
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
        process.close()
    finally:
        fresh.close()


def test_waiting_has_an_end(loader: Loader) -> None:
    process = begun(loader, "waits")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    process.close()


def test_without_the_loader_all_end() -> None:
    fresh = Loader()
    process = begun(fresh, "orphan")
    assert fresh.process is not None
    fresh.process.kill()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    late = fresh.fork("late", ["--version"])  # by another loader
    assert said(late)[0] == 0
    process.close()
    fresh.close()
