"""Injection for studies: delays by distribution, speed factors, and 002's stop rule."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

import pytest
import torch

from murmurate import workloads
from murmurate.core.values.slowness import Slowness, parse_slowness
from murmurate.errors import ConfigError
from murmurate.programs.keys.config import load
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.task import VirtualTraining


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(text: str, count: int = 20_000, step_s: float = 1.0) -> list[float]:
    rng = random.Random(7)
    slowness = parse_slowness(text)
    return [slowness.seconds(step_s, rng) for _ in range(count)]


def test_a_constant_is_the_same_after_every_step() -> None:
    assert set(drawn("0.03", 10)) == {0.03}


def test_a_gaussian_has_its_mean_and_deviation() -> None:
    """002: mean 30 to 90 ms, deviation 5 ms."""
    seconds = drawn("gaussian(0.06,0.005)")
    assert statistics.fmean(seconds) == pytest.approx(0.06, rel=0.01)
    assert statistics.stdev(seconds) == pytest.approx(0.005, rel=0.05)


def test_a_gaussian_is_clipped_at_nothing() -> None:
    seconds = drawn("gaussian(0.01,0.1)")
    assert min(seconds) == 0.0
    assert sum(each == 0.0 for each in seconds) / len(seconds) == pytest.approx(0.46, abs=0.02)


def test_a_shifted_exponential_is_that_of_004() -> None:
    """X = 1 + Exp with mean 1.5: the mean is 2.5, the least is the shift."""
    seconds = drawn("exponential(1,1.5)")
    assert min(seconds) >= 1.0
    assert statistics.fmean(seconds) == pytest.approx(2.5, rel=0.02)
    assert statistics.stdev(seconds) == pytest.approx(1.5, rel=0.04)


def test_a_factor_goes_with_the_step() -> None:
    assert drawn("x2", 1, step_s=0.3) == [0.3]
    assert drawn("x1", 1, step_s=0.3) == [0.0]


@pytest.mark.parametrize("text", ["0.03", "gaussian(0.06,0.005)", "exponential(1,1.5)", "x2"])
def test_it_is_told_as_it_is_read(text: str) -> None:
    assert str(parse_slowness(text)) == text
    assert parse_slowness(text)


@pytest.mark.parametrize(
    "text",
    ["", "-1", "nan", "inf", "x0.5", "x", "gaussian(1)", "gaussian(1,-1)", "uniform(0,1)", "1e99"],
)
def test_what_cannot_be_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="expected seconds, gaussian"):
        parse_slowness(text)
    with pytest.raises(ConfigError, match=r"train\.slow_s") as caught:
        load(None, {}, {"train.slow_s": text})
    assert len(str(caught.value).splitlines()) == 1


def test_nothing_is_no_slowness() -> None:
    assert not Slowness()
    assert not parse_slowness("0")
    assert not parse_slowness("x1")


# -- in virtual time -------------------------------------------------------------------------------


def world(**more: object) -> GossipWorld:
    workload = workloads.load("digits", batch_size=16, lr=0.05)
    task = VirtualTraining(workload=workload, nodes=3, rule="sum", **more)  # type: ignore[arg-type]
    return GossipWorld(task)


def test_a_step_takes_its_time_and_what_is_waited() -> None:
    slow = {"node-1": parse_slowness("x3"), "node-2": parse_slowness("exponential(1,2)")}
    here = world(slow_s=slow)
    here.events.run_until(120.0)
    steps = [node.figures.steps for node in here.nodes.values()]
    assert steps[0] == pytest.approx(120, abs=2)
    assert steps[1] == pytest.approx(40, abs=2)
    assert steps[2] == pytest.approx(120 / 4, rel=0.35)  # the mean of a few draws
    again = world(slow_s=slow)
    again.events.run_until(120.0)
    assert [node.figures.steps for node in again.nodes.values()] == steps


def test_who_has_its_own_samples_leaves_and_the_last_goes_on_alone() -> None:
    here = world(own_samples=160, speeds={"node-2": 0.25}, samples=480)
    here.events.run_until(1e6, lambda: here.samples() >= 480)
    figures = [node.figures for node in here.nodes.values()]
    assert [each.samples for each in figures] == [160, 160, 160]
    assert [each.state for each in figures] == ["left", "left", "training"]
    assert here.events.time == pytest.approx(40, abs=5)
    here.finish()
    assert figures[2].applied == 30  # nothing of those who left is lost
    assert figures[2].accuracy > 0


def test_own_samples_are_not_with_a_budget_of_all() -> None:
    with pytest.raises(ConfigError, match="either this, or samples of the whole swarm"):
        load(None, {}, {"train.own_samples": "10", "train.samples": "20"})
