"""Forms of rule `shared`, rules that publish a part of a gain, and what a restart goes on with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.unit.test_publisher import bench
from tests.unit.test_shared import ALL, SIZE, Steps, numbers, offset, push
from torch import nn

from murmurate.core.clock import Clock, Dot
from murmurate.core.gossip.ways import DATA, WAYS, data_problem
from murmurate.core.publishing.company import Company
from murmurate.core.publishing.forms import FORMS, SHARE_MAX, OwnData, SameData
from murmurate.core.publishing.own_update import OwnUpdate
from murmurate.core.publishing.plain import Plain
from murmurate.core.publishing.rule import Making
from murmurate.core.publishing.scaled import PartOfGain, capped, mean
from murmurate.core.publishing.shared import Shared
from murmurate.core.publishing.turns import Turns


def company(members: int, per_own: int | None = None, unseen: float | None = None) -> Company:
    """As a node measures it when the others publish `per_own` - 1 times for each own update."""
    it = Company()
    it.members = members
    for _ in range(4):
        it.published()
        if unseen is not None:
            for _ in range((per_own or members) - 1):
                it.heard(1, unseen)
    it.published()
    return it


# -- peers with different data ---------------------------------------------------------------------


@pytest.mark.parametrize("unseen", [1.0, 3.0, 9.0])
def test_with_own_data_the_view_is_the_formulas(unseen: float) -> None:
    """x = W - ΣP + (½ + d/L) n ū; u = (1-β) w/n gain + β ū: no boost, and ū as it is."""
    n = 4
    rule = Shared(Making(size=SIZE, data="own"))
    assert rule.leads(Steps(torch.zeros(SIZE), n))
    heard: list[torch.Tensor] = []
    own: list[torch.Tensor] = []

    def momentum() -> torch.Tensor:
        total, count = torch.zeros(SIZE), 0.0
        for update in heard:
            total, count = (1 - 1 / n) * total + update, (1 - 1 / n) * count + 1
        return total / count if count else total

    for turn in range(12):  # after the ninth somebody may lack nine of mine and have seen one
        assert rule.stepped(Steps(numbers(turn), n))
        made = rule.update(Steps(torch.zeros(SIZE), n))
        if turn > 3:
            torch.testing.assert_close(made, 0.9 * momentum() + 0.1 / n * numbers(turn))
        rule.applied(made, own=True)
        heard.append(made)
        own.append(made)
        for other in range(n - 1):
            theirs = numbers(700 + 10 * turn + other)
            rule.applied(push(theirs), own=False, unseen=unseen)
            heard.append(theirs)
    delay = (unseen - 1.0) / 2.0  # of each way, in intervals of publication
    view = (0.5 + delay) * n * momentum() - sum(own[len(own) - round(delay) :], torch.zeros(SIZE))
    torch.testing.assert_close(offset(rule), view)


@pytest.mark.parametrize(
    ("members", "per_own", "step"), [(4, 4, 1.0), (4, 40, SHARE_MAX), (4, 2, 0.5), (2, 4, 2.0)]
)
def test_with_own_data_a_slow_peer_is_heard_as_much_as_the_others(
    members: int, per_own: int, step: float
) -> None:
    assert OwnData().step(company(members, per_own, 1.0)) == pytest.approx(step)


def test_the_forms_are_those_a_user_may_name() -> None:
    assert tuple(FORMS) == DATA
    for name, form in FORMS.items():
        assert WAYS["shared"].every[name] == form.every
    assert SameData().step(company(4)) == pytest.approx(2**0.5)
    assert not data_problem("shared", "own")
    assert "'same' or 'own'" in data_problem("shared", "mine")
    assert "'sum' treats all data alike" in data_problem("sum", "own")


# -- a part of a gain ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "unseen", "part"),
    [(1, None, 1.0), (2, 1.0, 1.0), (4, 1.0, 0.5), (16, 1.0, 0.125), (4, 3.0, 0.2)],
)
def test_capped_publishes_less_the_more_there_is_beside_it(
    members: int, unseen: float | None, part: float
) -> None:
    assert capped(company(members, members, unseen)) == pytest.approx(part)


def test_a_part_of_what_was_gained_is_published_and_the_rest_is_gone() -> None:
    it = bench(PartOfGain(Making(size=12, every=2), mean), every=2)  # among two members
    it.publisher.look.ahead()
    it.step(1.0)
    assert it.values.tolist() == [0.0] * 12, "the weights, until a gradient is taken"
    it.publisher.look.ahead()
    assert it.values.tolist() == [1.0] * 12, "own steps go on from each other"
    it.step(3.0)
    assert it.background.weights.tolist() == [2.0] * 12
    it.publisher.look.ahead()
    assert it.values.tolist() == [2.0] * 12


def test_a_sum_of_several_steps_is_a_mean_over_members() -> None:
    make = WAYS["sum"].publishing()
    assert isinstance(make(Making(size=SIZE, every=1)), Plain)
    rule = make(Making(size=SIZE, every=8))
    rule.leads(Steps(torch.zeros(SIZE), 4))
    assert rule.stepped(Steps(numbers(1), 4))
    torch.testing.assert_close(rule.update(Steps(torch.zeros(SIZE), 4)), numbers(1) / 4)


# -- over a restart --------------------------------------------------------------------------------


def taught(rule: Any, turns: int = 3, place: slice = ALL) -> Any:
    """A rule among four that has published and heard, and has a step that is in no update."""
    rule.leads(Steps(torch.zeros(SIZE), 4))
    for turn in range(turns):
        rule.stepped(Steps(numbers(turn), 4))
        made = rule.update(Steps(torch.zeros(SIZE), 4, place))
        rule.applied(made, own=True)
        rule.applied(push(numbers(80 + turn)), own=False, unseen=1.0)
    rule.changed(numbers(60))
    rule.stepped(Steps(numbers(50), 4))
    return rule


@pytest.mark.parametrize("data", DATA)
def test_who_comes_back_goes_on_with_the_swarms_momentum_and_its_own_gain(data: str) -> None:
    before = taught(Shared(Making(size=SIZE, data=data)))
    state = copy.deepcopy(before.state())
    after = Shared(Making(size=SIZE, data=data))
    after.go_on(state)
    after.company = before.company  # which is measured anew
    empty = Steps(torch.zeros(SIZE), 4)
    torch.testing.assert_close(after.update(empty), before.update(empty))


def test_what_was_published_in_other_parts_is_not_gone_on_with() -> None:
    state = taught(PartOfGain(Making(size=SIZE), mean)).state()
    after = PartOfGain(Making(size=SIZE, places=[slice(0, 3), slice(3, 6)]), mean)
    after.go_on(state)
    assert not after.state()["gain"]


@pytest.mark.parametrize("parts", [1, 2])
def test_steps_that_were_in_no_update_are_in_the_first_after_a_restart(parts: int) -> None:
    places = [slice(0, 6), slice(6, 12)] if parts == 2 else [slice(None)]

    def made() -> Any:
        rule = PartOfGain(Making(size=12, places=places, every=4), mean)
        return bench(rule, every=4, turns=Turns(places) if parts == 2 else None)

    before = made()
    before.background.context = lambda: Clock([Dot("b", 1, 7)])
    before.publisher.start_batch()
    before.publisher.look.ahead()
    before.step(1.0)
    state = copy.deepcopy(before.publisher.state())
    after = made()
    after.publisher.go_on(state)
    contexts: list[Clock] = []
    commit = after.background.commit

    def noted(update: OwnUpdate) -> None:
        contexts.append(update.context)
        commit(update)

    after.background.commit = noted
    after.publisher.publish_all()
    assert after.background.weights.tolist() == [0.5] * 12
    assert all(context == Clock([Dot("b", 1, 7)]) for context in contexts), "as old as they are"
    assert len(contexts) == parts


def test_a_model_that_was_alone_keeps_nothing_of_its_steps() -> None:
    it = bench(Shared(Making(size=12)))
    it.background.members_live = lambda: 1  # type: ignore[method-assign]
    it.publisher.look.ahead()
    with torch.no_grad():
        nn.init.ones_(it.parameter)
    it.publisher.stepped()
    assert it.publisher.state()["steps"] == 0
