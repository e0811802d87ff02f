"""Paper 000, section 2 and Fig. 1: what staleness is."""

from __future__ import annotations

import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Stamp
from murmurate.core.replica import Fresh, Replica

BLUE, GREEN, RED = Dot("model1", 1, 1), Dot("model2", 1, 1), Dot("model3", 1, 1)


def test_fig_1_blue_at_model_2_has_staleness_1() -> None:
    """«G_(1→blue) = {} … G_(blue→2) = {green} … the staleness of blue when applied to Model 2 is 1»

    The figure is symmetric: green meets model 1 after its own blue, and is 1 as well. Own updates,
    with nothing folded in between, are 0. In the end both models are the same sum, in two orders.
    """
    model1, model2 = Replica(torch.zeros(2)), Replica(torch.zeros(2))
    blue, green = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    blue_stamp = (Stamp(BLUE, model1.context()),)
    green_stamp = (Stamp(GREEN, model2.context()),)

    assert model1.fold(blue_stamp, blue) == Fresh((0,))
    assert model2.fold(green_stamp, green) == Fresh((0,))
    assert model2.fold(blue_stamp, blue) == Fresh((1,))
    assert model1.fold(green_stamp, green) == Fresh((1,))

    assert model1.clock == model2.clock == Clock([BLUE, GREEN])
    assert torch.equal(model1.weights, torch.tensor([1.0, 2.0]))
    assert torch.equal(model2.weights, model1.weights)


def test_section_2_the_difference_counts_both_sides() -> None:
    """«We define the staleness here as the symmetric difference of both gradient sets.»

    What the maker knew and the receiver lacks counts as much as the other way round, which a
    difference of two counters cannot see: here both sides know one update, and the staleness is 2.
    """
    model1, model2 = Replica(torch.zeros(1)), Replica(torch.zeros(1))
    nothing = Clock()
    model1.fold((Stamp(RED, nothing),), torch.ones(1))
    model2.fold((Stamp(GREEN, nothing),), torch.ones(1))
    blue = (Stamp(BLUE, model1.context()),)
    assert model2.fold(blue, torch.ones(1)) == Fresh((2,))


def test_section_2_own_update_is_stale_when_others_came_during_its_computation() -> None:
    """Staleness is a matter of sets, so an own update has one too: the sets are those at the start
    of the batch and at the instant of applying."""
    model1 = Replica(torch.zeros(1))
    started = model1.context()
    model1.fold((Stamp(GREEN, Clock()),), torch.ones(1))
    model1.fold((Stamp(RED, Clock()),), torch.ones(1))
    assert model1.fold((Stamp(BLUE, started),), torch.ones(1)) == Fresh((2,))
