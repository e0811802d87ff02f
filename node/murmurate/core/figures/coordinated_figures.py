"""Figures of a coordinator and its members: plans, leases, shares (`core.figures.table`)."""

from __future__ import annotations

from murmurate.core.figures.figure import Figure, FigureKind, Shown, few

TENSORS_MAX = 64
ADVICE = ("silent", "behind", "untrained")

# fmt: off
PLANS = (
    Figure(
        "plan_number", FigureKind.GAUGE,
        member=Shown("Of the partition its subnet is of.", lambda m: m.plan),
        coordinator=Shown("Of the partition that holds now.", lambda c: c.plan),
    ),
    Figure(
        "coverage_ratio", FigureKind.GAUGE, "tensor",
        coordinator=Shown(
            "Of each tensor that is split: the part that was ever in a push; of more than a few,"
            " the smallest of the rest is other.",
            lambda c: few(c.coverage, min, TENSORS_MAX),
        ),
    ),
    Figure(
        "leases", FigureKind.GAUGE,
        coordinator=Shown("Subnets that are with a member now.", lambda c: c.leases),
    ),
    Figure(
        "leases_revoked", FigureKind.COUNTER,
        coordinator=Shown(
            "Leases taken from members that were gone or frozen.", lambda c: c.revoked
        ),
    ),
    Figure(
        "advice", FigureKind.GAUGE, "kind",
        coordinator=Shown(
            "Conditions of convergence that are not met now (docs/ist.md), by kind.",
            lambda c: dict(c.advice), ADVICE,
        ),
    ),
)
SHARES = (
    # One name, with a label at the coordinator and without at a member, which has only its own.
    Figure(
        "subnet_share_ratio", FigureKind.GAUGE,
        member=Shown("The part of the model's parameters that is here.", lambda m: m.share),
    ),
    Figure(
        "subnet_share_ratio", FigureKind.GAUGE, "member",
        coordinator=Shown(
            "The part of the parameters a member has: the first by name, of the rest the largest.",
            lambda c: dict(c.shares),
        ),
    ),
)
# fmt: on
