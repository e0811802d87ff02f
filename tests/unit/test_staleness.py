"""Staleness: the formulas by hand values, the renewal functions, the summary.

What the formulas claim about the world is checked by simulation in tests/paper.
"""

from __future__ import annotations

import math
import random

import pytest

from murmurate.core.staleness import BIN_BITS, VALUES_MAX, Summary
from murmurate.core.theory import (
    exact_expected,
    gossip_expected,
    gossip_expected_unequal,
    paper_expected,
    renewals_exponential,
    renewals_fixed,
    renewals_measured,
    renewals_shifted_exponential,
    request_reply_expected,
)
from murmurate.errors import ConfigError, LocalProtocolError

# -- what to expect ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "k", "compute_s", "transfer_s", "renewals", "printed", "exact"),
    [
        (10, 10, 2.5, 1.0, 0.0, 1.40, 1.36),  # 004 Fig. 1, first point
        (20, 10, 2.5, 1.0, 0.0, 2.80, 2.76),  # last point
        (10, 5, 2.5, 1.0, 0.0, 2.80, 2.72),  # Fig. 2
        (10, 1, 2.5, 1.0, 0.0, 14.0, 13.6),
        (10, 1, 2.5, 1.0, 0.4, 14.0, 14.0),  # H = Tc / mu: exponential
        (10, 10, 2.0, 0.0, 0.0, 1.0, 1.0),  # case 1
        (10, 1, 20.0, 0.0, 0.0, 10.0, 10.0),  # case 2
        (1, 1, 1.0, 0.5, 0.0, 1.5, 1.0),  # alone: just the own gradient on the wire
    ],
)
def test_hub(
    n: int,
    k: int,
    compute_s: float,
    transfer_s: float,
    renewals: float,
    printed: float,
    exact: float,
) -> None:
    assert paper_expected(n, k, compute_s, transfer_s) == pytest.approx(printed)
    assert exact_expected(n, k, compute_s, transfer_s, renewals) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("n", "k", "mean"), [(1, 1, 0.0), (4, 1, 3.0), (10, 5, 1.8), (8, 8, 0.875)]
)
def test_request_reply(n: int, k: int, mean: float) -> None:
    assert request_reply_expected(n, k) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("n", "rate", "compute_s", "delay_s", "mean"),
    [
        (1, 1.0, 1.0, 5.0, 0.0),
        (4, 1.0, 1.0, 0.0, 3.0),
        (4, 1.0, 1.0, 0.1, 3.3),
        (64, 1.0, 1.0, 0.0, 63.0),
        (64, 1.0, 1.0, 0.1, 69.3),
        (64, 0.873, 1.0, 0.0, 55.0),
        (4, 20.0, 0.05, 0.005, 3.3),  # only ratios matter
        (4, 0.0, 1.0, 1.0, 0.0),  # nobody sends
    ],
)
def test_gossip(n: int, rate: float, compute_s: float, delay_s: float, mean: float) -> None:
    assert gossip_expected(n, rate, compute_s, delay_s) == pytest.approx(mean, abs=1e-3)


def test_gossip_of_unequal_nodes() -> None:
    """Two nodes, rates 1 and 1/4, delay 1: by hand (4/5) (1/4) (1+1) + (1/5) 1 (4+1) = 1.4."""
    assert gossip_expected_unequal([1.0, 0.25], [1.0, 4.0], 1.0) == pytest.approx(1.4)
    assert gossip_expected_unequal([1.0, 0.25], [1.0, 4.0], 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: paper_expected(4, 5, 1.0, 0.0),
        lambda: paper_expected(4, 0, 1.0, 0.0),
        lambda: exact_expected(4, 1, 0.0, 0.0, 0.0),
        lambda: exact_expected(4, 1, 1.0, -1.0, 0.0),
        lambda: exact_expected(4, 1, 1.0, 1.0, -0.1),
        lambda: exact_expected(4, 1, math.nan, 1.0, 0.0),
        lambda: request_reply_expected(0, 1),
        lambda: gossip_expected(0, 1.0, 1.0, 0.0),
        lambda: gossip_expected(4, -1.0, 1.0, 0.0),
        lambda: gossip_expected_unequal([1.0], [1.0, 2.0], 0.0),
        lambda: gossip_expected_unequal([], [], 0.0),
        lambda: renewals_exponential(1.0, 0.0),
        lambda: renewals_fixed(math.inf, 1.0),
        lambda: renewals_shifted_exponential(1.0, -1.0, 1.0),
        lambda: renewals_shifted_exponential(1.0, 1.0, 0.0),
        lambda: renewals_measured(1.0, []),
        lambda: renewals_measured(1.0, [0.0, 0.0]),
        lambda: renewals_measured(1.0, [1.0, -1.0]),
    ],
)
def test_what_means_nothing_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ConfigError, match=r"expected|at least|negative"):
        call()


# -- renewals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span_s", "each_s", "count"),
    [(0.0, 1.0, 0), (0.99, 1.0, 0), (1.0, 1.0, 1), (2.5, 1.0, 2), (0.3, 0.1, 3), (7.0, 2.5, 2)],
)
def test_renewals_of_fixed_times(span_s: float, each_s: float, count: int) -> None:
    assert renewals_fixed(span_s, each_s) == count


def test_renewals_of_exponential_times() -> None:
    assert renewals_exponential(1.0, 2.5) == 0.4
    assert renewals_shifted_exponential(1.0, 0.0, 0.4) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("span_s", "by_hand"),
    [
        (0.0, 0.0),
        (1.0, 0.0),  # nothing ends before the shift
        (2.0, 1 - math.exp(-2 / 3)),  # one, if its tail is under 1 s
        (
            2.5,  # one with x = 1, or two with x = 1/3
            1 - math.exp(-1) + 1 - math.exp(-1 / 3) * (1 + 1 / 3),
        ),
    ],
)
def test_renewals_of_shifted_exponential_times(span_s: float, by_hand: float) -> None:
    assert renewals_shifted_exponential(span_s, 1.0, 2 / 3) == pytest.approx(by_hand, abs=1e-14)


@pytest.mark.parametrize("shift_s", [1.0, 0.1, 0.001, 1e-6])
def test_renewals_of_shifted_exponential_times_reach_the_renewal_theorem(shift_s: float) -> None:
    """H(t) - t / mu → (cv² - 1) / 2; for 004's times -0.32."""
    mean_s = shift_s + 1.5
    limit = ((1.5 / mean_s) ** 2 - 1) / 2
    got = renewals_shifted_exponential(200.0, shift_s, 2 / 3) - 200.0 / mean_s
    assert got == pytest.approx(limit, abs=1e-9)


@pytest.mark.parametrize("span_s", [0.5, 1.5, 4.0, 5.0, 40.0, 700.0])
def test_renewals_measured_agree_with_the_closed_form(span_s: float) -> None:
    """Quantiles stand for samples, so the test has no luck in it (and no error of sampling)."""
    quantiles = [1 - 1.5 * math.log1p(-(i + 0.5) / 4000) for i in range(4000)]
    closed = renewals_shifted_exponential(span_s, 1.0, 2 / 3)
    assert renewals_measured(span_s, quantiles) == pytest.approx(closed, abs=0.002 + 2e-4 * span_s)


def test_renewals_measured_of_few_values() -> None:
    """One value is `renewals_fixed`, except that one ending with the span counts half; of 1 s and
    3 s, alike likely, in 2.5 s: one for sure by half, two if both are 1 s."""
    assert renewals_measured(2.5, [1.0]) == pytest.approx(2.0, abs=1e-6)
    assert renewals_measured(2.0, [1.0]) == pytest.approx(1.5, abs=1e-6)
    assert renewals_measured(2.5, [1.0, 3.0]) == pytest.approx(0.75, abs=1e-6)
    assert renewals_measured(0.5, [1.0, 3.0]) == 0.0
    assert renewals_measured(0.0, [1.0]) == 0.0


def test_renewals_measured_of_times_that_may_be_zero() -> None:
    """Half the batches take no time: each that does is followed by one more on average, and one
    precedes the first."""
    assert renewals_measured(2.5, [0.0, 1.0]) == pytest.approx(1 + 2 * 2, abs=1e-6)


# -- the summary ---------------------------------------------------------------------------------


def test_summary_of_nothing() -> None:
    assert Summary().report() == {"count": 0, "mean": 0.0, "p50": 0, "p99": 0, "max": 0}


@pytest.mark.parametrize(
    ("values", "p50", "p99", "largest"),
    [
        ([7], 7, 7, 7),
        ([1, 2], 1, 2, 2),
        ([1, 2, 3], 2, 3, 3),
        ([0] * 99 + [5], 0, 0, 5),
        ([0] * 98 + [5, 6], 0, 5, 6),
        (list(range(1, 101)), 50, 99, 100),
        (list(range(1, 1001)), 500, 990, 1000),
    ],
)
def test_summary_is_exact(values: list[int], p50: int, p99: int, largest: int) -> None:
    report = Summary(values).report()
    assert report == {
        "count": len(values),
        "mean": sum(values) / len(values),
        "p50": p50,
        "p99": p99,
        "max": largest,
    }


def dumb_percentile(values: list[int], percent: int) -> int:
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


@pytest.mark.parametrize("seed", range(5))
def test_summary_after_folding_says_what_is_still_exact(seed: int) -> None:
    """Count, total, mean and largest always; percentiles below 256; others low by < 1 in 128."""
    rng = random.Random(seed)
    values = [int(rng.paretovariate(0.6)) for _ in range(30_000)]
    values += [rng.randrange(2**40) for _ in range(6000)]
    rng.shuffle(values)
    summary = Summary(values)
    assert summary.folded
    assert summary.count == len(values)
    assert summary.total == sum(values)
    assert summary.largest == max(values)
    for percent in (0, 1, 10, 50, 75, 80, 85, 90, 99, 100):
        true, got = dumb_percentile(values, percent), summary.percentile(percent)
        if true < 2**BIN_BITS or percent == 100:
            assert got == true
        else:
            assert 0 <= true - got < true / 128


def test_summary_memory_is_bounded() -> None:
    """At the limit nothing is folded; one more value and it is. 2^k and the like fill every bin."""
    assert not Summary(range(VALUES_MAX)).folded
    assert Summary(range(VALUES_MAX)).percentile(50) == VALUES_MAX // 2 - 1
    summary = Summary(range(VALUES_MAX + 1))
    assert summary.folded
    for bits in range(62):
        for part in range(256):
            summary.add((256 + part) << bits >> 8)
    assert len(summary._counts) <= 256 + 128 * (62 - BIN_BITS)
    assert summary.percentile(100) == 511 << 61 >> 8


@pytest.mark.parametrize("spread", [50, 3000, 10**9])
def test_merged_summaries_are_the_summary_of_all(spread: int) -> None:
    rng = random.Random(spread)
    parts = [[rng.randrange(spread) for _ in range(size)] for size in (0, 5, 2500, 6000)]
    whole = Summary(value for part in parts for value in part)
    merged = Summary()
    for part in parts:
        merged.merge(Summary(part))
    assert merged.folded == whole.folded == (spread > VALUES_MAX)
    assert merged.report() == whole.report()


def test_summary_merged_with_itself_folded_or_not() -> None:
    exact, folded = Summary([300, 301]), Summary(range(5000))
    exact.merge(folded)
    assert exact.folded
    assert exact.count == 5002
    assert exact.total == 601 + sum(range(5000))


def test_summary_refuses_what_is_no_number_of_updates_or_percent() -> None:
    with pytest.raises(LocalProtocolError, match="never negative"):
        Summary([-1])
    with pytest.raises(LocalProtocolError, match="expected 0 to 100"):
        Summary([1]).percentile(101)
