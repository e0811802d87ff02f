"""The live forecast of staleness: its formula against the theory's, its inputs against a script."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from tests.unit.dumb_swarm import Swarm

from murmurate.core.figures.progress import Progress
from murmurate.core.figures.sketches import EVERY_S, KEPT, Sketches
from murmurate.core.figures.staleness_forecast import (
    ARRIVED_MAX,
    MADE_MAX,
    OWN_MAX,
    WINDOW_S,
    Makings,
    Outlook,
    Rate,
    Track,
    expected_at,
)
from murmurate.core.theory import gossip_expected, gossip_expected_unequal
from murmurate.watch.report import predicted_staleness


@pytest.mark.parametrize("n", [2, 4, 64])
@pytest.mark.parametrize("delay_s", [0.0, 0.03])
def test_equal_nodes_expect_the_law(n: int, delay_s: float) -> None:
    each = Rate(50.0, 0.018)
    others = {str(number): each for number in range(n - 1)}
    assert expected_at(each, others, delay_s) == pytest.approx(
        gossip_expected(n, 50.0, 0.018, delay_s)
    )


def test_over_unequal_nodes_the_mean_is_the_theory_s() -> None:
    """Every node applies all updates, so the mean over nodes is the mean over applications."""
    rates = {str(i): Rate(rate, 0.9 / rate) for i, rate in enumerate((100.0, 50.0, 20.0, 3.0))}
    expected = [
        expected_at(
            rates[name], {other: rate for other, rate in rates.items() if other != name}, 0.02
        )
        for name in rates
    ]
    theory = gossip_expected_unequal(
        [rate.updates_per_s for rate in rates.values()],
        [rate.compute_s for rate in rates.values()],
        0.02,
    )
    assert sum(expected) / len(expected) == pytest.approx(theory)


def live(swarm: Swarm) -> tuple[float, float]:
    """Measured and predicted, the mean over all nodes and the second half of the run."""
    late = [pair for node in swarm.nodes for pair in node.live[len(node.live) // 2 :]]
    return fmean(measured for measured, _ in late), fmean(predicted for _, predicted in late)


@pytest.mark.parametrize("wrong_s", [[0.0] * 4, [0.0, 3600.0, -0.5, 0.02]])
@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_rates_and_delays_are_found_from_what_is_told(wrong_s: list[float], delay_s: float) -> None:
    """Whatever the wall clocks say."""
    swarm = Swarm([0.025] * 4, delay_s, wrong_s=wrong_s, span_s=40.0)
    measured, predicted = live(swarm)
    assert measured == pytest.approx(swarm.staleness, rel=0.02)
    assert predicted == pytest.approx(gossip_expected(4, 40.0, 0.025, delay_s), rel=0.04)
    for node in swarm.nodes:
        assert node.outlook.predicted() == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize(
    ("steps_s", "delay_s", "jitter", "freezes"),
    [
        ([0.02] * 4, 0.01, 0.0, None),
        ([0.01] * 4, 0.05, 1.0, None),
        ([0.01] * 4, 0.005, 1.0, (5.0, 0.05)),
        ([0.01] * 4, 0.005, 1.0, (4.0, 0.15)),
        ([0.02, 0.02, 0.05, 0.1], 0.02, 0.5, (2.0, 0.05)),
        ([0.02] * 2, 0.02, 0.5, (4.0, 0.05)),
    ],
)
def test_the_forecast_meets_a_dumb_swarm(
    steps_s: list[float], delay_s: float, jitter: float, freezes: tuple[float, float] | None
) -> None:
    """Also where delays vary and processes stand still: within the 10 % that are promised."""
    swarm = Swarm(steps_s, delay_s, jitter=jitter, freezes=freezes, span_s=40.0)
    measured, predicted = live(swarm)
    assert predicted == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("stalls", [(2.0, 0.1), (2.0, 0.2)])
def test_the_forecast_knows_updates_that_overtake(stalls: tuple[float, float]) -> None:
    """Links that stall now and then: without that term it would be 17 and 30 % too low."""
    swarm = Swarm([0.02] * 4, 0.005, stalls=stalls, span_s=40.0)
    measured, predicted = live(swarm)
    assert predicted == pytest.approx(measured, rel=0.1)
    of_all = predicted_staleness(swarm.histories, swarm.rows)
    assert of_all == pytest.approx(swarm.staleness, rel=0.1)


@pytest.mark.parametrize(("nodes", "delay_s"), [(1, 0.0), (2, 0.0), (4, 0.01)])
def test_the_forecast_knows_parts_that_take_turns(nodes: int, delay_s: float) -> None:
    """Each of a node's updates meets the three parts it published since that one's first step."""
    swarm = Swarm([0.02] * nodes, delay_s, parts=4, span_s=40.0)
    measured, predicted = live(swarm)
    assert measured == pytest.approx(4 * nodes - 1 + 50 * delay_s * (nodes - 1), rel=0.1)
    assert predicted == pytest.approx(measured, rel=0.1)
    of_all = predicted_staleness(swarm.histories, swarm.rows)
    assert of_all == pytest.approx(swarm.staleness, rel=0.1)


def test_own_updates_are_counted_between_two_moments() -> None:
    own = Makings()
    for wall in range(1, 3 * OWN_MAX):
        own.add(float(wall))
    last = 3 * OWN_MAX - 1
    assert own.between(last - 10.5, last - 0.5) == 10
    assert own.between(last, last + 5) == 0
    assert own.newest == tuple(float(wall) for wall in range(last - 7, last + 1)), (
        "of the slow a few"
    )
    assert Makings().newest == ()
    assert len(own._walls) <= 2 * OWN_MAX


def test_nothing_is_foretold_before_all_have_spoken() -> None:
    outlook = Outlook(random.Random(0))
    assert math.isnan(outlook.predicted())
    outlook.count(0.0, 0, 0.0, 0, 0)
    outlook.count(1.0, 10, 0.5, 10, 0)
    assert outlook.predicted() == 0.0, "alone nothing gets stale"
    for turn in range(3):
        told = Progress(
            name="b", epoch=1, version=turn, published=10 * turn, last=10 * turn, at=1.0 + turn
        )
        outlook.hear(told, 1.0 + turn)
    assert math.isnan(outlook._expected(3.0)), "b has not said what its delays are"


def test_who_fell_silent_is_not_counted_on() -> None:
    outlook = Swarm([0.025] * 2, 0.0, span_s=15.0).nodes[0].outlook
    assert outlook.predicted() == pytest.approx(1.0, rel=0.1)
    later = 15.0 + WINDOW_S + 1
    assert outlook.silence_s(later)["1"] > WINDOW_S
    for now, made in ((15.5, 10_000), (later, 20_000), (later + 0.5, 20_400)):
        outlook.count(now, made, 0.0005 * made, 2 * made, 2 * made)
    assert outlook._expected(later + 0.5) == 0.0
    outlook.keep(())
    assert outlook.silence_s(later) == {}


def test_a_new_life_starts_from_nothing() -> None:
    outlook = Outlook(random.Random(0))
    for turn in range(4):
        word = Progress(
            name="b", epoch=1, version=turn, published=100 * turn, step_s=0.01, at=float(turn)
        )
        outlook.hear(word, float(turn))
    assert outlook._others["b"].rate(3.0) is not None
    outlook.hear(Progress(name="b", epoch=2, version=1, published=3, step_s=0.01), 4.0)
    assert outlook._others["b"].rate(4.0) is None


def test_a_delay_is_known_when_both_ends_are() -> None:
    outlook = Outlook(random.Random(0))
    told = Progress(name="b", epoch=1, version=1, last=5, at=9.0)
    outlook.hear(told, 0.0)
    outlook.arrive("b", 1, 6, 10.25)
    told = replace(told, version=2, last=7, made_at=(9.0, 10.0, 10.5), at=10.6)
    outlook.hear(told, 0.0)
    assert outlook.delay_s(0.0) == pytest.approx(0.25)
    outlook.arrive("b", 1, 7, 11.0)  # its word was faster
    outlook.arrive("b", 1, 7, 99.0)  # the same once more, another way
    outlook.hear(replace(told, version=3, at=11.1), 0.5)
    assert outlook.delay_s(0.5) == pytest.approx((0.25 + 0.5) / 2)
    outlook.arrive("b", 1, 7, 99.0)
    outlook.hear(replace(told, version=4, at=11.2), 0.6)
    assert outlook.delay_s(0.6) == pytest.approx((0.25 + 0.5) / 2), "each counts once"


def test_what_is_kept_is_bounded() -> None:
    outlook = Outlook(random.Random(0))
    outlook.arrive("stranger", 1, 1, 0.0)
    for version in range(20):
        told = Progress(name="b", epoch=1, version=version, last=1000 * version, at=float(version))
        outlook.hear(replace(told, made_at=(1.0,) * MADE_MAX), float(version))
        for seq in range(500):
            outlook.arrive("b", 1, 1000 * version + 500 + seq, 12.0)
            outlook.arrive("b", 2, seq, 12.0)
    assert list(outlook._others) == ["b"]
    assert len(outlook._others["b"]._arrived) <= ARRIVED_MAX
    assert len(outlook._others["b"]._made) <= MADE_MAX


def test_slow_training_is_looked_at_for_longer() -> None:
    """One update in 4 s: rates of a second would be 0 or 1."""
    track = Track(1)
    for half in range(200):
        made = half // 8
        track.count(0.5 * half, 0.5 * half, made, 3.0 * made)
    rate = track.rate(99.5)
    assert rate is not None
    assert rate.updates_per_s == pytest.approx(0.25, rel=0.1)
    assert rate.compute_s == pytest.approx(3.0)


def test_bursts_are_not_averaged_away() -> None:
    """A machine that is busy half of the time: slower and later, for both nodes at once."""
    outlook = Outlook(random.Random(0))
    made = compute_s = 0.0
    weighed: list[tuple[float, float]] = []
    for turn in range(200):
        rate, each_s = (10.0, 0.08) if turn // 8 % 2 else (40.0, 0.02)
        made += rate * 0.5
        compute_s += rate * 0.5 * each_s
        now = 0.5 * turn
        outlook.count(now, int(made), compute_s, 2 * int(made), 0)
        told = Progress(
            name="b",
            epoch=1,
            version=turn,
            published=int(made),
            last=int(made),
            step_s=compute_s / int(made),
            at=now,
            fastest_delay_s=0.0,
            later_updates=0.0,
            made_at=(now,),
        )
        outlook.arrive("b", 1, int(made), now)
        outlook.hear(told, now)
        weighed.append((rate, rate * each_s))
    recent = weighed[-20:]
    true = sum(rate * each for rate, each in recent) / sum(rate for rate, _ in recent)
    assert true == pytest.approx(0.8)
    assert outlook.predicted() == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sketch_keeps_distances(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    a = torch.randn(size, generator=generator, dtype=dtype)
    ratios = []
    for _ in range(20):
        b = a + 0.1 * torch.randn(size, generator=generator, dtype=dtype)
        mine, theirs = Sketches(size), Sketches(size)
        mine.take(a, 0.0)
        theirs.take(b, 0.0)
        true = float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(a))
        ratios.append(mine.distance(0, theirs.newest) / true)
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.25)
    assert mine.distance(0, mine.newest) < 1e-6


def test_sketches_are_of_common_instants() -> None:
    mine, theirs = Sketches(100), Sketches(100)
    weights = torch.ones(100)
    for instant in range(KEPT + 2):
        assert mine.due(EVERY_S * (instant + 1) + 0.3)
        mine.take(weights, EVERY_S * (instant + 1) + 0.3)
        assert not mine.due(EVERY_S * (instant + 2) - 0.01)
    theirs.take(2 * weights, EVERY_S * (KEPT + 2) + 0.1)
    assert mine.distance(theirs.at, theirs.newest) == pytest.approx(1.0)
    assert math.isnan(mine.distance(1, theirs.newest)), "too long ago"
    assert math.isnan(mine.distance(theirs.at, b""))
    assert math.isnan(mine.apart("b", 1, theirs.newest))
    assert mine.apart("b", theirs.at, theirs.newest) == pytest.approx(1.0)
    assert mine.apart("b", theirs.at + 1, theirs.newest) == pytest.approx(1.0), "as it was"
    mine.keep(["c"])
    assert math.isnan(mine.apart("b", theirs.at + 1, theirs.newest))
