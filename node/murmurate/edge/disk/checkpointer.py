"""What a node keeps on its disk: who it is, and a checkpoint now and then.

The training thread copies what it is at one instant, between two steps; a thread of its own hashes
and writes the copy while training goes on (`edge.disk.checkpoint_files`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from murmurate.core.clock import Clock
from murmurate.core.forgetting.vow import Vow
from murmurate.core.layout import Layout
from murmurate.core.message import Generation
from murmurate.edge.disk import checkpoint as files
from murmurate.edge.disk import identity as memories
from murmurate.edge.disk.checkpoint import Checkpoint
from murmurate.edge.disk.checkpoint_files import KEPT, BackgroundWriter, CheckpointFiles
from murmurate.edge.disk.copies import Copies
from murmurate.edge.disk.folder import MEMORY
from murmurate.edge.disk.identity import NodeIdentity
from murmurate.errors import CheckpointError

log = logging.getLogger("murmurate")

EPOCHS = 64
"""Epochs made durable at a time: a life that must start anew on a full disk has one to take."""
WAIT_S = 60.0
"""The last checkpoint waits this long for one that is being written."""


@dataclass(frozen=True, slots=True)
class DurableCheckpoint:
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
        self.pause_s = 0.0
        """What the last one took of the training thread's time."""
        self.saved: list[DurableCheckpoint] = []
        """Oldest first."""
        self.memory: NodeIdentity | None = None
        self.restored: Checkpoint | None = None
        self.on_saved: Callable[[Checkpoint, int], None] = _nothing
        """Told of each checkpoint that is durable, and how many are kept; in the background."""
        self.on_failure: Callable[[BaseException], None] = _nothing
        self.copies = Copies()
        self._run, self._rule, self._asked, self._layout = run, rule, asked, layout
        self._used = self._durable = 0
        """Epochs: the last one that was used in this process, the last that the disk has."""
        self._stale = False
        self._background = BackgroundWriter(self._put, self._fail)
        self.checkpoints = CheckpointFiles(path, every_s)
        self.folder = self.checkpoints.folder
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
        except OSError as error:
            raise CheckpointError(f"{where}: {error.strerror}") from None
        numbers = self.checkpoints.numbers()
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
        self._find(memory)

    def _compare(self, memory: NodeIdentity, where: Path) -> None:
        for what, theirs, mine in (
            ("run", memory.run, self._run),
            ("rule", memory.rule, self._rule),
            ("name", memory.asked, self._asked or memory.asked),
        ):
            if theirs != mine:
                raise CheckpointError(
                    f"{where}: of {what} {theirs!r}, this node has {mine!r}: go on with the same"
                    f" {what}, or in another folder"
                )
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

    def _find(self, memory: NodeIdentity) -> None:
        """The newest whole one is `restored`, of the others the clock is enough. Whole but of
        another run or model: refused, never passed over."""

        def read(path: Path) -> tuple[int, Clock] | None:
            if self.restored is None:
                self.restored = found = self._read(path, memory)
                return (found.epoch, found.clock) if found is not None else None
            epoch, clock = files.read_clock(path)
            return (epoch, clock) if epoch >= memory.void_below else None

        for number, found in self.checkpoints.whole(read):
            if found is not None:
                self.saved.insert(0, DurableCheckpoint(number, *found))
        self.checkpoints.require_whole(self.restored, "this node")
        self.checkpoints.kept = [saved.number for saved in self.saved]

    def _read(self, path: Path, memory: NodeIdentity) -> Checkpoint | None:
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
            memory = NodeIdentity(
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
            since=epoch if self.memory is None else memory.since,
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
            self._forget_saved()
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
            self.checkpoints.complain(error)
            return False
        return True

    def catch_up(self) -> None:
        """Write the memory that could not be written before."""
        if self._stale:
            try:
                self._save()
            except OSError as error:
                self.checkpoints.complain(error)

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
        self._forget_saved()
        log.warning(
            "%s: another swarm trains run %r now; what was here is in %s",
            self.folder.path,
            self._run,
            where,
        )

    # -- checkpoints -----------------------------------------------------------------------------

    def due(self, now: float) -> bool:
        return self.checkpoints.due(now) and not self._background.busy

    def soon(self) -> None:
        """The next one at the next step."""
        self.checkpoints.soon()

    def take(self, capture: Callable[[Copies], Checkpoint]) -> None:
        """Copy this instant, in this thread, and have it written in the background."""
        self._background.start()
        self._background.give(self._capture(capture))

    def last(self, capture: Callable[[Copies], Checkpoint]) -> bool:
        """The last one: durable when this returns True."""
        if not self.wait(WAIT_S):
            log.warning("%s: no last checkpoint, one is still being written", self.folder.path)
            return False
        return self._put(self._capture(capture))

    def wait(self, timeout_s: float) -> bool:
        """Until nothing is being written."""
        return self._background.wait(timeout_s)

    @property
    def age_s(self) -> float:
        """Since the last good checkpoint of this process; infinite: there was none."""
        return self.checkpoints.age_s

    @property
    def every_s(self) -> float:
        return self.checkpoints.every_s

    @property
    def failures(self) -> int:
        return self.checkpoints.failures

    @property
    def write_s(self) -> float:
        """What the last one took in the background."""
        return self.checkpoints.write_s

    def close(self) -> None:
        """After this nothing is written any more."""
        self._background.close(WAIT_S)
        self.checkpoints.close()

    def _capture(self, capture: Callable[[Copies], Checkpoint]) -> Checkpoint:
        began = self.checkpoints.begin()
        job = capture(self.copies)
        self.copies.end()
        self.pause_s = time.monotonic() - began
        return job

    def _put(self, job: Checkpoint) -> bool:
        number = self.checkpoints.put(lambda file: files.write(file, job), paused_s=self.pause_s)
        if number is None:
            return False
        self.saved.append(DurableCheckpoint(number, job.epoch, job.clock))
        del self.saved[:-KEPT]
        self.on_saved(job, len(self.saved))
        return True

    def _fail(self, error: BaseException) -> None:
        self.on_failure(error)  # whoever wants to know by then

    def _forget_saved(self) -> None:
        self.saved.clear()
        self.checkpoints.kept.clear()


def _write(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _nothing(*_: Any) -> None:
    """Nobody wants to know."""
