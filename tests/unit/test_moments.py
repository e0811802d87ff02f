"""`training/moments.py`: what Adam and its kin divide by where peers hold different data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from murmurate.core.layout import Layout
from murmurate.training.gain import OptimizerGain, keeps_squares
from murmurate.training.gains import OptimizerGains
from murmurate.training.moments import SwarmMoments, layout_of

KINDS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"weight_decay": 0.0}),
    (torch.optim.NAdam, {}),
    (torch.optim.RMSprop, {}),
    (torch.optim.RMSprop, {"centered": True}),
    (torch.optim.Adagrad, {}),
]
ALL = slice(None)
SIZE = 5
ids: Any = lambda v: getattr(v, "__name__", str(v))  # noqa: E731


class Member:
    """A node with a row of numbers, whose second moment is kept as it is."""

    def __init__(self, kind: Any = torch.optim.Adam, **words: Any) -> None:
        self.model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(SIZE))])
        self.optimizer = kind(self.model.parameters(), lr=0.1, **words)
        self.layout, self.parameters = layout_of(self.model, [self.optimizer], "own")
        self.gain = OptimizerGain(self.optimizer, self.parameters)
        self.it = SwarmMoments(self.layout, self.parameters, self.gain)

    def step(self, *gradient: float) -> None:
        self.parameters[0].grad = torch.tensor(gradient)
        self.optimizer.step()

    @property
    def own(self) -> torch.Tensor:
        found = self.gain.square(self.parameters[0])
        assert found is not None
        return found

    def gained(self, weights: torch.Tensor, members: int) -> torch.Tensor:
        self.it.stepped(weights, members)
        gain = torch.zeros(self.layout.size)
        self.gain.add_to(gain, lambda: weights)
        return gain[:SIZE]


def publish(members: list[Member], weights: torch.Tensor) -> None:
    """Each makes an update of what the others have, too; then all are there."""
    updates = []
    for member in members:
        update = torch.full((member.layout.size,), 7.0)
        member.it.put_into(update, ALL, weights, len(members))
        assert update[: member.layout.trained].eq(7.0).all()
        updates.append(update[member.layout.moments])
    for member, update in zip(members, updates, strict=True):
        weights[member.layout.moments] += update
        member.it.published(ALL, weights)


@pytest.mark.parametrize(("kind", "words"), KINDS, ids=ids)
def test_all_divide_by_the_same_a_part_of_the_mean_of_what_all_have(kind: Any, words: Any) -> None:
    members = [Member(kind, **words) for _ in range(3)]
    weights = torch.zeros(members[0].layout.size)
    for step in range(4):
        for number, member in enumerate(members):
            gradient = [0.0] * SIZE
            gradient[number], gradient[4] = 1.0 + step, 0.5  # each has a number of its own
            member.step(*gradient)
        publish(members, weights)
    mean = torch.stack([member.own for member in members]).mean(0)
    everybodys = weights[members[0].layout.moments]
    torch.testing.assert_close(everybodys, mean, rtol=0.1, atol=0.0)  # the pull is still at work
    eps = members[0].optimizer.defaults["eps"]
    for member in members:
        last = member.parameters[0].grad
        assert last is not None
        wanted = -0.1 * last / ((everybodys / 3).sqrt() + eps)
        torch.testing.assert_close(member.gained(weights, 3), wanted)


def test_the_own_newest_counts_before_it_is_published() -> None:
    """Also the very first: nothing is divided by nothing."""
    member = Member()
    weights = torch.zeros(member.layout.size)
    member.step(*[2.0] * SIZE)
    wanted = -0.1 * torch.full((SIZE,), 2.0) / (2.0 / 4 + 1e-8)  # √(4 / 4 / 4)
    torch.testing.assert_close(member.gained(weights, 4), wanted)


def test_a_late_one_takes_the_place_of_a_mean_one() -> None:
    members = [Member() for _ in range(3)]
    weights = torch.zeros(members[0].layout.size)
    place = members[0].layout.moments
    for member in members[:2]:
        member.step(*[2.0] * SIZE)
    publish(members[:2], weights)
    torch.testing.assert_close(weights[place], torch.full((SIZE,), 4.0), rtol=0.06, atol=0.0)
    late = members[2]
    late.it.adopt(weights)
    update = torch.zeros(late.layout.size)
    late.it.put_into(update, ALL, weights, 3)  # it has not made a step: it has nothing to say
    assert not update.any()
    late.step(*[4.0] * SIZE)
    late.it.put_into(update, ALL, weights, 3)
    weights += update
    torch.testing.assert_close(weights[place], torch.full((SIZE,), 8.0), rtol=0.06, atol=0.0)


def test_a_snapshot_may_be_old_and_updates_follow_it() -> None:
    """What counts is what the swarm has when the late one makes its first step."""
    late = Member()
    old, weights = torch.zeros(late.layout.size), torch.full((late.layout.size,), 3.0)
    late.it.adopt(old)
    late.it.late = True
    late.step(*[3.0] * SIZE)
    late.it.stepped(weights, 3)
    update = torch.zeros(late.layout.size)
    late.it.put_into(update, ALL, weights, 3)
    wanted = torch.full((SIZE,), (9.0 - 3.0) / 3)
    torch.testing.assert_close(update[late.layout.moments], wanted, rtol=0.06, atol=0.0)


def test_who_has_none_does_not_hold_the_others_back() -> None:
    """A parameter that has no gradient here, while the others' goes on."""
    member = Member()
    weights = torch.ones(member.layout.size)
    member.it.adopt(weights)
    weights += 5.0
    update = torch.zeros(member.layout.size)
    member.it.put_into(update, ALL, weights, 2)
    assert not update.any()


def test_one_whose_moment_is_no_number_says_nothing() -> None:
    member = Member()
    weights = torch.ones(member.layout.size)
    member.it.adopt(weights)
    member.step(1.0, torch.inf, 1.0, 1.0, 1.0)
    update = torch.zeros(member.layout.size)
    member.it.put_into(update, ALL, weights, 2)
    assert not update.any()


def test_parts_and_what_goes_beside_a_form_come_to_the_same() -> None:
    member = Member()
    layout = member.layout
    weights = torch.zeros(layout.size)
    member.step(*[float(number) for number in range(SIZE)])
    whole = torch.zeros(layout.size)
    member.it.put_into(whole, ALL, weights, 2)
    assert whole[layout.moments].any()
    cut = layout.moments.start + 2
    first, last = torch.zeros(cut), torch.zeros(layout.size - cut)
    member.it.put_into(first, slice(0, cut), weights, 2)
    member.it.put_into(last, slice(cut, layout.size), weights, 2)
    assert torch.equal(torch.cat((first, last)), whole)
    none = torch.ones(layout.trained)
    member.it.put_into(none, slice(0, layout.trained), weights, 2)
    assert none.all()  # a part in which there are none
    for cut_off in (layout.trained, layout.trained - 2):
        member.it.published(slice(0, cut_off), weights)
        member.it.put_into(last, slice(cut, layout.size), weights, 2)
        assert torch.equal(last, whole[cut:]), "what was not published is still to come"
    assert torch.equal(member.it.part(weights, 2).decoded(), whole)


@pytest.mark.parametrize("data", ["same", "own"])
def test_there_is_room_only_where_they_are_needed(data: str) -> None:
    model = torch.nn.Linear(4, 3)
    for kind in (torch.optim.SGD, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.Adam):
        optimizer = kind(model.parameters(), lr=0.1)
        layout, parameters = layout_of(model, [optimizer], data)
        needed = data == "own" and kind is torch.optim.Adam
        assert (layout.schema == Layout.of(model)[0].schema) is not needed
        gain = OptimizerGain(optimizer, parameters)
        assert bool(SwarmMoments(layout, parameters, gain)) is needed
        assert (gain.everybodys is not None) is needed
        assert keeps_squares(optimizer) is (kind is torch.optim.Adam)


def test_of_several_optimizers_those_that_have_squares_share_them() -> None:
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(SIZE)) for _ in range(2))
    first, second = model
    optimizers = [torch.optim.SGD([first], lr=1.0), torch.optim.Adam([second], lr=0.1)]
    layout, parameters = layout_of(model, optimizers, "own")
    gains = OptimizerGains(optimizers, parameters)
    it = SwarmMoments(layout, parameters, gains)
    weights = torch.zeros(layout.size)
    weights[layout.moments] = 8.0
    first.grad, second.grad = torch.ones(SIZE), torch.full((SIZE,), 4.0)
    gained = torch.zeros(layout.size)
    it.stepped(weights, 2)
    for optimizer in optimizers:
        optimizer.step()
        gains.stepped(optimizer)
        gains.add_to(gained, lambda: weights)
    torch.testing.assert_close(gained[:SIZE], torch.full((SIZE,), -1.0))  # as it is
    everybodys = 16.0 / 2 + 8.0
    wanted = torch.full((SIZE,), -0.1 * 4.0 / (everybodys / 2) ** 0.5)
    torch.testing.assert_close(gained[SIZE : 2 * SIZE], wanted)
    update = torch.zeros(layout.size)
    it.put_into(update, ALL, weights, 2)
    assert not update[layout.moments][:SIZE].any()
    assert bool((update[layout.moments][SIZE:] > 0.0).all())
