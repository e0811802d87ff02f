"""A node's directory: whole files or none, and one process at a time.

A file is written beside its name, synced, renamed, and the directory synced: whatever happens in
between, what stands under a name is whole. What a crash left beside is removed at the next start.
All names are made here, nothing in them comes from outside; links are not followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from murmurate.errors import CheckpointError

_open: weakref.WeakSet[Folder] = weakref.WeakSet()
"""A forked child must not hold the lock when its parent is gone: a DataLoader's may outlive it."""

LOCK = "lock"
MEMORY = "node.json"
TMP = ".tmp"
_CHECKPOINT = re.compile(r"checkpoint-(\d{12})\.safetensors")


class Folder:
    """An open, locked directory. OSError of `put` and `remove` are the caller's to judge."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from None
        try:
            self._lock = self._take()
        except BaseException:
            os.close(self._fd)
            raise
        self._open = True
        _open.add(self)
        with suppress(OSError):  # a disk that cannot be written is told by the first write
            self._clean()

    def _take(self) -> int:
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            lock = os.open(LOCK, flags, 0o644, dir_fd=self._fd)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise CheckpointError(f"{self.path}: cannot be locked: {error.strerror}") from None
            raise CheckpointError(
                f"{self.path}: another node keeps its checkpoints there; each needs its own folder"
            ) from None
        return lock

    def _clean(self) -> None:
        for name in os.listdir(self._fd):
            whole = name.removesuffix(TMP)
            if whole != name and (whole == MEMORY or _CHECKPOINT.fullmatch(whole)):
                os.unlink(name, dir_fd=self._fd)

    # -- files -----------------------------------------------------------------------------------

    def put(self, name: str, write: Callable[[BinaryIO], None]) -> None:
        """Durable under its name when this returns; on an error nothing has changed."""
        tmp = name + TMP
        with suppress(FileNotFoundError):
            os.unlink(tmp, dir_fd=self._fd)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(tmp, flags, 0o644, dir_fd=self._fd)
        try:
            with os.fdopen(fd, "r+b", buffering=0) as file:
                write(file)
                os.fsync(fd)
            os.rename(tmp, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(tmp, dir_fd=self._fd)
            raise
        os.fsync(self._fd)

    def get(self, name: str, bytes_max: int) -> bytes | None:
        """A small file; None: there is none."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return data

    def numbers(self) -> list[int]:
        """Of the checkpoints that are there, oldest first."""
        found = (_CHECKPOINT.fullmatch(name) for name in os.listdir(self._fd))
        return sorted(int(match[1]) for match in found if match)

    def checkpoint(self, number: int) -> Path:
        return self.path / checkpoint_name(number)

    def remove(self, number: int) -> None:
        os.unlink(checkpoint_name(number), dir_fd=self._fd)

    def set_aside(self) -> Path | None:
        """Move all there is into a folder of its own; None: there was nothing."""
        names = [checkpoint_name(number) for number in self.numbers()]
        names += [name for name in os.listdir(self._fd) if name == MEMORY]
        if not names:
            return None
        taken = set(os.listdir(self._fd))
        aside = next(new for k in range(1, 1 << 30) if (new := f"before-{k}") not in taken)
        os.mkdir(aside, dir_fd=self._fd)
        for name in names:  # the memory last: without it nothing here is taken up again
            os.rename(name, f"{aside}/{name}", src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)
        return self.path / aside

    def close(self) -> None:
        """Whoever comes next may have it."""
        if self._open:
            self._open = False
            os.close(self._lock)
            os.close(self._fd)


def checkpoint_name(number: int) -> str:
    return f"checkpoint-{number:012}.safetensors"


def _close_all() -> None:
    for folder in list(_open):
        folder.close()


os.register_at_fork(after_in_child=_close_all)
