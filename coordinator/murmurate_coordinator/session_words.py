"""What passes between sessions and streams: effects of a solver as messages to a member. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from murmurate.core.partition.structure import Structure
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.batch_values import OutgoingBatches, pack, shape_of
from murmurate.edge.net.subnet_values import Incoming, Outgoing, Unwanted, Values, encode_held
from murmurate.errors import PeerUnavailable
from murmurate_coordinator.members import Seat
from murmurate_coordinator.solvers.effects import (
    DealBatches,
    Effect,
    GiveLease,
    PushAccepted,
    Reason,
    Refused,
    SayLease,
    Waits,
)
from murmurate_coordinator.solvers.protocol import Solver


class NoRoom(PeerUnavailable):
    """There is no place for that member, now or at all; counted by the solver."""


@dataclass(frozen=True, slots=True, eq=False)
class Out:
    """To one stream. A give or batches have their values beside them; `task` None: end it."""

    stream: int
    task: wire.Task | None
    values: Outgoing | OutgoingBatches | None = None


@dataclass(slots=True, eq=False)
class Coming:
    """A push that was announced: where its values go, or what is answered instead."""

    head: wire.Return
    into: Incoming | Unwanted
    answer: wire.Task | None = None


@dataclass(slots=True)
class Lines:
    """What people should hear of."""

    news: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class SameValues:
    """Several are often given the same: it is made ready for its way once."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._last: tuple[Values, Outgoing] | None = None

    def outgoing(self, values: Values) -> Outgoing:
        if self._last is None or self._last[0] is not values:
            self._last = values, Outgoing(self._structure, values)
        return self._last[1]


def said(effect: Effect, seat: Seat, ready: SameValues, spent: float) -> Out | None:
    """To the stream of whom it concerns. A refusal is an answer to a push: see `not_taken`.
    `ready`: of the effects that are said together. `spent`: the part of the run's budget."""
    match effect:
        case GiveLease():
            values = ready.outgoing(effect.values)
            give = wire.Give(
                plan=effect.plan,
                lease=effect.lease,
                version=effect.version,
                held=encode_held(effect.held),
                value_bytes=values.value_bytes,
                spent=spent,
            )
            return Out(seat.stream, wire.Task(give=give), values)
        case PushAccepted():
            taken = wire.Taken(
                lease=effect.lease,
                version=effect.version,
                staleness=seat.staleness,
                spent=spent,
            )
            return Out(seat.stream, wire.Task(taken=taken))
        case DealBatches():
            tensors = shape_of(effect.batches[0][1])
            outgoing = OutgoingBatches([pack(batch) for _, batch in effect.batches])
            batches = wire.Batches(
                numbers=tuple(number for number, _ in effect.batches),
                samples=effect.samples,
                tensors=tensors,
                value_bytes=outgoing.value_bytes,
            )
            return Out(seat.stream, wire.Task(batches=batches), outgoing)
        case SayLease():
            lease = wire.BatchLease(beat=effect.beat, numbers=effect.numbers)
            return Out(seat.stream, wire.Task(lease=lease))
        case Waits():
            return Out(seat.stream, wire.Task(waits=effect.sentence))
        case Refused():
            return None


def not_taken(solver: Solver, head: wire.Return, refused: Refused) -> wire.Task:
    """Why a push is not in the model; or that it is, if its first answer was lost."""
    lease = solver.leases.get(head.lease)
    if lease is not None and refused.reason is Reason.DUPLICATE and head.version <= lease.version:
        return wire.Task(taken=wire.Taken(lease=head.lease, version=lease.version))
    return wire.Task(
        not_taken=wire.NotTaken(
            lease=head.lease,
            version=head.version,
            reason=refused.reason,
            sentence=refused.sentence,
        )
    )
