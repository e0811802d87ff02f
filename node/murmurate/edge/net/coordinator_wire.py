"""What a member and the coordinator say (proto/murmurate/v1/coordinator.proto).

The values of a subnet are in subnet_values.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from murmurate.core.batches.dealer import AHEAD_MAX, Take
from murmurate.core.batches.held import BatchRuns
from murmurate.core.values.limits import (
    Amount,
    Anything,
    Count,
    Few,
    Figure,
    Line,
    Name,
    Number,
    Octets,
    OneOf,
    Ordinal,
)
from murmurate.edge.net.messages import PROTOCOL_VERSION, Codec, RawCodec, Version
from murmurate.errors import RemoteProtocolError
from murmurate.v1 import coordinator_pb2 as pb

SERVICE = "murmurate.v1.Coordinator"
RAW_BYTES_MAX = 1 << 20
REST_BYTES_MAX = 64 << 10
MESSAGE_BYTES_MAX = RAW_BYTES_MAX + REST_BYTES_MAX
HELD_BYTES_MAX = 48 << 10
"""A bit for each unit: room for 393,216 of them."""
VALUE_BYTES_MAX = 1 << 40
DIGEST_BYTES = 32
BATCH_BYTES_MAX = 1 << 30
TENSORS_MAX = 64
AXES_MAX = 16

_DTYPES = ("f2", "f4", "f8", "bf2", "i1", "i2", "i4", "i8", "u1", "b1")
ITEM_BYTES = {name: int(name[-1]) for name in _DTYPES}

Offset = Annotated[int, Count(0, VALUE_BYTES_MAX)]
ValueBytes = Annotated[int, Count(1, VALUE_BYTES_MAX)]
Checksum = Annotated[int, Anything()]
"""Of `raw`; counted and looked at by the codec."""
Raw = Annotated[bytes | memoryview, Octets(0, RAW_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkHello:
    """«I am `name`, of this run, and can do so much.»"""

    version: Version = PROTOCOL_VERSION
    structure: Annotated[bytes, Octets(DIGEST_BYTES, DIGEST_BYTES)]
    run: Name
    name: Name
    instance: Name
    width: Amount = 0.0
    """0: as large a subnet as I am fast."""
    memory_bytes: Number = 0
    """0: enough for anything."""
    lease: Number = 0
    """The one I am training; 0: none."""
    lease_version: Number = 0
    mode: Line = "ist"
    """Empty: ist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """«My subnet after so many steps.» The values follow.

    Steps, samples and seconds are of all of the lease, pushed before or not.
    """

    plan: Ordinal
    lease: Ordinal
    version: Ordinal
    steps: Number
    samples: Number = 0
    loss: Figure = math.nan
    """Not a number: not known, or that is what it is."""
    seconds: Amount = 0.0
    value_bytes: ValueBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """«How I am doing.»"""

    samples: Number = 0
    steps: Number = 0
    samples_per_s: Amount = 0.0
    loss: Figure = math.nan
    wait_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a member says: a hello, a push with its first piece, a piece, how it does, what it has
    and needs of batches, or bye."""

    hello: WorkHello | None = None
    push: Return | None = None
    offset: Offset = 0
    raw: Raw = b""
    doing: Doing | None = None
    take: Take | None = None
    bye: bool = False
    checksum: Checksum = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkWelcome:
    """«Welcome; this is who assembles, and how.»"""

    version: Version = PROTOCOL_VERSION
    run: Name
    instance: Name
    rule: Name
    steps: Number
    """Local steps until a push; 0: push whenever the last one is done."""
    lease_holds: bool = False
    lease_version: Number = 0
    plan: Number = 0
    mode: Line = "ist"
    """Empty: ist."""
    pipelined: bool = False
    """Mode hub: nobody waits for an answer, and weights come whenever there are newer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """«Train this from now on, and nothing else.» The values follow."""

    plan: Ordinal
    lease: Ordinal
    version: Number
    held: Annotated[bytes, Octets(0, HELD_BYTES_MAX)]
    """Empty: a whole model, of which nothing is dealt."""
    value_bytes: ValueBytes
    spent: Amount = 0.0
    """The part of the run's budget that is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """«It is in the model.»"""

    lease: Ordinal
    version: Ordinal
    staleness: Number = 0
    spent: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTaken:
    """«It is not, and nothing was changed.»"""

    lease: Number
    version: Number
    reason: Name
    sentence: Line = ""


@dataclass(frozen=True, slots=True)
class BatchTensor:
    """One tensor of every batch."""

    dtype: Annotated[str, OneOf(_DTYPES)]
    shape: Annotated[tuple[Annotated[int, Count(0, BATCH_BYTES_MAX)], ...], Few(AXES_MAX)]

    @property
    def nbytes(self) -> int:
        size = ITEM_BYTES[self.dtype]
        for each in self.shape:
            size *= each
        return size

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """«Train on these.» Their values follow."""

    numbers: Annotated[tuple[Ordinal, ...], Few(AHEAD_MAX)]
    samples: Ordinal
    """In each."""
    tensors: Annotated[tuple[BatchTensor, ...], Few(TENSORS_MAX)]
    value_bytes: ValueBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLease:
    """«These are yours, and nothing else.»"""

    beat: Number
    numbers: BatchRuns = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the coordinator says: one of these; a give and batches have their first piece in
    `raw`."""

    welcome: WorkWelcome | None = None
    give: Give | None = None
    offset: Offset = 0
    raw: Raw = b""
    taken: Taken | None = None
    not_taken: NotTaken | None = None
    waits: Line = ""
    stop: Line = ""
    batches: Batches | None = None
    lease: BatchLease | None = None
    checksum: Checksum = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    """«End the run», from a person."""

    version: Version = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStops:
    """«It ends»: members still push what they have."""

    version: Version = PROTOCOL_VERSION
    run: Name
    members: Number = 0


# -- what lies between fields --------------------------------------------------------------------


def _check_work(work: Work) -> None:
    h, push = work.hello, work.push
    if h is not None and h.lease_version and not h.lease:
        raise RemoteProtocolError("hello.lease_version", f"{h.lease_version}, expected 0 to 0")
    _check_piece("work", push is not None, work.offset, work.raw)
    _check_one("work", (h, push, work.raw and push is None, work.doing, work.take, work.bye))


def _check_task(task: Task) -> None:
    announced = task.give is not None or task.batches is not None
    _check_piece("task", announced, task.offset, task.raw)
    alone = task.raw and not announced
    answers = (task.taken, task.not_taken, task.waits, task.stop, task.lease)
    _check_one("task", (task.welcome, task.give, task.batches, alone, *answers))


def _check_piece(what: str, announced: bool, offset: int, raw: bytes | memoryview) -> None:
    """An announcement has the first bytes with it, and later ones say where they belong."""
    if announced and not raw:
        raise RemoteProtocolError(f"{what}.raw", "missing: the first piece comes with its values")
    if bool(offset) != (bool(raw) and not announced):
        raise RemoteProtocolError(f"{what}.offset", f"{offset} with {len(raw)} raw bytes")


def _check_one(what: str, things: tuple[object, ...]) -> None:
    count = sum(map(bool, things))
    if count != 1:
        raise RemoteProtocolError(what, f"{count} things said, expected one")


WORK = RawCodec(
    Work,
    pb.Work,
    "work",
    rest_bytes_max=REST_BYTES_MAX,
    raw_bytes_max=RAW_BYTES_MAX,
    check=_check_work,
)
TASK = RawCodec(
    Task,
    pb.Task,
    "task",
    rest_bytes_max=REST_BYTES_MAX,
    raw_bytes_max=RAW_BYTES_MAX,
    check=_check_task,
)
STOP_RUN = Codec(StopRun, pb.StopRun, "stop", bytes_max=REST_BYTES_MAX)
RUN_STOPS = Codec(RunStops, pb.RunStops, "stops", bytes_max=REST_BYTES_MAX)
encode_work, decode_work = WORK.encode, WORK.decode
encode_task, decode_task = TASK.encode, TASK.decode
