"""Real training in virtual time, over the production core: deterministic, and by the law."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from murmurate.core.staleness import gossip_expected, gossip_expected_unequal
from murmurate.errors import ConfigError
from murmurate.io.codec import Encoder
from murmurate.io.codec_choice import Choice
from murmurate.sim.gossip import GossipWorld
from murmurate.sim.task import Task
from murmurate.workloads.synthetic import Synthetic


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def world(seconds: float, **more: Any) -> GossipWorld:
    task = {"workload": Synthetic("2000"), "nodes": 8, "rule": "sum", **more}
    it = GossipWorld(Task(**task))
    it.events.run_until(seconds)
    return it


def mean(it: GossipWorld) -> float:
    total = sum(one.staleness.total for one in it.figures())
    return total / sum(one.staleness.count for one in it.figures())


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 1.3])
def test_staleness_is_that_of_the_law(delay_s: float) -> None:
    """(n - 1) lambda (mu + L), own applications included. The start, when there is nothing to be
    stale against, is 1 % of the run."""
    it = world(100.0, delay_s=delay_s)
    assert mean(it) == pytest.approx(gossip_expected(8, 1.0, 1.0, delay_s), rel=0.03)


def test_the_law_of_unequal_speeds() -> None:
    speeds = {"node-0": 0.25, "node-1": 3.0}
    it = world(100.0, delay_s=0.2, speeds=speeds)
    rates = [0.25, 3.0, *[1.0] * 6]
    expected = gossip_expected_unequal(rates, [1 / rate for rate in rates], 0.2)
    assert mean(it) == pytest.approx(expected, rel=0.04)
    assert it.nodes["node-1"].figures.steps == pytest.approx(300, abs=1)


@pytest.mark.parametrize(("rule", "lr"), [("sum", 0.1), ("average", 0.4)])
def test_it_learns_agrees_and_a_seed_decides_everything(rule: str, lr: float) -> None:
    seen = []
    for seed in (0, 0, 1):
        clouds = Synthetic("2000")
        clouds.lr, clouds.batch_size = lr, 32
        more = {"workload": clouds, "nodes": 4, "every": 2}
        it = world(60.0, rule=rule, delay_s=0.1, seed=seed, **more)
        found = it.finish()
        assert found["replica_distance_max"] < 1e-5
        assert [one.state for one in it.figures()] == ["done"] * 4
        assert all(one.accuracy > 0.6 for one in it.figures())  # 10 classes
        assert not any(one.rejected for one in it.figures())
        seen.append([(one.loss, one.accuracy, one.staleness.total) for one in it.figures()])
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize(("codec", "times"), [("bf16", 1.99), ("int8", 3.97), ("topk", 20.0)])
def test_codecs_keep_what_they_leave_out(codec: str, times: float) -> None:
    """Fewer bytes, the same replicas, and nearly the accuracy of plain updates."""
    found = {}
    for each in ("fp32", codec):
        clouds = Synthetic("2000")
        clouds.lr, clouds.batch_size = 0.1, 32
        encoders = {f"node-{n}": partial(Encoder, Choice(each)) for n in range(4) if each == codec}
        it = world(100.0, workload=clouds, nodes=4, delay_s=0.5, encoders=encoders)
        assert it.finish()["replica_distance_max"] < 1e-5
        assert all(node.gained is None for node in it.nodes.values())
        first = it.figures()[0]
        # What bf16 and int8 leave at the end is half a step; what top-k leaves is sent as int8.
        assert set(first.bytes_by_codec) == ({"topk", "int8"} if each == "topk" else {each})
        found[each] = (first.accuracy, sum(one.bytes_sent for one in it.figures()))
    assert found[codec][0] >= found["fp32"][0] - 0.02
    assert found["fp32"][1] / found[codec][1] >= times


def test_codecs_are_for_sums() -> None:
    with pytest.raises(ConfigError, match="rule 'average' exchanges weights as they are"):
        world(1.0, rule="average", encoders={"node-0": partial(Encoder, Choice("int8"))})


def test_what_was_trained_is_what_was_sent() -> None:
    """Every update is in every replica, once, whoever is slow."""
    it = world(30.0, nodes=4, delay_s=0.5, speeds={"node-2": 0.1}, every=3)
    it.finish()
    published = sum(one.published for one in it.figures())
    assert [one.applied for one in it.figures()] == [published] * 4
    assert it.samples() == sum(one.steps for one in it.figures()) * Synthetic("2000").batch_size


def test_one_is_killed_and_the_others_go_on() -> None:
    it = world(20.0, nodes=4)
    it.kill("node-3")
    it.events.run_until(80.0)
    it.finish()
    assert [one.state for one in it.figures()] == ["done", "done", "done", "killed"]
    assert it.nodes["node-3"].figures.steps <= 20
    assert it.nodes["node-0"].figures.steps >= 79
    assert any("node-3 is dead" in text for text in it.news())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rule": "lease"}, "rule 'lease': expected one of sum, average"),
        ({"speeds": {"node-9": 1.0}}, "speed node-9=1: one of node-0, node-1"),
        ({"speeds": {"node-0": 0.0}}, "speed node-0=0: must be a number above 0"),
        ({"delays_s": {"node-0": -1.0}}, "delay node-0=-1: must be a number from 0 on"),
        ({"delay_s": float("nan")}, "delay nan"),
    ],
)
def test_tasks_that_are_none(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        world(1.0, nodes=2, **more)
