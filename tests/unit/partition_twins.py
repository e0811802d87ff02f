"""Overlapping shares, and E_k written out on every coordinate, to compare the quick ways with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from murmurate.core.partition.cover import Array, Cover
from murmurate.core.partition.structure import Held, Structure


def nested(structure: Structure, fractions: Sequence[float]) -> list[Held]:
    """Overlapping shares: the first units of every axis, so that the narrow are in the wide."""
    held = []
    for fraction in fractions:
        share = structure.nothing()
        for group in structure.groups:
            size = max(1, round(group.count * fraction))
            share[group.first : group.first + size] = True
        held.append(share)
    return held


def share_weights(cover: Cover, k: int, weights: Sequence[float] | None = None) -> Array:
    """E_k on every coordinate of the tensor."""
    shape = cover.tensor.shape
    given = [1.0] * len(cover.kept) if weights is None else list(weights)
    total = np.broadcast_to(cover.count(given), shape)
    out = np.zeros(shape)
    grid = [
        np.arange(size) if index is None else index
        for size, index in zip(shape, cover.kept[k], strict=True)
    ]
    block = np.ix_(*grid)
    out[block] = given[k] / total[block]
    return out
