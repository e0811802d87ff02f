"""The small messages as bytes: one protobuf message for each dataclass, and back.

What a message says of itself is checked by its dataclass (core/message.py); what protobuf leaves
open (names, numbers beyond 2^62, counts) is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from murmurate.core.averaging import Receipt
from murmurate.core.clock import Key, Range
from murmurate.core.message import (
    CANDIDATES_MAX,
    GENERATIONS_MAX,
    RANGES_MAX,
    RUMOURS_MAX,
    Accept,
    Accepted,
    Ack,
    Ballot,
    Decided,
    Digest,
    Generation,
    Lack,
    Ping,
    PingRequest,
    Prepare,
    Promise,
    Rumour,
    SnapshotRequest,
    Want,
)
from murmurate.core.runs import Runs, runs_problem
from murmurate.errors import LocalProtocolError, RemoteProtocolError
from murmurate.io import fields
from murmurate.io.description import progress_from_pb, progress_to_pb
from murmurate.io.progress import Progress
from murmurate.v1 import peer_pb2 as pb

NOTE_BYTES_MAX = 60 << 10
"""Leaves room for a small piece beside it in a frame."""
NAMES_MAX = 4096
"""Of a roster, and of the epochs folded in one agreement."""
RUNS_MAX = 16384

Note = (
    Digest
    | Want
    | Lack
    | SnapshotRequest
    | Ping
    | PingRequest
    | Ack
    | Prepare
    | Promise
    | Accept
    | Accepted
    | Decided
    | Receipt
    | Progress
)


def encode_note(message: Note) -> bytes:
    """The bytes of a `Note`; a `LocalProtocolError` when it is too large for a frame."""
    kind, write = _WRITE[type(message)]
    try:
        data: bytes = pb.Note(**{kind: write(message)}).SerializeToString()
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"{kind}: {error}") from error
    if len(data) > NOTE_BYTES_MAX:
        raise LocalProtocolError(f"{kind}: {len(data)} bytes, at most {NOTE_BYTES_MAX}")
    return data


def decode_note(data: bytes | memoryview) -> Note:
    note = fields.parsed("note", pb.Note, data, NOTE_BYTES_MAX)
    kind = note.WhichOneof("kind")
    if kind is None:
        raise RemoteProtocolError("note", "of no kind that is known here")
    message: Note = _READ[kind](getattr(note, kind))
    return message


# -- parts ---------------------------------------------------------------------------------------


def _names(field: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(fields.name(field, each) for each in fields.few(field, names, NAMES_MAX))


def rumour_to_pb(r: Rumour) -> pb.Rumour:
    return pb.Rumour(
        name=r.name,
        epoch=r.epoch,
        incarnation=r.incarnation,
        state=fields.STATE_NAMES.index(r.state),  # type: ignore[arg-type]
        address=r.address,
        source=r.source,
        last=r.last,
    )


def rumour_from_pb(m: pb.Rumour) -> Rumour:
    return Rumour(
        fields.name("rumour.name", m.name),
        fields.number("rumour.epoch", m.epoch),
        fields.number("rumour.incarnation", m.incarnation),
        fields.state("rumour.state", m.state),
        fields.text("rumour.address", m.address),
        fields.text("rumour.source", m.source, fields.NAME_BYTES_MAX),
        fields.number("rumour.last", m.last),
    )


def _rumours(rumours: Sequence[pb.Rumour]) -> tuple[Rumour, ...]:
    return tuple(rumour_from_pb(each) for each in fields.few("rumours", rumours, RUMOURS_MAX))


def _fold_to_pb(fold: tuple[Key, Runs]) -> pb.Fold:
    (origin, epoch), runs = fold
    return pb.Fold(origin=origin, epoch=epoch, runs=runs)


def _life(field: str, m: pb.Life | pb.Fold) -> Key:
    return fields.name(field, m.origin), fields.number(field, m.epoch, 1)


def _folds(field: str, folds: Sequence[pb.Fold], most: int) -> tuple[tuple[Key, Runs], ...]:
    out = []
    for each in fields.few(field, folds, most):
        runs = tuple(fields.few(f"{field}.runs", each.runs, RUNS_MAX))
        if problem := runs_problem(runs):
            raise RemoteProtocolError(f"{field}.runs", problem)
        out.append((_life(field, each), runs))
    return tuple(out)


def generation_to_pb(g: Generation) -> pb.Generation:
    return pb.Generation(
        number=g.number,
        roster=g.roster,
        folds=[_fold_to_pb(each) for each in g.folds],
        evicted=g.evicted,
    )


def generation_from_pb(m: pb.Generation) -> Generation:
    return Generation(
        fields.number("generation.number", m.number),
        _names("generation.roster", m.roster),
        _folds("generation.folds", m.folds, NAMES_MAX),
        _names("generation.evicted", m.evicted),
    )


def generations_from_pb(field: str, generations: Sequence[pb.Generation]) -> tuple[Generation, ...]:
    return tuple(
        generation_from_pb(each) for each in fields.few(field, generations, GENERATIONS_MAX)
    )


def _ballot_to_pb(ballot: Ballot) -> pb.Ballot:
    return pb.Ballot(number=ballot[0], name=ballot[1])


def _ballot(field: str, m: pb.Ballot) -> Ballot:
    return fields.number(field, m.number), fields.name(field, m.name)


def _ranges_to_pb(ranges: tuple[Range, ...]) -> list[pb.Range]:
    return [
        pb.Range(origin=each.origin, epoch=each.epoch, first=each.first, last=each.last)
        for each in ranges
    ]


def _ranges(field: str, ranges: Sequence[pb.Range]) -> tuple[Range, ...]:
    return tuple(
        Range(
            fields.name(field, each.origin),
            fields.number(field, each.epoch, 1),
            fields.number(field, each.first, 1),
            fields.number(field, each.last, 1),
        )
        for each in fields.few(field, ranges, RANGES_MAX)
    )


# -- one by one ----------------------------------------------------------------------------------


def _read_digest(m: pb.Digest) -> Digest:
    return Digest(
        fields.number("digest.epoch", m.epoch),
        fields.clock("digest.clock", m.clock),
        fields.clock("digest.durable", m.durable),
        m.ask,
    )


def _read_prepare(m: pb.Prepare) -> Prepare:
    return Prepare(
        fields.number("prepare.number", m.number),
        _ballot("prepare.ballot", m.ballot),
        tuple(
            _life("prepare.candidates", each)
            for each in fields.few("prepare.candidates", m.candidates, CANDIDATES_MAX)
        ),
        _names("prepare.evict", m.evict),
    )


def _write_promise(p: Promise) -> pb.Promise:
    return pb.Promise(
        number=p.number,
        ballot=_ballot_to_pb(p.ballot),
        held=[_fold_to_pb(each) for each in p.held],
        not_gone=p.not_gone,
        accepted_ballot=_ballot_to_pb(p.accepted_ballot) if p.accepted_ballot else None,
        accepted=generation_to_pb(p.accepted) if p.accepted else None,
    )


def _read_promise(m: pb.Promise) -> Promise:
    if m.HasField("accepted_ballot") != m.HasField("accepted"):
        raise RemoteProtocolError("promise.accepted", "a ballot and a value, or neither")
    accepted = m.HasField("accepted")
    return Promise(
        fields.number("promise.number", m.number),
        _ballot("promise.ballot", m.ballot),
        _folds("promise.held", m.held, CANDIDATES_MAX),
        _names("promise.not_gone", m.not_gone),
        _ballot("promise.accepted_ballot", m.accepted_ballot) if accepted else None,
        generation_from_pb(m.accepted) if accepted else None,
    )


def _read_receipt(m: pb.Receipt) -> Receipt:
    return Receipt(
        fields.number("receipt.seq", m.seq),
        fields.number("receipt.epoch", m.epoch),
        fields.number("receipt.to_epoch", m.to_epoch),
    )


_WRITE: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Digest: (
        "digest",
        lambda m: pb.Digest(
            epoch=m.epoch, clock=m.clock.to_bytes(), durable=m.durable.to_bytes(), ask=m.ask
        ),
    ),
    Want: ("want", lambda m: pb.Want(ranges=_ranges_to_pb(m.ranges))),
    Lack: ("lack", lambda m: pb.Lack(ranges=_ranges_to_pb(m.ranges))),
    SnapshotRequest: ("snapshot_request", lambda m: pb.SnapshotRequest()),
    Ping: (
        "ping",
        lambda m: pb.Ping(number=m.number, rumours=[rumour_to_pb(each) for each in m.rumours]),
    ),
    PingRequest: (
        "ping_request",
        lambda m: pb.PingRequest(
            number=m.number, target=m.target, rumours=[rumour_to_pb(each) for each in m.rumours]
        ),
    ),
    Ack: (
        "ack",
        lambda m: pb.Ack(
            number=m.number,
            about=m.about,
            nack=m.nack,
            rumours=[rumour_to_pb(each) for each in m.rumours],
        ),
    ),
    Prepare: (
        "prepare",
        lambda m: pb.Prepare(
            number=m.number,
            ballot=_ballot_to_pb(m.ballot),
            candidates=[pb.Life(origin=origin, epoch=epoch) for origin, epoch in m.candidates],
            evict=m.evict,
        ),
    ),
    Promise: ("promise", _write_promise),
    Accept: (
        "accept",
        lambda m: pb.Accept(ballot=_ballot_to_pb(m.ballot), value=generation_to_pb(m.value)),
    ),
    Accepted: (
        "accepted",
        lambda m: pb.Accepted(number=m.number, ballot=_ballot_to_pb(m.ballot)),
    ),
    Decided: (
        "decided",
        lambda m: pb.Decided(generations=[generation_to_pb(each) for each in m.generations]),
    ),
    Receipt: (
        "receipt",
        lambda m: pb.Receipt(seq=m.seq, epoch=m.epoch, to_epoch=m.to_epoch),
    ),
    Progress: ("progress", progress_to_pb),
}

_READ: dict[str, Callable[[Any], Any]] = {
    "digest": _read_digest,
    "want": lambda m: Want(_ranges("want.ranges", m.ranges)),
    "lack": lambda m: Lack(_ranges("lack.ranges", m.ranges)),
    "snapshot_request": lambda m: SnapshotRequest(),
    "ping": lambda m: Ping(fields.number("ping.number", m.number), _rumours(m.rumours)),
    "ping_request": lambda m: PingRequest(
        fields.number("ping_request.number", m.number),
        fields.name("ping_request.target", m.target),
        _rumours(m.rumours),
    ),
    "ack": lambda m: Ack(
        fields.number("ack.number", m.number),
        fields.name("ack.about", m.about),
        m.nack,
        _rumours(m.rumours),
    ),
    "prepare": _read_prepare,
    "promise": _read_promise,
    "accept": lambda m: Accept(_ballot("accept.ballot", m.ballot), generation_from_pb(m.value)),
    "accepted": lambda m: Accepted(
        fields.number("accepted.number", m.number), _ballot("accepted.ballot", m.ballot)
    ),
    "decided": lambda m: Decided(generations_from_pb("decided.generations", m.generations)),
    "receipt": _read_receipt,
    "progress": progress_from_pb,
}
