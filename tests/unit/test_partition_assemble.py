"""Subnets to full weights: against the matrices E_k, written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.partition_models import MODELS
from tests.unit.partition_twins import nested, share_weights

from murmurate.core.partition import (
    Cover,
    Held,
    Structure,
    analyse,
    cut,
    deal,
    part_of,
    weights_of,
)
from murmurate.errors import ConfigError
from murmurate_coordinator.solvers.protocol import FREE, Capacity
from murmurate_coordinator.solvers.subnets.assemble import covers, fold
from murmurate_coordinator.solvers.subnets.plan import MEMORY_COPIES, make_plan

_known: dict[str, tuple[dict[str, torch.Tensor], Structure]] = {}


def known(name: str) -> tuple[dict[str, torch.Tensor], Structure]:
    if name not in _known:
        make, example = MODELS[name]
        torch.manual_seed(5)
        model = make()
        weights = {key: value.detach().clone() for key, value in weights_of(model).items()}
        _known[name] = weights, analyse(model, example())
    weights, structure = _known[name]
    return {key: value.clone() for key, value in weights.items()}, structure


def changed(values: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """What training may have done."""
    noise = torch.Generator().manual_seed(seed)
    return {
        key: v + torch.randn(v.shape, generator=noise) if v.is_floating_point() else v + seed
        for key, v in values.items()
    }


def draw(structure: Structure, n: int, seed: int, kind: str) -> list[Held]:
    rng = np.random.default_rng(seed)
    if kind == "split":
        return deal(structure, list(rng.integers(1, 5, size=n)), rng)
    if kind == "nested":
        return nested(structure, rng.uniform(0.1, 1.0, size=n).tolist())
    return [structure.everything() for _ in range(n)]


@given(
    name=st.sampled_from(sorted(MODELS)),
    n=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["split", "nested", "federated"]),
)
@settings(max_examples=100, deadline=None)
def test_assembly_is_the_sum_of_e_k_x_k(name: str, n: int, seed: int, kind: str) -> None:
    """Split, federated averaging and overlapping subnets: one formula. Then one by one: the same.

    And untrained subnets change nothing, to the bit.
    """
    weights, structure = known(name)
    try:
        shares = draw(structure, n, seed, kind)
    except ConfigError:
        assert all(group.count < n for group in structure.groups)
        return
    by_tensor = covers(structure, shares)
    before = [part_of(weights, structure, held) for held in shares]
    same = {key: value.clone() for key, value in weights.items()}
    for k in range(n):
        fold(same, by_tensor, k, before[k], before[k])
    assert all(torch.equal(same[key], weights[key]) for key in weights)
    after = [changed(values, seed + k) for k, values in enumerate(before)]
    folded = {key: value.clone() for key, value in weights.items()}
    for k in range(n):
        fold(folded, by_tensor, k, before[k], after[k])
    for key, tensor in structure.tensors.items():
        if not weights[key].is_floating_point():
            assert torch.equal(folded[key], weights[key] + seed + n - 1)
            continue
        if not torch.isfinite(weights[key]).all():  # a mask: its infinities stay, and make no NaN
            assert not folded[key].isnan().any()
            continue
        cover = Cover.of(tensor, shares)
        expected = weights[key].double().numpy().copy()
        total = np.zeros(tensor.shape)
        for k, held in enumerate(shares):
            e_k = share_weights(cover, k)
            kept = zip(tensor.shape, tensor.kept(held), strict=True)
            block = np.ix_(*(np.arange(s) if i is None else i for s, i in kept))
            total[block] += e_k[block] * after[k][key].double().numpy()
            expected[block] -= e_k[block] * weights[key].double().numpy()[block]
        expected += total
        assert np.allclose(folded[key].numpy(), expected, atol=1e-5), key


# -- plans -----------------------------------------------------------------------------------------


def test_a_plan_follows_speed() -> None:
    _, structure = known("mlp")
    members = {"a": Capacity(speed=4), "b": Capacity(speed=2), "c": Capacity(), "d": Capacity()}
    plan = make_plan(7, structure, members, np.random.default_rng(0))
    widths = [[structure.width(g, plan.shares[m]) for m in members] for g in structure.groups]
    assert plan.number == 7
    assert widths == [[10, 5, 3, 2], [7, 3, 2, 2]]
    spare = make_plan(1, structure, members, np.random.default_rng(0), spare=True)
    assert list(spare.shares) == ["a", "b", "c", "d", FREE]


def test_a_plan_respects_memory() -> None:
    """The fastest may hold only a little: the others get what it cannot."""
    _, structure = known("mlp")
    small = structure.nbytes(structure.hold([0, 1, 2, 3, 20, 21, 22])) * MEMORY_COPIES
    members = {"a": Capacity(speed=9, memory_bytes=small), "b": Capacity(), "c": Capacity()}
    plan = make_plan(1, structure, members, np.random.default_rng(0))
    assert structure.nbytes(plan.shares["a"]) * MEMORY_COPIES <= small
    assert structure.width(structure.groups[0], plan.shares["b"]) >= 8
    both = {"a": Capacity(memory_bytes=small), "b": Capacity(memory_bytes=small)}
    plan = make_plan(1, structure, both, np.random.default_rng(0))  # the rest is nobody's
    assert list(plan.shares) == ["a", "b", FREE]
    assert all(structure.nbytes(plan.shares[m]) * MEMORY_COPIES <= small for m in both)
    assert structure.width(structure.groups[0], plan.shares[FREE]) > 10
    with pytest.raises(ConfigError, match="memory of a: 10 bytes, the smallest subnet needs"):
        make_plan(1, structure, {"a": Capacity(memory_bytes=10)}, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("speed", "memory", "says"),
    [(0, None, "share 0"), (-1, None, "share -1"), (float("nan"), None, "share"), (1, 0, "memory")],
)
def test_a_capacity_that_is_none(speed: float, memory: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Capacity(speed=speed, memory_bytes=memory)


def test_an_assembled_subnet_is_what_was_cut() -> None:
    """Through the module itself, not only its tensors."""
    make, example = MODELS["resnet"]
    torch.manual_seed(0)
    model = make()
    structure = analyse(model, example())
    shares = deal(structure, [3, 1, 1], np.random.default_rng(1))
    weights = {k: v.detach().clone() for k, v in weights_of(model).items()}
    cuts = [cut(model, structure, held) for held in shares]
    by_tensor = covers(structure, shares)
    for k, each in enumerate(cuts):
        fold(weights, by_tensor, k, part_of(weights, structure, shares[k]), weights_of(each))
    assert all(torch.equal(weights[k], v) for k, v in weights_of(model).items())
