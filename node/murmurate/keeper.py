"""What a node keeps on its disk: its memory, and a checkpoint now and then.

The training thread copies what it is at one instant, between two steps; a thread of its own hashes
and writes the copy while training goes on. One at a time, and never more than a twentieth of the
time: where writing takes long, checkpoints are further apart.

A disk that fails costs nothing but checkpoints: training goes on, a line says so, and it is tried
again until it works.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from murmurate.core.agreement import Vow
from murmurate.core.clock import Clock
from murmurate.core.layout import Layout
from murmurate.core.message import Generation
from murmurate.errors import CheckpointError
from murmurate.instant import Copies
from murmurate.io import checkpoint as files
from murmurate.io import memory as memories
from murmurate.io.checkpoint import Checkpoint, Damaged
from murmurate.io.folder import MEMORY, Folder, checkpoint_name
from murmurate.io.memory import Memory

log = logging.getLogger("murmurate")

KEPT = 3
SHARE = 0.05
"""Of the time that checkpoints may take."""
RETRY_S = 5.0
"""After a failure."""
WARN_S = 60.0
EPOCHS = 64
"""Epochs made durable at a time: a life that must start anew on a full disk has one to take."""
WAIT_S = 60.0
"""The last checkpoint waits this long for one that is being written."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint that is durable."""

    number: int
    epoch: int
    clock: Clock


class Keeper:
    """The disk of one node. `note` and `begin` are called with the runtime's lock held."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every_s: float,
        run: str,
        rule: str,
        asked: str,
        layout: Layout,
    ) -> None:
        """Take the directory and look what is there; `CheckpointError`: it is not for this node."""
        self.every_s = every_s
        self.failures = 0
        self.pause_s = self.write_s = 0.0
        """How long the last one took: of the training thread's time, and in the background."""
        self.saved: list[Saved] = []
        """Oldest first."""
        self.memory: Memory | None = None
        self.restored: Checkpoint | None = None
        self.on_saved: Callable[[Checkpoint, int], None] = _nothing
        """Told of each checkpoint that is durable, and how many are kept; in the background."""
        self.on_failure: Callable[[BaseException], None] = _nothing
        self.copies = Copies()
        self._run, self._rule, self._asked, self._layout = run, rule, asked, layout
        self._used = self._durable = 0
        """Epochs: the last one that was used in this process, the last that the disk has."""
        self._stale = False
        self._due_at = -math.inf
        self._saved_at = math.inf
        self._warned_at = -math.inf
        self._failing = False
        self._job: Checkpoint | None = None
        self._closed = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self.folder = Folder(path)
        try:
            self._look()
        except BaseException:
            self.folder.close()
            raise

    # -- what was there --------------------------------------------------------------------------

    def _look(self) -> None:
        where = self.folder.path
        try:
            data = self.folder.get(MEMORY, memories.BYTES_MAX)
            numbers = self.folder.numbers()
        except OSError as error:
            raise CheckpointError(f"{where}: {error.strerror}") from None
        self._number = max(numbers, default=0) + 1
        if data is None and not numbers:
            return
        if data is None:
            raise CheckpointError(
                f"{where}: checkpoints, but no {MEMORY}: whoever wrote them cannot be taken up"
                " again; give this node another folder"
            )
        memory = memories.from_bytes(data, str(where / MEMORY))
        self._compare(memory, where)
        self.memory = memory
        self._durable = memory.epoch
        self.restored = self._newest(numbers, memory)

    def _compare(self, memory: Memory, where: Path) -> None:
        for what, theirs, mine in (
            ("run", memory.run, self._run),
            ("rule", memory.rule, self._rule),
            ("name", memory.asked, self._asked or memory.asked),
        ):
            if theirs != mine:
                raise CheckpointError(f"{where}: of {what} {theirs!r}, this node has {mine!r}")
        if memory.schema != self._layout.schema:
            raise CheckpointError(f"{where}: of another model{self._difference()}")

    def _difference(self) -> str:
        """What differs, as far as a checkpoint there can tell."""
        for number in reversed(self.folder.numbers()):
            try:
                theirs = files.read(self.folder.checkpoint(number)).layout.tensors
            except CheckpointError:
                continue
            return f": it {self._layout.difference(theirs)}"
        return ""

    def _newest(self, numbers: list[int], memory: Memory) -> Checkpoint | None:
        """The newest whole one. Whole but of another run or model: refused, never passed over."""
        found: Checkpoint | None = None
        damaged = 0
        for number in reversed(numbers):
            path = self.folder.checkpoint(number)
            try:
                if found is None:
                    found = self._read(path, memory)
                    if found is not None:
                        self.saved.insert(0, Saved(number, found.epoch, found.clock))
                else:
                    epoch, clock = files.read_clock(path)
                    if epoch >= memory.void_below:
                        self.saved.insert(0, Saved(number, epoch, clock))
            except Damaged as error:
                damaged += 1
                log.warning("%s: %s; it is passed over", self.folder.path, error)
        if damaged and found is None:  # not to be found out from an untrained model
            raise CheckpointError(
                f"{self.folder.path}: none of its checkpoints is whole; give this node another"
                " folder to start without them"
            )
        return found

    def _read(self, path: Path, memory: Memory) -> Checkpoint | None:
        found = files.read(path)
        for what, theirs, mine in (
            ("run", found.run, self._run),
            ("rule", found.rule, self._rule),
            ("swarm", found.swarm, memory.swarm),
            ("name", found.name, memory.name),
        ):
            if theirs != mine:
                raise CheckpointError(f"{path}: of {what} {theirs!r}, this node has {mine!r}")
        if found.layout.schema != self._layout.schema:
            what = self._layout.difference(found.layout.tensors)
            raise CheckpointError(f"{path}: of another model: it {what}")
        return found if found.epoch >= memory.void_below else None

    # -- the memory ------------------------------------------------------------------------------

    @property
    def swarm(self) -> str:
        return self.memory.swarm if self.memory is not None else ""

    @property
    def name(self) -> str:
        return self.memory.name if self.memory is not None else self._asked

    @property
    def addresses(self) -> dict[str, str]:
        """Where the others were when the last checkpoint was made."""
        return dict(self.restored.members) if self.restored is not None else {}

    def begin(self, name: str, swarm: str, least: int) -> int:
        """The epoch of a new life, at least `least`, and never one that was used before.

        Durable when this returns. OSError: it is not.
        """
        memory, again = self.memory, self._used > 0
        if memory is None:
            memory = Memory(
                run=self._run,
                rule=self._rule,
                schema=self._layout.schema,
                asked=self._asked or name,
                name=name,
                swarm=swarm,
                epoch=0,
            )
        if again:  # within this process: the disk has it already, unless all of them are used up
            epoch = self._used + 1
        else:
            seen = [memory.epoch, self._durable, *(saved.epoch for saved in self.saved)]
            epoch = max(least, *(each + 1 for each in seen))
        self.memory = replace(
            memory,
            name=name,
            swarm=swarm,
            epoch=max(memory.epoch, epoch + EPOCHS),
            void_below=epoch if again else memory.void_below,
            history=() if again else memory.history,
            met=() if again else memory.met,
        )
        try:
            self._save()
        except OSError:
            if epoch > self._durable:
                raise
        self._used = epoch
        if again:
            self.saved.clear()
        return epoch

    def note(self, key: str, value: Any) -> bool:
        """Make a `Save` of the core durable; False: it is not, and must not be counted on."""
        assert self.memory is not None
        if key == "vow":
            assert isinstance(value, Vow)
            self.memory = replace(self.memory, vow=value)
        elif key == "met":
            met: tuple[str, ...] = value
            self.memory = replace(self.memory, met=met)
        else:
            history: tuple[Generation, ...] = value
            self.memory = replace(self.memory, history=history)
        try:
            self._save()
        except OSError as error:
            self._complain(error)
            return False
        return True

    def catch_up(self) -> None:
        """Write the memory that could not be written before."""
        if self._stale:
            try:
                self._save()
            except OSError as error:
                self._complain(error)

    def _save(self) -> None:
        assert self.memory is not None
        data = memories.to_bytes(self.memory)
        self._stale = True
        self.folder.put(MEMORY, lambda file: _write(file, data))
        self._stale = False
        self._durable = self.memory.epoch

    def set_aside(self) -> None:
        """What is here belongs to another swarm than the one that is there now."""
        if not self.saved:  # it ended before there was anything to keep
            self.memory = None
            return
        try:
            where = self.folder.set_aside()
        except OSError as error:
            raise CheckpointError(f"{self.folder.path}: {error.strerror}") from None
        self.memory = self.restored = None
        self.saved.clear()
        log.warning(
            "%s: another swarm trains run %r now; what was here is in %s",
            self.folder.path,
            self._run,
            where,
        )

    # -- checkpoints -----------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        return now >= self._due_at and self._job is None

    def soon(self) -> None:
        """The next one at the next step."""
        self._due_at = -math.inf

    def take(self, capture: Callable[[Copies], Checkpoint]) -> None:
        """Copy this instant, in this thread, and have it written in the background."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="keeper", daemon=True)
            self._thread.start()
        job = self._capture(capture)
        with self._change:
            self._job = job
            self._change.notify_all()

    def last(self, capture: Callable[[Copies], Checkpoint]) -> bool:
        """The last one: durable when this returns True."""
        with self._change:
            idle = self._change.wait_for(lambda: self._job is None, WAIT_S)
        if not idle:
            log.warning("%s: no last checkpoint, one is still being written", self.folder.path)
            return False
        return self._put(self._capture(capture))

    def wait(self, timeout_s: float) -> bool:
        """Until nothing is being written."""
        with self._change:
            return self._change.wait_for(lambda: self._job is None, timeout_s)

    @property
    def age_s(self) -> float:
        """Since the last good checkpoint of this process; infinite: there was none."""
        return time.monotonic() - self._saved_at if self._saved_at < math.inf else math.inf

    def close(self) -> None:
        """After this nothing is written any more."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(WAIT_S)
        self.folder.close()

    def _capture(self, capture: Callable[[Copies], Checkpoint]) -> Checkpoint:
        began = time.monotonic()
        self._due_at = began + self.every_s
        job = capture(self.copies)
        self.copies.end()
        self.pause_s = time.monotonic() - began
        return job

    def _write_all(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._job is not None or self._closed)
                job = self._job
            if job is None:
                return
            try:
                self._put(job)
            except BaseException as error:
                self.on_failure(error)  # and so at the next step
                raise
            finally:
                del job
                with self._change:
                    self._job = None
                    self._change.notify_all()

    def _put(self, job: Checkpoint) -> bool:
        began = time.monotonic()
        number = self._number
        try:
            self.folder.put(checkpoint_name(number), lambda file: files.write(file, job))
        except OSError as error:
            self.failures += 1
            self._due_at = time.monotonic() + min(RETRY_S, self.every_s)
            self._complain(error)
            return False
        finally:
            self._number = number + 1  # also after a failure: it may be there all the same
            now = time.monotonic()
            self.write_s = now - began
            least_s = (self.write_s + self.pause_s) / SHARE
            self._due_at = max(self._due_at, began + least_s)
        self._saved_at = now
        self.saved.append(Saved(number, job.epoch, job.clock))
        self._drop_old()
        if self._failing:
            self._failing = False
            log.warning("%s: checkpoints can be written again", self.folder.path)
        self.on_saved(job, len(self.saved))
        return True

    def _drop_old(self) -> None:
        whole = {saved.number for saved in self.saved[-KEPT:]}
        try:
            for number in self.folder.numbers():
                if number not in whole:
                    self.folder.remove(number)
        except OSError as error:
            self._complain(error)
        del self.saved[:-KEPT]

    def _complain(self, error: OSError) -> None:
        now = time.monotonic()
        if now >= self._warned_at + WARN_S or not self._failing:
            self._warned_at = now
            log.warning(
                "%s: cannot be written (%s); training goes on, without checkpoints",
                self.folder.path,
                error.strerror or error,
            )
        self._failing = True


def _write(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _nothing(*_: Any) -> None:
    """Nobody wants to know."""
