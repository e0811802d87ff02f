"""The one table of figures: what a node, a member and a coordinator show, each declared once.

A new figure is a line here, or in the file of its kind beside this one: `/metrics`, its type, help
and labels are made from it, and a test asks for it in docs/metrics.md. Names are a contract:
dashboards, rules and scripts use them. Labels are bounded: peers by name up to `NAMES_MAX`, the
rest as `other`; classes up to `CLASSES_MAX`; reasons and codecs are words of this program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from murmurate.core.figures.coordinated_figures import PLANS, SHARES
from murmurate.core.figures.counters import STEP_BOUNDS_S, Tally
from murmurate.core.figures.figure import (
    Figure,
    FigureKind,
    Histogram,
    Shown,
    Value,
    few,
    staleness_histogram,
)
from murmurate.core.figures.learning_figures import LEARNING

S = TypeVar("S")
STATES = ("alive", "suspect", "dead", "left")
REFUSED_BY_NODE = (
    *("far", "malformed", "own_step", "quarantine", "retired", "revoked", "schema", "stale"),
    "too_large",
)
REFUSED_PUSHES = (
    *("over", "not_leased", "shapes", "not_finite", "future", "duplicate"),
    "samples",
)
REFUSED_STREAMS = ("malformed", "digest", "schema", "exists", "stalled", "quarantine", "revoked")
WHO = "Who this is: join on instance to get a name."
STEP = "Time of a local step, from the end of the one before: data, forward, backward, optimizer."
LAG = (
    "Version lag of every push: pushes of others that were folded in since the one before it, or"
    " since its subnet was given."
)
CHECKPOINT_AGE = "Since the last durable checkpoint, or since the start when there is none yet."
CHECKPOINT_EVERY = "Between two checkpoints, as asked."
CHECKPOINT_FAILURES = "Checkpoints that could not be written."


def _steps(tally: Tally) -> Histogram:
    return Histogram(STEP_BOUNDS_S, tuple(tally.steps), tally.steps_s)


# fmt: off
IDENTITY = (
    Figure(
        "node", FigureKind.INFO,
        node=Shown(WHO, lambda n: {
            "name": n.name, "run": n.run, "rule": n.rule, "topology": n.topology,
        }),
        member=Shown(WHO, lambda m: {
            "name": m.name, "run": m.run, "rule": m.rule, "topology": "star",
        }),
        coordinator=Shown(WHO, lambda c: {
            "name": c.name, "run": c.run, "rule": c.rule, "topology": "star",
        }),
    ),
    Figure(
        "ready", FigureKind.GAUGE,
        node=Shown(
            "1 when this node has the swarm's weights and is not leaving.", lambda n: n.ready
        ),
        member=Shown("1 when this member has a subnet to train.", lambda m: bool(m.lease)),
        coordinator=Shown("1 when members are welcome.", lambda c: c.ready),
    ),
    Figure(
        "parameters", FigureKind.GAUGE,
        node=Shown("Numbers in the model.", lambda n: n.parameters),
        coordinator=Shown("Numbers in the whole model.", lambda c: c.parameters),
    ),
    Figure(
        "coordinator_up", FigureKind.GAUGE,
        member=Shown("1 while the coordinator is there.", lambda m: m.connected),
    ),
)
UPDATES = (
    Figure(
        "updates_published", FigureKind.COUNTER,
        node=Shown("Updates this node has made.", lambda n: n.tally.published),
        member=Shown("Pushes this member has made.", lambda m: m.tally.published),
    ),
    Figure(
        "update_steps", FigureKind.GAUGE,
        node=Shown(
            "Local steps in an update of this node, of late.", lambda n: n.tally.update_steps
        ),
    ),
    Figure(
        "updates_applied", FigureKind.COUNTER,
        node=Shown(
            "Updates in these weights that were folded in here one by one, own ones included. What"
            " came with a snapshot is not counted.",
            lambda n: n.tally.applied,
        ),
        member=Shown("Pushes of this member that are in the model.", lambda m: m.tally.applied),
    ),
    Figure(
        "updates_duplicate", FigureKind.COUNTER,
        node=Shown(
            "Updates that came again and were not applied again.", lambda n: n.tally.duplicates
        ),
    ),
    Figure(
        "updates_rejected", FigureKind.COUNTER, "reason",
        node=Shown(
            "Messages and updates that were refused, and will not be in these weights.",
            lambda n: dict(n.tally.rejected), REFUSED_BY_NODE,
        ),
        member=Shown(
            "Pushes that were not taken: nothing was changed by them.",
            lambda m: dict(m.tally.rejected), REFUSED_PUSHES,
        ),
        coordinator=Shown(
            "Pushes and streams that were refused: nothing was changed by them.",
            lambda c: dict(c.refused), (*REFUSED_PUSHES, "full", *REFUSED_STREAMS),
        ),
    ),
    Figure(
        "updates_dropped", FigureKind.COUNTER, "reason",
        node=Shown(
            "Updates that could not be used when they came, and come again another way.",
            lambda n: dict(n.tally.dropped),
        ),
    ),
    Figure(
        "origin_updates_applied", FigureKind.COUNTER, "origin",
        node=Shown(
            "Updates applied, by who made them: the first peers by name, the rest as other.",
            lambda n: dict(n.tally.applied_of),
        ),
    ),
    Figure(
        "inbox_updates", FigureKind.GAUGE,
        node=Shown("Updates here that wait for the end of a step.", lambda n: n.inbox_updates),
    ),
    Figure(
        "lag_updates", FigureKind.GAUGE,
        node=Shown(
            "Updates of live members known to exist and not in these weights.", lambda n: n.lag
        ),
    ),
    Figure(
        "pushes", FigureKind.COUNTER,
        coordinator=Shown("Subnets that were folded in.", lambda c: c.pushes),
    ),
    Figure(
        "steps", FigureKind.COUNTER,
        coordinator=Shown("Local steps in the pushes that were folded in.", lambda c: c.steps),
    ),
    Figure(
        "steps_lost", FigureKind.COUNTER,
        member=Shown("Steps made after a push that a new subnet replaced.", lambda m: m.steps_lost),
    ),
)
STALENESS = (
    Figure(
        "staleness_updates", FigureKind.HISTOGRAM,
        node=Shown(
            "Staleness of every update applied here, own included: in how many updates the weights"
            " it was computed on differ from those it was added to.",
            lambda n: staleness_histogram(n.tally.all_staleness()),
        ),
        member=Shown(LAG, lambda m: staleness_histogram(m.staleness)),
        coordinator=Shown(LAG, lambda c: staleness_histogram(c.staleness)),
    ),
    Figure(
        "staleness_measured_updates", FigureKind.GAUGE,
        node=Shown(
            "Mean staleness of what was applied here in the last 10 s, without what was applied"
            " before this node was level with the others.",
            lambda n: n.outlook.staleness(),
        ),
    ),
    Figure(
        "catching_up_updates", FigureKind.COUNTER,
        node=Shown(
            "Updates applied here before this node, come or come back, was level with the others:"
            " they are old because it was away.",
            lambda n: n.tally.catching_up.count,
        ),
    ),
    Figure(
        "staleness_predicted_updates", FigureKind.GAUGE,
        node=Shown(
            "Mean staleness expected here from the rates, compute times and delays of the last 10"
            " s; for n equal nodes (n-1) lambda (mu+L).",
            lambda n: n.outlook.predicted() if n.foresees else None,
        ),
    ),
    Figure(
        "origin_staleness_updates", FigureKind.COUNTER, "origin",
        node=Shown(
            "Staleness of all updates applied here, added up, by who made them; divide by"
            " origin_updates_applied_total.",
            lambda n: dict(n.tally.staleness_of),
        ),
    ),
)
TIME = (
    Figure(
        "step_seconds", FigureKind.HISTOGRAM,
        node=Shown(STEP, lambda n: _steps(n.tally)),
        member=Shown(STEP, lambda m: _steps(m.tally)),
    ),
    Figure(
        "update_seconds", FigureKind.GAUGE,
        node=Shown(
            "Mean time from the start of an update's batch to the update.",
            lambda n: n.tally.compute_s if n.tally.published else None,
        ),
    ),
    Figure(
        "delay_seconds", FigureKind.GAUGE,
        node=Shown(
            "Mean time from the making of others' updates to their arrival here, over the last 10"
            " s; wrong by the differences of wall clocks, which cancel in the mean over nodes.",
            lambda n: n.outlook.delay_s(n.now),
        ),
    ),
    Figure(
        "wait_seconds", FigureKind.COUNTER,
        node=Shown(
            "Time spent waiting for others: joining, never while training.",
            lambda n: n.tally.wait_s,
        ),
        member=Shown(
            "Time spent waiting for a subnet or for the others' pushes.", lambda m: m.tally.wait_s
        ),
    ),
    Figure(
        "communication_ratio", FigureKind.GAUGE,
        node=Shown(
            "Part of this process's processor time that sending and receiving took, of late.",
            lambda n: n.communication,
        ),
    ),
    Figure(
        "pace_seconds", FigureKind.GAUGE,
        node=Shown(
            "How long messages wait for company at present; 0: not at all.", lambda n: n.pace_s
        ),
    ),
)
TRAFFIC = (
    Figure(
        "bytes_sent", FigureKind.COUNTER, "codec",
        node=Shown(
            "Bytes of tensors given to links, by the codec they are in; snapshots are fp32.",
            lambda n: dict(n.tally.sent_by_codec),
        ),
    ),
    Figure(
        "bytes_received", FigureKind.COUNTER,
        node=Shown("Bytes read from all links.", lambda n: n.bytes_received),
        member=Shown("Bytes of values in subnets.", lambda m: m.progress().bytes_received),
        coordinator=Shown("Bytes read from all streams.", lambda c: c.bytes_received),
    ),
    Figure(
        "wire_bytes_sent", FigureKind.COUNTER,
        node=Shown("Bytes written to all links.", lambda n: n.bytes_sent),
        member=Shown("Bytes of values in pushes.", lambda m: m.progress().bytes_sent),
        coordinator=Shown("Bytes written to all streams.", lambda c: c.bytes_sent),
    ),
    Figure(
        "peer_bytes_sent", FigureKind.COUNTER, "peer",
        node=Shown(
            "Bytes of tensors given to links, by receiver: the first peers by name, the rest as"
            " other.",
            lambda n: dict(n.tally.sent_to),
        ),
    ),
    Figure(
        "outbox_bytes", FigureKind.GAUGE,
        node=Shown(
            "Bytes of updates that wait for slow links, before summing.", lambda n: n.outbox_bytes
        ),
    ),
)
SWARM = (
    Figure(
        "members", FigureKind.GAUGE, "state",
        node=Shown(
            "Members by state, as this node sees them.", lambda n: dict(n.members), STATES
        ),
        coordinator=Shown(
            "Members that train, wait for units or for the others, are away for a moment, or lost"
            " their units because they were silent.",
            lambda c: dict(c.members),
        ),
    ),
    Figure(
        "peer_silence_seconds", FigureKind.GAUGE, "peer",
        node=Shown(
            "Since a live member last told of its progress, which it does twice a second; of more"
            " than a few, the longest of the rest is other.",
            lambda n: few(n.outlook.silence_s(n.now), max),
        ),
    ),
    Figure(
        "replica_distance", FigureKind.GAUGE,
        node=Shown(
            "How far the weights of live members are apart, ‖a-b‖/‖a‖: the largest, from sketches"
            " of the same instant, within about 10 %.",
            lambda n: n.replica_distance,
        ),
    ),
)
KEEPING = (
    Figure(
        "checkpoint_age_seconds", FigureKind.GAUGE,
        node=Shown(CHECKPOINT_AGE, lambda n: n.keeping.age_s if n.keeping else None),
        coordinator=Shown(CHECKPOINT_AGE, lambda c: c.keeping.age_s if c.keeping else None),
    ),
    Figure(
        "checkpoint_interval_seconds", FigureKind.GAUGE,
        node=Shown(CHECKPOINT_EVERY, lambda n: n.keeping.every_s if n.keeping else None),
        coordinator=Shown(CHECKPOINT_EVERY, lambda c: c.keeping.every_s if c.keeping else None),
    ),
    Figure(
        "checkpoint_failures", FigureKind.COUNTER,
        node=Shown(CHECKPOINT_FAILURES, lambda n: n.keeping.failures if n.keeping else None),
        coordinator=Shown(
            CHECKPOINT_FAILURES, lambda c: c.keeping.failures if c.keeping else None
        ),
    ),
    Figure(
        "certificate_expiry_seconds", FigureKind.GAUGE,
        node=Shown(
            "Until this node's certificate is no longer valid.", lambda n: n.certificate_expiry_s
        ),
    ),
)
# fmt: on

FIGURES = (
    *(*IDENTITY, *UPDATES, *STALENESS, *PLANS, *SHARES, *TIME, *TRAFFIC, *SWARM),
    *(*LEARNING, *KEEPING),
)

Sheet: TypeAlias = Sequence[tuple[Figure, Shown[S]]]
"""What one kind of process shows."""
NODE = tuple((figure, figure.node) for figure in FIGURES if figure.node is not None)
MEMBER = tuple((figure, figure.member) for figure in FIGURES if figure.member is not None)
COORDINATOR = tuple(
    (figure, figure.coordinator) for figure in FIGURES if figure.coordinator is not None
)


def values(sheet: Iterable[tuple[Figure, Shown[S]]], source: S) -> Mapping[str, Value]:
    """All figures of one instant, by name; nothing in them changes later."""
    return {figure.name: shown.value(source) for figure, shown in sheet}
