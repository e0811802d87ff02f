"""What every solver of the table promises, whatever its rule: its line there is enough.

Nothing here knows a rule. Members do what the solver's half says, and the rest follows from the
Protocol: who is given something, which push is in, which is refused and why, what a restart keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from murmurate.core.figures.table import REFUSED_PUSHES, REFUSED_STREAMS
from murmurate.core.partition import analyse, weights_of
from murmurate.core.partition.whole import whole_structure
from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.member_half import (
    HUB_RULES,
    IST_RULES,
    PROTOCOLS,
    Down,
    PushPace,
    Up,
    can_pipeline,
)
from murmurate_coordinator.checkpoint import SavedSolver, restore, save
from murmurate_coordinator.solvers.effects import (
    Effect,
    GiveLease,
    MemberPush,
    PushAccepted,
    Reason,
    Refused,
    Waits,
)
from murmurate_coordinator.solvers.protocol import LIFE, Solver
from murmurate_coordinator.solvers.table import HUB_SOLVERS, SOLVERS, new_solver

J = 3
CASES = (
    *(f"ist {rule}" for rule in SOLVERS),
    *(
        f"hub {rule} {protocol}"
        for rule in HUB_SOLVERS
        for protocol in PROTOCOLS[: 1 + can_pipeline(rule)]
    ),
)
every_solver = pytest.mark.parametrize("rule", CASES)


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)
    )


MODEL = make()
STRUCTURE = analyse(MODEL, (torch.randn(4, 3),))
WHOLE = whole_structure(MODEL)
Values = dict[str, torch.Tensor]


class Members:
    """The other end of a solver: each trains what it was given, as the solver's half says."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.given: dict[str, GiveLease] = {}
        self.values: dict[str, Values] = {}
        self.version: dict[str, int] = {}
        self.done: set[str] = set()
        """Who has pushed, and waits."""

    def take(self, effects: list[Effect]) -> list[Effect]:
        half = self.solver.half
        for effect in effects:
            if isinstance(effect, GiveLease):
                name = effect.peer
                own = {n: value.clone() for n, value in effect.values.items()}
                before = self.given.get(name)
                if half.down is Down.ADD and before and before.lease == effect.lease:
                    own = {n: self.values[name][n] + value for n, value in own.items()}
                self.given[name], self.values[name] = effect, own
                self.version[name] = effect.version
                self.done.discard(name)
            elif isinstance(effect, PushAccepted):
                self.version[effect.peer] = effect.version
        self.solver.check()
        return effects

    def join(self, *names: str) -> list[Effect]:
        return [effect for name in names for effect in self.take(self.solver.join(name))]

    def leave(self, name: str) -> list[Effect]:
        return self.take(self.solver.leave(name))

    def train(self, name: str) -> MemberPush:
        """J steps, which change every number in a way that depends on what it was."""
        given, values = self.given[name], self.values[name]
        for value in values.values():
            if value.is_floating_point():
                value.mul_(0.9).add_(0.01 * len(name))
            else:
                value.add_(J)
        lease = given.lease
        pushed = {n: self._up(n, given.values[n], value) for n, value in values.items()}
        return MemberPush(name, given.plan, lease, self.version[name] + 1, J, 8 * J, pushed)

    def _up(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """With a rate of 1 a sum of gradients is what was lost; a buffer has none."""
        if self.solver.half.up is Up.WEIGHTS:
            return after.clone()
        downhill = self.solver.half.up is Up.GRADIENT and STRUCTURE.tensors[name].trained
        return before - after if downhill else after - before

    def push(self, name: str) -> list[Effect]:
        effects = self.solver.push(self.train(name))
        first = effects[0]
        assert isinstance(first, PushAccepted)
        assert (first.peer, first.lease) == (name, self.given[name].lease)
        assert first.version == self.version[name] + 1
        if self.solver.half.waits:
            self.done.add(name)
        return self.take(effects)

    def ready(self) -> list[str]:
        """Who has something to train."""
        return sorted(n for n in self.given if n in self.solver.members and n not in self.done)

    def everybody_pushes(self, times: int = 1) -> None:
        """And none is left without something to do."""
        for _ in range(times):
            for name in self.ready():
                self.push(name)
            assert set(self.ready()) <= self.solver.members.keys()
            assert self.ready()


def kind(case: str) -> dict[str, Any]:
    """Of a solver: its mode, and what a hub is told."""
    mode, _, *protocol = case.split()
    if mode == "ist":
        return {"mode": mode}
    told = HubSettings(lr=0.3, protocol=protocol[0], gradients=2)
    return {"mode": mode, "settings": told}


def made(case: str, **more: Any) -> Solver:
    structure = STRUCTURE if case.startswith("ist") else WHOLE
    rng = np.random.default_rng(0)
    rule = case.split()[1]
    return new_solver(rule, structure, weights_of(MODEL), rng, steps=J, **kind(case), **more)


def seated(rule: str, *names: str) -> Members:
    solver = made(rule, founders=len(names), first_lease=LIFE + 1)
    members = Members(solver)
    members.join(*names)
    assert members.ready() == sorted(names)
    return members


def weights(solver: Solver) -> Values:
    return {name: value.clone() for name, value in solver.weights.items()}


def same(a: Values, b: Values) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def refused(solver: Solver, push: MemberPush, *reasons: Reason) -> None:
    """Nothing is changed, and it is counted."""
    before, totals = weights(solver), replace(solver.totals)
    totals.refused = solver.totals.refused.copy()
    [effect] = solver.push(push)
    assert isinstance(effect, Refused)
    assert effect.reason in reasons
    assert effect.sentence
    assert "\n" not in effect.sentence
    totals.refused[effect.reason] += 1
    assert solver.totals == totals
    assert same(before, weights(solver))
    solver.check()


def test_the_table_is_the_members_table() -> None:
    for mode, solvers, halves in (
        ("ist", SOLVERS, IST_RULES),
        ("hub", HUB_SOLVERS, HUB_RULES),
    ):
        assert solvers.keys() == halves.keys()
        for rule, solver in solvers.items():
            assert (solver.mode, solver.rule) == (mode, rule)
            made_of_it = made(f"{mode} {rule} request-reply")
            assert made_of_it.half == halves[rule]


def test_every_reason_is_a_figure_from_the_start() -> None:
    shown = {*REFUSED_PUSHES, "full", *REFUSED_STREAMS}
    assert {str(reason) for reason in Reason} <= shown


@every_solver
def test_members_are_given_what_they_can_train(rule: str) -> None:
    solver = made(rule, founders=3)
    members = Members(solver)
    for name in ("a", "b"):
        [waits] = members.join(name)
        assert isinstance(waits, Waits)
        assert solver.lease_of(name) is None
    gives = members.join("c")
    assert sorted(effect.peer for effect in gives) == ["a", "b", "c"]
    assert solver.members.keys() == {"a", "b", "c"}
    assert solver.plan > 0
    for give in gives:
        assert isinstance(give, GiveLease)
        lease = solver.lease_of(give.peer)
        assert lease is solver.leases[give.lease]
        assert (give.plan, give.version) == (solver.plan, 0)
        assert np.array_equal(give.held, lease.held)
        assert give.steps == (J if solver.half.every is PushPace.AFTER_STEPS else None)
        for name, value in give.values.items():
            assert tuple(value.shape) == solver.structure.tensors[name].part(give.held)
            assert value.dtype == solver.weights[name].dtype
    assert len({give.lease for give in gives if isinstance(give, GiveLease)}) == 3
    before = weights(solver)
    for give in gives:
        assert isinstance(give, GiveLease)
        for value in give.values.values():
            value.zero_()  # their own copies
    assert same(before, weights(solver))
    assert same(before, {name: value.detach() for name, value in weights_of(MODEL).items()})


@every_solver
def test_a_push_is_in_and_counted_and_nobody_is_stuck(rule: str) -> None:
    members = seated(rule, "a", "b", "c")
    solver, before = members.solver, weights(members.solver)
    members.everybody_pushes(5)
    totals = solver.totals
    assert totals.pushes >= 15
    assert totals.steps == J * totals.pushes
    assert totals.samples == 8 * totals.steps
    assert not totals.refused
    after = solver.weights
    trained = [n for n, t in STRUCTURE.tensors.items() if t.trained]
    assert all(not torch.equal(before[name], after[name]) for name in trained)
    assert all(torch.isfinite(value).all() for value in after.values())
    served = solver.for_evaluation()
    assert {n: v.shape for n, v in served.items()} == {n: v.shape for n, v in after.items()}
    assert all(0 < part <= 1 for part in solver.coverage().values())


@every_solver
def test_names(rule: str) -> None:
    members = seated(rule, "a", "b")
    before = dict(members.solver.leases)
    for name in ("a", ""):
        [effect] = members.join(name)
        assert isinstance(effect, Refused)
        assert effect.reason is Reason.EXISTS
    assert members.solver.leases == before
    assert members.leave("nobody") == []
    assert members.solver.again("nobody") == []


def _broken(push: MemberPush, name: str, change: Callable[[torch.Tensor], Any]) -> MemberPush:
    return replace(push, values={**push.values, name: change(push.values[name])})


@every_solver
def test_a_broken_or_alien_push_changes_nothing(rule: str) -> None:
    members = seated(rule, "a", "b")
    solver, good = members.solver, members.train("a")
    weight = next(n for n, t in STRUCTURE.tensors.items() if t.trained)
    less = {n: v for n, v in good.values.items() if n != weight}
    cases = [
        (replace(good, plan=solver.plan + 1), Reason.FUTURE),
        (replace(good, lease=max(solver.leases) + 9), Reason.FUTURE),
        (replace(good, version=good.version + 1), Reason.FUTURE),
        (replace(good, version=good.version - 1), Reason.DUPLICATE),
        (replace(good, lease=min(solver.leases) - 1), Reason.OVER),
        (replace(good, lease=members.given["b"].lease), Reason.NOT_LEASED),
        (replace(good, peer="mallory"), Reason.NOT_LEASED),
        (replace(good, steps=-1), Reason.SHAPES),
        (replace(good, samples=-1), Reason.SHAPES),
        (replace(good, samples=10**18), Reason.SAMPLES),
        (replace(good, values=less), Reason.SHAPES),
        (replace(good, values={**good.values, "more": good.values[weight]}), Reason.SHAPES),
        (_broken(good, weight, lambda value: value[:-1]), Reason.SHAPES),
        (_broken(good, weight, lambda value: value.double()), Reason.SHAPES),
        (_broken(good, weight, lambda value: value * float("nan")), Reason.NOT_FINITE),
        (_broken(good, weight, lambda value: value + 1e30), Reason.NOT_FINITE),
    ]
    for bad, reason in cases:
        refused(solver, bad, reason)
    assert solver.admits("mallory", good.plan, good.lease, good.version) is not None
    assert solver.admits("a", good.plan, good.lease, good.version) is None
    assert isinstance(solver.push(good)[0], PushAccepted)


@every_solver
def test_a_push_that_comes_twice_is_in_once(rule: str) -> None:
    members = seated(rule, "a", "b")
    push = members.train("a")
    assert isinstance(members.take(members.solver.push(push))[0], PushAccepted)
    refused(members.solver, push, Reason.DUPLICATE, Reason.OVER)


@every_solver
def test_the_dead_are_not_waited_for_and_what_comes_late_is_refused(rule: str) -> None:
    members = seated(rule, "a", "b", "c")
    members.everybody_pushes()
    late = members.train("b")
    members.push("a")
    members.push("c")  # now at most b is waited for
    before = weights(members.solver)
    members.leave("b")
    waited_for = members.solver.mode == "hub" and members.solver.barrier  # now the rest is due
    assert waited_for or same(before, weights(members.solver))  # what it has pushed stays
    assert members.solver.lease_of("b") is None
    assert members.ready() == ["a", "c"]
    assert members.leave("b") == []
    refused(members.solver, late, Reason.OVER)
    members.everybody_pushes(3)
    members.solver.vacate("b")
    members.everybody_pushes(3)
    assert members.ready() == ["a", "c"]
    refused(members.solver, late, Reason.OVER)
    for name in ("a", "c"):
        members.leave(name)
    assert not members.solver.leases
    assert not members.solver.members


@every_solver
def test_who_is_frozen_comes_back(rule: str) -> None:
    """Its stream is gone for a while; then it says that what it was given is lost."""
    members = seated(rule, "a", "b", "c")
    solver = members.solver
    lost = members.train("b")
    solver.away("b")
    for name in ("a", "c"):
        members.push(name)
    solver.away("b", gone=False)
    held = members.given["b"].held
    [give] = members.take(solver.again("b"))
    assert isinstance(give, GiveLease)
    assert give.lease > lost.lease
    assert np.array_equal(give.held, held)
    refused(solver, lost, Reason.OVER)
    members.push("b")
    members.everybody_pushes(3)
    assert members.ready() == ["a", "b", "c"]


@every_solver
def test_one_whose_lease_was_taken_is_a_member_again(rule: str) -> None:
    """It was silent for too long, and wakes up: as a newcomer, who gets something in time."""
    members = seated(rule, "a", "b", "c")
    late = members.train("b")
    members.leave("b")
    members.everybody_pushes(2)
    refused(members.solver, late, Reason.OVER)
    members.given.pop("b")
    members.join("b", "d")
    for _ in range(12):
        if members.ready() == ["a", "b", "c", "d"]:
            break
        members.everybody_pushes()
    assert members.ready() == ["a", "b", "c", "d"]
    members.everybody_pushes(2)


@every_solver
def test_a_measured_speed_is_followed_or_not(rule: str) -> None:
    members = seated(rule, "a", "b")
    members.everybody_pushes()
    members.solver.measured("a", 3.0)
    members.solver.measured("nobody", 3.0)
    assert members.solver.members["a"].speed == 3.0
    members.everybody_pushes(4)
    a, b = (members.solver.lease_of(name) for name in "ab")
    assert a is not None
    assert b is not None
    assert (a.held.sum() > b.held.sum()) == members.solver.follows_speed


def reborn(case: str, solver: Solver) -> Solver:
    """From a checkpoint, through JSON as a file would have it."""
    saved = save(solver)
    again = SavedSolver(dict(saved.tensors), json.loads(json.dumps(saved.about)))
    rng = np.random.default_rng(9)
    return restore(again, solver.structure, rng, steps=J, founders=1, **kind(case))


@pytest.mark.parametrize(
    ("rule", "told", "steps", "prefix"),
    [
        ("dc", {"dc_adaptive": True}, J, "square/0/"),
        ("downpour", {"pull": J}, 2 * J, "accrued/0/"),
        ("easgd", {}, J, "early/0/"),
        ("fedavg-async", {}, J, "own/0/"),
    ],
)
def test_what_a_rule_keeps_of_each_member_comes_back(
    rule: str, told: dict[str, Any], steps: int, prefix: str
) -> None:
    settings: dict[str, Any] = {"mode": "hub", "settings": HubSettings(lr=0.3, **told)}
    rng = np.random.default_rng(0)
    solver = new_solver(rule, WHOLE, weights_of(MODEL), rng, steps=steps, **settings)
    members = Members(solver)
    members.join("a", "b", "c")
    members.push("c")  # it is not its turn, and it is half of what is waited for
    before = solver.state()
    assert any(name.startswith(prefix) for name in before.tensors)
    saved = save(solver)
    file = SavedSolver(dict(saved.tensors), json.loads(json.dumps(saved.about)))
    again = restore(file, WHOLE, np.random.default_rng(9), steps=steps, founders=1, **settings)
    assert same(before.tensors, again.state().tensors)


@every_solver
def test_after_a_restart_it_goes_on_as_it_would_have(rule: str) -> None:
    members = seated(rule, "a", "b", "c")
    members.everybody_pushes(2)
    members.push("a")
    members.join("d")
    twin = Members(reborn(rule, members.solver))
    old, new = members.solver, twin.solver
    assert same(weights(old), weights(new))
    assert (old.rule, old.plan, old.totals) == (new.rule, new.plan, new.totals)
    assert (old.members, list(old.leases)) == (new.members, list(new.leases))
    assert old.coverage() == new.coverage()
    assert old.shared == new.shared
    before, after = old.state(), new.state()
    assert same(before.tensors, after.tensors)
    assert json.dumps(before.about | {"next": 0}) == json.dumps(after.about | {"next": 0})
    twin.given, twin.version = dict(members.given), dict(members.version)
    twin.values = {n: {k: v.clone() for k, v in own.items()} for n, own in members.values.items()}
    twin.done = set(members.done)
    numbers = set(old.leases)

    def both(call: Callable[[Members], list[Effect]]) -> None:
        one, other = call(members), call(twin)
        assert [(type(e), e.peer) for e in one] == [(type(e), e.peer) for e in other]

    for change in (None, "leave", "join", None):
        if change == "leave":
            both(lambda each: each.leave("a"))
            for each in (old, new):
                each.vacate("a")
        elif change == "join":
            both(lambda each: each.join("e"))
        for name in members.ready() * 3:
            if name in members.ready():
                both(partial(Members.push, name=name))
        assert same(weights(old), weights(new))
        assert same(old.for_evaluation(), new.for_evaluation())
        assert members.ready() == twin.ready()
    for lease in new.leases.values():  # no number of another life
        assert lease.number in numbers or lease.number > 2 * LIFE


@every_solver
def test_a_restart_before_anybody_came(rule: str) -> None:
    solver = made(rule)
    members = Members(reborn(rule, solver))
    assert isinstance(members.join("a")[0], GiveLease)
    members.everybody_pushes(2)
    assert same(weights(solver), {n: v.detach() for n, v in weights_of(MODEL).items()})
