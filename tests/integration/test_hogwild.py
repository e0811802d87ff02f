"""`murmurate.join(mode="hogwild")`: one memory for the processes of a machine, and no lock."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import murmurate
from murmurate.edge.disk import shared_memory
from murmurate.edge.disk.shared_memory import SharedWeights, clean, known
from murmurate.errors import ConfigError

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Away from what else this machine may be training."""
    monkeypatch.setattr(shared_memory, "folder", lambda: tmp_path)
    return tmp_path


def test_what_one_writes_all_have(own_folder: Path) -> None:
    first = SharedWeights.create(torch.arange(5.0))
    second = SharedWeights(first.path, 5, torch.float32)
    second.weights[2] = 40.0
    assert first.weights.tolist() == [0, 1, 40, 3, 4]
    first.stepped()
    first.stepped()
    second.stepped()
    assert (first.others_steps(), second.others_steps()) == (1, 2)
    assert oct(first.path.stat().st_mode & 0o777) == "0o600"
    first.close()
    assert second.path.exists(), "somebody uses it"
    second.close()
    assert list(own_folder.iterdir()) == []


def test_what_killed_processes_left_is_taken_away(own_folder: Path) -> None:
    used = SharedWeights.create(torch.zeros(3))
    left = own_folder / f"{shared_memory.PREFIX}0123"
    left.write_bytes(b"x")
    (own_folder / f"{left.name}.0").write_bytes(b"")
    clean()
    assert not left.exists()
    assert not (own_folder / f"{left.name}.0").exists()
    assert used.path.exists()
    used.close()


def test_a_memory_that_does_not_fit_is_refused(own_folder: Path) -> None:
    memory = SharedWeights.create(torch.zeros(3))
    with pytest.raises(ConfigError, match="another model"):
        SharedWeights(memory.path, 4, torch.float32)
    with pytest.raises(ConfigError, match="processes of one machine"):
        SharedWeights(own_folder / "nowhere", 3, torch.float32)
    link = own_folder / "link"
    link.symlink_to(memory.path)
    with pytest.raises(ConfigError, match="cannot be opened"):
        SharedWeights(link, 3, torch.float32)
    memory.close()


@pytest.mark.parametrize(
    "said", ["/etc/passwd", "{here}/other", "{here}/../x", "{here}/murmurate-hogwild-1.7"]
)
def test_a_path_that_no_member_makes_is_not_followed(own_folder: Path, said: str) -> None:
    assert known(said.format(here=own_folder)) is None


def test_members_train_one_memory(own_folder: Path) -> None:
    steps, count = 60, 3
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    address: list[str] = []
    ready, go = threading.Barrier(count + 1, timeout=WAIT_S), threading.Event()
    opened = threading.Event()

    def member(number: int) -> None:
        torch.manual_seed(number)
        model = torch.nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if number:
            assert opened.wait(WAIT_S)
        with murmurate.join(
            model, optimizer, run="t", mode="hogwild", name=f"m{number}", peers=address
        ) as swarm:
            found[number]["first"] = swarm.weights()
            if not number:
                address.append(swarm.address)
                opened.set()
            swarm.follow(lambda: len(swarm.board) >= count, WAIT_S)
            ready.wait()
            go.wait(WAIT_S)
            for _ in range(steps):
                optimizer.zero_grad()
                x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                swarm.log(samples=4)
            found[number]["even"] = swarm.finish(WAIT_S)
            found[number]["last"] = swarm.weights()
            found[number]["progress"] = swarm.progress()
            found[number]["samples"] = swarm.samples
            ready.wait()
        found[number]["left"] = swarm.weights()

    threads = [threading.Thread(target=member, args=(each,), daemon=True) for each in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    go.set()
    ready.wait()
    for thread in threads:
        thread.join(WAIT_S)
    for each in found:
        assert torch.equal(each["first"], found[0]["first"]), "all begin with the founder's"
        assert torch.equal(each["last"], found[0]["last"])
        assert torch.equal(each["left"], found[0]["last"]), "the model stays as it was"
        assert each["even"]
        assert (each["progress"].published, each["progress"].applied) == (steps, steps)
        assert each["samples"] == 4 * steps * count
    stale = [round(each["progress"].staleness.mean * steps) for each in found]
    # Between a member's first and last step the others made at most all of theirs: each counts once
    assert all(each <= (count - 1) * steps for each in stale)
    assert list(own_folder.iterdir()) == []


def test_a_model_that_cannot_be_shared_is_named() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"0\.weight is torch\.float32 on cpu: mode 'hogwild'"):
        murmurate.join(model, optimizer, run="t", mode="hogwild")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rule": "flat"}, "rule 'flat': mode 'hogwild' has 'hogwild'"),
        ({"group": 2}, "group 2: only with mode 'allreduce'"),
        ({"checkpoint": "x"}, "checkpoint 'x': mode 'hogwild' has none"),
    ],
)
def test_what_the_mode_has_not_is_said_in_one_line(asked: dict[str, Any], said: str) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=said):
        murmurate.join(model, optimizer, **{"run": "t", "mode": "hogwild", **asked})


def test_a_process_that_is_killed_leaves_the_memory_to_the_others(own_folder: Path) -> None:
    program = """
        import sys, time, torch, murmurate
        from pathlib import Path
        from murmurate.edge.disk import shared_memory
        shared_memory.folder = lambda: Path(sys.argv[1])
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with murmurate.join(model, optimizer, run="t", mode="hogwild", name="killed",
                            peers=[sys.argv[2]]):
            while True:
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                time.sleep(0.01)
    """
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with murmurate.join(model, optimizer, run="t", mode="hogwild", name="first") as swarm:
        before = swarm.weights()
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(own_folder), swarm.address],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            deadline = time.monotonic() + WAIT_S
            while torch.equal(swarm.weights(), before):
                assert time.monotonic() < deadline, "the other writes nothing"
                swarm.follow(lambda: False, 0.05)
        finally:
            child.kill()
            child.wait(WAIT_S)
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert swarm.progress().published == 1
        assert swarm.staleness.largest > 0
    assert list(own_folder.iterdir()) == []
