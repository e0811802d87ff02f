"""What the coordinator shows of itself: figures for Prometheus, a report, a description."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from murmurate.core.clock import Clock
from murmurate.core.figures.figure import Value, few
from murmurate.core.figures.progress import Progress, Staleness
from murmurate.core.figures.sources import CoordinatorInstant, Keeping
from murmurate.core.figures.table import COORDINATOR, values
from murmurate.edge.net.description import DescribedMember, DescribedTensor, Description
from murmurate.watch import report
from murmurate.watch.report import Json
from murmurate.workloads import Evaluation
from murmurate_coordinator.sessions import Sessions

NAME = "coordinator"
OF_MEMBERS = ("alpha", "members")


@dataclass(slots=True, kw_only=True)
class Around:
    """What is known outside of the centre."""

    evaluation: Evaluation | None = None
    """Of the model as it is served: zeros where nobody ever trained."""
    plain: Evaluation | None = None
    """Of the assembled weights as they are."""
    validation: Evaluation | None = None
    """Of the model as it is served, on what was held out of training."""
    loss: float = math.nan
    """Of the members' training, when it ended, before they left."""
    coverage: dict[str, float] = field(default_factory=dict)
    advice: dict[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    keeping: Keeping | None = None
    ready: bool = False
    shares: dict[str, float] | None = None
    """When it ended, before the members left."""
    more: Json | None = None
    """The solver's own keys of the report, from the same instant: pushes still came after it."""


def read(centre: Sessions, around: Around) -> CoordinatorInstant:
    """In the thread of the centre's owner."""
    solver, totals = centre.solver, centre.solver.totals
    known = [t.loss for n, t in centre.members.tallies.items() if n in centre.members.seats]
    losses = [loss for loss in known if math.isfinite(loss)]
    return CoordinatorInstant(
        name=NAME,
        run=centre.run,
        rule=solver.rule,
        ready=around.ready,
        plan=solver.plan,
        leases=len(solver.leases),
        revoked=centre.late,
        pushes=totals.pushes,
        steps=totals.steps,
        samples=totals.samples,
        parameters=parameters(centre),
        refused=Counter(totals.refused) + Counter(around.rejected),
        members=centre.states(),
        shares=few(centre.shares(), max),
        coverage=around.coverage,
        advice=around.advice,
        staleness=centre.staleness,
        loss=sum(losses) / len(losses) if losses else around.loss,
        test_loss=around.evaluation.loss if around.evaluation else math.nan,
        accuracy=around.evaluation.accuracy if around.evaluation else math.nan,
        validation_loss=around.validation.loss if around.validation else math.nan,
        validation_accuracy=around.validation.accuracy if around.validation else math.nan,
        accuracy_plain=around.plain.accuracy if around.plain else math.nan,
        bytes_sent=around.bytes_sent,
        bytes_received=around.bytes_received,
        keeping=around.keeping,
    )


def shown(centre: Sessions, around: Around) -> Mapping[str, Value]:
    """For `/metrics`, in the thread of the centre's owner."""
    return values(COORDINATOR, read(centre, around))


def parameters(centre: Sessions) -> int:
    """Of the whole model."""
    return sum(math.prod(t.shape) for t in centre.structure.tensors.values() if t.trained)


# -- people and programs ---------------------------------------------------------------------------


def description(centre: Sessions, address: str, instance: str) -> Description:
    """For `murmurate status` and `top`: members with their shares, as a peer would tell them."""
    tensors = tuple(
        DescribedTensor(t.name, t.dtype, t.shape) for t in centre.structure.tensors.values()
    )
    members = []
    for name, seat in centre.members.seats.items():
        lease = centre.solver.lease_of(name)
        state = "alive" if seat.stream and not seat.revoked else "suspect"
        units = "waits" if lease is None else f"{centre.share(lease.held):.1%} of the parameters"
        members.append(DescribedMember(name, 1, state, "", units))
    return Description(
        instance=instance,
        run=centre.run,
        rule=centre.solver.rule,
        swarm=instance,
        name=NAME,
        epoch=1,
        address=address,
        synced=True,
        schema=centre.digest.hex(),
        tensors=tensors,
        members=tuple(members),
        clock=Clock(),
        progress=tuple(progress(centre)),
    )


def progress(centre: Sessions) -> Iterator[Progress]:
    """Of those who have a seat."""
    for name in centre.members.seats:
        tally = centre.members.tally(name)
        yield Progress(
            name=name,
            epoch=1,
            version=tally.pushes,
            samples=tally.samples,
            samples_per_s=tally.samples_per_s,
            loss=tally.loss,
            published=tally.pushes,
            applied=tally.pushes,
            staleness=Staleness(**tally.staleness.report()),  # type: ignore[arg-type]
            wait_s=tally.wait_s,
        )


def board(centre: Sessions, around: Around) -> Iterator[Progress]:
    """The whole model, then its members: for curves."""
    reading = read(centre, around)
    yield Progress(
        name=NAME,
        epoch=1,
        version=reading.pushes,
        samples=reading.samples,
        loss=reading.loss,
        test_loss=reading.test_loss,
        accuracy=reading.accuracy,
        validation_loss=reading.validation_loss,
        validation_accuracy=reading.validation_accuracy,
    )
    yield from progress(centre)


def rows(centre: Sessions, wall_s: float) -> list[Json]:
    """One for each member there ever was, as far as it is remembered."""
    out = []
    for name, tally in sorted(centre.members.tallies.items()):
        out.append(
            report.empty_row(name)
            | {
                "role": "member",
                "state": centre.state(name),
                "samples": tally.samples,
                "samples_per_s": tally.samples / wall_s if wall_s > 0 else 0.0,
                "loss": report.number(tally.loss),
                "updates_published": tally.pushes + tally.refused,
                "updates_applied": tally.pushes,
                "steps": tally.steps,
                "staleness": tally.staleness.report(),
                "wait_s": tally.wait_s,
            }
        )
    return out


def row(centre: Sessions, around: Around) -> Json:
    """The coordinator itself, for the events of `murmurate up`."""
    reading = read(centre, around)
    evaluation, plain = around.evaluation, around.plain
    return report.empty_row(NAME) | {
        "role": NAME,
        "samples": reading.samples,
        "loss": report.number(reading.loss),
        "test_loss": report.number(reading.test_loss),
        "accuracy": report.number(reading.accuracy),
        "validation_loss": report.number(reading.validation_loss),
        "validation_accuracy": report.number(reading.validation_accuracy),
        "accuracy_plain": report.number(plain.accuracy) if plain else None,
        **report.by_class(
            evaluation.accuracy_of if evaluation else (),
            evaluation.precision_of if evaluation else (),
        ),
        "warnings": report.warnings_json(centre.concerns.learning.ever),
        "updates_applied": reading.pushes,
        "rejected": dict(reading.refused),
        "staleness": centre.staleness.report(),
        "bytes_sent": around.bytes_sent,
        "bytes_received": around.bytes_received,
        "plan": reading.plan,
        "leases": reading.leases,
        "leases_revoked": reading.revoked,
        "pushes": reading.pushes,
        "coverage": {name: round(part, 6) for name, part in around.coverage.items()},
        "shares": dict(reading.shares),
        "members": dict(reading.members),
        **centre.solver.row(),
    }


def whole(
    centre: Sessions, around: Around, *, workload: str, seed: int, wall_s: float, reason: str
) -> Json:
    """The report: the keys of `murmurate up`, and what only a coordinator knows."""
    own = row(centre, around)
    shares = centre.shares() if around.shares is None else around.shares
    own |= {"shares": few(shares, max), "leases": len(shares)}
    members = [each | {"share": shares.get(each["name"])} for each in rows(centre, wall_s)]
    head = {"run": centre.run, "mode": centre.solver.mode, "rule": centre.solver.rule}
    usual = report.assemble(
        {**head, "workload": workload, "seed": seed},
        [own],
        wall_s=wall_s,
        distance=None,
        staleness=own["staleness"],
        predicted=None,
    )
    return usual | {
        "ended": reason,
        "accuracy_plain": own["accuracy_plain"],
        "plan": own["plan"],
        "plans": centre.solver.totals.plans,
        "leases": own["leases"],
        "leases_revoked": own["leases_revoked"],
        "pushes": own["pushes"],
        "refused": own["rejected"],
        "coverage": own["coverage"],
        "shares": own["shares"],
        "nodes": [own, *members],
        **told_by_solver(centre, around),
    }


def told_by_solver(centre: Sessions, around: Around) -> Json:
    """The solver's own keys, with the last pushes in them. Of how many members there were that
    counts which was so before they left."""
    more = centre.solver.more()
    for key, before in (around.more or {}).items():
        if isinstance(before, dict):
            more[key] |= {name: before[name] for name in OF_MEMBERS if name in before}
    return more
