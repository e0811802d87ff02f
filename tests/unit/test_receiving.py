"""Rules that look at staleness where an update arrives: `scaled`, `compensated`, `bound`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from murmurate import workloads
from murmurate.core.clock import Clock, Dot
from murmurate.core.effect import Applied, Drop
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.gossip.ways import WAYS
from murmurate.core.message import Generation, Push, Stamp
from murmurate.core.receiving.compensated import CompensatedForDelay
from murmurate.core.receiving.scaled import ScaledByStaleness
from murmurate.core.replica import Replica
from murmurate.errors import ConfigError
from murmurate.programs.keys.config import load
from murmurate.study.virtual.gossip import GossipWorld
from murmurate.study.virtual.task import VirtualTraining

RECEIVING = ("scaled", "compensated", "bound")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def peer(rule: str, strength: float) -> Any:
    return WAYS[rule].kind()(
        "me",
        1,
        Replica(torch.zeros(3)),
        rng=random.Random(0),
        config=PeerConfig(strength=strength),
        history=(Generation(0, ("me", "you")),),
    )


def update(seq: int, context: Clock, *values: float) -> Push:
    return Push((Stamp(Dot("you", 1, seq), context.copy()),), torch.tensor(values))


def own(it: Any, *values: float) -> None:
    it.publish(torch.tensor(values), it.context())


def fold(it: Any, push: Push) -> list[Any]:
    return list(it.fold("you", push, 0.0))


# -- scaled ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("power", "part"), [(1.0, 1 / 4), (0.5, 1 / 2), (2.0, 1 / 16), (0.0, 1.0)])
def test_an_update_counts_for_a_power_of_its_staleness(power: float, part: float) -> None:
    """FedBuff's 1/√(1+τ) is power ½; own updates count whole."""
    it = peer("scaled", power)
    for _ in range(3):
        own(it, 1.0, 0.0, 0.0)
    (applied,) = fold(it, update(1, Clock(), 0.0, 8.0, 0.0))
    assert applied == Applied((Dot("you", 1, 1),), (3,))
    assert it.replica.weights.tolist() == pytest.approx([3.0, 8.0 * part, 0.0])


def test_a_sum_counts_for_the_mean_of_its_updates() -> None:
    weights = torch.zeros(2)
    stamps = tuple(Stamp(Dot("you", 1, seq), Clock()) for seq in (1, 2))
    push = Push(stamps, torch.tensor([4.0, 0.0]))
    ScaledByStaleness(1.0).fold(weights, push, (0, 3), Clock())
    assert weights.tolist() == pytest.approx([4.0 * (1 + 1 / 4) / 2, 0.0])


# -- bound -----------------------------------------------------------------------------------------


def test_what_is_too_stale_is_refused_once_and_for_good() -> None:
    it = peer("bound", 2)
    for _ in range(3):
        own(it, 1.0, 0.0, 0.0)
    stale = update(1, Clock(), 0.0, 8.0, 0.0)
    (dropped,) = fold(it, stale)
    assert dropped == Drop("you", "stale", "staleness 3", 1)
    assert it.replica.weights.tolist() == [3.0, 0.0, 0.0]
    assert Dot("you", 1, 1) in it.clock  # decided: nobody is asked for it again
    assert [each.reason for each in fold(it, stale)] == ["duplicate"]
    fresh = update(2, it.context(), 0.0, 8.0, 0.0)
    assert isinstance(fold(it, fresh)[0], Applied)
    assert it.replica.weights.tolist() == [3.0, 8.0, 0.0]


def test_at_the_bound_it_is_taken() -> None:
    it = peer("bound", 3)
    for _ in range(3):
        own(it, 1.0, 0.0, 0.0)
    assert isinstance(fold(it, update(1, Clock(), 0.0, 8.0, 0.0))[0], Applied)


# -- compensated -----------------------------------------------------------------------------------


def test_compensation_is_the_formula_of_dc_asgd() -> None:
    """g' = g + λ₀/√MS · g² (w - w_bak), and w -= rate · g': by hand, with a rate of 0.1."""
    rate, strength = 0.1, 2.0
    it = peer("compensated", strength)
    w = torch.zeros(3, dtype=torch.float64)
    square: torch.Tensor | None = None
    backup, context = w.clone(), it.context()
    draw = torch.Generator().manual_seed(1)
    for seq in range(1, 6):
        for _ in range(2):  # what its origin does not know of
            step = 0.3 * torch.randn(3, generator=draw)
            own(it, *step.tolist())
            w += step.double()
        gradient = torch.randn(3, generator=draw).double()
        square = gradient**2 if square is None else 0.95 * square + 0.05 * gradient**2
        moved = strength / square.sqrt() * gradient**2 * (w - backup)
        fold(it, update(seq, context, *(-rate * gradient).tolist()))
        w -= rate * (gradient + moved)
        assert torch.allclose(it.replica.weights.double(), w, atol=1e-5)
        backup, context = w.clone(), it.context()  # it takes these weights


def test_what_its_origin_knew_is_not_compensated_for() -> None:
    it = peer("compensated", 2.0)
    own(it, 5.0, 5.0, 5.0)
    fold(it, update(1, it.context(), 1.0, 2.0, 3.0))
    assert it.replica.weights.tolist() == [6.0, 7.0, 8.0]


def test_where_it_is_not_known_what_came_between_it_is_applied_as_it_is() -> None:
    rule = CompensatedForDelay(2.0)
    weights, clock = torch.ones(3), Clock()
    push = update(1, clock, 1.0, 1.0, 1.0)
    for seq in range(1, 4):
        clock.add(Dot("third", 1, seq))  # by a snapshot: no update of it was seen here
    clock.add(Dot("you", 1, 1))
    assert rule.fold(weights, push, (3,), clock) == ""
    assert weights.tolist() == [2.0, 2.0, 2.0]
    assert (rule.plain, rule.corrected) == (1, 0)


# -- a swarm ---------------------------------------------------------------------------------------


def train(rule: str, strength: float | None) -> tuple[GossipWorld, dict[str, Any]]:
    workload = workloads.load("digits", batch_size=32, lr=0.05)
    world = GossipWorld(VirtualTraining(workload=workload, nodes=4, rule=rule, strength=strength))
    world.events.run_until(1e6, lambda: world.samples() >= 6400)
    return world, world.finish()


def test_without_strength_each_of_them_is_a_sum() -> None:
    plain, _ = train("sum", None)
    for rule, strength in (("scaled", 0.0), ("compensated", 0.0), ("bound", 1e9)):
        world, end = train(rule, strength)
        for name, node in world.nodes.items():
            assert torch.equal(node.peer.replica.weights, plain.nodes[name].peer.replica.weights)
        assert end["replica_distance_max"] < 1e-6


@pytest.mark.parametrize(
    ("rule", "strength"), [("scaled", 1.0), ("compensated", 0.5), ("bound", 3.0)]
)
def test_all_is_decided_once_though_replicas_differ(rule: str, strength: float) -> None:
    """What holds, and what is given up: clocks are equal at the end, weights are not."""
    world, end = train(rule, strength)
    nodes = list(world.nodes.values())
    made = sum(node.figures.published for node in nodes)
    for node in nodes:
        assert node.peer.clock == nodes[0].peer.clock
        assert node.figures.applied + node.figures.rejected["stale"] == made
        assert node.figures.accuracy > 0.3  # it learns: chance is 0.1, and these are few steps
        assert node.figures.staleness.largest <= (strength if rule == "bound" else 1e9)
    assert end["replica_distance_max"] > 1e-3
    refused = sum(node.figures.rejected["stale"] for node in nodes)
    assert (refused > 0) == (rule == "bound")


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"train.rule": "bound", "train.strength": "-1"}, "expected a number from 0 on"),
        ({"train.rule": "scaled", "train.strength": "inf"}, "expected a number from 0 on"),
        (
            {"train.rule": "sum", "train.strength": "1"},
            "'sum' has none; scaled, compensated, bound",
        ),
        ({"train.rule": "bounded"}, "nearest: bound"),
    ],
)
def test_a_strength_that_cannot_be_is_one_line(options: dict[str, str], wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, options)
    assert wanted in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("rule", RECEIVING)
def test_what_it_gives_up_is_said_at_the_beginning(rule: str) -> None:
    assert "replicas with the same updates are no longer equal" in WAYS[rule].warning
