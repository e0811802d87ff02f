"""What a node finds on its disk, what it keeps there, and a disk that fails."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from murmurate.core.clock import Clock, Dot
from murmurate.core.forgetting.vow import Vow
from murmurate.core.layout import Layout
from murmurate.core.message import Generation
from murmurate.edge.disk import checkpoint as files
from murmurate.edge.disk import checkpointer as keeping
from murmurate.edge.disk import written_by
from murmurate.edge.disk.checkpoint import Checkpoint
from murmurate.edge.disk.checkpoint_files import RETRY_S
from murmurate.edge.disk.checkpointer import Keeper
from murmurate.edge.disk.copies import Copies
from murmurate.edge.disk.folder import Folder, checkpoint_name
from murmurate.errors import CheckpointError, ConfigError
from murmurate.training.training_state import Instant


def small() -> nn.Module:
    return nn.Linear(2, 1)


class Disk:
    """A directory with keepers that come one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open: list[Keeper] = []

    def keeper(self, model: nn.Module | None = None, **more: Any) -> Keeper:
        layout, _ = Layout.of(model if model is not None else small())
        given = {"every_s": 100.0, "run": "r", "rule": "sum", "asked": "n", "layout": layout}
        self.close()
        self.open.append(Keeper(self.path, **{**given, **more}))
        return self.open[-1]

    def close(self) -> None:
        while self.open:
            self.open.pop().close()

    @property
    def numbers(self) -> list[int]:
        found = (re.fullmatch(r"checkpoint-(\d+)\.safetensors", name) for name in self.names)
        return sorted(int(match[1]) for match in found if match)

    @property
    def names(self) -> set[str]:
        return set(os.listdir(self.path))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "node")
    yield disk
    disk.close()


def instant(step: int = 1, **more: Any) -> Any:
    """What the training thread would copy."""

    def capture(copies: Copies) -> Checkpoint:
        layout, _ = Layout.of(small())
        given: dict[str, Any] = {
            "run": "r",
            "swarm": "s",
            "name": "n",
            "rule": "sum",
            "epoch": 5,
            "seq": step,
            "step": step,
            "samples": step,
            "clock": Clock(Dot("n", 5, seq) for seq in range(1, step + 1)),
            "layout": layout,
            "weights": copies.copy("weights", torch.full((layout.size,), float(step))),
        }
        return Checkpoint(**{**given, **more})

    return capture


def filled(disk: Disk, count: int = 3) -> Keeper:
    keeper = disk.keeper()
    keeper.begin("n", "s", 5)
    for step in range(1, count + 1):
        assert keeper.last(instant(step))
    return keeper


# -- what is there -------------------------------------------------------------------------------


def test_an_empty_folder(disk: Disk) -> None:
    keeper = disk.keeper()
    assert keeper.memory is None
    assert keeper.restored is None
    assert (keeper.swarm, keeper.name) == ("", "n")


def test_three_are_kept_and_the_newest_comes_back(disk: Disk) -> None:
    keeper = filled(disk, 5)
    told: list[tuple[int, int]] = []
    keeper.on_saved = lambda checkpoint, kept: told.append((checkpoint.step, kept))
    keeper.last(instant(6))
    assert told == [(6, 3)]
    assert disk.numbers == [4, 5, 6]
    again = disk.keeper()
    assert again.restored is not None
    assert again.restored.step == 6
    assert again.restored.weights.tolist() == [6.0] * 3
    assert [saved.clock.last("n", 5) for saved in again.saved] == [4, 5, 6]
    again.last(instant(7))
    assert disk.numbers == [5, 6, 7]


@pytest.mark.parametrize("bad", [b"", b"\x80\x04K\x01.", None])
def test_a_damaged_one_is_passed_over_with_a_line(
    disk: Disk, caplog: pytest.LogCaptureFixture, bad: bytes | None
) -> None:
    filled(disk)
    newest = disk.path / checkpoint_name(3)
    if bad is None:
        newest.unlink()
        newest.symlink_to(disk.path / checkpoint_name(1))
    else:
        newest.write_bytes(bad)
    keeper = disk.keeper()
    assert keeper.restored is not None
    assert keeper.restored.step == 2
    (line,) = caplog.messages
    assert "checkpoint-000000000003.safetensors: " in line
    assert line.endswith("it is passed over")
    keeper.last(instant(4))
    assert disk.numbers == [1, 2, 4]  # the bad one is not among the three


def test_none_that_is_whole_is_an_error(disk: Disk) -> None:
    filled(disk)
    for number in disk.numbers:
        (disk.path / checkpoint_name(number)).write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of its checkpoints is whole"):
        disk.keeper()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"run": "other"}, "of run 'r', this node has 'other'"),
        ({"rule": "average"}, "of rule 'sum', this node has 'average'"),
        ({"asked": "m"}, "of name 'n', this node has 'm'"),
        (
            {"model": nn.Linear(3, 1)},
            r"of another model: it has weight float32\[1, 2\], here it is",
        ),
    ],
)
def test_a_folder_of_another(disk: Disk, more: dict[str, Any], problem: str) -> None:
    filled(disk)
    with pytest.raises(CheckpointError, match=problem):
        disk.keeper(**more)
    disk.keeper(asked="")  # any name: it takes its own


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"run": "other"}, "of run 'other'"),
        ({"swarm": "other"}, "of swarm 'other'"),
        ({"name": "other"}, "of name 'other'"),
        ({"rule": "average"}, "of rule 'average'"),
    ],
)
def test_a_whole_file_of_another_is_never_passed_over(
    disk: Disk, more: dict[str, Any], problem: str
) -> None:
    keeper = filled(disk)
    keeper.last(instant(4, **more))
    with pytest.raises(CheckpointError, match=problem):
        disk.keeper()


def test_a_file_of_another_model_or_of_a_later_format(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = filled(disk)
    layout, _ = Layout.of(nn.Linear(3, 1))
    keeper.last(instant(4, layout=layout, weights=torch.zeros(4)))
    with pytest.raises(CheckpointError, match="another model: it has weight"):
        disk.keeper()
    (disk.path / checkpoint_name(4)).unlink()
    keeper = disk.keeper()
    monkeypatch.setattr(written_by, "FORMAT", 2)
    keeper.last(instant(5))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"written by murmurate .* \(format 2\)"):
        disk.keeper()


def test_checkpoints_without_a_memory(disk: Disk) -> None:
    filled(disk)
    (disk.path / "node.json").unlink()
    with pytest.raises(CheckpointError, match="checkpoints, but no node"):
        disk.keeper()


# -- epochs and votes ----------------------------------------------------------------------------


def test_no_epoch_is_used_twice(disk: Disk) -> None:
    used = [disk.keeper().begin("n", "s", 1000)]
    for least in (1000, 1, 1000 + 10 * keeping.EPOCHS, 1):  # the wall clock goes as it likes
        keeper = disk.keeper()
        used.append(keeper.begin("n", "s", least))
        used.append(keeper.begin("n", "s", 1))  # voted out, and back
    assert used == sorted(set(used))
    assert used[-3] > 1000 + 10 * keeping.EPOCHS


def test_an_epoch_of_a_checkpoint_counts_too(disk: Disk) -> None:
    keeper = filled(disk)
    keeper.last(instant(4, epoch=10**9))
    assert disk.keeper().begin("n", "s", 1) > 10**9


def test_an_epoch_that_is_not_durable_is_not_used(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = disk.keeper()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            keeper.begin("n", "s", 1000)
    first = keeper.begin("n", "s", 1000)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)  # those that are durable already can be used
        lives = [keeper.begin("n", "s", 1) for _ in range(keeping.EPOCHS)]
        assert lives == list(range(first + 1, first + 1 + keeping.EPOCHS))
        with pytest.raises(OSError, match="No space"):
            keeper.begin("n", "s", 1)
    assert disk.keeper().begin("n", "s", 1) > lives[-1]


def test_a_life_that_was_voted_out_is_not_gone_back_to(disk: Disk) -> None:
    keeper = filled(disk)
    vow = Vow(3, (1, "n"))
    keeper.note("vow", vow)
    keeper.note("history", (Generation(2, ("n",)),))
    keeper.begin("n", "s", 1)
    keeper = disk.keeper()
    assert keeper.restored is None
    assert keeper.memory is not None
    assert (keeper.memory.vow, keeper.memory.history) == (vow, ())
    epoch = keeper.begin("n", "s", 1)
    keeper.last(instant(1, epoch=epoch))
    restored = disk.keeper().restored
    assert restored is not None
    assert restored.epoch == epoch


def test_a_vow_is_durable_or_said_not_to_be(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = filled(disk)
    first, second = Vow(3, (1, "n")), Vow(3, (2, "n"))
    assert keeper.note("vow", first)
    with monkeypatch.context() as broken:
        broken.setattr(Folder, "put", _read_only)
        assert not keeper.note("vow", second)
        keeper.catch_up()
    (line,) = caplog.messages
    assert "Read-only" in line
    assert _vow(disk) == first
    keeper = disk.keeper()
    keeper.note("vow", second)
    assert _vow(disk) == second


def test_a_vow_that_was_not_durable_becomes_so(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = filled(disk)
    vow = Vow(3, (2, "n"))
    with monkeypatch.context() as broken:
        broken.setattr(Folder, "put", _read_only)
        keeper.note("vow", vow)
    keeper.catch_up()
    assert _vow(disk) == vow


def _vow(disk: Disk) -> Vow | None:
    memory = disk.keeper().memory
    assert memory is not None
    return memory.vow


def _read_only(*_: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


# -- in the background, and when it fails --------------------------------------------------------


def test_in_the_background_one_at_a_time(disk: Disk) -> None:
    keeper = filled(disk, 0)
    assert keeper.due(0.0)
    keeper.take(instant(1))
    assert keeper.wait(10.0)
    assert disk.numbers == [1]
    assert keeper.age_s < 10.0
    assert keeper.checkpoints.due_at > 1.0
    keeper.soon()
    assert keeper.due(0.0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_and_recovers(
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    keeper = filled(disk)
    told: list[int] = []
    keeper.on_saved = lambda _, kept: told.append(kept)
    write = files.write

    def fails(file: Any, checkpoint: Checkpoint) -> None:
        write(file, checkpoint)
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(files, "write", fails)
        for step in (4, 5, 6):
            assert not keeper.last(instant(step))
    assert keeper.failures == 3
    assert not told
    assert disk.numbers == [1, 2, 3]
    assert not [name for name in disk.names if name.endswith(".tmp")]
    assert 0 < keeper.checkpoints.due_at - time.monotonic() <= RETRY_S
    assert keeper.last(instant(7))
    assert told == [3]
    (first, last) = caplog.messages
    assert os.strerror(code) in first
    assert "training goes on" in first
    assert last.endswith("can be written again")


def test_slow_writing_takes_a_twentieth_of_the_time(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = filled(disk, 0)
    keeper.checkpoints.every_s = 1.0
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    write = files.write

    def slow(file: Any, checkpoint: Checkpoint) -> None:
        now[0] += 3.0
        write(file, checkpoint)

    monkeypatch.setattr(files, "write", slow)
    keeper.last(instant(1))
    assert not keeper.due(100.0 + 59.0)
    assert keeper.due(100.0 + 60.5)


def test_setting_aside(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    keeper = filled(disk)
    keeper.set_aside()
    assert (keeper.memory, keeper.restored, keeper.saved) == (None, None, [])
    assert caplog.records[-1].levelno == logging.WARNING
    assert "before-1" in caplog.text
    assert keeper.begin("n", "t", 1) > 0
    keeper.last(instant(1, swarm="t"))
    assert disk.keeper().swarm == "t"


def test_a_swarm_that_ended_before_its_first_checkpoint(disk: Disk) -> None:
    first = disk.keeper().begin("n", "s", 1000)
    keeper = disk.keeper()
    keeper.set_aside()
    assert disk.names == {"lock", "node.json"}
    assert keeper.begin("n", "t", 1) > first
    assert disk.keeper().swarm == "t"


# -- the instant ---------------------------------------------------------------------------------


def test_memory_for_copies_is_used_again() -> None:
    copies = Copies()
    source = torch.ones(5)
    first = copies.copy("a", source)
    copies.copy("b", source)
    copies.end()
    source.zero_()
    assert first.tolist() == [1.0] * 5
    assert copies.copy("a", source) is first
    copies.end()
    assert copies.copy("a", torch.ones(6)) is not first
    assert "b" not in copies._kept


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(1))

    def get_extra_state(self) -> Any:
        return object()

    def set_extra_state(self, _: Any) -> None:
        pass


def taken(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Instant, Checkpoint]:
    layout, parameters = Layout.of(model)
    instant_ = Instant(model, [optimizer], layout, parameters)
    tensors = instant_.copy(layout.gather(parameters), Copies())
    return instant_, replace(instant()(Copies()), **tensors)


def test_model_and_optimizer_come_back(caplog: pytest.LogCaptureFixture) -> None:
    model = Stateful()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.count.fill_(7)
    it, checkpoint = taken(model, optimizer)
    it.copy(checkpoint.weights, Copies())
    assert [m for m in caplog.messages if "_extra_state" in m] == [
        "_extra_state is not kept in checkpoints: it is no plain tensor"  # once
    ]
    momentum = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    optimizer.step()
    model.count.zero_()
    it.put_back(checkpoint, checkpoint.weights)
    assert model.count.tolist() == [7.0]
    layout, parameters = Layout.of(model)
    assert torch.equal(layout.gather(parameters), checkpoint.weights)
    for state, before in zip(optimizer.state.values(), momentum, strict=True):
        assert torch.equal(state["momentum_buffer"], before)


def test_an_optimizer_with_something_odd_starts_anew(caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["odd"] = object()
    it, checkpoint = taken(model, optimizer)
    assert checkpoint.optimizer_state is None
    (line,) = caplog.messages
    assert line.startswith("the state of torch.optim.sgd.SGD is not kept in checkpoints: ")
    it.put_back(checkpoint, checkpoint.weights)


def test_another_optimizer_starts_anew(caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    _, checkpoint = taken(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other = torch.optim.Adam(model.parameters(), lr=0.5)
    layout, parameters = Layout.of(model)
    Instant(model, [other], layout, parameters).put_back(checkpoint, checkpoint.weights)
    assert other.param_groups[0]["lr"] == 0.5
    assert "starts anew" in caplog.text
    caplog.clear()
    two = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.5)
    Instant(model, [two], layout, parameters).put_back(checkpoint, checkpoint.weights)
    assert two.param_groups[0]["lr"] == 0.5
    assert "does not fit" in caplog.text


def test_other_buffers_are_another_model() -> None:
    model = Stateful()
    _, checkpoint = taken(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plain = small()
    layout, parameters = Layout.of(plain)
    it = Instant(plain, [torch.optim.SGD(plain.parameters(), lr=0.1)], layout, parameters)
    before = layout.gather(parameters)
    with pytest.raises(CheckpointError, match="count"):
        it.put_back(checkpoint, checkpoint.weights)
    assert torch.equal(layout.gather(parameters), before)


def test_a_model_with_names_like_ours() -> None:
    model = nn.ModuleDict({"murmurate": nn.Linear(1, 1)})
    layout, parameters = Layout.of(model)
    with pytest.raises(ConfigError, match=r"murmurate\.weight"):
        Instant(model, [torch.optim.SGD(model.parameters(), lr=0.1)], layout, parameters)
