"""Who holds which coordinate of a tensor, and with what weight: the matrices E_k of paper 001.

A share holds a block of a tensor: the product of the indices it keeps along each axis. E_k is its
weight on each coordinate, divided among all who hold it, so that they sum to one: 0 or 1 where the
model is split, an average where it is shared or where shares overlap. What nobody holds is the
coordinator's (E_0 = 1, unchanged). Federated averaging is the case in which everybody holds all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from murmurate.core.partition.structure import Held, Indices, Structure, Tensor
from murmurate.errors import PromiseBroken

SPLIT, WHOLE, MIXED = "split", "whole", "mixed"
Array = NDArray[np.float64]
PLACES = 1 << 16
"""Of a block that are written at a time: their list stays in the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """How several shares cover one tensor.

    SPLIT: no coordinate twice. WHOLE: all of them by everyone. MIXED: anything else.
    """

    tensor: Tensor
    kept: tuple[tuple[Indices | None, ...], ...]
    kind: str
    covered: float
    """The part of the coordinates that somebody holds."""

    @staticmethod
    def of(tensor: Tensor, shares: Sequence[Held]) -> Cover:
        kept = tuple(tensor.kept(held) for held in shares)
        if not shares:
            return Cover(tensor, kept, SPLIT, 0.0)
        if all(
            all(k is None or len(k) == s for k, s in zip(ks, tensor.shape, strict=True))
            for ks in kept
        ):
            whole = tuple((None,) * len(tensor.shape) for _ in shares)
            alone = len(shares) == 1 and tensor.split
            return Cover(tensor, whole, SPLIT if alone else WHOLE, 1.0)
        size = max(1, int(np.prod(tensor.shape)))
        blocks = sum(int(np.prod(tensor.part(held))) for held in shares)
        owners = np.sum(shares, axis=0)
        if any(u is not None and u.min() >= 0 and owners[u].max() <= 1 for u in tensor.axes):
            return Cover(tensor, kept, SPLIT, blocks / size)  # told by its units: no big array
        counts = np.broadcast_to(_counts(tensor, kept, np.ones(len(shares))), tensor.shape)
        return Cover(
            tensor,
            kept,
            SPLIT if counts.max() <= 1 else MIXED,
            float(np.count_nonzero(counts)) / size,
        )

    def count(self, weights: Sequence[float] | None = None) -> Array:
        """For each coordinate the sum of weights of those who hold it; broadcasts to its shape."""
        given = np.ones(len(self.kept)) if weights is None else np.asarray(weights, np.float64)
        return _counts(self.tensor, self.kept, given)


def _counts(tensor: Tensor, kept: Sequence[tuple[Indices | None, ...]], weights: Array) -> Array:
    """Only over axes that are dealt; the others have size 1."""
    shape = [1 if u is None else s for s, u in zip(tensor.shape, tensor.axes, strict=True)]
    counts = np.zeros(shape)
    for indices, weight in zip(kept, weights, strict=True):
        grid = [
            np.arange(size) if index is None else index
            for size, index in zip(shape, indices, strict=True)
        ]
        counts[np.ix_(*grid)] += weight
    return counts


def check_identity(structure: Structure, shares: Sequence[Held], *, overlap: bool = False) -> None:
    """PromiseBroken unless the shares' E_k and the coordinator's sum to one on every coordinate.

    By units, which is enough and cheap: a coordinate's E_k are its holders' weights divided by
    their sum, so they sum to one as soon as holders and coordinator are disjoint and complete.
    What can go wrong is the dealing: a unit lost, or owned twice where it must not be, or an axis
    of which a share has nothing.
    """
    for group in structure.groups:
        rows = np.array([held[group.first : group.first + group.count] for held in shares])
        if rows.size == 0:
            continue
        empty = np.flatnonzero(~rows.any(axis=1))
        if len(empty):
            raise PromiseBroken("sum E_k = I", f"share {empty[0]} has no unit of {group.name}")
        owners = rows.sum(axis=0)
        if overlap or (owners == len(shares)).all():
            continue
        for wrong, what in ((owners > 1, "owned twice"), (owners < 1, "lost")):
            if wrong.any():
                unit = int(np.flatnonzero(wrong)[0])
                raise PromiseBroken("sum E_k = I", f"unit {unit} of {group.name} is {what}")


def coverage(structure: Structure, shares: Sequence[Held]) -> dict[str, float]:
    """Of each trained tensor that is split: the part that is in some share."""
    return {
        name: Cover.of(tensor, shares).covered
        for name, tensor in structure.tensors.items()
        if tensor.trained and tensor.split
    }


def paste(
    weights: Mapping[str, torch.Tensor],
    structure: Structure,
    held: Held,
    values: Mapping[str, torch.Tensor],
) -> None:
    """Write one subnet's values into the whole, in place, wherever it holds anything."""
    with torch.no_grad():
        for name, tensor in structure.tensors.items():
            write(weights[name], tensor.kept(held), values[name])


def write(whole: torch.Tensor, kept: tuple[Indices | None, ...], part: torch.Tensor) -> None:
    """`whole[kept] = part`, by the quickest way there is for its axes."""
    axes = [axis for axis, indices in enumerate(kept) if indices is not None]
    if not axes:
        whole.copy_(part)
    elif not whole.is_contiguous():
        whole[block_of(whole, kept)] = part
    elif axes == [0]:
        _plain(whole)[kept[0]] = _plain(part)  # 1.5 copies; index_copy_: 1.8 to 2.7
    elif len(axes) == 1:
        axis = axes[0]
        whole.index_copy_(axis, torch.from_numpy(kept[axis]), part)
    else:
        _write_block(whole, kept, part)


def _plain(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Its memory as numpy sees it; bfloat16, which it does not know, as whole numbers."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return tensor.numpy()


def _write_block(whole: torch.Tensor, kept: tuple[Indices | None, ...], part: torch.Tensor) -> None:
    """Several axes at once: by places in memory, some rows at a time."""
    grid = [
        np.arange(size) if indices is None else indices
        for size, indices in zip(whole.shape, kept, strict=True)
    ]
    steps = whole.stride()
    inner = np.zeros((1,), dtype=np.int64)
    for indices, step in zip(grid[1:], steps[1:], strict=True):
        inner = (inner[:, None] + indices * step).reshape(-1)
    places = torch.from_numpy(inner)
    starts = torch.from_numpy(grid[0] * steps[0])
    flat, values = whole.view(-1), part.reshape(len(grid[0]), -1)
    rows = max(1, PLACES // max(1, len(inner)))
    for first in range(0, len(values), rows):
        some = values[first : first + rows]
        at = starts[first : first + rows, None] + places
        flat.index_copy_(0, at.reshape(-1), some.reshape(-1))


def block_of(whole: torch.Tensor, kept: tuple[Indices | None, ...]) -> tuple[torch.Tensor, ...]:
    """Index tensors that name a block, for advanced indexing."""
    out = []
    for axis, indices in enumerate(kept):
        index = torch.arange(whole.shape[axis]) if indices is None else torch.from_numpy(indices)
        out.append(index.reshape([-1 if d == axis else 1 for d in range(whole.dim())]))
    return tuple(out)
