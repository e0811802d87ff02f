"""003, section 3.1: in step inside groups, gossip or `ea-wild` across; drawn anew; deaths."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.integration.centre import Coordinator
from tests.integration.test_allreduce import (
    GO_ON_S,
    WAIT_S,
    InThread,
    batch,
    everyone,
    forked,
    hear,
    members,
    net,
    sgd,
)

import murmurate
from murmurate.core.values.hub_settings import HubSettings
from murmurate.edge.net import collective
from murmurate.errors import ConfigError
from murmurate.training.groups import GroupedSwarm

ALPHA, EVERY = 0.4, 4


@contextmanager
def hub(rule: str = "ea-wild", founders: int = 2) -> Iterator[Coordinator]:
    settings = HubSettings(alpha=ALPHA) if rule == "ea-wild" else HubSettings()
    with Coordinator(rule, founders=founders, steps=EVERY, whole=net(3), hub=settings) as it:
        it.centre.run = "t"
        yield it


def groups(found: list[InThread]) -> list[GroupedSwarm]:
    swarms = []
    for each in found:
        assert isinstance(each.swarm, GroupedSwarm)
        assert each.even
        swarms.append(each.swarm)
    return swarms


def apart(found: list[InThread]) -> float:
    assert found[0].weights is not None
    first = found[0].weights
    return max(float((each.weights - first).abs().max()) for each in found)  # type: ignore[operator]


def until_drawn_anew(found: list[InThread]) -> None:
    """They train for as long as a busy machine and chance need for that, and 90 steps at least."""
    pairs = [("m-0", "m-1"), ("m-0", "m-3"), ("m-1", "m-2"), ("m-2", "m-3")]
    by_name = {each.name: each.groups for each in found}

    def seen(number: int) -> bool:
        return number >= 90 and sum(pair in by_name[pair[0]] for pair in pairs) >= 3

    for each in found:
        each.goes_on = lambda number: number < 20_000 and not seen(number)
    everyone(found)
    assert seen(90), by_name
    assert max(each.draw.number for each in groups(found)) >= 2


def were_dealt(found: list[InThread]) -> None:
    """The first of a group stays, so the two are never together."""
    for each in found:
        assert not any({"m-0", "m-2"} <= set(group) for group in each.groups)


def test_groups_drawn_anew_gossip_across_and_all_have_the_same_in_the_end() -> None:
    with members(4, 90, rule="groups", group=2, regroup=10, seed=1, name="m-{}") as found:
        until_drawn_anew(found)
    were_dealt(found)
    assert apart(found) <= 1e-5
    for each, swarm in zip(found, groups(found), strict=True):
        assert swarm.samples_of[each.name] == len(each.groups) * 4, "no step of its own was lost"


@pytest.mark.parametrize("regroup", [None, 10])
def test_one_of_each_group_exchanges_with_a_hub_and_broadcasts_inside(regroup: int | None) -> None:
    steps = 90
    with hub() as it:
        more: dict[str, Any] = {"regroup": regroup, "seed": 1, "coordinator": it.address}
        with members(4, steps, rule="groups-ea-wild", group=2, name="m-{}", **more) as found:
            until_drawn_anew(found) if regroup is not None else everyone(found)
        told = it.ask(it.solver.more)["elastic"]
        centre = torch.cat([value.flatten() for value in it.weights().values()])
    if regroup is not None:
        were_dealt(found)
    else:
        spoke = [each.spoke for each in groups(found)]
        assert spoke == [True, False, True, False], "the first of each group"
        assert found[1].groups == [("m-0", "m-1")] * steps
    assert told["exchanges"] >= steps // EVERY, "of both groups together, however slow the hub is"
    assert told["lost"] == 0
    assert apart(found) == 0.0, "all groups end with the centre"
    assert found[0].weights is not None
    assert torch.equal(found[0].weights, centre)
    assert float(centre.abs().max()) < 100


def test_a_group_that_is_through_waits_for_a_slow_one_longer_than_for_any_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collective, "OPERATION_S", 1.0)

    def slow(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.1)
        return batch(number)

    with members(4, 30, rule="groups", group=2, name="m-{}") as found:
        for each in found[:2]:
            each.goes_on = lambda number: number < 5 or not found[2].groups
        for each in found[2:]:
            each.data = slow
        everyone(found)
    assert groups(found), "all were even"
    assert apart(found) <= 1e-5


def test_a_hub_of_another_rule_is_refused() -> None:
    model = net()
    optimizer = sgd(model)
    with (
        hub("async", founders=1) as it,
        murmurate.join(
            model,
            optimizer,
            run="t",
            mode="allreduce",
            rule="groups-ea-wild",
            name="m-0",
            coordinator=it.address,
        ),
    ):
        torch.nn.functional.cross_entropy(model(torch.ones(1, 6)), torch.tensor([0])).backward()
        with pytest.raises(ConfigError, match="groups exchange with a hub of rule"):
            optimizer.step()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rule": "flat", "regroup": 5}, "regroup 5: only with rule 'groups' or"),
        ({"rule": "groups", "name": "m-0", "regroup": 0}, "regroup 0: expected 1 or more"),
        ({"rule": "groups-ea-wild", "name": "m-0"}, "needs the address of a hub of rule"),
        ({"rule": "groups", "name": "m-0", "coordinator": "h:1"}, "or rule 'groups-ea-wild'"),
        ({"rule": "groups-ea-wild", "name": "al", "coordinator": "h:1"}, "must end in a number"),
        ({"mode": "gossip", "regroup": 5}, "regroup 5: only with mode 'allreduce'"),
    ],
)
def test_what_groups_have_not_is_said_in_one_line(asked: dict[str, Any], said: str) -> None:
    model = net()
    with pytest.raises(ConfigError, match=said) as caught:
        murmurate.join(model, sgd(model), **{"run": "t", "mode": "allreduce", **asked})
    assert "\n" not in str(caught.value)


# -- in processes --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["groups", "groups-ea-wild"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_death_inside_a_group_costs_a_moment_and_nothing_else(rule: str, victim: int) -> None:
    """0 and 2 speak for their groups, and 0 founded the run; 1 does not."""
    with hub() as it:
        more = {"coordinator": it.address} if rule == "groups-ea-wild" else {}
        with forked(4, "m-{}", rule=rule, group=2, **more) as (started, pipes):
            before = it.solver.totals.pushes
            started[victim].kill()
            started[victim].join(WAIT_S)
            alive = [pipe for number, pipe in enumerate(pipes) if number != victim]
            if more:  # a group of which nobody exchanged any more would not be noticed below
                names = {f"m-{number}" for number in range(4)} - {f"m-{victim}"}
                deadline = time.monotonic() + WAIT_S
                while it.solver.totals.pushes < before + 20 or not _both(set(it.solver.members)):
                    assert time.monotonic() < deadline, it.solver.members
                    time.sleep(0.02)
                assert set(it.solver.members) - {f"m-{victim}"} <= names
            for pipe in alive:
                pipe.send(30)
            ends = [hear(pipe) for pipe in alive]
            for even, steps, _, worst_s, weights, _ in ends:
                assert even
                assert steps >= 30
                assert worst_s < GO_ON_S
                assert torch.allclose(torch.tensor(weights), torch.tensor(ends[0][4]), atol=1e-5)
            for pipe in alive:
                pipe.send("bye")


def _both(names: set[str]) -> bool:
    """Whether a member of each group is at the hub."""
    return bool(names & {"m-0", "m-1"}) and bool(names & {"m-2", "m-3"})
