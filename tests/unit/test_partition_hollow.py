"""A subnet without ever holding the model: structure from shapes, values from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.partition_models import MODELS

from murmurate.core.partition import analyse, build, cut, deal, observe, part_of, weights_of
from murmurate.edge.net.subnet_values import structure_digest
from murmurate.errors import ConfigError

LOOKS_AT_VALUES = "cross decoder"  # torch's decoder compares masks


@pytest.mark.parametrize("name", sorted(set(MODELS) - {LOOKS_AT_VALUES}))
def test_shapes_alone_say_the_same_and_a_subnet_is_built_around_given_values(name: str) -> None:
    make, example = MODELS[name]
    torch.manual_seed(1)
    model = make()
    with torch.device("meta"):
        empty = make()
    structure = analyse(model, example())
    assert structure_digest(observe(empty, example())) == structure_digest(structure)
    held = deal(structure, [2, 1], np.random.default_rng(0))[0]
    values = part_of(weights_of(model), structure, held)
    whole, part = cut(model, structure, held), build(empty, structure, held, values)
    assert all(v.data_ptr() == values[n].data_ptr() for n, v in weights_of(part).items())
    batch = example()
    outs = []
    for each in (whole, part):
        torch.manual_seed(2)
        each.train()
        outs.append(each(*batch))
    if isinstance(outs[0], torch.Tensor):
        assert torch.equal(*outs)


def test_a_model_that_looks_at_values_needs_them() -> None:
    make, example = MODELS[LOOKS_AT_VALUES]
    model, batch = make(), example()
    assert structure_digest(observe(model, batch)) == structure_digest(analyse(model, batch))
    with torch.device("meta"):
        empty = make()
    with pytest.raises(ConfigError, match="cannot be run on the meta device"):
        observe(empty, batch)


def test_observing_leaves_the_model_as_it_was() -> None:
    make, example = MODELS["cnn"]
    model = make()
    before = {n: (id(t), t.detach().clone()) for n, t in weights_of(model).items()}
    observe(model, example())
    for n, t in weights_of(model).items():
        assert before[n][0] == id(t)
        assert torch.equal(before[n][1], t.detach())


def test_values_are_needed_to_try_a_structure() -> None:
    make, example = MODELS["mlp"]
    with torch.device("meta"):
        empty = make()
    with pytest.raises(ConfigError, match="on the meta device, it has no values"):
        analyse(empty, example())
