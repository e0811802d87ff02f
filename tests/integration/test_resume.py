"""Real processes that are killed and come back: as themselves, with all that was saved."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.integration.flock import Node, sgd, small, wait_for
from tests.integration.processes import WAIT_S, Process, State, ended, free_port

import murmurate
from murmurate.core.driver import Delivery, nothing
from murmurate.core.effect import Effect, Save, Send
from murmurate.core.forgetting.vow import Vow
from murmurate.core.message import Decided, SnapshotRequest
from murmurate.edge.disk import checkpoint as files
from murmurate.edge.disk.folder import Folder
from murmurate.edge.runtime.node_state import NodeState
from murmurate.edge.runtime.training_port import Folds
from murmurate.errors import CheckpointError

OFTEN = {"checkpoint_s": 0.1, "share": 1.0}
"""Checkpoints, however long this disk takes for one: what is saved next is waited for."""


def together(nodes: list[Process]) -> list[State]:
    """Let all finish; they have the same."""
    for node in nodes:
        node.tell("finish")
    states = [node.hear("done") for node in nodes]
    first = states[0]
    assert first.weights is not None
    for state in states[1:]:
        assert state.clock == first.clock
        assert state.swarm == first.swarm
        torch.testing.assert_close(
            torch.tensor(state.weights), torch.tensor(first.weights), rtol=1e-4, atol=1e-5
        )
    return states


def meet(*nodes: Process) -> None:
    """Until each has updates of this life of all the others."""
    deadline = time.monotonic() + WAIT_S
    for node in nodes:
        others = [other.hear("saved") for other in nodes]
        while not all((state := node.hear("saved")).has(other) for other in others):
            assert time.monotonic() < deadline, f"{state} does not have all of {others}"


def swarm_of(tmp_path: Path, count: int) -> list[Process]:
    """So many processes in one swarm, each with a folder."""
    nodes = [Process("n0", tmp_path / "n0", **OFTEN)]
    address = nodes[0].hear("joined").address
    for index in range(1, count):
        node = Process(f"n{index}", tmp_path / f"n{index}", **OFTEN, seed=index, peers=[address])
        node.hear("joined")
        nodes.append(node)
    for node in nodes:  # until all vote: what a newcomer has, the others may close without it
        deadline = time.monotonic() + WAIT_S
        while len(node.hear("saved").history[-1].roster) < count:
            assert time.monotonic() < deadline
    return nodes


def back(node: Process, folder: Path, **join: object) -> tuple[Process, State]:
    """Started again, after it was killed; and whether it is still itself."""
    again = Process(node.name, folder, **OFTEN, **join)
    state = again.hear("joined")
    assert state.name == node.name
    assert state.epoch > max(each.epoch for each in node.states + node.saved)
    assert state.has(node.saved[-1])
    assert state.step >= node.saved[-1].step
    return again, state


def test_a_killed_node_comes_back_as_itself_and_catches_up(tmp_path: Path) -> None:
    nodes = swarm_of(tmp_path, 3)
    with ended(*nodes):
        for node in nodes:
            node.hear("saved")
        victim = nodes.pop()
        for _ in range(3):
            last = victim.hear("saved")
        victim.kill()
        went_on = nodes[0].hear("saved").step + 100
        while nodes[0].hear("saved").step < went_on:
            pass
        address = nodes[0].states[0].address
        again, _ = back(victim, tmp_path / "n2", seed=9, peers=[address])
        with ended(again):
            done = together([*nodes, again])
            assert done[0].has(last)
            assert {state.name for state in done} == {"n0", "n1", "n2"}


def test_a_whole_swarm_killed_at_once_goes_on(tmp_path: Path) -> None:
    nodes = swarm_of(tmp_path, 3)
    with ended(*nodes):
        for node in nodes:
            for _ in range(3):
                node.hear("saved")
        for node in nodes:
            os.kill(node.process.pid or 0, signal.SIGKILL)
        for node in nodes:
            node.kill()
    first, state = back(nodes[0], tmp_path / "n0")
    assert state.swarm == nodes[0].states[0].swarm
    with ended(first):
        more = []
        for index, node in enumerate(nodes[1:], 1):
            folder = tmp_path / f"n{index}"
            more.append(back(node, folder, seed=index, peers=[state.address])[0])
        with ended(*more):
            for node in (first, *more):
                node.hear("saved")
            done = together([first, *more])
            assert done[0].swarm == state.swarm
            for node in nodes:
                assert done[0].has(node.saved[-1])


def test_two_come_back_at_once_each_with_the_other_for_a_seed_peer(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    ways = [
        {"listen": f"127.0.0.1:{mine}", "peers": [f"127.0.0.1:{other}"], "found": True}
        for mine, other in (ports, reversed(ports))
    ]
    nodes = [
        Process(f"n{index}", tmp_path / f"n{index}", **OFTEN, seed=index, **way)
        for index, way in enumerate(ways)
    ]
    with ended(*nodes):
        before = [node.hear("joined") for node in nodes]
        assert before[0].swarm == before[1].swarm
        for node in nodes:
            for _ in range(3):
                node.hear("saved")
        for node in nodes:
            os.kill(node.process.pid or 0, signal.SIGKILL)
        for node in nodes:
            node.kill()
    again = [
        Process(f"n{index}", tmp_path / f"n{index}", **OFTEN, seed=index, **way)
        for index, way in enumerate(ways)
    ]
    with ended(*again):
        for node in again:
            assert node.hear("joined").swarm == before[0].swarm
        meet(*again)
        done = together(again)
        for node in nodes:
            assert done[0].has(node.saved[-1])


def test_a_seed_peer_that_comes_back_later_is_found(tmp_path: Path) -> None:
    """The founder comes back first, alone; the other's address is another one than before."""
    nodes = swarm_of(tmp_path, 2)
    with ended(*nodes):
        for node in nodes:
            for _ in range(2):
                node.hear("saved")
        for node in nodes:
            node.kill()
    port = free_port()
    join = {"peers": [f"127.0.0.1:{port}"], "found": True}
    first, _ = back(nodes[0], tmp_path / "n0", **join)
    with ended(first):
        first.hear("saved")
        second, _ = back(nodes[1], tmp_path / "n1", listen=f"127.0.0.1:{port}")
        with ended(second):
            meet(first, second)
            together([first, second])


def test_the_run_was_founded_anew(tmp_path: Path) -> None:
    """Its old files are set aside, and it joins what is there now, like any newcomer."""
    nodes = swarm_of(tmp_path, 2)
    with ended(*nodes):
        nodes[1].hear("saved")
        for node in nodes:
            node.kill()
    founder = Process("n0", tmp_path / "elsewhere", **OFTEN)
    with ended(founder):
        new = founder.hear("joined")
        second = Process("n1", tmp_path / "n1", **OFTEN, peers=[new.address])
        with ended(second):
            state = second.hear("joined")
            assert state.swarm == new.swarm != nodes[0].states[0].swarm
            assert state.name == "n1"
            second.hear("saved")
            together([founder, second])
    assert list((tmp_path / "n1" / "before-1").glob("*.safetensors"))


def test_a_sigterm_leaves_a_last_checkpoint(tmp_path: Path) -> None:
    node = Process("n0", tmp_path / "n0", checkpoint_s=1000.0)
    with ended(node):
        joined = node.hear("joined")  # the first checkpoint may be saved before, and not told
        step = joined.step
        while step < joined.step + 10:
            node.tell("here")
            step = node.hear("here").step
        os.kill(node.process.pid or 0, signal.SIGTERM)
        node.process.join(WAIT_S)
        node.drain()
        assert node.process.exitcode == 128 + signal.SIGTERM
        assert node.saved[-1].step > joined.step + 4, "the first one has a step or two"
        again, state = back(node, tmp_path / "n0")
        again.kill()
        assert state.digest == node.saved[-1].digest


# -- in one process ------------------------------------------------------------------------------


def test_rule_average_goes_on_alone_and_joins_the_others_as_a_newcomer(tmp_path: Path) -> None:
    first = Node("a", rule="average", checkpoint=tmp_path / "a")
    for _ in range(20):
        first.step()
    first.swarm.leave()
    kept, samples = first.weights(), first.swarm.samples
    alone = Node("a", rule="average", checkpoint=tmp_path / "a", seed=5)
    assert torch.equal(alone.weights(), kept)
    assert torch.equal(next(iter(alone.model.parameters())).flatten(), kept[:64])
    assert alone.swarm.samples == samples
    other = Node("b", rule="average", peers=[alone.swarm.address], checkpoint=tmp_path / "b")
    alone.swarm.leave(0.1)
    for _ in range(30):
        other.step()
    again = Node(
        "a", rule="average", peers=[other.swarm.address], checkpoint=tmp_path / "a", seed=6
    )
    torch.testing.assert_close(again.weights(), other.weights())
    assert again.swarm.name == "a"
    for node in (other, again):
        node.swarm.leave(0.1)


def test_the_optimizer_goes_on_where_it_was(tmp_path: Path) -> None:
    def momentum(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    first = Node("a", checkpoint=tmp_path, optimizer=momentum)
    for _ in range(5):
        first.step()
    first.swarm.leave()
    again = Node("a", checkpoint=tmp_path, optimizer=momentum, seed=7)
    again.data.set_state(first.data.get_state())
    for node in (first, again):  # the first one without a swarm
        node.steps = 0
        x = torch.randn(16, 8, generator=node.data)
        node.optimizer.zero_grad()
        node.loss(x).backward()
        node.optimizer.step()
    for one, other in zip(first.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    again.swarm.leave()


def test_a_folder_in_use(tmp_path: Path) -> None:
    node = Node("a", checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="another node keeps its checkpoints there"):
        Node("b", checkpoint=tmp_path, peers=[node.swarm.address])
    node.swarm.leave()
    Node("a", checkpoint=tmp_path).swarm.leave()


def test_another_model_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    node = Node("a", checkpoint=tmp_path)
    node.step()
    node.swarm.leave()
    model = torch.nn.Linear(8, 1)
    before = model.weight.clone()
    with pytest.raises(CheckpointError, match="another model"):
        murmurate.join(model, sgd(model), run="test", name="a", rule="sum", checkpoint=tmp_path)
    assert torch.equal(model.weight, before)
    threads = [thread.name for thread in threading.enumerate()]
    assert "murmurate" not in threads
    assert "keeper" not in threads


def test_ctrl_c_never_comes_between_weights_and_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the end of a step; then it is raised as ever."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    node = Node("a", checkpoint=tmp_path)
    node.step()
    raised = []
    port = node.swarm.runtime.training
    fold = port.fold

    def interrupted(count: int) -> Folds:
        signal.raise_signal(signal.SIGINT)
        raised.append(True)  # nothing was raised here
        return fold(count)

    with monkeypatch.context() as patched:
        patched.setattr(port, "fold", interrupted)
        patched.setattr(port, "waiting", lambda: [Decided()])
        with pytest.raises(KeyboardInterrupt):
            node.step()
    assert raised == [True]
    node.step()
    node.swarm.leave()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("where", ["publish", "fold"])
def test_what_was_torn_is_neither_kept_nor_passed_on(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("a", checkpoint=tmp_path)
    node.step()
    runtime = node.swarm.runtime

    def torn(*_: object, **more: object) -> None:
        runtime.training.weights.add_(1.0)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(runtime.look(lambda here: here.peer), where, torn)
        one = Delivery("b", Decided(), nothing)
        runtime.look(lambda here: here.driver.inbox.append(one))
        with pytest.raises(KeyboardInterrupt):
            node.step()
    node.swarm.leave()
    again = Node("a", checkpoint=tmp_path)
    assert len(again.clock) <= 1
    assert float(again.weights().abs().max()) < 1.0
    again.swarm.leave()


# -- the disk ------------------------------------------------------------------------------------


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "murmurate-test", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def fill(disk: Path) -> Path:
    path = disk / "full"
    with path.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass
    return path


def remount(disk: Path, how: str) -> bool:
    words = ["mount", "-o", f"remount,{how}", str(disk)]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_disk_in_trouble(tmpfs: Path, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on, one line says so, nothing is left over, and it recovers by itself."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8000), torch.nn.Linear(8000, 1))  # 0.3 MB
    node = Node(
        "a",
        checkpoint=tmpfs / "a",
        checkpoint_s=0.05,
        model=model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-6),
    )
    keeper = node.swarm.runtime.look(lambda here: here.keeper)
    assert keeper is not None
    wait_for(lambda: len(keeper.saved) == 1)
    path = fill(tmpfs) if trouble == "full" else None
    if path is None:
        wait_for(lambda: remount(tmpfs, "ro"))  # not while something is being written
    node.train(pause_s=0.002)
    try:
        wait_for(lambda: node.swarm.checkpoint_failures >= 3)
        steps = node.steps
        wait_for(lambda: node.steps > steps + 20)
        assert not list((tmpfs / "a").glob("*.tmp"))
        lines = [message for message in caplog.messages if "cannot be written" in message]
        assert len(lines) == 1
        assert ("No space" if trouble == "full" else "Read-only") in lines[0]
        kept = files.read(keeper.folder.checkpoint(keeper.saved[-1].number))
        if path is None:
            assert remount(tmpfs, "rw")
        else:
            path.unlink()
        began = time.monotonic()
        wait_for(lambda: "can be written again" in caplog.text)
        assert time.monotonic() - began < 10.0
        assert node.swarm.checkpoint_age_s < 10.0
        newest = files.read(keeper.folder.checkpoint(keeper.saved[-1].number))
        assert newest.step > kept.step
    finally:
        node.stop()
        node.end()
        node.swarm.leave()
    Folder(tmpfs / "a").close()


def test_a_disk_that_cannot_be_written_at_the_start(tmpfs: Path) -> None:
    assert remount(tmpfs, "ro")
    with pytest.raises(CheckpointError, match="Read-only"):
        Node("a", checkpoint=tmpfs / "a")


def test_what_follows_a_vow_that_is_not_durable_does_not_leave_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("a", checkpoint=tmp_path)
    effects: list[Effect] = [Save("vow", Vow(1, (1, "a"))), Send("b", SnapshotRequest())]

    def asked_twice(here: NodeState) -> None:
        driver = here.driver
        before = list(driver.outgoing)
        with monkeypatch.context() as asked:
            asked.setattr(here.peer, "heard", lambda *_, **__: effects)
            with monkeypatch.context() as broken:
                broken.setattr(Folder, "put", _full)
                driver.heard("b", time.monotonic())
            assert list(driver.outgoing) == before
            driver.heard("b", time.monotonic())
            assert list(driver.outgoing) == [*before, *effects[1:]]
            driver.outgoing.pop()

    node.swarm.runtime.look(asked_twice)
    node.swarm.leave()


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- the command ---------------------------------------------------------------------------------


def test_exit_code_3(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.close()
    torch.save({"weight": torch.zeros(3)}, tmp_path / "checkpoint-000000000001.safetensors")
    words = ["node", "--checkpoint", str(tmp_path), "--name", "a", "--samples", "10"]
    done = subprocess.run(
        [sys.executable, "-m", "murmurate", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * WAIT_S,  # on a busy machine importing torch alone has taken one
    )
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"murmurate: {tmp_path}: checkpoints, but no node.json")


def test_a_small_model_is_what_it_was(tmp_path: Path) -> None:
    """Three lines of plain torch open what a node has kept."""
    import safetensors.torch

    node = Node("a", checkpoint=tmp_path)
    node.step()
    node.swarm.leave()
    newest = sorted(tmp_path.glob("*.safetensors"))[-1]
    model = small()
    model.load_state_dict(safetensors.torch.load_file(newest), strict=False)
    for one, other in zip(model.parameters(), node.model.parameters(), strict=True):
        assert torch.equal(one, other)
