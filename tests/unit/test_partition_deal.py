"""How many units each gets, and the weights E_k, against plain arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.partition_twins import nested, share_weights
from torch import nn

from murmurate.core.partition import (
    Cover,
    Structure,
    analyse,
    apportion,
    check_identity,
    coverage,
    deal,
)
from murmurate.core.partition.cover import MIXED, SPLIT, WHOLE
from murmurate.errors import ConfigError, PromiseBroken


@pytest.fixture(scope="module")
def structure() -> Structure:
    model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 2))
    return analyse(model, (torch.randn(2, 3),))


@pytest.mark.parametrize(
    ("units", "weights", "sizes"),
    [
        (8, [4, 2, 1, 1], [4, 2, 1, 1]),
        (10, [1, 1, 1], [4, 3, 3]),
        (7, [1000, 1, 1], [5, 1, 1]),
        (3, [1, 100, 1], [1, 1, 1]),
        (1, [0.001], [1]),
        (512, [0.25] + [1.0] * 7, [18, 71, 71, 71, 71, 70, 70, 70]),
        (100, [1e308, 1e308], [50, 50]),
    ],
)
def test_shares_by_largest_remainder(units: int, weights: list[float], sizes: list[int]) -> None:
    assert apportion(units, weights) == sizes


@given(weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), extra=st.integers(0, 3000))
def test_the_sum_is_exact_and_nobody_goes_empty(weights: list[float], extra: int) -> None:
    units = len(weights) + extra
    sizes = apportion(units, weights)
    assert sum(sizes) == units
    assert min(sizes) >= 1
    exact = [Fraction(w) * units / sum(map(Fraction, weights)) for w in weights]
    if min(exact) >= 1:  # then it is Hamilton's method: nobody is more than one off
        assert all(abs(s - q) < 1 + Fraction(1, 10**6) for s, q in zip(sizes, exact, strict=True))
    order = sorted(range(len(weights)), key=lambda k: weights[k])
    for a, b in itertools.pairwise(order):  # more weight, never fewer units
        assert sizes[a] <= sizes[b] or weights[a] == pytest.approx(weights[b], rel=1e-9)


@pytest.mark.parametrize(
    ("units", "weights", "says"),
    [
        (8, [1, 0], "share 0: must be a number above 0"),
        (8, [1, -1], "share -1: must be a number above 0"),
        (8, [float("nan")], "share nan"),
        (8, [float("inf")], "share inf"),
        (8, [1] * 9, "8 units cannot be dealt to 9 peers"),
        (8, [], "shares: none"),
    ],
)
def test_what_cannot_be_dealt(units: int, weights: list[float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        apportion(units, weights)


@given(n=st.integers(1, 12), seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_the_weights_of_a_partition_sum_to_one(structure: Structure, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = deal(structure, rng.uniform(0.1, 5, size=n).tolist(), rng)
    check_identity(structure, shares)
    for tensor in structure.tensors.values():
        cover = Cover.of(tensor, shares)
        total = np.sum([share_weights(cover, k) for k in range(n)], axis=0)
        held = np.broadcast_to(cover.count() > 0, tensor.shape)
        assert np.allclose(total[held], 1.0)
        assert (total[~held] == 0).all()  # the coordinator's
        assert cover.covered == pytest.approx(held.mean())


def test_coverage_of_a_middle_layer(structure: Structure) -> None:
    """Sum of h1 h2 / (H1 H2): with 3 equal shares, a third. First and last layer are all there."""
    shares = deal(structure, [1, 1, 1], np.random.default_rng(0))
    part = coverage(structure, shares)
    assert part["2.weight"] == pytest.approx(1 / 3)
    assert part["0.weight"] == part["4.weight"] == part["0.bias"] == 1.0
    assert "4.bias" not in part  # not split: averaged
    kinds = {name: Cover.of(t, shares).kind for name, t in structure.tensors.items()}
    assert kinds["2.weight"] == SPLIT
    assert kinds["4.bias"] == WHOLE


def test_an_axis_with_too_few_units_stays_whole(structure: Structure) -> None:
    """10 shares, 12 and 9 units: only the first axis is dealt."""
    shares = deal(structure, [1] * 10, np.random.default_rng(0))
    assert all(structure.width(structure.groups[1], held) == 9 for held in shares)
    assert sum(structure.width(structure.groups[0], held) for held in shares) == 12
    with pytest.raises(ConfigError, match="12 units cannot be dealt to 13 peers"):
        deal(structure, [1] * 13, np.random.default_rng(0))


def test_nested_shares_overlap_and_are_averaged(structure: Structure) -> None:
    shares = nested(structure, [1.0, 0.5, 0.25])
    cover = Cover.of(structure.tensors["2.weight"], shares)
    assert cover.kind == MIXED
    total = sum(share_weights(cover, k) for k in range(3))
    assert np.allclose(total, 1.0)
    assert share_weights(cover, 0)[0, 0] == pytest.approx(1 / 3)
    assert share_weights(cover, 0)[-1, -1] == 1.0
    check_identity(structure, shares, overlap=True)
    with pytest.raises(PromiseBroken, match="owned twice"):
        check_identity(structure, shares)


def test_a_lost_unit_is_found(structure: Structure) -> None:
    shares = deal(structure, [1, 1], np.random.default_rng(0))
    unit = int(np.flatnonzero(shares[0])[0])
    shares[0][unit] = False
    with pytest.raises(PromiseBroken, match=rf"unit {unit} of 0 is lost"):
        check_identity(structure, shares)
    shares[0][:] = False
    with pytest.raises(PromiseBroken, match="share 0 has no unit of 0"):
        check_identity(structure, shares)


def test_averaging_everything_is_federated_averaging(structure: Structure) -> None:
    shares = [structure.everything()] * 4
    for tensor in structure.tensors.values():
        cover = Cover.of(tensor, shares)
        assert cover.kind == WHOLE
        assert (share_weights(cover, 2) == 0.25).all()
        assert (share_weights(cover, 2, [1, 1, 2, 4]) == 0.25).all()
