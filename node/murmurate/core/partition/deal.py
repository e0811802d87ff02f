"""Units to shares: how many each, and which."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from murmurate.core.partition.structure import Held, Structure
from murmurate.errors import ConfigError


def apportion(units: int, weights: Sequence[float]) -> list[int]:
    """How many of `units` each gets: by weight, at least one, exactly all of them.

    Each gets one first; the rest follows the weights by largest remainders (Hamilton's method) of
    what a share should have, so that rounding never takes more than one unit from anybody whose
    quota is one or more.
    """
    n = len(weights)
    if not n:
        raise ConfigError("shares: none")
    for weight in weights:
        if not (weight > 0 and math.isfinite(weight)):
            raise ConfigError(f"share {weight:g}: must be a number above 0")
    if units < n:
        raise ConfigError(f"{units} units cannot be dealt to {n} peers, one each")
    largest = max(weights)
    total = math.fsum(w / largest for w in weights)  # 1e308 and 1e308 must not add up to inf
    quotas = [units * (w / largest) / total for w in weights]
    sizes = [max(1, math.floor(q)) for q in quotas]
    # Those who were lifted to one took it from the others: from whom it is least missed.
    while sum(sizes) > units:
        k = max((k for k in range(n) if sizes[k] > 1), key=lambda k: (sizes[k] - quotas[k], -k))
        sizes[k] -= 1
    missing = units - sum(sizes)
    for k in sorted(range(n), key=lambda k: (sizes[k] - quotas[k], k))[:missing]:
        sizes[k] += 1
    return sizes


def deal(structure: Structure, weights: Sequence[float], rng: np.random.Generator) -> list[Held]:
    """A partition: every unit to exactly one share, drawn at random, sizes by weight.

    An axis with fewer units than there are shares is not dealt: every share holds all of it, and
    it is averaged. ConfigError when that leaves nothing.
    """
    held = [structure.nothing() for _ in weights]
    dealt = 0
    for group in structure.groups:
        if group.count < len(weights):
            for share in held:
                share[group.first : group.first + group.count] = True
            continue
        dealt += 1
        sizes = apportion(group.count, weights)
        order = rng.permutation(group.count) + group.first
        start = 0
        for share, size in zip(held, sizes, strict=True):
            share[order[start : start + size]] = True
            start += size
    if not dealt:
        if not structure.groups:
            raise ConfigError("model: none of its axes can be split")
        apportion(max(group.count for group in structure.groups), weights)  # says why not
    return held
