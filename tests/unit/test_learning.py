"""Losses that rise and losses that do not, and what is said of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from murmurate.core.clock import Dot
from murmurate.core.effect import Applied
from murmurate.core.figures.counters import Learned, Tally
from murmurate.core.figures.learning import REASONS, Learning
from murmurate.watch.report import node_row, warned

Curve = Callable[[int], float]

GOOD: dict[str, Curve] = {
    "falls": lambda t: 2.3 * math.exp(-t / 100) + 0.3,
    "falls to nothing": lambda t: 2.3 * math.exp(-t / 30) + 1e-4 * (t % 7),
    "a hot start": lambda t: (6.0 if 2 <= t < 8 else 2.4 * math.exp(-t / 60)) + 0.5,
    "a long plateau": lambda t: 2.3 if t < 300 else 2.3 * math.exp(-(t - 300) / 100),
    "nothing is learnt": lambda t: 2.3,
    "a short spike": lambda t: 3.0 if 300 <= t < 310 else 0.5 + 1.8 * math.exp(-t / 50),
    "below zero": lambda t: -100.0 * (1 - math.exp(-t / 100)),
    "a little worse at the end": lambda t: 0.4 + 1.9 * math.exp(-t / 40) + 0.0004 * t,
}
BAD: dict[str, tuple[Curve, str]] = {
    "rises again": (lambda t: 0.4 + 1.9 * math.exp(-t / 40) + max(0, t - 200) / 200, "loss_risen"),
    "rises below zero": (lambda t: -100.0 + 0.3 * abs(t - 200), "loss_risen"),
    "shoots up at once": (lambda t: 2.3 if t < 6 or t > 20 else 9.0, "loss_risen"),
    "higher and higher": (lambda t: 2.3 * 1.03**t, "loss_risen"),
    "no number": (lambda t: 1.0 if t < 50 else math.nan, "loss_not_finite"),
    "infinite": (lambda t: 1.0 if t < 50 else math.inf, "loss_not_finite"),
}


def noted(curve: Curve, noise: float, seed: int, steps: int = 600) -> Learning:
    rng, learning = random.Random(seed), Learning()
    for step in range(steps):
        loss = curve(step)
        learning.note_loss(loss + noise * abs(loss) * rng.gauss(0.0, 1.0), step + 1)
    return learning


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("name", GOOD)
def test_no_word_about_a_loss_that_is_all_right(name: str, noise: float) -> None:
    for seed in range(5):
        assert not noted(GOOD[name], noise, seed).ever, seed


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("name", BAD)
def test_a_loss_that_goes_wrong_is_said(name: str, noise: float) -> None:
    curve, reason = BAD[name]
    for seed in range(5):
        assert [each.reason for each in noted(curve, noise, seed).warnings] == [reason], seed


def test_a_single_bad_loss_is_none() -> None:
    learning = Learning()
    for step in range(200):
        learning.note_loss(math.nan if step % 5 == 0 else 1.0, step)
    assert not learning.ever


def test_said_once_and_again_when_it_has_come_back() -> None:
    learning, said = Learning(), []
    losses = [2.0] * 20 + [0.5] * 200 + [2.0] * 100 + [0.4] * 200 + [2.0] * 100
    for step, loss in enumerate(losses, 1):
        learning.note_loss(loss, step)
        said += [(step, each.text) for each in learning.news()]
    assert [220 < said[0][0] < 320, 520 < said[1][0] <= 620, len(said)] == [True, True, 2]
    assert said[0][1].startswith("the loss has risen from 0.50")
    assert "lower the learning rate" in said[0][1]
    assert "'shared'" not in said[0][1]


def test_the_rule_decides_what_to_do() -> None:
    learning = Learning()
    learning.summed = True
    for step in range(10):
        learning.note_loss(math.nan, step)
    (warning,) = learning.ever
    assert "or take rule 'shared'" in warning.text


def test_data_of_different_kinds_is_the_first_thing_to_see_to() -> None:
    learning = Learning()
    learning._now["unlike"] = "they pull another way"
    for step in range(10):
        learning.note_loss(math.nan, step)
    assert 'say data="own"' in learning.warnings[0].text


def test_reasons_are_sorted_and_sentences_fit_into_a_message() -> None:
    assert list(REASONS) == sorted(REASONS)
    learning = Learning()
    learning.summed = True
    learning.own_cosine = learning.others_cosine = -0.123456
    learning.note_loss(1e300, 10**12)
    for sentence in (learning._risen, learning._not_finite, learning._unlike, learning._alike):
        assert len(sentence()) < 512
        assert sentence().isprintable()


# -- catching up, and who is told ------------------------------------------------------------------


def test_what_is_applied_while_catching_up_is_counted_apart() -> None:
    tally = Tally()
    tally.level = False
    tally.apply(Applied((Dot("a", 1, 1), Dot("b", 1, 1)), (1600, 1500)))
    tally.level = True
    tally.apply(Applied((Dot("a", 1, 2),), (3,)))
    told = tally.progress("me", 1, 0.0, traffic=(0, 0))
    assert (told.staleness.count, told.staleness.mean, told.catching_up) == (1, 3.0, 2)
    assert told.applied == told.staleness.count + told.catching_up
    every = tally.all_staleness()
    assert (every.count, every.total, every.largest) == (3, 3103, 1600)
    assert tally.staleness_of == {"a": 1603, "b": 1500}


def test_what_was_still_lacking_when_it_came_level_is_old_for_the_same_reason() -> None:
    tally = Tally()
    tally.level = False
    tally.apply(Applied((Dot("a", 1, 1),), (1600,)))
    tally.came_level(64)
    tally.apply(Applied((Dot("a", 1, 2), Dot("b", 1, 1)), (3, 650)))
    told = tally.progress("me", 1, 0.0, traffic=(0, 0))
    assert (told.staleness.count, told.staleness.mean, told.catching_up) == (1, 3.0, 2)
    for seq in range(3, 1003):
        tally.apply(Applied((Dot("a", 1, seq),), (3,)))
    tally.apply(Applied((Dot("slow", 1, 1),), (650,)))
    told = tally.progress("me", 1, 0.0, traffic=(0, 0))
    assert (told.staleness.count, told.catching_up) == (1002, 2), "by now it is slow"


def test_one_line_for_what_several_nodes_say() -> None:
    tally = Tally()
    for _ in range(5):
        tally.note(Learned(loss=math.nan))
    rows = [node_row(tally.progress(name, 1, 0.0, traffic=(0, 0))) for name in "abc"]
    (line,) = warned(rows)
    assert line.startswith("a and 2 more: the loss is no number any more")
    assert warned([]) == []
