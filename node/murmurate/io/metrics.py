"""A node's figures for Prometheus: one collector, read when somebody asks.

This is the only importer of prometheus_client. `Reading` is what a node has counted at one instant;
`Collector` gives each figure its name, unit and help. Labels are bounded: peers by name up to a
limit (`tally.NAMES_MAX`), the rest as `other`; classes up to `CLASSES_MAX`; reasons and codecs are
words of this program. What is not known (a loss before the first step) has no sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Metric

R = TypeVar("R")
Families: TypeAlias = Sequence[Callable[[R], Iterator[Metric]]]
PREFIX = "murmurate_"
CLASSES_MAX = 32
STATES = ("alive", "suspect", "dead", "left")
REJECTIONS = ("malformed", "own_step", "quarantine", "retired", "schema", "too_large")
"""Reasons that are there from the start, at 0: else nobody sees the first of them as a change."""
STALENESS_BOUNDS = (
    *(0, 1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255, 383, 511),
    *(1023, 2047, 4095, 16383, 65535),
)
"""Upper bounds one below numbers of few bits: so counts are exact even where `Summary` bins."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts up to each bound (and beyond the last), not added up; and the sum of all values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One instant of a node. NaN and None: not known."""

    name: str
    run: str
    rule: str
    topology: str
    version: str
    ready: bool = False
    published: int = 0
    applied: int = 0
    duplicates: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    staleness: Mapping[int, int] = field(default_factory=dict)
    """How often each was seen."""
    staleness_total: int = 0
    staleness_now: float = math.nan
    staleness_predicted: float = math.nan
    applied_of: Mapping[str, int] = field(default_factory=dict)
    staleness_of: Mapping[str, int] = field(default_factory=dict)
    steps: Histogram = field(default_factory=lambda: Histogram((), (0,), 0.0))
    update_s: float = math.nan
    delay_s: float = math.nan
    wait_s: float = 0.0
    sent_by_codec: Mapping[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    received_bytes: int = 0
    sent_to: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)
    silence_s: Mapping[str, float] = field(default_factory=dict)
    lag: int = 0
    inbox_updates: int = 0
    outbox_bytes: int = 0
    pace_s: float = 0.0
    communication: float = math.nan
    loss: float = math.nan
    accuracy: float = math.nan
    accuracy_of: Sequence[float] = ()
    samples: int = 0
    replica_distance: float = math.nan
    cc_ratio: float = math.nan
    parameters: int = 0
    checkpoint_age_s: float = math.nan
    checkpoint_every_s: float = math.nan
    checkpoint_failures: int | None = None
    certificate_expiry_s: float = math.nan


class Collector(Generic[R]):
    """Figures of one node, made anew for each scrape from what `read` gives."""

    def __init__(self, read: Callable[[], R], families: Families[R]) -> None:
        self._read = read
        self._families = families

    def describe(self) -> list[Metric]:
        """Nothing to say before the first reading: registering must not cost one."""
        return []

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        for families in self._families:
            yield from (family for family in families(reading) if family.samples)


def exposition(read: Callable[[], R], families: Families[R]) -> Callable[[str], tuple[bytes, str]]:
    """A registry of its own; from an Accept header to a body and its content type."""
    registry = CollectorRegistry()
    registry.register(Collector(read, families))
    ProcessCollector(registry=registry)

    def expose(accept: str) -> tuple[bytes, str]:
        encode, kind = choose_encoder(accept)
        return encode(registry), kind

    return expose


# -- families ------------------------------------------------------------------------------------


def _identity(r: Reading) -> Iterator[Metric]:
    words = {"name": r.name, "run": r.run, "rule": r.rule, "topology": r.topology}
    yield info("node", "Who this is: join on instance to get a name.", words, r.version)
    yield gauge("ready", "1 when this node has the swarm's weights and is not leaving.", r.ready)
    yield gauge("parameters", "Numbers in the model.", r.parameters)


def _updates(r: Reading) -> Iterator[Metric]:
    yield counter("updates_published", "Updates this node has made.", r.published)
    yield counter(
        "updates_applied",
        "Updates in these weights that were folded in here one by one, own ones included. What came"
        " with a snapshot is not counted.",
        r.applied,
    )
    yield counter(
        "updates_duplicate", "Updates that came again and were not applied again.", r.duplicates
    )
    rejected = {**dict.fromkeys(REJECTIONS, 0), **r.rejected}
    yield counters(
        "updates_rejected",
        "Messages and updates that were refused, and will not be in these weights.",
        "reason",
        rejected,
    )
    yield counters(
        "updates_dropped",
        "Updates that could not be used when they came, and come again another way.",
        "reason",
        r.dropped,
    )
    yield counters(
        "origin_updates_applied",
        "Updates applied, by who made them: the first peers by name, the rest as other.",
        "origin",
        r.applied_of,
    )
    yield gauge("inbox_updates", "Updates here that wait for the end of a step.", r.inbox_updates)
    yield gauge(
        "lag_updates", "Updates of live members known to exist and not in these weights.", r.lag
    )


def _staleness(r: Reading) -> Iterator[Metric]:
    yield staleness_updates(
        "Staleness of every update applied here, own included: in how many updates the weights it"
        " was computed on differ from those it was added to.",
        r.staleness,
        r.staleness_total,
    )
    yield gauge(
        "staleness_measured_updates",
        "Mean staleness of what was applied here in the last 10 s.",
        r.staleness_now,
    )
    yield gauge(
        "staleness_predicted_updates",
        "Mean staleness expected here from the rates, compute times and delays of the last 10 s;"
        " for n equal nodes (n-1) lambda (mu+L).",
        r.staleness_predicted,
    )
    yield counters(
        "origin_staleness_updates",
        "Staleness of all updates applied here, added up, by who made them; divide by"
        " origin_updates_applied_total.",
        "origin",
        r.staleness_of,
    )


def _time(r: Reading) -> Iterator[Metric]:
    yield histogram(
        "step_seconds",
        "Time of a local step, from the end of the one before: data, forward, backward, optimizer.",
        r.steps,
    )
    yield gauge(
        "update_seconds", "Mean time from the start of an update's batch to the update.", r.update_s
    )
    yield gauge(
        "delay_seconds",
        "Mean time from the making of others' updates to their arrival here, over the"
        " last 10 s; wrong by the differences of wall clocks, which cancel in the mean over nodes.",
        r.delay_s,
    )
    yield counter(
        "wait_seconds", "Time spent waiting for others: joining, never while training.", r.wait_s
    )
    yield gauge(
        "communication_ratio",
        "Part of this process's processor time that sending and receiving took, of late.",
        r.communication,
    )
    yield gauge(
        "pace_seconds", "How long messages wait for company at present; 0: not at all.", r.pace_s
    )


def _traffic(r: Reading) -> Iterator[Metric]:
    yield counters(
        "bytes_sent",
        "Bytes of tensors given to links, by the codec they are in; snapshots are fp32.",
        "codec",
        r.sent_by_codec,
    )
    yield counter("bytes_received", "Bytes read from all links.", r.received_bytes)
    yield counter("wire_bytes_sent", "Bytes written to all links.", r.sent_bytes)
    yield counters(
        "peer_bytes_sent",
        "Bytes of tensors given to links, by receiver: the first peers by name, the rest as other.",
        "peer",
        r.sent_to,
    )
    yield gauge(
        "outbox_bytes", "Bytes of updates that wait for slow links, before summing.", r.outbox_bytes
    )


def _swarm(r: Reading) -> Iterator[Metric]:
    members = dict.fromkeys(STATES, 0) | dict(r.members)
    yield gauges("members", "Members by state, as this node sees them.", "state", members)
    yield gauges(
        "peer_silence_seconds",
        "Since a live member last told of its progress, which it does twice a second; of more than"
        " a few, the longest of the rest is other.",
        "peer",
        r.silence_s,
    )
    yield gauge(
        "replica_distance",
        "How far the weights of live members are apart, ‖a-b‖/‖a‖: the largest, from sketches of"
        " the same instant, within about 10 %.",
        r.replica_distance,
    )


def _learning(r: Reading) -> Iterator[Metric]:
    yield gauge("loss", "The latest loss that was logged.", r.loss)
    yield gauge("accuracy", "The latest accuracy on the test set, from 0 to 1.", r.accuracy)
    classes = {str(number): value for number, value in enumerate(r.accuracy_of[:CLASSES_MAX])}
    yield gauges(
        "class_accuracy",
        "The same by class: of a class that only a lost or slow peer sees, it falls first.",
        "class",
        classes,
    )
    yield counter("samples", "Samples this node has trained on.", r.samples)
    yield gauge(
        "cc_ratio",
        "Floating-point operations of the model for one sample, forward, per parameter: how much"
        " computing there is for each number exchanged.",
        r.cc_ratio,
    )


def _keeping(r: Reading) -> Iterator[Metric]:
    yield gauge(
        "checkpoint_age_seconds",
        "Since the last durable checkpoint, or since the start when there is none yet.",
        r.checkpoint_age_s,
    )
    yield gauge(
        "checkpoint_interval_seconds", "Between two checkpoints, as asked.", r.checkpoint_every_s
    )
    if r.checkpoint_failures is not None:
        yield counter(
            "checkpoint_failures", "Checkpoints that could not be written.", r.checkpoint_failures
        )
    yield gauge(
        "certificate_expiry_seconds",
        "Until this node's certificate is no longer valid.",
        r.certificate_expiry_s,
    )


FAMILIES = (_identity, _updates, _staleness, _time, _traffic, _swarm, _learning, _keeping)


# -- shapes --------------------------------------------------------------------------------------


def staleness_updates(text: str, seen: Mapping[int, int], total: int) -> Metric:
    counts = [0] * (len(STALENESS_BOUNDS) + 1)
    place = 0
    for value in sorted(seen):
        while place < len(STALENESS_BOUNDS) and value > STALENESS_BOUNDS[place]:
            place += 1
        counts[place] += seen[value]
    return histogram("staleness_updates", text, Histogram(STALENESS_BOUNDS, counts, total))


def info(name: str, text: str, words: Mapping[str, str], version: str) -> Metric:
    family = InfoMetricFamily(PREFIX + name, text)
    family.add_metric([], {**words, "version": version})
    return family


def gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text)
    if not math.isnan(value):
        family.add_metric([], value)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        if not math.isnan(value):
            family.add_metric([key], value)
    return family


def counter(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text)
    family.add_metric([], value)
    return family


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def histogram(name: str, text: str, seen: Histogram) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text)
    family.add_metric([], buckets=list(_buckets(seen)), sum_value=seen.total)
    return family


def _buckets(histogram: Histogram) -> Iterable[tuple[str, float]]:
    total = 0
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        total += count
        yield ("+Inf" if bound == math.inf else str(float(bound)), float(total))
