"""Who trains on which samples.

- `none`: a peer has everything, as every other peer has;
- `dataset`: an equal random part (002);
- `labels`: all samples of some labels, which are dealt out like cards (002);
- `dirichlet(α)`: of each label a random fraction; small α gives a label to few peers, large α to
  all alike.

All but `none` put every sample into exactly one share, and no share is empty. 002 cuts all shares
to the shortest; here nothing is thrown away.

Peers do not talk about shares: each computes its own from the labels and the rng seed. So the
draws come from `RandomState`, the one generator whose stream numpy promises never to change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmurate.errors import ConfigError

KINDS = ("none", "dataset", "labels", "dirichlet")
EXPECTED = "none, dataset, labels or dirichlet(α) such as dirichlet(0.3)"
ALPHA_MIN, ALPHA_MAX = 1e-6, 1e6
DRAWS_MAX = 100  # a draw that leaves a peer without samples is drawn again

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """A way to share samples out; `str()` gives what `parse_split` takes."""

    kind: str
    alpha: float = math.nan  # dirichlet only

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"split {self.kind!r}: expected {EXPECTED}")
        if self.kind == "dirichlet" and not ALPHA_MIN <= self.alpha <= ALPHA_MAX:
            raise ConfigError(
                f"split {self}: α must be a number from {ALPHA_MIN:g} to {ALPHA_MAX:g}"
            )

    def __str__(self) -> str:
        return f"dirichlet({self.alpha:g})" if self.kind == "dirichlet" else self.kind


def parse_split(text: str) -> Split:
    """`none`, `dataset`, `labels` or `dirichlet(α)`; ConfigError says so."""
    kind = text.strip().lower()
    if match := re.fullmatch(r"dirichlet\s*\(\s*([^()\s]+)\s*\)", kind):
        try:
            alpha = float(match[1])
        except ValueError:
            raise ConfigError(f"split {text!r}: α must be a number") from None
        return Split("dirichlet", alpha)
    if kind not in KINDS or kind == "dirichlet":
        raise ConfigError(f"split {text!r}: expected {EXPECTED}")
    return Split(kind)


def random_state(*numbers: int) -> np.random.RandomState:
    """The stream named by these numbers (0 to 2^64 - 1 each); other numbers, other stream."""
    return np.random.RandomState(
        [part for number in numbers for part in (number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF)]
    )


def held_out(count: int, part: float, seed: int) -> tuple[Indices, Indices]:
    """So many samples in two: those to train on, and a random `part` that nobody trains on, both
    ascending. The same on every peer, whatever its share."""
    if not 0 < part < 1:
        raise ConfigError(f"validation {part:g}: must be above 0 and below 1")
    cut = max(1, round(part * count))
    if cut >= count:
        raise ConfigError(f"validation {part:g}: leaves nothing of {count} samples to train on")
    drawn = random_state(seed, 0).permutation(count)  # peers draw from 1 on
    return np.sort(drawn[cut:]).astype(np.int64), np.sort(drawn[:cut]).astype(np.int64)


def split(labels: NDArray[np.integer], how: Split, index: int, count: int, seed: int) -> Indices:
    """The samples of peer `index` of `count`, ascending. `labels` has one entry per sample."""
    if not 0 <= index < count:
        raise ConfigError(f"share {index}/{count}: shares are counted from 0 to {count - 1}")
    if len(labels) < (1 if how.kind == "none" else count):
        raise ConfigError(f"split {how}: {len(labels)} samples are too few for {count} peers")
    if how.kind == "none":
        return np.arange(len(labels), dtype=np.int64)
    rng = random_state(seed)
    if how.kind == "dataset":
        return np.sort(rng.permutation(len(labels))[index::count]).astype(np.int64)
    if how.kind == "labels":
        values = rng.permutation(np.unique(labels))
        if len(values) < count:
            raise ConfigError(
                f"split labels: there are {len(values)} labels for {count} peers; "
                "take fewer peers, dataset or dirichlet(α)"
            )
        return np.flatnonzero(np.isin(labels, values[index::count])).astype(np.int64)
    for _ in range(DRAWS_MAX):
        owner = _dirichlet(labels, how.alpha, count, rng)
        if np.bincount(owner, minlength=count).all():
            return np.flatnonzero(owner == index).astype(np.int64)
    raise ConfigError(
        f"split {how}: leaves one of {count} peers without samples; take fewer peers or dataset"
    )


def _dirichlet(
    labels: NDArray[np.integer], alpha: float, count: int, rng: np.random.RandomState
) -> Indices:
    """The owner of each sample: each label's samples are cut in Dirichlet(α) fractions."""
    owner = np.empty(len(labels), dtype=np.int64)
    for samples, fractions in _fractions(labels, alpha, count, rng):
        cuts = np.rint(np.cumsum(fractions)[:-1] * len(samples)).astype(np.int64)
        # rounding must not favour the same peers for every label
        for peer, part in zip(rng.permutation(count), np.split(samples, cuts), strict=True):
            owner[part] = peer
    return owner


def _fractions(
    labels: NDArray[np.integer], alpha: float, count: int, rng: np.random.RandomState
) -> Iterator[tuple[Indices, NDArray[np.float64]]]:
    for value in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == value)).astype(np.int64)
        # Gamma(α) = Gamma(α + 1) · U^(1/α), kept as a logarithm: for small α all of them are 0 in
        # floating point, and numpy's own dirichlet returns nan.
        log = np.log(rng.standard_gamma(alpha + 1, count))
        log += np.log(1 - rng.random_sample(count)) / alpha
        weights = np.exp(log - log.max())
        yield samples, weights / weights.sum()
