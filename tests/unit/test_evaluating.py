"""When models are evaluated on the way, and what goes under which name."""

from __future__ import annotations

import math

import pytest
import torch

from murmurate.core.figures.counters import Learned, Tally
from murmurate.core.figures.training_loss import STEPS, TrainingLoss
from murmurate.programs.roles.evaluating import SHARE, EvaluationTimes, named
from murmurate.study.virtual.evaluating import EvaluationPlan
from murmurate.workloads import Evaluation


def test_often_at_the_start_then_as_usual() -> None:
    times, now, seen = EvaluationTimes(None, 1.0, 10.0), 10.0, []
    while now < 16.0:
        if times.due(now):
            seen.append(round(now - 10, 3))
            times.took(now, now)
        now += 1 / 64
    assert seen == [0.125, 0.375, 0.875, 1.875, 2.875, 3.875, 4.875, 5.875]


def test_as_asked_for_and_no_more_than_a_share_of_the_time() -> None:
    times = EvaluationTimes(4.0, 1.0, 0.0)
    assert not times.due(3.9)
    assert times.due(4.0)
    times.took(4.0, 4.0)
    assert not times.due(7.9)
    times.took(8.0, 8.0 + 1.0)
    assert not times.due(8.0 + 0.99 / SHARE)
    assert times.due(8.0 + 1.0 / SHARE)
    assert not EvaluationTimes(0.0, 1.0, 0.0).due(1e9), "at the end only"


def test_a_name_for_each_kind_of_data() -> None:
    found = Evaluation(0.5, 0.75, (1.0, 0.5))
    assert named(found, validation=False) == {"test_loss": 0.5, "accuracy": 0.75}
    assert named(found, validation=True) == {"validation_loss": 0.5, "validation_accuracy": 0.75}


def looked(plan: EvaluationPlan, seconds: float, slices: int, part_of: float) -> list[float]:
    seen = []
    for slot in range(slices + 1):
        now = seconds * slot / slices
        if plan.due(now, now / part_of):
            seen.append(round(now, 6))
        assert not plan.due(now, now / part_of), "once"
    return seen


@pytest.mark.parametrize("seconds", [60.0, 0.7, 123.456])
def test_ten_parts_of_a_virtual_run(seconds: float) -> None:
    seen = looked(EvaluationPlan(None), seconds, 400, seconds)
    assert seen == [round(seconds * part / 10, 6) for part in range(10)], (
        "the end is not on the way"
    )


def test_virtual_seconds_as_asked_for() -> None:
    plan, now, seen = EvaluationPlan(0.7), 0.0, []
    while now < 5.0:  # as a run does it: it stops where the plan says
        if plan.due(now, now / 5.0):
            seen.append(round(now, 6))
        assert plan.next_s > now
        now = plan.next_s
    assert seen == [0.0, 0.7, 1.4, 2.1, 2.8, 3.5, 4.2, 4.9]
    assert looked(EvaluationPlan(0.0), 10.0, 100, 10.0) == []
    assert EvaluationPlan(0.0).next_s == math.inf


def test_the_training_loss_is_a_mean_of_the_last_steps() -> None:
    """Against all values kept."""
    loss, rng = TrainingLoss(), torch.Generator().manual_seed(0)
    assert math.isnan(loss.mean())
    seen: list[float] = []
    for _ in range(3 * STEPS):
        value = torch.rand((), generator=rng, requires_grad=True)
        loss.add(value)
        seen.append(float(value.detach()))
        assert loss.mean() == pytest.approx(sum(seen[-STEPS:]) / len(seen[-STEPS:]))
    loss.add(torch.tensor(math.inf))
    assert loss.mean() == math.inf


def test_what_is_logged_stays_until_there_is_something_new() -> None:
    tally = Tally()
    tally.note(Learned(loss=1.0, test_loss=2.0, accuracy=0.5, accuracy_of=[0.25, 0.75]))
    tally.note(Learned(loss=0.5, validation_loss=3.0, validation_accuracy=0.25))
    told = tally.progress("a", 1, 0.0, traffic=(0, 0))
    assert (told.loss, told.test_loss, told.accuracy) == (0.5, 2.0, 0.5)
    assert (told.validation_loss, told.validation_accuracy) == (3.0, 0.25)
    assert tally.accuracy_of == (0.25, 0.75)
    assert math.isnan(tally.flops_per_sample)
