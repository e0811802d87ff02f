"""Which statistics are in a model's buffers: the node's own, or the swarm's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from murmurate.core.layout import Layout
from murmurate.training.statistics import ModelStatistics, first_weights

COMPANY = 2


class Scene:
    """A model of two norms, flat weights, and what is between them."""

    def __init__(self, change: Any = lambda model: model) -> None:
        torch.manual_seed(0)
        self.model = change(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2)))
        layout, parameters = Layout.of(self.model, statistics=True)
        self.layout = layout
        self.weights = first_weights(layout, parameters, self.model)
        self.it = ModelStatistics(self.model, layout)
        self.it.adopt(self.weights)
        self.it.stepped(COMPANY)
        self.it.show(self.weights)

    @property
    def shown(self) -> torch.Tensor:
        """What is in the buffers."""
        floats = [b for b in self.model.buffers() if b.is_floating_point()]
        return torch.cat([b.float().reshape(-1) for b in floats])

    @property
    def own(self) -> torch.Tensor:
        return self.it.merged.own

    @property
    def swarms(self) -> torch.Tensor:
        return self.weights[self.layout.statistics]

    def batch(self) -> None:
        dtype = next(self.model.parameters()).dtype
        self.model(torch.randn(8, 4, dtype=dtype))

    def others(self) -> None:
        """An update of another comes."""
        self.weights[self.layout.statistics] += 0.5
        self.it.show(self.weights, changed=True)


def test_a_call_in_training_goes_on_from_the_own_ones() -> None:
    scene = Scene()
    for _ in range(3):
        scene.it.called(scene.weights)
        assert scene.shown.equal(scene.own)
        before = scene.own.clone()
        scene.batch()
        scene.it.stepped(COMPANY)
        assert not scene.own.equal(before)
        scene.it.show(scene.weights)
        assert scene.shown.equal(scene.swarms)
        scene.others()
        assert scene.shown.equal(scene.swarms)
        assert not scene.own.equal(scene.swarms)


def test_each_module_has_what_its_own_mode_wants() -> None:
    scene = Scene()
    scene.others()
    scene.model[1].eval()
    scene.it.called(scene.weights)
    assert scene.shown[:4].equal(scene.swarms[:4]), "frozen: it reads them, and writes none"
    assert scene.shown[4:].equal(scene.own[4:])
    before = scene.own.clone()
    scene.batch()
    scene.it.stepped(COMPANY)
    assert scene.own[:4].equal(before[:4])
    assert not scene.own[4:].equal(before[4:])


def test_what_is_written_by_hand_is_the_nodes_own() -> None:
    scene = Scene()
    scene.others()
    scene.model[1].running_mean.fill_(7.0)
    scene.it.stepped(COMPANY)
    assert scene.own.tolist() == [7.0, 7.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]


def test_who_has_not_stepped_yet_goes_on_with_the_swarms() -> None:
    """A snapshot may be old, and the updates since then follow it: they are not its own change."""
    scene = Scene()
    scene.it.adopt(scene.weights)
    scene.others()
    assert scene.own.equal(scene.swarms)
    scene.batch()
    scene.it.stepped(COMPANY)
    before = scene.own.clone()
    scene.others()
    assert scene.own.equal(before)


def test_alone_the_buffers_are_never_touched() -> None:
    scene = Scene()
    for _ in range(3):
        scene.it.called(scene.weights)
        scene.batch()
        before = scene.shown.clone()
        scene.it.stepped(1)
        scene.it.show(scene.weights, changed=True)
        assert scene.shown.equal(before)
        assert scene.own.equal(before)
    scene.it.stepped(COMPANY)
    scene.it.show(scene.weights)
    assert scene.shown.equal(scene.swarms), "somebody came"


def test_who_stays_behind_shows_the_swarms_until_it_trains_on() -> None:
    scene = Scene()
    scene.others()
    scene.it.show(scene.weights)
    assert scene.shown.equal(scene.swarms)
    scene.it.stepped(1)
    scene.it.show(scene.weights)
    assert scene.shown.equal(scene.own)


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_fewer_bits_in_the_model_are_no_change_by_hand(narrow: torch.dtype) -> None:
    scene = Scene(lambda model: model.to(narrow))
    scene.weights[scene.layout.statistics] += 1.0 / 3.0
    scene.it.show(scene.weights, changed=True)
    before = scene.own.clone()
    scene.it.stepped(COMPANY)
    assert scene.own.equal(before)
    torch.testing.assert_close(scene.shown, scene.swarms, atol=0.01, rtol=0.01)


def test_buffers_that_were_replaced_are_found() -> None:
    scene = Scene()
    scene.others()
    scene.model.double()  # puts other tensors in the place of buffers
    scene.it.called(scene.weights)
    torch.testing.assert_close(scene.shown, scene.own)
    scene.batch()
    scene.it.stepped(COMPANY)
    scene.it.show(scene.weights)
    torch.testing.assert_close(scene.shown, scene.swarms)


def test_a_write_between_forward_and_backward_is_nothing_to_autograd() -> None:
    scene = Scene()
    scene.it.called(scene.weights)
    loss = scene.model(torch.randn(8, 4)).sum()
    scene.it.show(scene.weights)
    loss.backward()


def test_in_an_update_they_lie_where_the_layout_says() -> None:
    scene = Scene()
    scene.it.merged.own += 1.0
    whole = torch.full((scene.layout.size,), 5.0)
    scene.it.put_into(whole, slice(None), scene.weights, COMPANY)
    assert whole[: scene.layout.trained].eq(5.0).all()
    change = whole[scene.layout.statistics]
    assert change.tolist() == pytest.approx([1.05 / COMPANY] * 8)
    cut = scene.layout.trained + 3
    for place in (slice(0, 5), slice(5, cut), slice(cut, scene.layout.size)):
        part = torch.full((place.stop - place.start,), 5.0)
        scene.it.put_into(part, place, scene.weights, COMPANY)
        assert part.equal(whole[place])
    beside = scene.it.part(scene.weights, COMPANY)
    assert beside is not None
    flat = torch.zeros(scene.layout.size)
    beside.add_to(flat)
    assert flat[scene.layout.statistics].equal(change)
    assert not flat[: scene.layout.trained].any()
