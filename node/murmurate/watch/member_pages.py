"""What a member of independent subnet training serves over HTTP: figures and probes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from murmurate import __version__
from murmurate.io.http import Page, Pages
from murmurate.io.metrics import (
    Families,
    Histogram,
    Metric,
    counter,
    counters,
    exposition,
    gauge,
    histogram,
    info,
    staleness_updates,
)
from murmurate.report import counts
from murmurate.tally import STEP_BOUNDS_S

if TYPE_CHECKING:
    from murmurate.member import Member

REASONS = ("over", "not_leased", "shapes", "not_finite", "future", "duplicate")
"""Why a push was not taken. There from the start, at 0."""


def pages(member: Member, listen: str) -> Pages:
    """To be started on the loop of the member's link."""
    expose = exposition(lambda: member, FAMILIES)

    def metrics(headers: Mapping[str, str]) -> Page:
        body, kind = expose(headers.get("accept", ""))
        return Page(body, kind)

    def livez(_: Mapping[str, str]) -> Page:
        if member.failed:
            return Page(b"the background has failed; see the log\n", status=503)
        return Page(b"ok\n")

    def readyz(_: Mapping[str, str]) -> Page:
        """A coordinator that is away does not make it unready: it trains on."""
        if not member.lease or member.stopped:
            return Page(b"it has no subnet\n", status=503)
        return Page(b"ok\n")

    return Pages(listen, {"/metrics": metrics, "/livez": livez, "/readyz": readyz})


def _identity(m: Member) -> Iterator[Metric]:
    words = {"name": m.name, "run": m.run, "rule": m.rule, "topology": "star"}
    yield info("node", "Who this is: join on instance to get a name.", words, __version__)
    yield gauge("ready", "1 when this member has a subnet to train.", bool(m.lease))
    yield gauge("coordinator_up", "1 while the coordinator is there.", m.connected)
    yield gauge("plan_number", "Of the partition its subnet is of.", m.plan)
    yield gauge("subnet_share_ratio", "The part of the model's parameters that is here.", m.share)


def _pushes(m: Member) -> Iterator[Metric]:
    tally = m.tally
    yield counter("updates_published", "Pushes this member has made.", tally.published)
    yield counter("updates_applied", "Pushes of this member that are in the model.", tally.applied)
    yield counters(
        "updates_rejected",
        "Pushes that were not taken: nothing was changed by them.",
        "reason",
        {**dict.fromkeys(REASONS, 0), **tally.rejected},
    )
    seen = m.staleness
    yield staleness_updates(
        "Version lag of every push: pushes of others that were folded in since the one before it,"
        " or since its subnet was given.",
        counts(seen),
        seen.total,
    )
    yield counter("steps_lost", "Steps made after a push that a new subnet replaced.", m.steps_lost)


def _training(m: Member) -> Iterator[Metric]:
    tally, told = m.tally, m.progress()
    yield histogram(
        "step_seconds",
        "Time of a local step, from the end of the one before: data, forward, backward, optimizer.",
        Histogram(STEP_BOUNDS_S, tuple(tally.steps), tally.steps_s),
    )
    yield counter(
        "wait_seconds", "Time spent waiting for a subnet or for the others' pushes.", tally.wait_s
    )
    yield counter("samples", "Samples this member has trained on.", tally.samples)
    yield gauge("loss", "The latest loss that was logged.", tally.loss)
    if not math.isnan(tally.accuracy):
        yield gauge("accuracy", "The latest accuracy that was logged, 0 to 1.", tally.accuracy)
    yield counter("wire_bytes_sent", "Bytes of values in pushes.", told.bytes_sent)
    yield counter("bytes_received", "Bytes of values in subnets.", told.bytes_received)


FAMILIES: Families[Member] = (_identity, _pushes, _training)
