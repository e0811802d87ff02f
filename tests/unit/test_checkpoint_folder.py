"""The directory, the memory in it, and values that stand in files."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from murmurate.core.forgetting.vow import Vow
from murmurate.core.message import Generation
from murmurate.edge.disk import identity as memories
from murmurate.edge.disk import nested
from murmurate.edge.disk.folder import Folder, checkpoint_name
from murmurate.edge.disk.identity import NodeIdentity
from murmurate.errors import CheckpointError


def writes(data: bytes) -> Callable[[BinaryIO], None]:
    def write(file: BinaryIO) -> None:
        file.write(data)

    return write


def fails(file: BinaryIO) -> None:
    file.write(b"half of it")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(path: Path) -> set[str]:
    return set(os.listdir(path)) - {"lock"}


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "deep" / "er")
    folder.put("node.json", writes(b"first"))
    with pytest.raises(OSError, match="No space"):
        folder.put("node.json", fails)
    assert folder.get("node.json", 100) == b"first"
    assert names(folder.path) == {"node.json"}
    assert folder.get("nothing", 100) is None
    with pytest.raises(OSError, match="large"):
        folder.get("node.json", 4)


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_what_is_not_synced_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    folder = Folder(tmp_path)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, broken)
    with pytest.raises(OSError, match="Input/output"):
        folder.put(checkpoint_name(1), writes(b"it"))
    assert names(tmp_path) == set()


def test_first_the_file_is_synced_then_renamed_then_the_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)
    done: list[str] = []
    rename, fsync = os.rename, os.fsync

    def renames(*names: Any, **where: Any) -> None:
        done.append("rename")
        rename(*names, **where)

    def syncs(fd: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    monkeypatch.setattr(os, "rename", renames)
    monkeypatch.setattr(os, "fsync", syncs)
    folder.put("node.json", writes(b"it"))
    assert done == ["file", "rename", "folder"]


def test_what_a_crash_left_is_cleaned_up_and_nothing_else(tmp_path: Path) -> None:
    mine = {"checkpoint-000000000007.safetensors.tmp", "node.json.tmp"}
    theirs = {"notes.tmp", "checkpoint-7.safetensors.tmp", "checkpoint-000000000003.safetensors"}
    for name in mine | theirs:
        (tmp_path / name).touch()
    folder = Folder(tmp_path)
    assert names(tmp_path) == theirs
    assert folder.numbers() == [3]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with pytest.raises(CheckpointError, match="another node keeps its checkpoints there"):
        Folder(tmp_path)
    folder.close()
    Folder(tmp_path).close()


def test_a_forked_child_does_not_hold_it(tmp_path: Path) -> None:
    """A DataLoader's processes may outlive a node that was killed."""
    folder = Folder(tmp_path)
    mine, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        mine.close()
        theirs.send(b".")
        theirs.recv(1)  # until the test has ended
        os._exit(0)
    try:
        theirs.close()
        mine.recv(1)
        folder.close()
        Folder(tmp_path).close()
    finally:
        mine.close()
        os.waitpid(child, 0)


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file"):
        Folder(tmp_path / "file")
    with pytest.raises(CheckpointError, match="Not a directory"):
        Folder(tmp_path / "file" / "below")


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    folder = Folder(tmp_path / "in")
    os.symlink(outside, folder.path / "node.json.tmp")
    os.symlink(outside, folder.path / "node.json")
    with pytest.raises(OSError, match="symbolic"):
        folder.get("node.json", 100)
    folder.put("node.json", writes(b"it"))
    assert outside.read_bytes() == b"precious"
    assert folder.get("node.json", 100) == b"it"
    folder.close()
    os.unlink(folder.path / "lock")
    os.symlink(outside, folder.path / "lock")
    with pytest.raises(CheckpointError, match="symbolic"):
        Folder(folder.path)


def test_setting_aside(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.set_aside() is None
    for turn in (1, 2):
        folder.put("node.json", writes(b"it"))
        folder.put(checkpoint_name(turn), writes(b"it"))
        assert folder.set_aside() == tmp_path / f"before-{turn}"
        assert names(tmp_path / f"before-{turn}") == {"node.json", checkpoint_name(turn)}
    assert folder.numbers() == []


# -- the memory ----------------------------------------------------------------------------------

GENERATION = Generation(4, ("a", "b"), ((("c", 3), (1, 4, 7, 9)),), ("c",))
MEMORY = NodeIdentity(
    run="r",
    rule="sum",
    schema="0f",
    asked="n",
    name="n.2",
    swarm="5f",
    epoch=2**60,
    void_below=7,
    vow=Vow(5, (3, "a"), (GENERATION,), (2, "b"), Generation(5, ("a",))),
    history=(GENERATION,),
    met=("d", "e"),
)


@pytest.mark.parametrize("vow", [None, Vow(5, (3, "a")), MEMORY.vow])
def test_the_memory_comes_back(vow: Vow | None) -> None:
    memory = NodeIdentity(
        **{name: getattr(MEMORY, name) for name in NodeIdentity.__slots__} | {"vow": vow}
    )
    assert memories.from_bytes(memories.to_bytes(memory), "it") == memory


def test_any_change_of_it_is_noticed() -> None:
    good = memories.to_bytes(MEMORY)
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        with pytest.raises(CheckpointError):
            memories.from_bytes(bytes(bad), "it")
        with pytest.raises(CheckpointError):
            memories.from_bytes(good[:place], "it")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"format": 1', '"format": 2', "written by murmurate"),
        ('"epoch": 1', '"epoch": "1', "not the memory"),
        ('"run": "r"', '"run": 3', "run is no text"),
        ('"run"', '"walk"', "not the memory"),
        ('"roster": ["a", "b"]', '"roster": ["b", "a"]', "roster"),
        ('["d", "e"]', '["d", 5]', "met"),
        ("{", "[", "not the memory"),
    ],
)
def test_a_memory_that_cannot_be(old: str, new: str, problem: str) -> None:
    text = memories.to_bytes(MEMORY).splitlines()[0].decode().replace(old, new, 1).encode()
    with pytest.raises(CheckpointError, match=problem):
        memories.from_bytes(text + b"\n" + memories._digest(text) + b"\n", "it")


def test_a_memory_of_before_it_was_noted_who_was_met() -> None:
    text = memories.to_bytes(MEMORY).splitlines()[0].decode().replace(', "met": ["d", "e"]', "")
    data = text.encode()
    memory = memories.from_bytes(data + b"\n" + memories._digest(data) + b"\n", "it")
    assert (memory.met, memory.history) == ((), MEMORY.history)


# -- nested values -------------------------------------------------------------------------------


class Odd:
    pass


@pytest.mark.parametrize(
    "value", [Odd(), {"a": [1, Odd()]}, {(1, 2): 3}, {1.5: 2}, {"d": torch.float32}, b"bytes", {1}]
)
def test_what_is_no_plain_value(value: Any) -> None:
    with pytest.raises(nested.Unpackable):
        nested.pack(value, lambda *_: None)


def test_what_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(nested.Unpackable, match="deep"):
        nested.pack(loop, lambda *_: None)
