"""The coordinator's rules under random schedules, against a twin that does everything by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from murmurate.core.partition import Held, Structure, analyse, part_of, weights_of
from murmurate.errors import ConfigError
from murmurate_coordinator.checkpoint import restore, save
from murmurate_coordinator.names import RULES
from murmurate_coordinator.solvers.effects import (
    Effect,
    GiveLease,
    MemberPush,
    PushAccepted,
    Reason,
    Refused,
    Waits,
)
from murmurate_coordinator.solvers.protocol import Capacity, Solver
from murmurate_coordinator.solvers.subnets.kept import KeptSubnets
from murmurate_coordinator.solvers.table import SOLVERS, new_solver

BARRIER = tuple(rule for rule in RULES if SOLVERS[rule].barrier)
KEPT = ("once", "async")
"""One partition."""
J = 3


def make() -> tuple[nn.Module, Structure]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 2)
    ).double()
    return model, analyse(model, (torch.randn(4, 2, dtype=torch.float64),))


MODEL, STRUCTURE = make()
START = {name: value.detach() for name, value in weights_of(MODEL).items()}


@dataclass
class Twin:
    """Dense masks over every coordinate, one per lease; the sum Σ E_k x^k element by element."""

    weights: dict[str, np.ndarray]
    barrier: bool
    federated: bool
    live: dict[int, tuple[str, Held]] = field(default_factory=dict)
    plan: list[int] = field(default_factory=list)
    """Leases whose weights count: those of the plan's start under a barrier, else the live ones."""
    last: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    masks: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    one_partition: bool = False
    ever: dict[str, np.ndarray] = field(default_factory=dict)
    """Coordinates that were in some push."""

    def mask(self, held: Held) -> dict[str, np.ndarray]:
        out = {}
        for name, tensor in STRUCTURE.tensors.items():
            full = np.ones(tensor.shape, dtype=bool)
            for at in np.ndindex(*tensor.shape):
                for axis, units in enumerate(tensor.axes):
                    if units is not None and units[at[axis]] >= 0 and not held[units[at[axis]]]:
                        full[at] = False
            out[name] = full
        return out

    def given(self, gives: list[GiveLease]) -> None:
        for give in gives:
            for number in [n for n, (owner, _) in self.live.items() if owner == give.peer]:
                del self.live[number]
            self.live[give.lease] = (give.peer, give.held)
            self.masks[give.lease] = self.mask(give.held)
            self.last[give.lease] = {k: v.numpy().copy() for k, v in give.values.items()}
            for name, value in give.values.items():
                mask = self.masks[give.lease][name]
                mine, given = self.weights[name][mask], value.numpy().reshape(-1)
                # Between units that begin to be trained together nothing was learnt: zeros.
                new = (given == 0) & ~self.ever[name][mask] & self.one_partition
                assert np.allclose(np.where(new, 0, mine), given, rtol=0, atol=1e-12), name
        if self.barrier and gives:
            self.plan = [give.lease for give in gives]
        elif not self.barrier:
            self.plan = list(self.live)

    def push(self, push: MemberPush) -> None:
        for name, after in push.values.items():
            mask = self.masks[push.lease][name]
            self.ever[name] |= mask
            now, new = self.weights[name], after.numpy().reshape(-1)
            if now.dtype.kind != "f":
                now[mask] = np.maximum(now[mask], new)
                continue
            before = self.last[push.lease][name].reshape(-1)
            holders = np.sum([self.masks[n][name] for n in self.plan], axis=0)
            alone = self.exclusive(name)
            for at, coordinate in enumerate(np.argwhere(mask)):
                where = tuple(coordinate)
                if alone:
                    now[where] = new[at]
                else:
                    now[where] += (new[at] - before[at]) / holders[where]
        self.last[push.lease] = {k: v.numpy().copy() for k, v in push.values.items()}

    def exclusive(self, name: str) -> bool:
        return not self.federated and STRUCTURE.tensors[name].split

    def no_unit_twice(self) -> None:
        if self.federated:
            return
        for group in STRUCTURE.groups:
            owners = [held[list(group.units)] for _, held in self.live.values()]
            if owners:
                assert np.sum(owners, axis=0).max() <= 1
                assert all(o.any() for o in owners)


class Flock:
    """Members that train by adding known noise, a coordinator, and the twin beside it."""

    def __init__(self, rule: str, seed: int, founders: int = 1) -> None:
        self.rng = random.Random(f"{rule}/{seed}")
        self.it = new_solver(
            rule, STRUCTURE, START, np.random.default_rng(seed), steps=J, founders=founders
        )
        whole = {name: value.numpy().copy() for name, value in START.items()}
        self.twin = Twin(whole, rule in BARRIER, rule == "fedavg", one_partition=rule in KEPT)
        self.twin.ever = {name: np.zeros(value.shape, bool) for name, value in START.items()}
        self.job: dict[str, GiveLease] = {}
        self.values: dict[str, dict[str, torch.Tensor]] = {}
        self.versions: dict[str, int] = {}
        self.late: list[MemberPush] = []
        self.gone = 0
        self.steps = 0
        self.noise = torch.Generator().manual_seed(seed)

    def take(self, effects: list[Effect]) -> list[Effect]:
        gives = [effect for effect in effects if isinstance(effect, GiveLease)]
        for give in gives:
            self.job[give.peer] = give
            self.values[give.peer] = {k: v.clone() for k, v in give.values.items()}
            self.versions[give.peer] = give.version
        self.twin.given(gives)
        self.twin.no_unit_twice()
        self.it.check()
        for name, value in self.it.weights.items():
            assert np.allclose(value.numpy(), self.twin.weights[name], rtol=0, atol=1e-9), name
        live = {n: owner for n, (owner, _) in self.twin.live.items()}
        assert {n: lease.owner for n, lease in self.it.leases.items()} == live
        return effects

    def join(self, name: str) -> list[Effect]:
        speed = self.rng.choice([0.5, 1.0, 1.0, 3.0])
        return self.take(self.it.join(name, Capacity(speed=speed)))

    def train(self, name: str) -> MemberPush:
        """J steps on what it has now."""
        values = self.values[name]
        for _ in range(J):
            for value in values.values():
                if value.is_floating_point():
                    value += 0.1 * torch.randn(value.shape, generator=self.noise, dtype=value.dtype)
                else:
                    value += 1
        job = self.job[name]
        copies = {k: v.clone() for k, v in values.items()}
        return MemberPush(name, job.plan, job.lease, self.versions[name] + 1, J, 10, copies)

    def push(self, push: MemberPush) -> list[Effect]:
        effects = self.it.push(push)
        if isinstance(effects[0], PushAccepted):
            self.twin.push(push)
            self.versions[push.peer] = effects[0].version
            self.steps += push.steps
            if self.it.rule in BARRIER:
                self.job.pop(push.peer)
        return self.take(effects)

    def leave(self, name: str) -> None:
        if name in self.job and self.rng.random() < 0.7:
            self.late.append(self.train(name))
        self.job.pop(name, None)
        for number in [n for n, (owner, _) in self.twin.live.items() if owner == name]:
            del self.twin.live[number]
        if not self.twin.barrier:
            self.twin.plan = list(self.twin.live)
        self.take(self.it.leave(name))
        self.gone += 1


def vacant_in(solver: Solver) -> list[str]:
    """Whose units are kept for a newcomer."""
    return list(solver._vacant) if isinstance(solver, KeptSubnets) else []


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(6))
def test_a_random_schedule(rule: str, seed: int) -> None:
    """Joins, leaves, deaths, late returns, duplicates: no unit lost or owned twice, Σ E_k = I at
    every plan, every accepted step in the model and no other."""
    flock = Flock(rule, seed)
    names = iter(range(10**6))
    flock.join(f"peer-{next(names)}")
    for _ in range(120):
        what = flock.rng.random()
        if what < 0.10 and len(flock.it.members) < 5:
            flock.join(f"peer-{next(names)}")
        elif what < 0.17 and flock.it.members:
            flock.leave(flock.rng.choice(sorted(flock.it.members)))
        elif what < 0.19 and flock.it.members:
            gone = flock.rng.random() < 0.5
            flock.it.away(flock.rng.choice(sorted(flock.it.members)), gone=gone)
        elif what < 0.20 and (vacant := vacant_in(flock.it)):
            flock.it.vacate(flock.rng.choice(sorted(vacant)))
        elif what < 0.24 and flock.late:
            [refused] = flock.push(flock.rng.choice(flock.late))
            assert isinstance(refused, Refused)
            assert refused.reason == Reason.OVER
        elif flock.job:
            push = flock.train(flock.rng.choice(sorted(flock.job)))
            effects = flock.push(push)
            assert isinstance(effects[0], PushAccepted)
            if flock.rng.random() < 0.2:
                [again] = flock.push(push)
                assert isinstance(again, Refused)
                assert again.reason in (Reason.DUPLICATE, Reason.OVER)
        elif not flock.it.members:
            flock.join(f"peer-{next(names)}")
    assert flock.gone > 2
    assert flock.steps == flock.it.totals.steps > 50
    assert flock.it.totals.refused[Reason.OVER] >= 1
    if rule in BARRIER:  # nobody is stuck: who has no job has pushed, and the barrier waits
        assert flock.job or not flock.it.members


@pytest.mark.parametrize("rule", RULES)
def test_after_j_steps_the_model_has_exactly_those(rule: str) -> None:
    """F8: the reference code loses 1 of J steps at every exchange, and the coordinator's own."""
    flock = Flock(rule, 1, founders=3)
    for name in ("coordinator", "a", "b"):
        flock.join(name)
    jobs = dict(flock.job)
    pushes = {name: flock.train(name) for name in sorted(jobs)}
    for name in sorted(jobs):
        flock.push(pushes[name])
    for name, tensor in STRUCTURE.tensors.items():
        if tensor.split and rule != "fedavg":
            for peer, job in jobs.items():
                mine = part_of(flock.it.weights, STRUCTURE, job.held)[name]
                assert torch.equal(mine, pushes[peer].values[name]), name
        elif START[name].is_floating_point():
            mean = torch.stack([push.values[name] for push in pushes.values()]).mean(0)
            assert torch.allclose(flock.it.weights[name], mean, rtol=0, atol=1e-12)


def test_lease_trains_every_block_and_async_does_not() -> None:
    """F6: with one partition only the diagonal blocks of a middle matrix are ever trained."""
    covered = {}
    for rule in ("async", "lease"):
        flock = Flock(rule, 2, founders=3)
        for name in "abc":
            flock.join(name)
        for _ in range(250):
            flock.push(flock.train(flock.rng.choice("abc")))
        covered[rule] = flock.it.coverage()["3.weight"]
        shown = flock.it.for_evaluation()["3.weight"]
        assert (shown == 0).double().mean() == pytest.approx(1 - covered[rule])
    assert covered["async"] < 0.6
    assert covered["lease"] == 1.0


@pytest.mark.parametrize("rule", ["async", "once"])
def test_units_that_were_together_once_count_as_they_are_trained_now(rule: str) -> None:
    """Weights between two subnets are zeros in evaluation, even if they were trained in a third:
    both have gone on without them since. Of whoever left last, nothing is zero."""
    flock = Flock(rule, 2, founders=2)
    for name in "ab":
        flock.join(name)
    for name in "ab":
        flock.push(flock.train(name))
    flock.leave("b")
    flock.it.vacate("b")
    for _ in range(3):
        flock.push(flock.train("a"))
    assert flock.it.coverage()["3.weight"] == 1.0  # it had everything
    assert (flock.it.for_evaluation()["3.weight"] != 0).all()
    flock.join("c")
    for name in "aacac":
        if flock.it.lease_of(name) is not None:
            flock.push(flock.train(name))
    inside = np.zeros((6, 7), dtype=bool)
    for name in "ac":
        lease = flock.it.lease_of(name)
        assert lease is not None
        inside |= flock.twin.mask(lease.held)["3.weight"]
    assert not inside.all()
    for name in "ca":  # the run ends: nobody is left
        shown = flock.it.for_evaluation()["3.weight"].numpy()
        assert ((shown != 0) == inside).all()
        flock.leave(name)
    again = restore(save(flock.it), STRUCTURE, np.random.default_rng(0), steps=J, founders=1)
    assert torch.equal(again.for_evaluation()["3.weight"], torch.from_numpy(shown))


def test_nobody_waits_for_a_newcomer_and_shares_follow_speed() -> None:
    flock = Flock("async", 3)
    flock.take(flock.it.join("a", Capacity(speed=1)))
    [waits] = flock.take(flock.it.join("b", Capacity(speed=3)))
    assert isinstance(waits, Waits)
    effects = flock.push(flock.train("a"))
    assert [type(e) for e in effects] == [PushAccepted, GiveLease, GiveLease]
    for _ in range(3):
        for name in "ab":
            flock.push(flock.train(name))
    group = STRUCTURE.groups[0]
    widths = [STRUCTURE.width(group, flock.it.lease_of(n).held) for n in "ab"]  # type: ignore[union-attr]
    assert widths == [2, 5]
    plan = flock.it.plan
    flock.push(flock.train("a"))
    assert flock.it.plan == plan  # settled: pushes alone make no new plans
    flock.leave("b")
    flock.push(flock.train("a"))
    assert STRUCTURE.width(group, flock.it.lease_of("a").held) == 2  # type: ignore[union-attr]
    flock.it.vacate("b")
    flock.push(flock.train("a"))
    assert STRUCTURE.width(group, flock.it.lease_of("a").held) == 7  # type: ignore[union-attr]


def alike(*names: str) -> Flock:
    """Members of equal width, each has pushed once."""
    flock = Flock("async", 5, founders=len(names))
    return flock_with(flock, *names)


def flock_with(flock: Flock, *names: str) -> Flock:
    for name in names:
        flock.take(flock.it.join(name, Capacity()))
    for name in sorted(flock.job):
        flock.push(flock.train(name))
    return flock


def held_by(flock: Flock) -> dict[str, list[int]]:
    return {one.owner: np.flatnonzero(one.held).tolist() for one in flock.it.leases.values()}


@pytest.mark.parametrize("rule", KEPT)
def test_a_newcomer_takes_the_place_of_one_that_left(rule: str) -> None:
    """Its subnet as it was, and nobody else's changes."""
    flock = flock_with(Flock(rule, 5, founders=3), "a", "b", "c")
    before = held_by(flock)
    place = flock.it.lease_of("b").held  # type: ignore[union-attr]
    flock.leave("b")
    for name in "acacac":
        flock.push(flock.train(name))
    assert held_by(flock) == {name: before[name] for name in "ac"}
    left = part_of(flock.it.weights, STRUCTURE, place)
    flock.take(flock.it.join("d", Capacity()))
    for name in "ac":
        flock.push(flock.train(name))
    assert held_by(flock) == {"a": before["a"], "c": before["c"], "d": before["b"]}
    assert not flock.it.reserved().any()
    for name, mine in left.items():
        if name not in flock.it.shared:
            assert torch.equal(flock.job["d"].values[name], mine)


def test_a_newcomer_waits_for_the_place_of_one_that_is_away() -> None:
    flock = alike("a", "b", "c")
    before = held_by(flock)
    flock.it.away("b")
    flock.take(flock.it.join("d", Capacity()))
    for name in "acacac":
        flock.push(flock.train(name))
    assert held_by(flock) == before
    flock.leave("b")  # it does not come back
    assert held_by(flock) == {"a": before["a"], "c": before["c"], "d": before["b"]}


def test_a_newcomer_gets_units_when_who_was_away_is_back() -> None:
    flock = alike("a", "b", "c")
    flock.it.away("b")
    flock.take(flock.it.join("d", Capacity()))
    flock.it.away("b", gone=False)
    for name in "abc":
        flock.push(flock.train(name))
    assert flock.it.lease_of("d") is not None


def test_one_member_shares_with_a_newcomer_and_the_others_keep_what_they_have() -> None:
    flock = alike("a", "b", "c")
    before = held_by(flock)
    flock.take(flock.it.join("d", Capacity()))
    for name in "abcabc":
        flock.push(flock.train(name))
    flock.push(flock.train("d"))
    after = held_by(flock)
    [shares] = [name for name in "abc" if after[name] != before[name]]
    assert sorted(after[shares] + after["d"]) == sorted({*before[shares], *after["d"]})
    assert set(after["d"]) < set(before[shares])


def test_a_barrier_does_not_wait_for_the_dead() -> None:
    flock = Flock("once", 4, founders=3)
    for name in "abc":
        flock.join(name)
    flock.push(flock.train("a"))
    flock.push(flock.train("b"))
    assert not flock.job.keys() & {"a", "b"}
    flock.leave("c")
    assert flock.job.keys() >= {"a", "b"}
    assert flock.it.plan == 2


def test_bad_pushes_change_nothing() -> None:
    flock = Flock("async", 5, founders=2)
    flock.join("a")
    flock.join("b")
    good = flock.train("a")
    before = {name: value.clone() for name, value in flock.it.weights.items()}

    def values(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
        out = {**good.values, **changes}
        return {name: value for name, value in out.items() if value is not None}

    def push(**changes: object) -> MemberPush:
        fields = {name: getattr(good, name) for name in MemberPush.__slots__}
        return MemberPush(**{**fields, **changes})

    weight, bias = good.values["0.weight"], good.values["5.bias"]
    other = flock.job["b"].lease
    cases = [
        (push(plan=99), Reason.FUTURE),
        (push(lease=99), Reason.FUTURE),
        (push(version=7), Reason.FUTURE),
        (push(version=0), Reason.DUPLICATE),
        (push(lease=other), Reason.NOT_LEASED),
        (push(peer="mallory"), Reason.NOT_LEASED),
        (push(steps=-1), Reason.SHAPES),
        (push(values=values(**{"0.weight": weight[:-1]})), Reason.SHAPES),
        (push(values=values(**{"0.weight": weight.float()})), Reason.SHAPES),
        (push(values=values(**{"0.weight": None})), Reason.SHAPES),
        (push(values=values(more=weight)), Reason.SHAPES),
        (push(values=values(**{"5.bias": bias * float("nan")})), Reason.NOT_FINITE),
        (push(values=values(**{"5.bias": bias * float("inf")})), Reason.NOT_FINITE),
        (push(values=values(**{"5.bias": bias + 1e30})), Reason.NOT_FINITE),
    ]
    for bad, reason in cases:
        [refused] = flock.push(bad)
        assert isinstance(refused, Refused)
        assert refused.reason == reason
        assert "\n" not in refused.sentence
    assert sum(flock.it.totals.refused.values()) == len(cases)
    assert all(torch.equal(before[name], flock.it.weights[name]) for name in before)
    assert isinstance(flock.push(good)[0], PushAccepted)


def test_two_peers_with_one_name_and_more_peers_than_units() -> None:
    flock = Flock("async", 6)
    flock.join("a")
    [refused] = flock.it.join("a")
    assert isinstance(refused, Refused)
    assert refused.reason == Reason.EXISTS
    for k in range(5):
        assert not isinstance(flock.join(f"b{k}")[-1], Refused)
    [refused] = flock.it.join("one too many")  # the second axis has 6 units
    assert isinstance(refused, Refused)
    assert refused.reason == Reason.FULL
    assert "6 units cannot be dealt to 7 peers" in refused.sentence
    assert len(flock.it.members) == 6


def test_a_rule_that_is_none() -> None:
    with pytest.raises(ConfigError, match="rule 'fast': mode ist has sync"):
        new_solver("fast", STRUCTURE, START, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="steps 0"):
        new_solver("sync", STRUCTURE, START, np.random.default_rng(0), steps=0)
