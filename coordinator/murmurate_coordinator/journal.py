"""A hub's journal: every call of its solver since the last checkpoint, so that a kill loses none.

A solver is a pure object: from the same state the same calls lead to the same state, down to the
numbers of its leases. So what a checkpoint lacks is made again by calling it as it was called. A
call is written before it is made, and so before anybody is answered: what was accepted is in the
journal. It is handed to the system, not forced to the disk: it survives `kill -9` of this process,
not the end of the machine, which costs what came since the last checkpoint.

Each checkpoint begins another file. The last record may be torn: nobody was answered for it.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from murmurate.core.partition.structure import Structure
from murmurate.edge.net.batch_values import as_bytes, swapped
from murmurate.edge.net.subnet_values import dtype_of
from murmurate_coordinator.solvers.effects import Effect, MemberPush, PushAccepted
from murmurate_coordinator.solvers.protocol import Capacity, Json, Solver

log = logging.getLogger("murmurate")

HEAD = struct.Struct("<IIQI")
"""Magic, bytes of JSON, bytes of values, CRC-32 of both."""
MAGIC = 0x4D4A4E31
FILES_KEPT = 4
"""Three checkpoints are kept, and each may be the one to go on from; one more is being written."""
BYTES_MAX = 1 << 30
"""From here on a checkpoint is wanted soon."""


class Journal:
    """The files of one hub, in its checkpoint folder. Only the owner's thread calls it."""

    def __init__(self, folder: Path, structure: Structure) -> None:
        self._folder = folder
        self._structure = structure
        self._file: BinaryIO | None = None
        self.number = 0
        """Of the next record."""
        self.nbytes = 0
        """In the file of now."""

    def put(self, about: Json, values: Mapping[str, torch.Tensor] | None = None) -> None:
        """One record. A disk that is full costs a line, and the journal until the next file."""
        self.number += 1
        if self._file is None:
            return
        said = json.dumps([self.number - 1, about], separators=(",", ":")).encode()
        views = []
        for name in self._structure.tensors if values is not None else ():
            assert values is not None
            if values[name].numel():
                views.append(as_bytes(swapped(values[name].detach().contiguous())))
        crc = zlib.crc32(said)
        for view in views:
            crc = zlib.crc32(view, crc)
        size = sum(view.nbytes for view in views)
        try:
            self._file.write(HEAD.pack(MAGIC, len(said), size, crc))
            self._file.write(said)
            for view in views:
                self._file.write(view)
            self._file.flush()
        except OSError as error:
            log.warning("the journal cannot be written: %s; a kill now loses what follows", error)
            self.close()
        self.nbytes += HEAD.size + len(said) + size

    def next_file(self) -> int:
        """Another file begins, with the state that is saved now. The number of its first record."""
        self.close()
        try:
            self._file = self._path(self.number).open("wb")
        except OSError as error:
            log.warning("the journal cannot be written: %s; a kill now loses what follows", error)
        self.nbytes = 0
        for old in self._files()[:-FILES_KEPT]:
            old.unlink(missing_ok=True)
        return self.number

    def replay(self, solver: Solver, first: int) -> list[tuple[MemberPush, int]]:
        """Make all calls from this number on. The pushes that were taken, and their staleness."""
        self.number = first
        taken: list[tuple[MemberPush, int]] = []
        for path in self._files():
            if int(path.stem.removeprefix("journal-")) < first:
                continue
            for number, about, values in self._records(path):
                if number != self.number:
                    return taken  # one is missing: what follows cannot be made again
                effects = call(solver, about, values)
                self.number += 1
                if effects and isinstance(first_of := effects[0], PushAccepted):
                    taken.append((_counts(about), first_of.staleness or 0))
        return taken

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path(self, number: int) -> Path:
        return self._folder / f"journal-{number:020d}.log"

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("journal-*.log"))

    def _records(self, path: Path) -> Iterator[tuple[int, Json, dict[str, torch.Tensor]]]:
        with path.open("rb") as file:
            while len(head := file.read(HEAD.size)) == HEAD.size:
                magic, length, size, crc = HEAD.unpack(head)
                if magic != MAGIC or size > path.stat().st_size or length > path.stat().st_size:
                    return
                said, raw = file.read(length), bytearray(file.read(size))
                if (
                    len(said) < length
                    or len(raw) < size
                    or zlib.crc32(raw, zlib.crc32(said)) != crc
                ):
                    return
                number, about = json.loads(said)
                yield number, about, self._values(raw)

    def _values(self, raw: bytearray) -> dict[str, torch.Tensor]:
        out, offset = {}, 0
        for name, tensor in self._structure.tensors.items() if raw else ():
            dtype, count = dtype_of(tensor.dtype), 1
            for each in tensor.shape:
                count *= each
            value = torch.empty(0, dtype=dtype)
            if count:
                value = torch.frombuffer(raw, dtype=dtype, count=count, offset=offset).clone()
            out[name] = swapped(value.reshape(tensor.shape))
            offset += count * dtype.itemsize
        return out


def _counts(about: Json) -> MemberPush:
    """A push without what was in it."""
    plan, lease, version, steps, samples = about["push"]
    return MemberPush(str(about["peer"]), plan, lease, version, steps, samples, {})


def call(solver: Solver, about: Json, values: dict[str, torch.Tensor]) -> list[Effect]:
    """One of them, made again."""
    peer = str(about["peer"])
    match about["call"]:
        case "join":
            speed, memory = about["capacity"]
            return solver.join(peer, Capacity(speed=speed, memory_bytes=memory))
        case "leave":
            return solver.leave(peer)
        case "again":
            return solver.again(peer)
        case "away":
            solver.away(peer, gone=bool(about["gone"]))
        case "rate":
            solver.at_rate(float(about["factor"]))
        case "push":
            return solver.push(replace(_counts(about), values=values))
    return []


class JournaledSolver:
    """A solver whose calls are written down before they are made; else it is the solver."""

    def __init__(self, solver: Solver, journal: Journal) -> None:
        self._solver = solver
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._solver, name)

    def join(self, peer: str, capacity: Capacity | None = None) -> list[Effect]:
        it = capacity or Capacity()
        said = {"call": "join", "peer": peer, "capacity": [it.speed, it.memory_bytes]}
        self._journal.put(said)
        return self._solver.join(peer, capacity)

    def leave(self, peer: str) -> list[Effect]:
        self._journal.put({"call": "leave", "peer": peer})
        return self._solver.leave(peer)

    def again(self, peer: str) -> list[Effect]:
        self._journal.put({"call": "again", "peer": peer})
        return self._solver.again(peer)

    def away(self, peer: str, *, gone: bool = True) -> None:
        self._journal.put({"call": "away", "peer": peer, "gone": gone})
        self._solver.away(peer, gone=gone)

    def at_rate(self, factor: float) -> None:
        self._journal.put({"call": "rate", "peer": "", "factor": factor})
        self._solver.at_rate(factor)

    def push(self, push: MemberPush) -> list[Effect]:
        counts = [push.plan, push.lease, push.version, push.steps, push.samples]
        self._journal.put({"call": "push", "peer": push.peer, "push": counts}, push.values)
        return self._solver.push(push)
