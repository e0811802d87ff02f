"""How many nodes of one user train on this machine: what a node's share of the cores follows.

Each holds a locked file while it lives, whatever run it belongs to; the kernel lets go of the lock
when it dies. Where no such file can be had, a node takes itself to be alone, as it always did.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

TRIES = 8


class SharedMachine:
    """Counted from now until `close`, or until this process ends."""

    def __init__(self, folder: Path | None = None) -> None:
        user = os.getuid() if hasattr(os, "getuid") else 0
        self._folder = folder or Path(tempfile.gettempdir()) / f"murmurate-{user}"
        self._file: int | None = None
        with suppress(OSError):
            self._enter()

    def _enter(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        about = self._folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return  # somebody else's: nothing in it is to be believed
        for _ in range(TRIES):
            path = self._folder / f"node-{secrets.token_hex(8)}"
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():  # nobody took it for a dead one's before it was locked
                self._file, self._path = file, path
                return
            os.close(file)

    def nodes(self) -> int:
        """This one included. What a dead one left behind is removed."""
        if self._file is None:
            return 1
        count = 0
        with suppress(OSError):
            for path in self._folder.glob("node-*"):
                count += path == self._path or _held(path)
        return max(1, count)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._file)
            self._file = None


def _held(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # it has just ended
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink()
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(file)
    return False


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
