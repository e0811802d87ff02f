"""Names, units, bounds and sums of what Prometheus is shown."""

from __future__ import annotations

import math
import random
import re
import shutil
import subprocess
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from murmurate.core.clock import Dot
from murmurate.core.effect import Applied
from murmurate.core.figures.counters import NAMES_MAX, OTHER, Tally
from murmurate.core.figures.figure import STALENESS_BOUNDS, FigureKind, few
from murmurate.core.figures.sources import Keeping, NodeInstant
from murmurate.core.figures.staleness_forecast import Outlook
from murmurate.core.figures.table import COORDINATOR, FIGURES, MEMBER, NODE, values
from murmurate.core.staleness import Summary
from murmurate.watch.metrics import Collector, Values, exposition
from murmurate_coordinator.solvers.effects import Reason

DESIGNED = {
    *("updates_published_total", "updates_applied_total", "updates_duplicate_total"),
    *("updates_rejected_total", "staleness_updates_bucket", "staleness_predicted_updates"),
    *("staleness_measured_updates", "step_seconds_bucket", "wait_seconds_total"),
    *("bytes_sent_total", "bytes_received_total", "members", "inbox_updates", "outbox_bytes"),
    *("loss", "test_loss", "accuracy", "samples_total", "replica_distance", "cc_ratio"),
    *("checkpoint_age_seconds", "certificate_expiry_seconds"),
}
"""The names of the design."""


def instant(tally: Tally | None = None, **more: Any) -> NodeInstant:
    known: dict[str, Any] = {"name": "a", "run": "r", "rule": "sum", "topology": "full"}
    known |= {"now": 0.0, "outlook": Outlook(random.Random(0))}
    return NodeInstant(tally=tally or Tally(), **known, **more)


def reading(tally: Tally | None = None, **more: Any) -> Values:
    return values(NODE, instant(tally, **more))


def full(peers: int) -> Values:
    """Everything is known, among so many peers."""
    tally = Tally()
    for number in range(peers):
        tally.apply(Applied((Dot(f"node-{number}", 1, 1),), (number,)))
        name = f"node-{number}" if number < NAMES_MAX else OTHER
        tally.sent_to[name] = 1
    tally.step(0.003)
    tally.publish(1.0)
    tally.sent_by_codec.update(dict.fromkeys(("fp32", "bf16", "int8", "topk"), 5))
    tally.rejected.update({f"reason_{number}": 1 for number in range(20)})
    tally.dropped.update({f"reason_{number}": 1 for number in range(10)})
    tally.accuracy_of = (0.5,) * 100
    tally.loss = tally.test_loss = tally.accuracy = tally.flops_per_sample = 1.0
    tally.validation_loss = tally.validation_accuracy = 1.0
    names = {f"node-{number}": float(number) for number in range(peers)}
    known = reading(
        tally,
        communication=1.0,
        replica_distance=1.0,
        keeping=Keeping(age_s=1.0, every_s=1.0, failures=0),
        certificate_expiry_s=1.0,
    )
    foreseen = ("staleness_measured_updates", "staleness_predicted_updates", "delay_seconds")
    return {**known, **dict.fromkeys(foreseen, 1.0), "peer_silence_seconds": few(names, max)}


def shown(given: Values) -> dict[str, float]:
    """Samples by name and labels, the prefix taken off."""
    registry = CollectorRegistry()
    registry.register(Collector(lambda: given, NODE))
    text = generate_latest(registry).decode()
    return {
        sample.name.removeprefix("murmurate_")
        + "".join(f"{{{label}={value}}}" for label, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_name_of_the_design_is_there() -> None:
    names = {name.partition("{")[0] for name in shown(full(3))}
    assert names >= DESIGNED


def documented() -> set[str]:
    """What docs/metrics.md calls figures, as `name{label}`: its tables, and what a member has."""
    text = (Path(__file__).parents[2] / "docs/metrics.md").read_text(encoding="utf-8")
    text = text.partition("## Figures")[2].partition("### Staleness")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    said = [line for line in text.splitlines() if line.startswith("A member has")]
    assert rows
    assert said
    return set(re.findall(r"`([a-z_]+(?:{[a-z,]+})?)`", "\n".join(rows + said)))


def test_the_documentation_has_every_figure_and_no_other() -> None:
    names = set()
    for figure in FIGURES:
        label = f"{{{figure.label}}}" if figure.label else ""
        match figure.kind:
            case FigureKind.COUNTER:
                names.add(f"{figure.name}_total{label}")
            case FigureKind.INFO:
                names.add(f"{figure.name}_info{{name,run,rule,topology,version}}")
            case _:
                names.add(figure.name + label)
    assert documented() == names


def test_every_reason_of_a_solver_is_there_from_the_start() -> None:
    (shown,) = [how for figure, how in COORDINATOR if figure.name == "updates_rejected"]
    assert {str(reason) for reason in Reason} <= set(shown.from_start)


def test_no_process_shows_a_figure_twice() -> None:
    for sheet in (NODE, MEMBER, COORDINATOR):
        names = [figure.name for figure, _ in sheet]
        assert len(names) == len(set(names))


def test_what_is_not_known_has_no_sample() -> None:
    names = shown(reading())
    for name in (
        *("loss", "test_loss", "accuracy", "validation_loss", "validation_accuracy"),
        *("staleness_predicted_updates", "checkpoint_age_seconds"),
    ):
        assert name not in names
    assert names["updates_rejected_total{reason=malformed}"] == 0, "its first rise is seen"


def test_at_most_500_series_at_64_peers() -> None:
    samples = shown(full(64))
    assert len(samples) <= 500
    assert samples["origin_updates_applied_total{origin=other}"] == 64 - NAMES_MAX
    assert samples["peer_silence_seconds{peer=other}"] == 63
    assert samples["class_accuracy{class=31}"] == 0.5
    assert "class_accuracy{class=32}" not in samples


def test_the_sum_over_origins_is_the_whole() -> None:
    samples = shown(full(64))
    for part, whole in (
        ("origin_updates_applied_total{", "updates_applied_total"),
        ("origin_staleness_updates_total{", "staleness_updates_sum"),
    ):
        assert (
            sum(value for name, value in samples.items() if name.startswith(part))
            == (samples[whole])
        )
    assert samples["staleness_updates_count"] == samples["updates_applied_total"]


@pytest.mark.parametrize("spread", [10, 300, 100_000])
def test_the_histogram_is_exact_also_after_folding(spread: int) -> None:
    rng = random.Random(spread)
    values = [rng.randrange(spread) for _ in range(20_000)]
    summary = Summary(values)
    assert summary.folded == (spread == 100_000)
    tally = Tally()
    tally.staleness = summary
    samples = shown(reading(tally))
    ordered = sorted(values)
    for bound in STALENESS_BOUNDS:
        expected = bisect_left(ordered, bound + 1)
        assert samples[f"staleness_updates_bucket{{le={float(bound)}}}"] == expected
    assert samples["staleness_updates_count"] == len(values)
    assert samples["staleness_updates_sum"] == sum(values)


def test_steps_are_counted_up_to_each_bound() -> None:
    tally = Tally()
    for seconds in (0.0005, 0.001, 0.0011, 3600.0):
        tally.step(seconds)
    samples = shown(reading(tally))
    assert samples["step_seconds_bucket{le=0.001}"] == 2
    assert samples["step_seconds_bucket{le=0.002}"] == 3
    assert samples["step_seconds_bucket{le=60.0}"] == 3
    assert samples["step_seconds_count"] == 4
    assert math.isclose(samples["step_seconds_sum"], 3600.0026)


def test_who_has_a_name_keeps_it() -> None:
    """Else a counter would jump when a peer comes or goes."""
    tally = Tally()
    for number in range(NAMES_MAX + 8):
        tally.apply(Applied((Dot(f"n{number}", 1, 1),), (1,)))
    before = dict(tally.applied_of)
    assert len(before) == NAMES_MAX + 1
    tally.apply(Applied((Dot("n0", 1, 2), Dot("another", 1, 1)), (1, 1)))
    assert tally.applied_of == {**before, "n0": 2, OTHER: before[OTHER] + 1}


def test_a_scrape_speaks_the_reader_s_language() -> None:
    expose = exposition(lambda: full(3), NODE)
    body, kind = expose("")
    assert kind.startswith("text/plain")
    assert b"murmurate_updates_applied_total 3.0" in body
    body, kind = expose("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_nothing_to_say() -> None:
    body, _ = exposition(lambda: full(64), NODE)("")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
