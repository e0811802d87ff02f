"""Large models over real gRPC: each update is a part, and all end with the same whole."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.integration.flock import WAIT_S, Node, flock, same_weights, train_together, wait_for
from torch import nn

from murmurate.core.codecs.codec import place_of
from murmurate.core.gossip.peer import Peer
from murmurate.core.layout import Layout
from murmurate.edge.runtime.node_state import NodeState
from murmurate.training import gossip


@pytest.fixture(autouse=True)
def _every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "LARGE_BYTES", 0)


def flat(node: Node) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in node.model.parameters()])


def step_with_room(node: Node) -> None:
    """One update is under way at a time: here the last one has arrived."""
    assert node.swarm.follow(node.swarm.publisher.has_room, WAIT_S)
    node.step()


def places(node: Node) -> list[slice]:
    """Of the updates a node still keeps."""

    def read(here: NodeState) -> list[slice]:
        assert isinstance(here.peer, Peer)
        return [place_of([push]) for push in here.peer.log]

    return node.swarm.runtime.look(read)


@pytest.mark.parametrize("topology", ["full", "star"])
def test_all_end_with_the_same_set_and_the_same_weights(topology: str) -> None:
    with flock(3, topology=topology) as nodes:
        train_together(nodes, 60)
        same_weights(nodes)
        for node in nodes:
            assert not node.swarm.progress().rejected
            assert torch.equal(flat(node), node.weights()), "settled: nothing is left over"
        made = sum(node.swarm.progress().published for node in nodes)
        assert all(node.swarm.progress().applied == made for node in nodes)
        assert all(node.swarm.staleness.count == made for node in nodes)


def test_they_learn_together() -> None:
    x = torch.randn(512, 8, generator=torch.Generator().manual_seed(9))

    def loss(node: Node) -> float:
        with torch.no_grad():  # of single batches, as a step tells it, some are small by chance
            return node.loss(x).item()

    with flock(2) as nodes:
        wanted = loss(nodes[0]) / 2
        for _ in range(5):  # on a busy machine few updates are on their way in so many steps
            train_together(nodes, 400)
            if loss(nodes[0]) < wanted:
                return
        raise AssertionError(f"loss {loss(nodes[0])}, wanted {wanted}")


def test_an_update_is_a_quarter_of_the_model_in_turn() -> None:
    with flock(1) as (node,):
        size = node.weights().numel()
        seen, before = [], node.weights()
        for _ in range(8):
            step_with_room(node)
            changed = (node.weights() != before).nonzero().flatten()
            seen.append((int(changed[0]), int(changed[-1])))
            before = node.weights()
        assert seen[:4] == seen[4:]
        assert (seen[0][0], seen[3][1]) == (0, size - 1)
        assert all(one[1] < other[0] for one, other in pairwise(seen[:4]))


def test_every_is_steps_for_the_whole_model() -> None:
    with flock(1, every=8) as (node,):
        for _ in range(16):
            step_with_room(node)
        assert node.swarm.progress().published == 8, "four parts in eight steps"


def test_what_others_send_comes_below_steps_that_wait_for_their_turn() -> None:
    with flock(2) as (one, other):
        one.step()
        ahead = flat(one) - one.weights()
        assert ahead.count_nonzero() > 0.5 * ahead.numel(), "three of four parts wait"
        other.step()
        wait_for(lambda: bool(one.swarm.runtime.training.waiting()), "an update of the other")
        before = one.weights()
        one.swarm.follow(lambda: not one.swarm.runtime.training.waiting(), WAIT_S)
        assert not torch.equal(before, one.weights())
        torch.testing.assert_close(flat(one) - one.weights(), ahead, atol=1e-6, rtol=0)


def test_staleness_is_counted_from_the_first_step_in_a_part() -> None:
    """The last part of four waits for three updates of its own node: so old is what it says."""
    with flock(1) as (node,):
        for _ in range(8):
            step_with_room(node)
        distances = node.swarm.staleness
        # 0, 1, 2, 3 in the first turn; then each part has waited for the three others.
        assert distances.count == 8
        assert distances.mean == pytest.approx((0 + 1 + 2 + 3 + 4 * 3) / 8)


def test_a_step_that_is_not_finite_is_taken_back_whole() -> None:
    with flock(1) as (node,):
        node.step()
        node.swarm.publish()
        good = flat(node).clone()
        assert node.swarm.follow(node.swarm.publisher.has_room, WAIT_S)
        with torch.no_grad():
            for parameter in node.model.parameters():
                parameter.grad = torch.full_like(parameter, float("nan"))
        node.optimizer.step()
        assert torch.equal(flat(node), good)
        assert node.swarm.progress().rejected
        node.step()
        assert torch.isfinite(flat(node)).all()


def test_only_one_is_under_way_and_steps_are_added_up() -> None:
    with flock(2) as (one, other):
        for _ in range(20):
            one.step()  # the other does not fold
        assert one.swarm.progress().published <= 2
        assert all(place != slice(None) for place in places(one))
        other.swarm.follow(lambda: len(other.clock) >= 1, WAIT_S)
        train_together([one, other], 30)
        same_weights([one, other])


def test_parameters_that_are_not_in_one_row() -> None:
    """On a device of their own, say: the same numbers, gathered."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    layout, parameters = Layout.of(model)
    whole = layout.gather(parameters)
    for place in (slice(0, 20), slice(20, 61), slice(60, 81)):
        assert torch.equal(layout.values(parameters, place), whole[place])
    layout.line_up(parameters)
    assert torch.equal(layout.values(parameters, slice(20, 61)), whole[20:61])


def test_half_precision_and_double_are_published_whole() -> None:
    for dtype in (torch.bfloat16, torch.float64):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).to(dtype)
        assert gossip.turns_for(Layout.of(model)[0]) is None


def test_a_newcomer_in_the_middle() -> None:
    with flock(2) as nodes:
        for node in nodes:
            node.train(pause_s=0.002)
        wait_for(lambda: all(node.steps > 15 for node in nodes), "a beginning")
        late = Node("late", seed=9, peers=[nodes[0].swarm.address])
        try:
            late.train(pause_s=0.002)
            wait_for(lambda: late.steps > 30, "steps of the newcomer")
            for node in (*nodes, late):
                node.stop()
            for node in (*nodes, late):
                node.end()
            same_weights([*nodes, late])
        finally:
            late.swarm.leave(timeout_s=0.2)


def test_large_updates_are_answered_at_once() -> None:
    """Or the next one would wait for the regular comparison of clocks, four times a second."""
    with flock(2) as (one, other):
        peer = one.swarm.runtime.look(lambda here: here.peer)
        assert isinstance(peer, Peer)
        one.step()
        other.swarm.follow(lambda: len(other.clock) == 1, WAIT_S)
        wait_for(lambda: not list(peer.log), "an answer")
