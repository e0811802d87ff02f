"""What a loop can ask of the swarm as one: its steps, its end, its data, its members."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, flock, sgd, small, wait_for
from torch.utils.data import DataLoader, TensorDataset

import murmurate
from murmurate.core.figures.same_batches import are_same, number_of
from murmurate.errors import ConfigError, PeerUnavailable
from murmurate.training.shards import SwarmSampler


def plain_step(node: Node, x: torch.Tensor) -> None:
    """As in the README: nothing is logged."""
    node.optimizer.zero_grad()
    node.loss(x).backward()
    node.optimizer.step()


def test_steps_and_samples_are_counted_without_a_log() -> None:
    with flock(2) as nodes:
        for node in nodes:
            for _ in range(5):
                plain_step(node, torch.randn(16, 8, generator=node.data))
        for node in nodes:
            assert node.swarm.own_steps == 5
            wait_for(lambda node=node: node.swarm.steps == 10)  # type: ignore[misc]
            wait_for(lambda node=node: node.swarm.samples == 160)  # type: ignore[misc]
        nodes[0].swarm.log(samples=7)
        assert nodes[0].swarm.samples_of["n0"] == 7, "whoever counts knows better"


def test_one_stops_all() -> None:
    with flock(3) as nodes:
        assert not any(node.swarm.stopped for node in nodes)
        nodes[1].swarm.stop()
        wait_for(lambda: all(node.swarm.stopped for node in nodes))


def test_numbers_follow_who_is_there() -> None:
    with flock(3) as nodes:
        wait_for(lambda: [node.swarm.number for node in nodes] == [0, 1, 2])
        assert [node.swarm.chosen for node in nodes] == [True, False, False]
        assert len({node.swarm.seed for node in nodes}) == 3
        nodes.pop(0).swarm.leave(timeout_s=0.5)
        wait_for(lambda: [node.swarm.number for node in nodes] == [0, 1])
        assert nodes[0].swarm.chosen


def test_parts_of_the_data_are_all_of_it() -> None:
    data = TensorDataset(torch.arange(100))
    with flock(3) as nodes:
        wait_for(lambda: [node.swarm.number for node in nodes] == [0, 1, 2])
        wait_for(lambda: all(list(n.swarm.members.values()) == ["alive"] * 3 for n in nodes))
        with pytest.raises(ConfigError, match=r"swarm\.sampler\(data\)"):
            _ = nodes[0].swarm.epoch
        loaders: list[DataLoader[Any]] = [
            DataLoader(data, batch_size=8, sampler=node.swarm.sampler(data)) for node in nodes
        ]
        seen = [{int(i) for (batch,) in loader for i in batch} for loader in loaders]
        assert sorted(i for part in seen for i in part) == list(range(100))
        parts = [node.swarm.shard(data) for node in nodes]
        assert sorted(int(part[i][0]) for part in parts for i in range(len(part))) == list(  # type: ignore[arg-type]
            range(100)
        )
        assert nodes[0].swarm.epoch == 0
        nodes[0].swarm.log(samples=250)
        assert nodes[0].swarm.epoch == 2


def test_a_sampler_follows_members_on_its_way() -> None:
    place = [0, 2]
    sampler = SwarmSampler(range(100), lambda: (place[0], place[1]), 0, shuffle=False)
    got = []
    for index in sampler:
        got.append(index)
        if len(got) == 25:
            place[1] = 1  # the other one leaves
    assert len(got) == 25 + 51
    assert len(set(got)) == len(got)


def test_the_same_seed_everywhere_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """As most public scripts do it; the second begins later, on other weights."""
    with flock(2) as nodes:
        for node in nodes:
            torch.manual_seed(1)
            for _ in range(24):
                plain_step(node, torch.randn(16, 8))
        node = nodes[1]

        def said() -> bool:
            plain_step(node, torch.randn(16, 8))
            return "n1: this node draws the same batches as n0" in caplog.text

        wait_for(said)
        assert [each.reason for each in node.swarm.warnings] == ["same_batches"]


def test_other_batches_are_other_batches(caplog: pytest.LogCaptureFixture) -> None:
    with flock(2) as nodes:
        for node in nodes:
            for _ in range(40):
                plain_step(node, torch.randn(16, 8, generator=node.data))
        assert nodes[1].swarm.progress().first_batches
        assert "same batches" not in caplog.text


def test_what_stands_for_a_batch() -> None:
    one, other = torch.randn(8, 3), torch.randn(8, 3)
    a, b = number_of(one), number_of(other)
    assert a is not None
    assert b is not None
    assert a == number_of(one.clone()) != b
    assert number_of(torch.zeros(8, 3)) is None, "noise that is always 0 says nothing"
    assert not are_same([a], [a]), "one batch in common may be chance"
    assert are_same([a, b], [b, a])
    assert are_same([a] * 4, [a] * 4), "all the data there is, at each step"


# -- beginning together ----------------------------------------------------------------------------


def test_nobody_begins_before_all_are_here(caplog: pytest.LogCaptureFixture) -> None:
    swarms: dict[str, murmurate.Swarm] = {}
    address: list[str] = []

    def join(name: str, **how: Any) -> None:
        model = small()
        swarms[name] = murmurate.join(model, sgd(model), run="test", rule="sum", name=name, **how)

    first = Node("n0")
    address.append(first.swarm.address)
    try:
        waiting = threading.Thread(
            target=join, args=("n1",), kwargs={"wait_for": 3, "peers": address}
        )
        waiting.start()
        wait_for(lambda: first.swarm.members.get("n1") == "alive")
        waiting.join(0.5)
        assert waiting.is_alive()
        join("n2", wait_for=3, peers=address)
        waiting.join(30)
        assert not waiting.is_alive()
        first.step()
        wait_for(lambda: swarms["n1"].steps == 1)
        join("n3", wait_for=9, peers=address)  # the run is under way
    finally:
        for swarm in (*swarms.values(), first.swarm):
            swarm.leave(timeout_s=0.2)


def test_whom_it_waits_for_and_that_nobody_came_are_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("murmurate.training.gathering.SAY_AGAIN_S", 0.05)
    monkeypatch.setattr("murmurate.training.gathering.GATHER_S", 0.2)
    model = small()
    murmurate.join(model, sgd(model), run="test", name="alone", wait_for=2).leave()
    assert "waits until 2 members are here; so far there are 1: alone" in caplog.text
    assert "1 of 2 members are here (alone): it trains with these" in caplog.text


def test_whoever_ended_already_is_said_to_be_gone() -> None:
    gone = Node("gone")
    address = gone.swarm.address
    gone.swarm.leave(timeout_s=0.1)
    with pytest.raises(PeerUnavailable, match="had it done its steps and left"):
        Node("late", peers=[address], join_timeout_s=0.5)
