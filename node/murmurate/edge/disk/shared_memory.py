"""Weights that processes of one machine share: a file in memory that each of them maps.

Nobody locks it for training: whoever writes, writes (Hogwild). What is locked is only that somebody
uses it, so that the last one to go, or the next one to come after all were killed, takes it away.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

from murmurate.errors import ConfigError

PREFIX = "murmurate-hogwild-"
MEMBERS_MAX = 1024
STEPS_BYTES = 8 * MEMBERS_MAX


def folder() -> Path:
    """Memory, where the system has a folder for it."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


class SharedWeights:
    """One flat buffer of numbers for all, and a count of steps for each."""

    def __init__(self, path: Path, size: int, dtype: torch.dtype) -> None:
        """ConfigError: there is none of that size, or it is not this user's."""
        self.path = path
        nbytes = size * dtype.itemsize
        try:
            self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"mode 'hogwild': the weights are in {path}, which cannot be opened here"
                f" ({error.strerror}): all members must be processes of one machine and one user"
            ) from None
        try:
            found = os.fstat(self._file)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                raise ConfigError(f"mode 'hogwild': {path} is not a file of this user")
            if found.st_size != nbytes + STEPS_BYTES:
                raise ConfigError(f"mode 'hogwild': {path} has the weights of another model")
            fcntl.flock(self._file, fcntl.LOCK_SH)
            self.slot = self._claim()
        except BaseException:
            os.close(self._file)
            raise
        whole = torch.from_file(
            str(path), shared=True, size=nbytes + STEPS_BYTES, dtype=torch.uint8
        )
        self.steps = whole[:STEPS_BYTES].view(torch.int64)
        """By slot; each member writes its own only, so no count is ever lost."""
        self.weights = whole[STEPS_BYTES:].view(dtype)

    @classmethod
    def create(cls, first: torch.Tensor) -> SharedWeights:
        """A new one, with these in it."""
        clean()
        path = folder() / f"{PREFIX}{secrets.token_hex(8)}"
        size = first.numel() * first.element_size() + STEPS_BYTES
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, size)  # or a full memory would end the process later
            finally:
                os.close(file)
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise ConfigError(
                f"mode 'hogwild': {size:,} bytes do not fit into {path.parent}: {error.strerror}"
            ) from None
        shared = cls(path, first.numel(), first.dtype)
        shared.weights.copy_(first)
        return shared

    def _claim(self) -> int:
        """A place of its own among the counts. A place is never used twice."""
        for slot in range(MEMBERS_MAX):
            with suppress(FileExistsError):
                os.close(os.open(f"{self.path}.{slot}", os.O_CREAT | os.O_EXCL, 0o600))
                return slot
        raise ConfigError(f"mode 'hogwild': {MEMBERS_MAX} members have been here, no more can be")

    def stepped(self) -> None:
        """I made a step."""
        self.steps[self.slot] += 1

    def others_steps(self) -> int:
        """How many steps all others have made so far."""
        return int(self.steps.sum()) - int(self.steps[self.slot])

    def close(self) -> None:
        """Use it no more; the last one takes it away."""
        os.close(self._file)
        _take_away(self.path)


def known(path: str) -> Path | None:
    """The file a peer speaks of, if it is one that a member makes."""
    found = Path(path)
    inside = found.parent == folder() and found.name.startswith(PREFIX)
    return found if inside and "." not in found.name else None


def clean() -> None:
    """Take away what processes that were killed have left behind."""
    for path in folder().glob(f"{PREFIX}*"):
        if "." not in path.name:
            _take_away(path)


def _take_away(path: Path) -> None:
    """Unless somebody uses it."""
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            for slot in path.parent.glob(f"{path.name}.*"):
                slot.unlink()
        finally:
            os.close(file)
