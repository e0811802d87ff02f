"""Groups in virtual time: in step inside, the same objects across as in real nodes."""

from __future__ import annotations

from typing import Any

import pytest

from murmurate.errors import ConfigError
from murmurate.study.virtual.command import engine
from murmurate.study.virtual.groups import Groups
from murmurate.study.virtual.task import VirtualTraining
from murmurate.workloads.synthetic import Synthetic

BATCH = Synthetic("2000").batch_size


def world(seconds: float, **more: Any) -> Groups:
    task = {"workload": Synthetic("2000"), "nodes": 4, "mode": "allreduce", "rule": "groups"}
    it = Groups(VirtualTraining(**{**task, "group": 2, **more}), engine)
    it.events.run_until(seconds)
    return it


def steps(it: Groups) -> list[int]:
    return [one.steps for one in it.figures() if one.role == "member" and "node" in one.name][:4]


@pytest.mark.parametrize("rule", ["groups", "groups-ea-wild"])
def test_a_slow_member_holds_up_its_own_group_only(rule: str) -> None:
    it = world(40.001, rule=rule, speeds={"node-3": 0.25})
    fast, also_fast, held_up, slow = steps(it)
    assert fast == also_fast
    assert held_up == slow
    assert 38 <= fast <= 40
    assert 9 <= slow <= 10
    assert it.samples() == sum(steps(it)) * BATCH
    waited = {one.name: one.wait_s for one in it.figures()}
    assert waited["node-2"] == pytest.approx(3 * held_up)
    assert waited["node-3"] == 0.0
    if rule == "groups":
        assert it.finish()["replica_distance_max"] <= 1e-5


@pytest.mark.parametrize("rule", ["groups", "groups-ea-wild"])
def test_drawn_anew_a_slow_member_is_with_all(rule: str) -> None:
    """Seed 0: the draws send it back and forth, so that both groups wait for it."""
    it = world(80.001, rule=rule, speeds={"node-3": 0.25}, regroup=5)
    again = world(80.001, rule=rule, speeds={"node-3": 0.25}, regroup=5)
    assert steps(it) == steps(again)
    first, _, third, slow = steps(it)
    assert slow < first
    assert slow < third
    waited = {one.name: one.wait_s for one in it.figures()}
    assert waited["node-0"] > 0
    assert waited["node-2"] > 0
    assert it.finish()["draws"] >= 3


@pytest.mark.parametrize("rule", ["groups", "groups-ea-wild"])
def test_a_death_costs_a_group_what_that_member_made(rule: str) -> None:
    it = world(20.5, rule=rule)
    before = steps(it)
    it.kill("node-0")  # which speaks for its group
    it.events.run_until(60.5)
    after = steps(it)
    assert after[0] == before[0]
    assert all(now - then >= 38 for now, then in zip(after[1:], before[1:], strict=True))
    it.kill("node-1")  # and with it its group
    it.events.run_until(80.5)
    assert steps(it)[1] <= after[1] + 1
    assert steps(it)[3] >= after[3] + 18
    more = it.finish()
    if rule != "groups":
        assert more["elastic"]["exchanges"] >= 10
    alive = [one for one in it.figures() if one.state == "done" and one.role == "member"]
    assert {one.name for one in alive} >= {"node-2", "node-3"}


def test_nobody_comes_or_goes() -> None:
    with pytest.raises(ConfigError, match="nobody comes or goes"):
        world(1.0, leaves_s={"node-1": 3.0})
