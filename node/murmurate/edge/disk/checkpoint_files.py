"""The checkpoints in one folder, for every program: numbered, whole or not at all, three kept.

Writing takes at most a twentieth of the time: where it takes long, checkpoints are further apart. A
disk that fails costs nothing but checkpoints: training goes on, a line says so, and it is tried
again until it works. A torn file is passed over with a line when a program comes back.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from murmurate.edge.disk.checkpoint import Damaged
from murmurate.edge.disk.folder import Folder, checkpoint_name
from murmurate.errors import CheckpointError

T = TypeVar("T")
Write = Callable[[BinaryIO], None]
log = logging.getLogger("murmurate")

KEPT = 3
SHARE = 0.05
"""Of the time that checkpoints may take."""
RETRY_S = 5.0
"""After a failure."""
WARN_S = 60.0


class CheckpointFiles:
    """An open folder and what is kept there. `put` blocks and belongs into a thread."""

    def __init__(self, path: str | os.PathLike[str], every_s: float) -> None:
        """CheckpointError: the folder cannot be had."""
        self.every_s = every_s
        self.failures = 0
        self.write_s = 0.0
        """How long the last one took."""
        self.kept: list[int] = []
        """The numbers of those that are whole, oldest first; others go at the next `put`."""
        self.torn = 0
        self.due_at = self._least_at = -math.inf
        """When the next one should be made; and may be, as writing goes."""
        self._saved_at = math.inf
        self._warned_at = -math.inf
        self._failing = False
        self.folder = Folder(path)
        try:
            self._number = max(self.numbers(), default=0) + 1
        except BaseException:
            self.folder.close()
            raise

    # -- what was there --------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Oldest first."""
        try:
            return self.folder.numbers()
        except OSError as error:
            raise CheckpointError(f"{self.folder.path}: {error.strerror}") from None

    def whole(self, read: Callable[[Path], T]) -> Iterator[tuple[int, T]]:
        """What `read` makes of each, newest first. Who takes one puts its number among `kept`."""
        for number in reversed(self.numbers()):
            try:
                found = read(self.folder.checkpoint(number))
            except Damaged as error:
                self.torn += 1
                log.warning("%s: %s; it is passed over", self.folder.path, error)
                continue
            yield number, found

    def require_whole(self, found: object | None, whose: str) -> None:
        """Of torn ones only, nobody starts anew: it would show only in an untrained model."""
        if self.torn and found is None:
            raise CheckpointError(
                f"{self.folder.path}: none of its checkpoints is whole; give {whose} another"
                " folder to start without them"
            )

    # -- when ------------------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        return now >= self.due_at

    def begin(self) -> float:
        """One is made now; the next is due an interval later."""
        now = time.monotonic()
        self.due_at = now + self.every_s
        return now

    def soon(self) -> None:
        """The next one as soon as may be."""
        self.due_at = -math.inf

    def within(self, seconds: float) -> None:
        """The next one in so many seconds, if writing leaves the time."""
        self.due_at = min(self.due_at, max(time.monotonic() + seconds, self._least_at))

    @property
    def age_s(self) -> float:
        """Since the last good one of this process; infinite: there was none."""
        return time.monotonic() - self._saved_at if self._saved_at < math.inf else math.inf

    # -- writing ---------------------------------------------------------------------------------

    def put(
        self, write: Write, beside: Mapping[str, Write] | None = None, *, paused_s: float = 0.0
    ) -> int | None:
        """Its number, durable when this returns; None: the disk failed.

        `beside`: further files, by name. `paused_s`: what making it took of the training's time.
        """
        began = time.monotonic()
        number = self._number
        try:
            self.folder.put(checkpoint_name(number), write)
            self.kept.append(number)
            self._drop_old()  # before what lies beside: it may need the room
            for name, each in (beside or {}).items():
                self.folder.put(name, each)
        except OSError as error:
            self.failures += 1
            self.due_at = time.monotonic() + min(RETRY_S, self.every_s)
            self.complain(error)
            return None
        finally:
            self._number = number + 1  # also after a failure: it may be there all the same
            now = time.monotonic()
            self.write_s = now - began
            self._least_at = began + (self.write_s + paused_s) / SHARE
            self.due_at = max(self.due_at, self._least_at)
        self._saved_at = now
        if self._failing:
            self._failing = False
            log.warning("%s: checkpoints can be written again", self.folder.path)
        return number

    def _drop_old(self) -> None:
        del self.kept[:-KEPT]
        try:
            for number in self.folder.numbers():
                if number not in self.kept:
                    self.folder.remove(number)
        except OSError as error:
            self.complain(error)

    def complain(self, error: OSError) -> None:
        """One line, and another when it lasts."""
        now = time.monotonic()
        if now >= self._warned_at + WARN_S or not self._failing:
            self._warned_at = now
            log.warning(
                "%s: cannot be written (%s); training goes on, without checkpoints",
                self.folder.path,
                error.strerror or error,
            )
        self._failing = True

    def close(self) -> None:
        """Whoever comes next may have the folder."""
        self.folder.close()


class BackgroundWriter(Generic[T]):
    """A thread that writes what it is given, one at a time, while training goes on."""

    def __init__(
        self, write: Callable[[T], object], failed: Callable[[BaseException], None]
    ) -> None:
        self._write = write
        self._failed = failed
        self._job: T | None = None
        self._closed = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._job is not None

    def start(self) -> None:
        """Before the first copy is made, so that its memory is not the thread's too."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
            self._thread.start()

    def give(self, job: T) -> None:
        with self._change:
            self._job = job
            self._change.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Until nothing is being written; False: it took longer."""
        with self._change:
            return self._change.wait_for(lambda: self._job is None, timeout_s)

    def close(self, timeout_s: float) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._job is not None or self._closed)
                job = self._job
            if job is None:
                return
            try:
                self._write(job)
            except BaseException as error:
                self._failed(error)  # and so at the next step
                raise
            finally:
                del job
                with self._change:
                    self._job = None
                    self._change.notify_all()
