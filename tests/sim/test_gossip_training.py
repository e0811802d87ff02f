"""Real training in virtual time, over the production core: deterministic, and by the law."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from murmurate.core.codecs.choice import Choice
from murmurate.core.layout import Layout
from murmurate.core.theory import gossip_expected, gossip_expected_unequal
from murmurate.errors import ConfigError
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads import Evaluation
from murmurate.workloads.synthetic import Synthetic


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def world(seconds: float, **more: Any) -> GossipWorld:
    task = {"workload": Synthetic("2000"), "nodes": 8, "rule": "sum", **more}
    it = GossipWorld(VirtualTraining(**task))
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


@pytest.mark.parametrize(("rule", "lr"), [("sum", 0.4), ("average", 0.4)])
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
        codecs = {f"node-{n}": Choice(each) for n in range(4) if each == codec}
        it = world(100.0, workload=clouds, nodes=4, delay_s=0.5, codecs=codecs)
        assert it.finish()["replica_distance_max"] < 1e-5
        assert not any(node.publisher.unpublished.any for node in it.nodes.values())
        first = it.figures()[0]
        # What bf16 and int8 leave at the end is half a step; what top-k leaves is sent as int8.
        assert set(first.bytes_by_codec) == ({"topk", "int8"} if each == "topk" else {each})
        found[each] = (first.accuracy, sum(one.bytes_sent for one in it.figures()))
    assert found[codec][0] >= found["fp32"][0] - 0.02
    assert found["fp32"][1] / found[codec][1] >= times


def test_codecs_are_for_sums() -> None:
    with pytest.raises(ConfigError, match="rule 'average' exchanges weights as they are"):
        world(1.0, rule="average", codecs={"node-0": Choice("int8")})


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
        ({"rule": "lease"}, "rule 'lease': expected one of shared, capped, sum, average"),
        ({"speeds": {"node-9": 1.0}}, "speed node-9=1: one of node-0, node-1"),
        ({"speeds": {"node-0": 0.0}}, "speed node-0=0: must be a number above 0"),
        ({"delays_s": {"node-0": -1.0}}, "delay node-0=-1: must be a number from 0 on"),
        ({"delay_s": float("nan")}, "delay nan"),
    ],
)
def test_tasks_that_are_none(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        world(1.0, nodes=2, **more)


class Moody(Synthetic):
    """Draws at random while it trains and while it is evaluated, has statistics, a layer that is
    frozen, and forgets to say that it evaluates."""

    def model(self) -> nn.Module:
        frozen = nn.BatchNorm1d(16).eval()
        return nn.Sequential(
            *(nn.Linear(64, 16), nn.BatchNorm1d(16), frozen, nn.Dropout(), nn.Linear(16, 10))
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def evaluate(self, model: nn.Module) -> Evaluation:
        before = super().evaluate(model)
        model(torch.randn(8, 64))
        random.random()
        np.random.random()
        return before


@pytest.mark.parametrize("rule", ["shared", "sum", "average"])
def test_evaluating_on_the_way_changes_nothing(rule: str) -> None:
    """Bit by bit: weights, statistics, modes, optimizer, and all random numbers to come."""
    ends = []
    for often in (0, 7):
        random.seed(1)
        np.random.seed(1)
        task = VirtualTraining(workload=Moody("2000"), nodes=3, rule=rule, delay_s=0.3)
        it = GossipWorld(task)
        for turn in range(20):
            it.events.run_until(2.1 * (turn + 1))
            for _ in range(often):
                found = it.evaluate()
                assert found is it.nodes["node-0"].figures
                assert 0 < found.test_loss < 10
        modes = [[module.training for module in node.model.modules()] for node in it.nodes.values()]
        chance = (torch.get_rng_state().tolist(), random.random(), np.random.random())
        it.finish()
        states = [
            (node.model.state_dict(), node.optimizer.state_dict()["state"])
            for node in it.nodes.values()
        ]
        ends.append((str(states), modes, chance))
    assert ends[0] == ends[1]
    assert ends[0][1][0] == [True, True, True, False, True, True]


def test_who_is_evaluated_on_the_way() -> None:
    """The first that lives; and it is its replica."""
    it = world(20.0, nodes=3, every=3)
    first = it.nodes["node-0"]
    it.evaluate()
    fresh = copy.deepcopy(first.model)
    first.layout.scatter(first.peer.replica.weights, Layout.of(fresh)[1])
    assert first.figures.test_loss == it.task.workload.evaluate(fresh).loss
    it.kill("node-0")
    assert it.evaluate() is it.nodes["node-1"].figures
    it.kill("node-1")
    it.kill("node-2")
    assert it.evaluate() is None


@pytest.mark.parametrize(
    ("split", "data", "said"),
    [
        ("labels", "same", {"unlike"}),
        ("none", "own", {"alike"}),
    ],
)
def test_peers_say_what_their_data_is(split: str, data: str, said: set[str]) -> None:
    """Some of those that were told the opposite; all that were told right say nothing."""
    clouds = Synthetic("2000")
    for told, expected in ((data, said), ({"same": "own", "own": "same"}[data], set())):
        clouds.lr, clouds.batch_size = 0.05, 32
        it = world(130.0, workload=clouds, nodes=5, rule="shared", split=split, data=told)
        found = {each.reason for one in it.figures() for each in one.learning.ever}
        assert found - {"timid"} == expected


# -- links that take their time, and those who come and go -----------------------------------------


def model_bytes() -> int:
    return 4 * sum(p.numel() for p in Synthetic("2000").model().parameters())


@pytest.mark.parametrize("rule", ["shared", "sum", "average"])
def test_a_narrow_link_carries_no_more_than_its_width_and_nobody_waits(rule: str) -> None:
    """One model takes 20 steps to send. Training goes on at its own pace, what waits is summed, and
    at the end everybody has everything."""
    it = world(200.0, nodes=4, rule=rule, link_bytes_s=model_bytes() / 20)
    for one in it.figures():
        assert one.steps >= 199
        assert one.wait_s == 0.0
        # What is counted was handed over; to each of the others one may be on its way.
        assert one.bytes_sent <= model_bytes() * (200 / 20 + 3)
    assert sum(one.bytes_sent for one in it.figures()) >= model_bytes() * 20
    found = it.finish()
    assert found["replica_distance_max"] < 1e-5
    if rule != "average":
        published = sum(one.published for one in it.figures())
        assert [one.applied for one in it.figures()] == [published] * 4


def test_only_one_link_is_narrow() -> None:
    it = world(200.0, nodes=3, links_bytes_s={"node-2": model_bytes() / 20})
    sent = {one.name: one.bytes_sent for one in it.figures()}
    assert sent["node-2"] <= model_bytes() * 11
    assert sent["node-0"] > 150 * model_bytes()  # all of its own to node-1, and sums to node-2
    assert it.finish()["replica_distance_max"] < 1e-5


@pytest.mark.parametrize("rule", ["shared", "sum", "average"])
@pytest.mark.parametrize("narrow", [False, True])
def test_some_come_and_some_go(rule: str, narrow: bool) -> None:
    """A newcomer takes a snapshot and trains; one who leaves takes nothing with it."""
    width = model_bytes() / 2 if narrow else None
    it = world(
        150.0,
        nodes=4,
        rule=rule,
        delay_s=0.1,
        link_bytes_s=width,
        joins_s={"node-2": 40.0, "node-3": 60.0},
        leaves_s={"node-1": 100.0},
    )
    steps = {one.name: one.steps for one in it.figures()}
    states = {one.name: one.state for one in it.figures()}
    assert states == {
        "node-0": "training", "node-1": "left", "node-2": "training", "node-3": "training",
    }  # fmt: skip
    assert steps["node-0"] >= 149
    assert 98 <= steps["node-1"] <= 100
    assert 80 <= steps["node-2"] <= 110
    assert 60 <= steps["node-3"] <= 90
    assert it.finish()["replica_distance_max"] < (1e-4 if rule == "average" else 1e-5)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"link_bytes_s": 0.0}, "link 0: must be a number above 0"),
        ({"links_bytes_s": {"node-0": float("inf")}}, "link node-0=inf: must be a number above 0"),
        ({"joins_s": {"node-7": 1.0}}, "join node-7=1: one of node-0, node-1"),
        ({"joins_s": {"node-0": 1.0, "node-1": 2.0}}, "join: somebody must be there"),
        ({"joins_s": {"node-0": 2.0}, "leaves_s": {"node-0": 1.0}}, "leave node-0: before it"),
    ],
)
def test_links_and_moments_that_cannot_be(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        world(1.0, nodes=2, **more)
