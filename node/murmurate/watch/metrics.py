"""Figures for Prometheus: one collector, read when somebody asks.

This is the only importer of prometheus_client. What there is, and how it is read, is the table of
figures (`core.figures.table`); here each becomes a family of samples. What is not known has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from murmurate import __version__
from murmurate.core.figures.figure import FigureKind, Histogram, Value
from murmurate.core.figures.table import Sheet

PREFIX = "murmurate_"
Values: TypeAlias = Mapping[str, Value]
Expose: TypeAlias = Callable[[str], tuple[bytes, str]]
"""From an Accept header to a body and its content type."""


class Collector:
    """The figures of one process, made anew for each scrape from what `read` gives."""

    def __init__(self, read: Callable[[], Values], sheet: Sheet[Any]) -> None:
        self._read = read
        self._sheet = sheet

    def describe(self) -> list[Metric]:
        """Nothing to say before the first reading: registering must not cost one."""
        return []

    def collect(self) -> Iterator[Metric]:
        values = self._read()
        for figure, shown in self._sheet:
            family = _family(PREFIX + figure.name, figure.kind, figure.label, shown.help)
            _fill(family, values.get(figure.name))
            if family.samples:
                yield family


def exposition(read: Callable[[], Values], sheet: Sheet[Any]) -> Expose:
    """With a registry of its own."""
    registry = CollectorRegistry()
    registry.register(Collector(read, sheet))
    ProcessCollector(registry=registry)

    def expose(accept: str) -> tuple[bytes, str]:
        encode, kind = choose_encoder(accept)
        return encode(registry), kind

    return expose


Family: TypeAlias = (
    CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | InfoMetricFamily
)


def _family(name: str, kind: FigureKind, label: str, text: str) -> Family:
    labels = [label] if label else None
    match kind:
        case FigureKind.COUNTER:
            return CounterMetricFamily(name, text, labels=labels)
        case FigureKind.GAUGE:
            return GaugeMetricFamily(name, text, labels=labels)
        case FigureKind.HISTOGRAM:
            return HistogramMetricFamily(name, text)
        case FigureKind.INFO:
            return InfoMetricFamily(name, text)


def _fill(family: Family, value: Value) -> None:
    """Nothing, when the value is not known."""
    match family, value:
        case InfoMetricFamily(), Mapping():
            words = {key: str(word) for key, word in value.items()}
            family.add_metric([], words | {"version": __version__})
        case HistogramMetricFamily(), Histogram():
            family.add_metric([], buckets=list(_buckets(value)), sum_value=value.total)
        case ((CounterMetricFamily() | GaugeMetricFamily()), Mapping()):
            for key, each in value.items():
                if _is_known(number := float(each)):
                    family.add_metric([key], number)
        case ((CounterMetricFamily() | GaugeMetricFamily()), int() | float()):
            if _is_known(value):
                family.add_metric([], value)


def _is_known(value: float) -> bool:
    return not math.isnan(value)


def _buckets(histogram: Histogram) -> Iterable[tuple[str, float]]:
    total = 0
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        total += count
        yield ("+Inf" if bound == math.inf else str(float(bound)), float(total))
