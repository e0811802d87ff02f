"""What the coordinator shows of itself: figures for Prometheus, a report, a description."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from murmurate import __version__, report
from murmurate.core.clock import Clock
from murmurate.io.description import DescribedMember, DescribedTensor, Description
from murmurate.io.metrics import (
    Families,
    Metric,
    counter,
    counters,
    gauge,
    gauges,
    info,
    staleness_updates,
)
from murmurate.io.progress import Progress, Staleness
from murmurate.report import Json
from murmurate.tally import NAMES_MAX, OTHER
from murmurate.workloads import Evaluation
from murmurate_coordinator.centre import Centre

NAME = "coordinator"
TENSORS_MAX = 64
REASONS = (
    *("over", "not_leased", "shapes", "not_finite", "future", "duplicate", "full"),
    *("malformed", "checksum", "schema", "exists", "stalled", "quarantine"),
)
"""Why something was not taken: pushes, then streams. There from the start, at 0."""
ADVICE = ("silent", "behind", "untrained")


@dataclass(slots=True, kw_only=True)
class Around:
    """What is known outside of the centre."""

    evaluation: Evaluation | None = None
    """Of the model as it is served: zeros where nobody ever trained."""
    plain: Evaluation | None = None
    """Of the assembled weights as they are."""
    loss: float = math.nan
    coverage: dict[str, float] = field(default_factory=dict)
    advice: dict[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    checkpoint_age_s: float = math.nan
    checkpoint_every_s: float = math.nan
    checkpoint_failures: int | None = None
    ready: bool = False
    shares: dict[str, float] | None = None
    """When it ended, before the members left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One instant."""

    run: str
    rule: str
    plan: int
    leases: int
    revoked: int
    pushes: int
    steps: int
    samples: int
    refused: Mapping[str, int]
    members: Mapping[str, int]
    shares: Mapping[str, float]
    staleness: Mapping[int, int]
    staleness_total: int
    parameters: int
    loss: float
    around: Around


def read(centre: Centre, around: Around) -> Reading:
    """In the thread of the centre's owner."""
    rules, totals = centre.rules, centre.rules.totals
    known = [t.loss for n, t in centre.roll.tallies.items() if n in centre.roll.seats]
    losses = [loss for loss in known if math.isfinite(loss)]
    return Reading(
        run=centre.run,
        rule=rules.rule,
        plan=rules.plan,
        leases=len(rules.leases),
        revoked=centre.late,
        pushes=totals.pushes,
        steps=totals.steps,
        samples=totals.samples,
        refused=dict(totals.refused),
        members=centre.states(),
        shares=few(centre.shares(), max),
        staleness=report.counts(centre.staleness),
        staleness_total=centre.staleness.total,
        parameters=parameters(centre),
        loss=sum(losses) / len(losses) if losses else math.nan,
        around=around,
    )


def parameters(centre: Centre) -> int:
    """Of the whole model."""
    return sum(math.prod(t.shape) for t in centre.structure.tensors.values() if t.trained)


def few(values: Mapping[str, float], of_rest: Any, most: int = NAMES_MAX) -> dict[str, float]:
    """By name, in order of the names; of those beyond the limit one figure."""
    names = sorted(values)
    out = {name: values[name] for name in names[:most]}
    if rest := names[most:]:
        out[OTHER] = of_rest(values[name] for name in rest)
    return out


# -- Prometheus ----------------------------------------------------------------------------------


def _identity(r: Reading) -> Iterator[Metric]:
    words = {"name": NAME, "run": r.run, "rule": r.rule, "topology": "star"}
    yield info("node", "Who this is: join on instance to get a name.", words, __version__)
    yield gauge("ready", "1 when members are welcome.", r.around.ready)
    yield gauge("parameters", "Numbers in the whole model.", r.parameters)


def _plans(r: Reading) -> Iterator[Metric]:
    yield gauge("plan_number", "Of the partition that holds now.", r.plan)
    yield gauges(
        "coverage_ratio",
        "Of each tensor that is split: the part that was ever in a push; of more than a few, the"
        " smallest of the rest is other.",
        "tensor",
        few(r.around.coverage, min, TENSORS_MAX),
    )
    yield gauge("leases", "Subnets that are with a member now.", r.leases)
    yield counter(
        "leases_revoked", "Leases taken from members that were gone or frozen.", r.revoked
    )
    yield gauges(
        "subnet_share_ratio",
        "The part of all units that a member has: the first by name, of the rest the largest.",
        "member",
        r.shares,
    )
    yield gauges(
        "advice",
        "Conditions of convergence that are not met now (docs/ist.md), by kind.",
        "kind",
        dict.fromkeys(ADVICE, 0) | r.around.advice,
    )


def _pushes(r: Reading) -> Iterator[Metric]:
    yield counter("pushes", "Subnets that were folded in.", r.pushes)
    refused = dict.fromkeys(REASONS, 0)
    for counted in (r.refused, r.around.rejected):
        for reason, count in counted.items():
            refused[reason] = refused.get(reason, 0) + count
    yield counters(
        "updates_rejected",
        "Pushes and streams that were refused: nothing was changed by them.",
        "reason",
        refused,
    )
    yield staleness_updates(
        "Version lag of every push: pushes of others that were folded in since the one before it,"
        " or since its subnet was given.",
        r.staleness,
        r.staleness_total,
    )
    yield counter("bytes_received", "Bytes read from all streams.", r.around.bytes_received)
    yield counter("wire_bytes_sent", "Bytes written to all streams.", r.around.bytes_sent)


def _members(r: Reading) -> Iterator[Metric]:
    yield gauges(
        "members",
        "Members that train, wait for units or for the others, are away for a moment, or lost"
        " their units because they were silent.",
        "state",
        r.members,
    )


def _learning(r: Reading) -> Iterator[Metric]:
    yield gauge("loss", "Mean of the members' latest losses on their own data.", r.loss)
    evaluation, plain = r.around.evaluation, r.around.plain
    if evaluation is not None:
        yield gauge(
            "accuracy",
            "Of the assembled model as it is served, on the test set, from 0 to 1.",
            evaluation.accuracy,
        )
    if plain is not None:
        yield gauge(
            "accuracy_plain", "The same with what nobody has trained yet left in.", plain.accuracy
        )
    yield counter("samples", "Samples in the pushes that were folded in.", r.samples)
    yield counter("steps", "Local steps in the pushes that were folded in.", r.steps)


def _keeping(r: Reading) -> Iterator[Metric]:
    around = r.around
    yield gauge(
        "checkpoint_age_seconds",
        "Since the last durable checkpoint, or since the start when there is none yet.",
        around.checkpoint_age_s,
    )
    yield gauge(
        "checkpoint_interval_seconds",
        "Between two checkpoints, as asked.",
        around.checkpoint_every_s,
    )
    if around.checkpoint_failures is not None:
        yield counter(
            "checkpoint_failures",
            "Checkpoints that could not be written.",
            around.checkpoint_failures,
        )


FAMILIES: Families[Reading] = (_identity, _plans, _pushes, _members, _learning, _keeping)


# -- people and programs ---------------------------------------------------------------------------


def description(centre: Centre, address: str, instance: str) -> Description:
    """For `murmurate status` and `top`: members with their shares, as a peer would tell them."""
    tensors = tuple(
        DescribedTensor(t.name, t.dtype, t.shape) for t in centre.structure.tensors.values()
    )
    members = []
    for name, seat in centre.roll.seats.items():
        lease = centre.rules.lease_of(name)
        state = "alive" if seat.stream and not seat.revoked else "suspect"
        units = "waits" if lease is None else f"{centre.part(lease.held):.1%} of the units"
        members.append(DescribedMember(name, 1, state, "", units))
    return Description(
        instance=instance,
        run=centre.run,
        rule=centre.rules.rule,
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


def progress(centre: Centre) -> Iterator[Progress]:
    """Of those who have a seat."""
    for name in centre.roll.seats:
        tally = centre.roll.tally(name)
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


def board(centre: Centre, around: Around) -> Iterator[Progress]:
    """The whole model, then its members: for curves."""
    seen = around.evaluation
    yield Progress(
        name=NAME,
        epoch=1,
        version=centre.rules.totals.pushes,
        samples=centre.rules.totals.samples,
        loss=seen.loss if seen else math.nan,
        accuracy=seen.accuracy if seen else math.nan,
    )
    yield from progress(centre)


def rows(centre: Centre, wall_s: float) -> list[Json]:
    """One for each member there ever was, as far as it is remembered."""
    out = []
    for name, tally in sorted(centre.roll.tallies.items()):
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


def row(centre: Centre, around: Around) -> Json:
    """The coordinator itself, for the events of `murmurate up`."""
    reading = read(centre, around)
    evaluation, plain = around.evaluation, around.plain
    return report.empty_row(NAME) | {
        "role": NAME,
        "samples": reading.samples,
        "loss": report.number(evaluation.loss if evaluation else reading.loss),
        "accuracy": report.number(evaluation.accuracy) if evaluation else None,
        "accuracy_plain": report.number(plain.accuracy) if plain else None,
        "accuracy_by_class": [
            report.number(each) for each in (evaluation.accuracy_of if evaluation else ())
        ],
        "updates_applied": reading.pushes,
        "rejected": _rejected(reading),
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
    }


def _rejected(reading: Reading) -> dict[str, int]:
    out: dict[str, int] = {}
    for counted in (reading.refused, reading.around.rejected):
        for reason, count in counted.items():
            out[reason] = out.get(reason, 0) + count
    return out


def whole(
    centre: Centre, around: Around, *, workload: str, seed: int, wall_s: float, reason: str
) -> Json:
    """The report: the keys of `murmurate up`, and what only a coordinator knows."""
    own = row(centre, around)
    shares = centre.shares() if around.shares is None else around.shares
    own |= {"shares": few(shares, max), "leases": len(shares)}
    members = [each | {"share": shares.get(each["name"])} for each in rows(centre, wall_s)]
    return {
        "run": centre.run,
        "mode": "ist",
        "rule": centre.rules.rule,
        "workload": workload,
        "seed": seed,
        "wall_s": wall_s,
        "samples": own["samples"],
        "accuracy_mean": own["accuracy"],
        "accuracy_min": own["accuracy"],
        "replica_distance_max": None,
        "staleness": own["staleness"],
        "staleness_predicted": None,
        "ended": reason,
        "accuracy_plain": own["accuracy_plain"],
        "plan": own["plan"],
        "plans": centre.rules.totals.plans,
        "leases": own["leases"],
        "leases_revoked": own["leases_revoked"],
        "pushes": own["pushes"],
        "refused": own["rejected"],
        "coverage": own["coverage"],
        "shares": own["shares"],
        "nodes": [own, *members],
    }
