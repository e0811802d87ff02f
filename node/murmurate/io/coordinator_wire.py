"""What a member and the coordinator say, as bytes and back (proto/murmurate/v1/coordinator.proto).

Whatever is wrong with bytes from the network comes out as `RemoteProtocolError`, which names the
field, or as `SchemaMismatch` (another version), and as nothing else. The values of a subnet are in
coordinator_values.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message

from murmurate.core.runs import SEQ_MAX
from murmurate.errors import LocalProtocolError, RemoteProtocolError
from murmurate.io import fields
from murmurate.io.fields import PROTOCOL_VERSION
from murmurate.v1 import coordinator_pb2 as pb

SERVICE = "murmurate.v1.Coordinator"
RAW_BYTES_MAX = 1 << 20
REST_BYTES_MAX = 64 << 10
MESSAGE_BYTES_MAX = RAW_BYTES_MAX + REST_BYTES_MAX
HELD_BYTES_MAX = 48 << 10
"""A bit for each unit: room for 393,216 of them."""
VALUE_BYTES_MAX = 1 << 40
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkHello:
    """«I am `name`, of this run, and can do so much.»"""

    version: int = PROTOCOL_VERSION
    run: str
    name: str
    instance: str
    structure: bytes
    width: float = 0.0
    """0: as large a subnet as I am fast."""
    memory_bytes: int = 0
    """0: enough for anything."""
    lease: int = 0
    """The one I am training; 0: none."""
    lease_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """«My subnet after so many steps.» The values follow.

    Steps, samples and seconds are of all of the lease, pushed before or not.
    """

    plan: int
    lease: int
    version: int
    steps: int
    samples: int = 0
    loss: float = math.nan
    """Not a number: not known, or that is what it is."""
    seconds: float = 0.0
    value_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """«How I am doing.»"""

    samples: int = 0
    steps: int = 0
    samples_per_s: float = 0.0
    loss: float = math.nan
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a member says: a hello, a push with its first piece, a piece, how it does, or bye."""

    hello: WorkHello | None = None
    push: Return | None = None
    offset: int = 0
    raw: bytes | memoryview = b""
    doing: Doing | None = None
    bye: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkWelcome:
    """«Welcome; this is who assembles, and how.»"""

    version: int = PROTOCOL_VERSION
    run: str
    instance: str
    rule: str
    steps: int
    """Local steps until a push; 0: push whenever the last one is done."""
    lease_holds: bool = False
    lease_version: int = 0
    plan: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """«Train this from now on, and nothing else.» The values follow."""

    plan: int
    lease: int
    version: int
    held: bytes
    value_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """«It is in the model.»"""

    lease: int
    version: int
    staleness: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTaken:
    """«It is not, and nothing was changed.»"""

    lease: int
    version: int
    reason: str
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the coordinator says: one of these; a give has its first piece in `raw`."""

    welcome: WorkWelcome | None = None
    give: Give | None = None
    offset: int = 0
    raw: bytes | memoryview = b""
    taken: Taken | None = None
    not_taken: NotTaken | None = None
    waits: str = ""
    stop: str = ""


# -- from the member -----------------------------------------------------------------------------


def encode_work(work: Work) -> bytes:
    h, p, d = work.hello, work.push, work.doing
    return _bytes(
        "work",
        work.raw,
        lambda: pb.Work(
            hello=None
            if h is None
            else pb.WorkHello(
                version=h.version,
                run=h.run,
                name=h.name,
                instance=h.instance,
                structure=h.structure,
                width=h.width,
                memory_bytes=h.memory_bytes,
                lease=h.lease,
                lease_version=h.lease_version,
            ),
            push=None
            if p is None
            else pb.Return(
                plan=p.plan,
                lease=p.lease,
                version=p.version,
                steps=p.steps,
                samples=p.samples,
                loss=p.loss,
                seconds=p.seconds,
                value_bytes=p.value_bytes,
                checksum=p.checksum,
            ),
            offset=work.offset,
            raw=bytes(work.raw),
            doing=None
            if d is None
            else pb.Doing(
                samples=d.samples,
                steps=d.steps,
                samples_per_s=d.samples_per_s,
                loss=d.loss,
                wait_s=d.wait_s,
            ),
            bye=work.bye,
        ),
    )


def decode_work(data: bytes) -> Work:
    m = fields.parsed("work", pb.Work, data, MESSAGE_BYTES_MAX)
    push = _read_return(m.push) if m.HasField("push") else None
    _check_piece("work", push is not None, m.offset, m.raw)
    work = Work(
        hello=_read_hello(m.hello) if m.HasField("hello") else None,
        push=push,
        offset=m.offset,
        raw=m.raw,
        doing=_read_doing(m.doing) if m.HasField("doing") else None,
        bye=m.bye,
    )
    _check_one("work", (work.hello, push, m.raw and push is None, work.doing, work.bye))
    return work


def _read_hello(m: pb.WorkHello) -> WorkHello:
    version = fields.version("hello", m.version)
    if len(m.structure) != DIGEST_BYTES:
        raise RemoteProtocolError(
            "hello.structure", f"{len(m.structure)} bytes, expected {DIGEST_BYTES}"
        )
    return WorkHello(
        version=version,
        run=fields.name("hello.run", m.run),
        name=fields.name("hello.name", m.name),
        instance=fields.name("hello.instance", m.instance),
        structure=m.structure,
        width=_amount("hello.width", m.width),
        memory_bytes=fields.number("hello.memory_bytes", m.memory_bytes),
        lease=fields.number("hello.lease", m.lease),
        lease_version=fields.number(
            "hello.lease_version", m.lease_version, 0, SEQ_MAX if m.lease else 0
        ),
    )


def _read_return(m: pb.Return) -> Return:
    return Return(
        plan=fields.number("push.plan", m.plan, 1),
        lease=fields.number("push.lease", m.lease, 1),
        version=fields.number("push.version", m.version, 1),
        steps=fields.number("push.steps", m.steps),
        samples=fields.number("push.samples", m.samples),
        loss=m.loss,
        seconds=_amount("push.seconds", m.seconds),
        value_bytes=fields.number("push.value_bytes", m.value_bytes, 1, VALUE_BYTES_MAX),
        checksum=m.checksum,
    )


def _read_doing(m: pb.Doing) -> Doing:
    return Doing(
        samples=fields.number("doing.samples", m.samples),
        steps=fields.number("doing.steps", m.steps),
        samples_per_s=_amount("doing.samples_per_s", m.samples_per_s),
        loss=m.loss,
        wait_s=_amount("doing.wait_s", m.wait_s),
    )


# -- from the coordinator ------------------------------------------------------------------------


def encode_task(task: Task) -> bytes:
    w, g, t, n = task.welcome, task.give, task.taken, task.not_taken
    return _bytes(
        "task",
        task.raw,
        lambda: pb.Task(
            welcome=None
            if w is None
            else pb.WorkWelcome(
                version=w.version,
                run=w.run,
                instance=w.instance,
                rule=w.rule,
                steps=w.steps,
                lease_holds=w.lease_holds,
                lease_version=w.lease_version,
                plan=w.plan,
            ),
            give=None
            if g is None
            else pb.Give(
                plan=g.plan,
                lease=g.lease,
                version=g.version,
                held=g.held,
                value_bytes=g.value_bytes,
                checksum=g.checksum,
            ),
            offset=task.offset,
            raw=bytes(task.raw),
            taken=None
            if t is None
            else pb.Taken(lease=t.lease, version=t.version, staleness=t.staleness),
            not_taken=None
            if n is None
            else pb.NotTaken(
                lease=n.lease, version=n.version, reason=n.reason, sentence=n.sentence
            ),
            waits=task.waits,
            stop=task.stop,
        ),
    )


def decode_task(data: bytes) -> Task:
    m = fields.parsed("task", pb.Task, data, MESSAGE_BYTES_MAX)
    give = _read_give(m.give) if m.HasField("give") else None
    _check_piece("task", give is not None, m.offset, m.raw)
    task = Task(
        welcome=_read_welcome(m.welcome) if m.HasField("welcome") else None,
        give=give,
        offset=m.offset,
        raw=m.raw,
        taken=_read_taken(m.taken) if m.HasField("taken") else None,
        not_taken=_read_not_taken(m.not_taken) if m.HasField("not_taken") else None,
        waits=fields.text("task.waits", m.waits),
        stop=fields.text("task.stop", m.stop),
    )
    alone = m.raw and give is None
    _check_one(
        "task", (task.welcome, give, alone, task.taken, task.not_taken, task.waits, task.stop)
    )
    return task


def _read_welcome(m: pb.WorkWelcome) -> WorkWelcome:
    return WorkWelcome(
        version=fields.version("welcome", m.version),
        run=fields.name("welcome.run", m.run),
        instance=fields.name("welcome.instance", m.instance),
        rule=fields.name("welcome.rule", m.rule),
        steps=fields.number("welcome.steps", m.steps),
        lease_holds=m.lease_holds,
        lease_version=fields.number("welcome.lease_version", m.lease_version),
        plan=fields.number("welcome.plan", m.plan),
    )


def _read_give(m: pb.Give) -> Give:
    if not 0 < len(m.held) <= HELD_BYTES_MAX:
        raise RemoteProtocolError(
            "give.held", f"{len(m.held)} bytes, expected 1 to {HELD_BYTES_MAX}"
        )
    return Give(
        plan=fields.number("give.plan", m.plan, 1),
        lease=fields.number("give.lease", m.lease, 1),
        version=fields.number("give.version", m.version),
        held=m.held,
        value_bytes=fields.number("give.value_bytes", m.value_bytes, 1, VALUE_BYTES_MAX),
        checksum=m.checksum,
    )


def _read_taken(m: pb.Taken) -> Taken:
    return Taken(
        lease=fields.number("taken.lease", m.lease, 1),
        version=fields.number("taken.version", m.version, 1),
        staleness=fields.number("taken.staleness", m.staleness),
    )


def _read_not_taken(m: pb.NotTaken) -> NotTaken:
    return NotTaken(
        lease=fields.number("not_taken.lease", m.lease),
        version=fields.number("not_taken.version", m.version),
        reason=fields.name("not_taken.reason", m.reason),
        sentence=fields.text("not_taken.sentence", m.sentence),
    )


# -- inside --------------------------------------------------------------------------------------


def _check_piece(what: str, announced: bool, offset: int, raw: bytes) -> None:
    """An announcement has the first bytes with it, and later ones say where they belong."""
    if len(raw) > RAW_BYTES_MAX:
        raise RemoteProtocolError(f"{what}.raw", f"{len(raw)} bytes, at most {RAW_BYTES_MAX}")
    if announced and not raw:
        raise RemoteProtocolError(f"{what}.raw", "missing: the first piece comes with its values")
    fields.number(f"{what}.offset", offset, 0, VALUE_BYTES_MAX)
    if bool(offset) != (bool(raw) and not announced):
        raise RemoteProtocolError(f"{what}.offset", f"{offset} with {len(raw)} raw bytes")


def _check_one(what: str, things: tuple[object, ...]) -> None:
    count = sum(bool(thing) for thing in things)
    if count != 1:
        raise RemoteProtocolError(what, f"{count} things said, expected one")


def _amount(field: str, value: float) -> float:
    if not 0.0 <= value < math.inf:
        raise RemoteProtocolError(field, f"{value:g}, expected a number from 0 on")
    return value


def _bytes(what: str, raw: bytes | memoryview, make: Callable[[], Message]) -> bytes:
    if len(raw) > RAW_BYTES_MAX:
        raise LocalProtocolError(f"{what}: {len(raw)} raw bytes, at most {RAW_BYTES_MAX}")
    try:
        data: bytes = make().SerializeToString()
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"{what}: {error}") from error
    if len(data) - len(raw) > REST_BYTES_MAX:
        rest = len(data) - len(raw)
        raise LocalProtocolError(f"{what}: {rest} bytes besides raw, at most {REST_BYTES_MAX}")
    return data
