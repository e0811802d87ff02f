"""What of a model can be dealt to peers: its units, and which index of which tensor is whose.

A *group* is a hidden axis: the outputs of a layer, the channels of a convolution, the heads of an
attention. Its units are dealt to peers, each as a whole. Units are numbered over all
groups. A tensor's axis has a unit for each of its indices, or SHARED (-1): held by all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from murmurate.errors import ConfigError

SHARED = -1
Held = NDArray[np.bool_]
"""For each unit whether a peer has it."""
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """One hidden axis: units `first` to `first + count - 1`."""

    name: str
    first: int
    count: int

    @property
    def units(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A parameter or buffer: for each axis the unit of every index, or None: all of it shared."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[Indices | None, ...]
    inward: tuple[bool, ...]
    """The layer sums over this axis."""
    trained: bool
    split: bool = field(init=False)
    """Whether there is anything of it to deal: it is asked for each tensor of each push."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", any(units is not None for units in self.axes))

    def kept(self, held: Held) -> tuple[Indices | None, ...]:
        """The indices a peer keeps along each axis, ascending; None: all."""
        return tuple(
            None if units is None else np.flatnonzero((units < 0) | held[units])
            for units in self.axes
        )

    def part(self, held: Held) -> tuple[int, ...]:
        """The shape of what a peer keeps."""
        if not self.split:
            return self.shape
        return tuple(
            size if kept is None else len(kept)
            for size, kept in zip(self.shape, self.kept(held), strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """What was found in a model. Frozen; models with equal structures can exchange subnets."""

    groups: tuple[Group, ...]
    tensors: Mapping[str, Tensor]
    heads: Mapping[str, tuple[int, Indices]]
    """`nn.MultiheadAttention` by path: the size of a head, and the unit of each head."""
    reasons: Mapping[str, str]
    """Why an axis stayed shared, by the name of what makes it."""
    normed: frozenset[str]
    """Weights whose result goes straight into a norm."""
    rewrites: tuple[Rewrite, ...] = ()
    """Sizes written into the model's code, which a subnet must have smaller."""

    @property
    def units(self) -> int:
        return sum(group.count for group in self.groups)

    def group(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        known = ", ".join(group.name for group in self.groups)
        raise ConfigError(f"axis {name!r}: expected one of {known}")

    def nothing(self) -> Held:
        return np.zeros(self.units + 1, dtype=np.bool_)  # one more: SHARED looks at the last

    def everything(self) -> Held:
        return self.hold(range(self.units))

    def hold(self, units: Sequence[int] | Indices | range) -> Held:
        """These units, as a mask."""
        held = self.nothing()
        chosen = np.asarray(units, dtype=np.int64)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < self.units):
            raise ConfigError(f"units {chosen.min()} to {chosen.max()}: there are {self.units}")
        held[chosen] = True
        return held

    def width(self, group: Group, held: Held) -> int:
        return int(held[group.first : group.first + group.count].sum())

    def parameters(self, held: Held) -> int:
        """How many trained numbers such a subnet has."""
        return sum(_product(t.part(held)) for t in self.tensors.values() if t.trained)

    def nbytes(self, held: Held) -> int:
        """Bytes of such a subnet's parameters and buffers."""
        return sum(_product(t.part(held)) * _bytes(t.dtype) for t in self.tensors.values())

    def axes(self) -> Iterator[tuple[Group, Tensor, int, int]]:
        """Each axis that is dealt: its group, the tensor, the axis, indices that are dealt."""
        for group in self.groups:
            for tensor in self.tensors.values():
                for axis, units in enumerate(tensor.axes):
                    if units is None:
                        continue
                    inside = (units >= group.first) & (units < group.first + group.count)
                    if inside.any():
                        yield group, tensor, axis, int(inside.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Rewrite:
    """A call in the traced model that names sizes: the units of the elements of its result."""

    node: str
    units: Indices
    shape: tuple[int, ...]

    def sizes(self, held: Held) -> tuple[int, ...]:
        """The result's shape in a subnet."""
        kept = (self.units < 0) | held[self.units]
        out = []
        for dim, full in enumerate(self.shape):
            others = tuple(d for d in range(kept.ndim) if d != dim)
            along = np.asarray(kept.any(axis=others) if others else kept)
            out.append(full if len(along) == 1 else int(along.sum()))
        return tuple(out)


NO_STRUCTURE = Structure(groups=(), tensors={}, heads={}, reasons={}, normed=frozenset())
"""Of a coordinator that has no model: it deals batches."""


def _product(shape: tuple[int, ...]) -> int:
    out = 1
    for size in shape:
        out *= size
    return out


def _bytes(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return max(int(digits) // 8, 1) if digits else 1
