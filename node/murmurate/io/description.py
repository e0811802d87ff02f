"""What a peer says of itself to anyone who asks; read without torch, so that `status` is quick."""

from __future__ import annotations

from dataclasses import dataclass, field

from murmurate.core.clock import Clock, Key
from murmurate.core.runs import Runs, runs_problem
from murmurate.errors import LocalProtocolError, RemoteProtocolError
from murmurate.io import fields
from murmurate.io.fields import PROTOCOL_VERSION
from murmurate.io.progress import NAMES_MAX, Neighbour, Progress, Staleness
from murmurate.v1 import peer_pb2 as pb

DESCRIPTION_BYTES_MAX = 4 << 20
TENSORS_MAX = 1 << 15
MEMBERS_MAX = 4096
AXES_MAX = 16
RUNS_MAX = 2 * 16384


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """One tensor of the model, in the order of the flat buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member as the described peer sees it, and why."""

    name: str
    epoch: int
    state: str
    address: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Who a peer is, what it trains, whom it knows and how far all have got."""

    version: int = PROTOCOL_VERSION
    instance: str
    """Random for each process: so one's own address is recognised."""
    run: str
    rule: str = "sum"
    swarm: str
    """The id of the founding; empty while not part of one."""
    name: str
    epoch: int
    address: str
    synced: bool
    schema: str
    tensors: tuple[DescribedTensor, ...] = ()
    members: tuple[DescribedMember, ...] = ()
    clock: Clock = field(default_factory=Clock)
    progress: tuple[Progress, ...] = ()
    folds: tuple[tuple[Key, Runs], ...] = ()
    """Lives that are over and left the clock, and what was held of them."""
    arrived: Clock | None = None
    """The clock there will be when all that is here is folded in; None: an older peer."""


def encode_description(description: Description) -> bytes:
    d = description
    try:
        data: bytes = pb.Description(
            version=d.version,
            instance=d.instance,
            run=d.run,
            rule=d.rule,
            swarm=d.swarm,
            name=d.name,
            epoch=d.epoch,
            address=d.address,
            synced=d.synced,
            schema=d.schema,
            tensors=[
                pb.TensorDescription(name=t.name, dtype=t.dtype, shape=t.shape) for t in d.tensors
            ],
            members=[
                pb.MemberDescription(
                    name=m.name,
                    epoch=m.epoch,
                    state=fields.STATE_NAMES.index(m.state),  # type: ignore[arg-type]
                    address=m.address,
                    reason=m.reason,
                )
                for m in d.members
            ],
            clock=d.clock.to_bytes(),
            progress=[progress_to_pb(each) for each in d.progress],
            folds=[pb.Fold(origin=key[0], epoch=key[1], runs=runs) for key, runs in d.folds],
            arrived=d.arrived.to_bytes() if d.arrived is not None else b"",
        ).SerializeToString()
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"description: {error}") from error
    if len(data) > DESCRIPTION_BYTES_MAX:
        raise LocalProtocolError(f"description: {len(data)} bytes, at most {DESCRIPTION_BYTES_MAX}")
    return data


def decode_description(data: bytes) -> Description:
    m = fields.parsed("description", pb.Description, data, DESCRIPTION_BYTES_MAX)
    fields.few("description.tensors", m.tensors, TENSORS_MAX)
    fields.few("description.members", m.members, MEMBERS_MAX)
    fields.few("description.progress", m.progress, NAMES_MAX)
    fields.few("description.folds", m.folds, MEMBERS_MAX)
    return Description(
        version=fields.version("description", m.version),
        instance=fields.name("description.instance", m.instance),
        run=fields.name("description.run", m.run),
        rule=fields.text("description.rule", m.rule, fields.NAME_BYTES_MAX),
        swarm=fields.text("description.swarm", m.swarm, fields.NAME_BYTES_MAX),
        name=fields.name("description.name", m.name),
        epoch=fields.number("description.epoch", m.epoch),
        address=fields.text("description.address", m.address),
        synced=m.synced,
        schema=fields.name("description.schema", m.schema),
        tensors=tuple(_tensor(each) for each in m.tensors),
        members=tuple(_member(each) for each in m.members),
        clock=fields.clock("description.clock", m.clock),
        progress=tuple(progress_from_pb(each) for each in m.progress),
        folds=tuple(_fold(each) for each in m.folds),
        arrived=fields.clock("description.arrived", m.arrived) if m.arrived else None,
    )


def check_describe_request(data: bytes) -> None:
    """The request has no fields; whatever comes must at least be protobuf, and small."""
    fields.parsed("describe", pb.DescribeRequest, data, 1024)


def _tensor(m: pb.TensorDescription) -> DescribedTensor:
    fields.few("description.tensors.shape", m.shape, AXES_MAX)
    return DescribedTensor(
        fields.text("description.tensors.name", m.name),
        fields.name("description.tensors.dtype", m.dtype),
        tuple(fields.number("description.tensors.shape", each) for each in m.shape),
    )


def _member(m: pb.MemberDescription) -> DescribedMember:
    return DescribedMember(
        fields.name("description.members.name", m.name),
        fields.number("description.members.epoch", m.epoch),
        fields.state("description.members.state", m.state),
        fields.text("description.members.address", m.address),
        fields.text("description.members.reason", m.reason),
    )


def _fold(m: pb.Fold) -> tuple[Key, Runs]:
    runs = tuple(fields.few("description.folds.runs", m.runs, RUNS_MAX))
    if problem := runs_problem(runs):
        raise RemoteProtocolError("description.folds.runs", problem)
    origin = fields.name("description.folds.origin", m.origin)
    return (origin, fields.number("description.folds.epoch", m.epoch)), runs


# -- progress: also a note -----------------------------------------------------------------------


def progress_to_pb(progress: Progress) -> pb.Progress:
    p, s = progress, progress.staleness
    return pb.Progress(
        name=p.name,
        epoch=p.epoch,
        version=p.version,
        samples=p.samples,
        samples_per_s=p.samples_per_s,
        step_s=p.step_s,
        loss=p.loss,
        accuracy=p.accuracy,
        published=p.published,
        applied=p.applied,
        duplicates=p.duplicates,
        rejected=[pb.Count(reason=reason, count=times) for reason, times in p.rejected],
        staleness=pb.Staleness(count=s.count, mean=s.mean, p50=s.p50, p99=s.p99, max=s.max),
        bytes_sent=p.bytes_sent,
        bytes_received=p.bytes_received,
        wait_s=p.wait_s,
        last=p.last,
        done=p.done,
        settled=p.settled,
        bytes_by_codec=[pb.Count(reason=codec, count=sent) for codec, sent in p.bytes_by_codec],
        at=p.at,
        delay_s=p.delay_s,
        fastest_delay_s=p.fastest_delay_s,
        later_updates=p.later_updates,
        staleness_now=p.staleness_now,
        staleness_predicted=p.staleness_predicted,
        lag=p.lag,
        sketch=p.sketch,
        sketch_at=p.sketch_at,
        made_at=p.made_at,
        neighbours=[
            pb.Neighbour(name=name, sent_bytes=sent, applied=applied, staleness=staleness)
            for name, sent, applied, staleness in p.neighbours
        ],
    )


def progress_from_pb(m: pb.Progress) -> Progress:
    s = m.staleness
    return Progress(
        name=m.name,
        epoch=m.epoch,
        version=m.version,
        samples=m.samples,
        samples_per_s=m.samples_per_s,
        step_s=m.step_s,
        loss=m.loss,
        accuracy=m.accuracy,
        published=m.published,
        applied=m.applied,
        duplicates=m.duplicates,
        rejected=tuple((each.reason, each.count) for each in m.rejected),
        staleness=Staleness(s.count, s.mean, s.p50, s.p99, s.max),
        bytes_sent=m.bytes_sent,
        bytes_received=m.bytes_received,
        wait_s=m.wait_s,
        last=m.last,
        done=m.done,
        settled=m.settled,
        bytes_by_codec=tuple((each.reason, each.count) for each in m.bytes_by_codec),
        at=m.at,
        delay_s=m.delay_s,
        fastest_delay_s=m.fastest_delay_s,
        later_updates=m.later_updates,
        staleness_now=m.staleness_now,
        staleness_predicted=m.staleness_predicted,
        lag=m.lag,
        sketch=m.sketch,
        sketch_at=m.sketch_at,
        made_at=tuple(m.made_at),
        neighbours=tuple(
            Neighbour(each.name, each.sent_bytes, each.applied, each.staleness)
            for each in m.neighbours
        ),
    )
