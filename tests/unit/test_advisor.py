"""The advisor: silent when all is well, one line for each condition of 001 that is not met."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from murmurate.core.partition import analyse, weights_of
from murmurate_coordinator.solvers.effects import Effect, GiveLease, MemberPush
from murmurate_coordinator.solvers.subnets.advisor import (
    BEHIND,
    SILENT,
    SILENT_INTERVALS,
    STEP,
    UNTRAINED,
    Advice,
    Advisor,
    radius,
    shared_part,
    step_advice,
)
from murmurate_coordinator.solvers.table import new_solver


class Flock:
    """Members that push what they got, when they are told to; time is what the test says."""

    def __init__(self, rule: str, members: str = "abc", stream: bool = False) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
        model.append(nn.Linear(12, 2 if not stream else 1))
        if stream:  # a wide layer that cannot be dealt
            model = nn.Sequential(nn.Linear(4, 40), nn.LayerNorm(40), nn.Linear(40, 12), model[1])
            model.append(nn.Linear(12, 2))
        structure = analyse(model, (torch.randn(3, 4),))
        self.it = new_solver(
            rule,
            structure,
            weights_of(model),
            np.random.default_rng(0),
            steps=1,
            founders=len(members),
        )
        self.advisor = Advisor(self.it)
        self.jobs: dict[str, GiveLease] = {}
        self.versions: dict[str, int] = {}
        for name in members:
            self.take(0.0, self.it.join(name))

    def take(self, now: float, effects: list[Effect]) -> None:
        self.it.check()
        for effect in effects:
            if isinstance(effect, GiveLease):
                self.jobs[effect.peer] = effect
                self.versions[effect.peer] = effect.version
        self.advisor.saw(now, effects)

    def push(self, now: float, names: str) -> None:
        for name in names:
            job = self.jobs[name]
            self.versions[name] += 1
            version = self.versions[name]
            values = {k: v.clone() for k, v in job.values.items()}
            self.take(
                now, self.it.push(MemberPush(name, job.plan, job.lease, version, 1, 1, values))
            )

    def kinds(self, now: float) -> list[tuple[str, str]]:
        return [(each.kind, each.about) for each in self.advisor.advice(now)]


@pytest.mark.parametrize("rule", ["sync", "once", "async", "lease", "fedavg"])
def test_nothing_to_say_when_all_is_well(rule: str) -> None:
    flock = Flock(rule)
    for now in range(1, 40):
        flock.push(now, "abc")
        assert flock.kinds(now + 0.9) == []


@pytest.mark.parametrize("rule", ["sync", "once", "async", "lease"])
def test_a_block_that_has_gone_silent(rule: str) -> None:
    flock = Flock(rule)
    for now in range(1, 10):
        flock.push(now, "abc")
    late = 9 + SILENT_INTERVALS
    for now in range(10, int(late) + 1):
        flock.push(now, "ab" if rule in ("async", "lease") else "ab" if now == 10 else "")
    assert flock.kinds(late) == []
    [advice] = flock.advisor.news(late + 0.5)
    assert (advice.kind, advice.about) == (SILENT, "c")
    assert "c has pushed nothing for 5.5 s, usually every 1 s" in advice.sentence
    assert advice.sentence.endswith("everybody waits for it") == (rule in ("sync", "once"))
    assert "\n" not in advice.sentence
    assert flock.advisor.news(late + 0.6) == []  # said once
    flock.push(late + 1, "c")
    assert (SILENT, "c") not in flock.kinds(late + 1)
    assert flock.advisor.news(late + 1) == []


def test_a_slow_one_is_not_silent() -> None:
    """Its own pace is the measure, not the others'."""
    flock = Flock("async")
    for now in range(1, 100):
        flock.push(now, "ab")
        if now % 10 == 0:
            flock.push(now, "c")
        assert SILENT not in {kind for kind, _ in flock.kinds(now)}


def test_units_of_one_that_left_are_nobodys_until_others_push() -> None:
    flock = Flock("async")
    for now in range(1, 5):
        flock.push(now, "abc")
    flock.take(5, flock.it.leave("c"))
    late = 4 + SILENT_INTERVALS + 2
    assert (SILENT, "free") not in flock.kinds(late)  # they wait for a newcomer
    flock.it.vacate("c")
    kinds = flock.kinds(late)
    assert (SILENT, "free") in kinds
    assert (SILENT, "c") not in kinds
    flock.push(late, "ab")
    flock.push(late + 0.1, "ab")
    assert flock.kinds(late + 0.1) == []


def test_shared_values_that_never_come_again() -> None:
    flock = Flock("async", stream=True)
    assert shared_part(flock.it) > 0.2
    for now in range(1, 30):
        flock.push(now, "abc")
    [advice] = [a for a in flock.advisor.advice(29) if a.kind == BEHIND]
    assert "some are 87 pushes old" in advice.sentence
    again = Flock("lease", stream=True)
    for now in range(1, 30):
        again.push(now, "abc")
    assert BEHIND not in {kind for kind, _ in again.kinds(29)}


def test_most_of_a_matrix_is_in_no_subnet() -> None:
    """F6: with one partition only the diagonal blocks of a middle matrix are ever trained."""
    said: dict[str, list[Advice]] = {}
    for rule in ("async", "lease"):
        flock = Flock(rule)
        for now in range(1, 60):
            flock.push(now, "abc")
        said[rule] = flock.advisor.advice(59)
    [advice] = said["async"]
    assert (advice.kind, advice.about) == (UNTRAINED, "2.weight")
    assert "67% of 2.weight was in no subnet" in advice.sentence
    assert said["lease"] == []


def test_a_step_that_delays_make_diverge() -> None:
    """The quadratic of tests/paper/test_001_counterexample.py."""
    hessian = 0.9 * np.ones((3, 3)) + 0.1 * np.eye(3)
    for beta in (0.6, 0.03):
        advice = step_advice(hessian, beta)
        assert advice is not None
        assert advice.kind == STEP
        assert radius(hessian, beta) == pytest.approx(1 + 0.8 * beta)
    advice = step_advice(hessian, 0.6)
    assert advice is not None
    assert "step 0.6: ρ(|I − βH|) is 1.48" in advice.sentence
    assert "contracts without delay (0.94)" in advice.sentence
    assert step_advice(np.eye(3) + 0.2 * np.ones((3, 3)), 0.5) is None  # leans on itself
    wild = step_advice(hessian, 1.0)
    assert wild is not None
    assert "does not contract (1.8)" in wild.sentence


def test_a_silence_of_a_moment_is_not_worth_a_word() -> None:
    flock = Flock("async")
    for now in range(1, 10):
        flock.push(now / 10, "abc")
    flock.advisor._silent_s = 3.0
    assert flock.kinds(2.0) == []
    assert (SILENT, "a") in flock.kinds(5.0)
    flock.advisor._silent_s = 0.0
    assert (SILENT, "a") in flock.kinds(2.0)
