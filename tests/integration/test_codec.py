"""Nodes with different codecs over real gRPC: the same weights, nothing lost, bytes counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.integration.flock import WAIT_S, Node, same_weights, sgd, train_together, wait_for
from torch import nn

from murmurate.errors import ConfigError
from murmurate.training.join import join


def wide() -> nn.Sequential:
    """2,817 parameters: rows of int8 that do not end with the model, and a top-k of 28."""
    return nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 2), nn.Linear(2, 1))


@contextmanager
def nodes_with(*codecs: str, topology: str = "full", rule: str = "sum") -> Iterator[list[Node]]:
    nodes: list[Node] = []
    try:
        for index, codec in enumerate(codecs):
            peers = [nodes[0].swarm.address] if nodes else []
            nodes.append(
                Node(
                    f"n{index}",
                    model=wide(),
                    seed=index,
                    peers=peers,
                    codec=codec,
                    topology=topology,
                    rule=rule,
                )
            )
        yield nodes
    finally:
        for node in nodes:
            node.stop()
        for node in nodes:
            node.end()
        for node in nodes:
            node.swarm.leave(timeout_s=0.2)


def flat(node: Node) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in node.model.parameters()])


def sent(node: Node) -> dict[str, int]:
    return dict(node.swarm.progress().bytes_by_codec)


@pytest.mark.parametrize("topology", ["full", "star"])
def test_all_read_all_and_end_with_the_same(topology: str) -> None:
    """In the star one node passes on what the others encoded. (On a busy machine updates get as old
    as they like; the plain sum of four nodes' may then diverge.)"""
    codecs = ("bf16", "int8", "topk", "fp32")
    with nodes_with(*codecs, topology=topology, rule="capped") as nodes:
        train_together(nodes, steps=60)
        same_weights(nodes)
        for node in nodes:
            assert not node.swarm.progress().rejected
        for node in nodes[:3]:
            assert torch.equal(flat(node), node.weights()), "settled: nothing is left over"
        for node, codec in zip(nodes[:3], ("bf16", "int8", "topk"), strict=True):
            assert sent(node)[codec] > 0
            assert sum(sent(node).values()) <= node.swarm.progress().bytes_sent
        if topology == "full":
            assert set(sent(nodes[3])) == {"fp32"}
            assert "int8" in sent(nodes[2])  # the rest, at the end


def test_what_is_left_out_stays_with_its_origin() -> None:
    with nodes_with("topk", "topk") as (one, other):
        for _ in range(5):
            one.step()
        assert not torch.allclose(flat(one), one.weights(), atol=1e-7), "ahead of the weights"
        rest = flat(one) - one.weights()
        assert (rest == 0).sum() <= 0.1 * rest.numel()
        before = flat(other) - other.weights()
        wait_for(lambda: bool(other.swarm.runtime.training.waiting()), "an update of one")
        other.swarm.follow(lambda: not other.swarm.runtime.training.waiting(), WAIT_S)
        assert torch.equal(before, flat(other) - other.weights())
        other.step()
        ahead = flat(one) - one.weights()
        wait_for(lambda: bool(one.swarm.runtime.training.waiting()), "an update of the other")
        one.swarm.follow(lambda: not one.swarm.runtime.training.waiting(), WAIT_S)
        torch.testing.assert_close(flat(one) - one.weights(), ahead, atol=1e-6, rtol=0)
        finish_together(one, other)
        same_weights([one, other])
        assert torch.equal(flat(one), one.weights())
        assert torch.equal(flat(other), other.weights())


def finish_together(*nodes: Node) -> None:
    settled: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=node: settled.append(n.swarm.finish(WAIT_S)))
        for node in nodes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    assert settled == [True] * len(nodes)


def test_at_the_end_of_a_run_each_adds_its_share_of_the_rest() -> None:
    """Their sum goes too far: each was trained beside its own."""
    with nodes_with("topk", "topk") as nodes:
        for node in nodes:
            for _ in range(5):
                node.step()
            while node.swarm.publisher.unpublished.steps:
                node.step()
        for node, other in (nodes, nodes[::-1]):
            theirs = other.swarm.clock
            node.swarm.follow(lambda n=node, c=theirs: n.swarm.clock.covers(c), WAIT_S)  # type: ignore[misc]
        assert nodes[0].swarm.clock == nodes[1].swarm.clock
        weights = nodes[0].weights()
        rests = [flat(node) - node.weights() for node in nodes]
        finish_together(*nodes)
        for node in nodes:
            step = max(float(rest.abs().max()) for rest in rests) / 127  # of int8, in which it goes
            torch.testing.assert_close(
                node.weights(), weights + sum(rests) / 2, rtol=1e-4, atol=0.51 * step
            )
            assert torch.equal(flat(node), node.weights())
        assert set(sent(nodes[1])) == {"topk", "int8"}


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_at_the_end_half_a_step_is_dropped(codec: str) -> None:
    """What a rounding leaves is not worth an update: none is made for it."""
    with nodes_with(codec, codec) as nodes:
        for node in nodes:
            for _ in range(5):
                node.step()
            while node.swarm.publisher.unpublished.steps:
                node.step()
        assert not torch.equal(flat(nodes[0]), nodes[0].weights())
        published = nodes[0].swarm.progress().published
        finish_together(*nodes)
        same_weights(nodes)
        for node in nodes:
            assert torch.equal(flat(node), node.weights())
        assert set(sent(nodes[1])) == {codec}  # the other one gave a snapshot
        assert nodes[0].swarm.progress().published == published


def test_alone_a_codec_changes_nothing_in_the_end() -> None:
    """Every step is in the weights after settling, whatever was left out on the way."""
    results = []
    for codec in ("fp32", "topk"):
        node = Node("alone", model=_seeded(), seed=3, codec=codec)
        for _ in range(50):
            node.step()
        assert node.swarm.settle()
        results.append(node.weights())
        if codec == "fp32":  # w + (p - w) is rounded where several steps are in one update
            torch.testing.assert_close(flat(node), node.weights(), rtol=1e-6, atol=1e-9)
        else:
            assert torch.equal(flat(node), node.weights())
        node.swarm.leave(timeout_s=0.2)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def _seeded() -> nn.Sequential:
    torch.manual_seed(11)
    return wide()


def test_a_bad_step_is_taken_back_with_what_was_left_out() -> None:
    for codec in ("bf16", "int8", "topk"):
        node = Node("alone", model=_seeded(), seed=3, codec=codec)
        node.step()
        with torch.no_grad():
            next(iter(node.model.parameters())).view(-1)[0] = float("nan")
        node.optimizer.step()
        assert torch.isfinite(flat(node)).all()
        assert torch.equal(flat(node), node.weights())
        assert dict(node.swarm.progress().rejected) == {"own_step": 1}
        node.step()
        node.swarm.leave(timeout_s=0.2)


def test_fewer_bytes_for_the_same_updates() -> None:
    """Per update and neighbour: a half, a quarter, a 48th of the plain bytes (a 46th with the words
    at the head of so small a model)."""
    plain = sum(p.numel() for p in wide().parameters()) * 4
    for codec, part in (("bf16", 0.5), ("int8", 0.2505), ("topk", 0.0217)):
        with nodes_with(codec, "fp32") as (one, other):
            here, there = one.swarm.runtime.training, other.swarm.runtime.training
            for count in range(1, 21):
                one.step()
                assert one.swarm.progress().published == count
                wait_for(lambda: bool(there.waiting()), "the update")  # noqa: B023
                other.swarm.follow(lambda: not there.waiting(), WAIT_S)  # noqa: B023
                wait_for(lambda: here.has_room(1, sparing=True), "room")  # noqa: B023
            assert sent(one)[codec] == pytest.approx(20 * part * plain, rel=0.02)


@pytest.mark.parametrize(
    ("wrong", "model"),
    [
        ({"codec": "zip"}, wide()),
        ({"codec": "topk(2)"}, wide()),
        ({"codec": "int8", "rule": "average"}, wide()),
        ({"codec": "bf16"}, wide().double()),
        ({"codec": "int8"}, wide().to(torch.bfloat16)),
        ({"codec": "topk"}, wide().half()),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    wrong: dict[str, str], model: nn.Module
) -> None:
    with pytest.raises(ConfigError, match="codec"):
        join(model, sgd(model), run="test", name="a", **wrong)  # type: ignore[call-overload]
