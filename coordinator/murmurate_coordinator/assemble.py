"""Subnets to full weights: Σ E_k x^k of paper 001.

Computed as `full + Σ E_k (x^k - full)`, which is the same because Σ E_k = I, and which changes
nothing to the bit where nothing was trained: a mean of n equal floats need not be that float.
What no subnet holds stays as it is. Counters (batch-norm's `num_batches_tracked`) take the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from murmurate.core.partition.cover import SPLIT, WHOLE, Cover, block_of, write
from murmurate.core.partition.structure import Held, Indices, Structure

Weights = Mapping[str, torch.Tensor]
ROWS = 64
"""Of a matrix whose columns are put together: they stay in the cache meanwhile."""


def covers(structure: Structure, shares: Sequence[Held]) -> dict[str, Cover]:
    """How these shares cover each tensor; to be kept as long as the shares are the same."""
    return {name: Cover.of(tensor, shares) for name, tensor in structure.tensors.items()}


def assemble(
    full: Weights,
    by_tensor: Mapping[str, Cover],
    values: Sequence[Weights],
    *,
    weights: Sequence[float] | None = None,
) -> None:
    """Put one subnet of each share into the full weights, in place.

    `weights`: of the subnets where several hold a coordinate; equal by default.
    """
    with torch.no_grad():
        for name, cover in by_tensor.items():
            whole, parts = full[name], [v[name] for v in values]
            if cover.kind == SPLIT:
                _place(whole, cover, parts)
            elif not whole.is_floating_point():
                for kept, part in zip(cover.kept, parts, strict=True):
                    _largest(whole, kept, part)
            else:
                _average(whole, cover, parts, weights)


def fold(
    full: Weights,
    by_tensor: Mapping[str, Cover],
    k: int,
    before: Weights,
    after: Weights,
) -> None:
    """One subnet alone: what it holds alone is replaced; elsewhere its change is added, by E_k.

    Folding all in, one after another, is the same as `assemble` (but for rounding).
    """
    with torch.no_grad():
        for name, cover in by_tensor.items():
            whole, kept = full[name], cover.kept[k]
            if cover.kind == SPLIT:
                write(whole, kept, after[name])
            elif not whole.is_floating_point():
                _largest(whole, kept, after[name])
            else:
                change = _change(after[name], before[name], cover)
                if cover.kind == WHOLE:
                    whole.add_(change, alpha=1.0 / len(cover.kept))
                else:
                    block = block_of(whole, kept)
                    whole[block] += change / _count(cover, whole)[block]


def _place(whole: torch.Tensor, cover: Cover, parts: Sequence[torch.Tensor]) -> None:
    columns = _columns(whole, cover)
    if columns is None:
        for kept, part in zip(cover.kept, parts, strict=True):
            write(whole, kept, part)
        return
    # Column by column is slow (7 times a copy); some rows of all parts side by side, sorted, 3.
    order = torch.from_numpy(np.argsort(np.concatenate(columns), kind="stable"))
    matrix = whole.view(whole.shape[0], -1)
    inner = matrix.shape[1] // whole.shape[1]
    if inner > 1:
        order = (order[:, None] * inner + torch.arange(inner)).reshape(-1)
    side = torch.empty(ROWS, matrix.shape[1], dtype=whole.dtype)
    index = order.expand(ROWS, -1)
    flat = [part.reshape(whole.shape[0], -1) for part in parts]
    for start in range(0, len(matrix), ROWS):
        rows = matrix[start : start + ROWS]
        some = side[: len(rows)]
        torch.cat([part[start : start + ROWS] for part in flat], 1, out=some)
        torch.gather(some, 1, index[: len(rows)], out=rows)


def _columns(whole: torch.Tensor, cover: Cover) -> list[Indices] | None:
    """The second axis' indices of each share, if they and nothing else are dealt, completely."""
    if whole.dim() < 2 or len(cover.kept) < 2 or not whole.is_contiguous() or cover.covered < 1.0:
        return None
    out = []
    for kept in cover.kept:
        if kept[1] is None or any(k is not None for axis, k in enumerate(kept) if axis != 1):
            return None
        out.append(kept[1])
    return out if whole.is_floating_point() else None


def _average(
    whole: torch.Tensor,
    cover: Cover,
    parts: Sequence[torch.Tensor],
    weights: Sequence[float] | None,
) -> None:
    given = [1.0] * len(parts) if weights is None else list(weights)
    total = torch.zeros_like(whole)
    if cover.kind == WHOLE:
        for part, weight in zip(parts, given, strict=True):
            total.add_(_change(part, whole, cover), alpha=weight / sum(given))
    else:
        counts = _count(cover, whole, given)
        for kept, part, weight in zip(cover.kept, parts, given, strict=True):
            block = block_of(whole, kept)
            total[block] += _change(part, whole[block], cover) * weight / counts[block]
    whole.add_(total)


def _change(after: torch.Tensor, before: torch.Tensor, cover: Cover) -> torch.Tensor:
    """What was gained; of a buffer too, which may hold infinities that stay (a mask)."""
    change = after - before
    return change if cover.tensor.trained else torch.where(after == before, 0.0, change)


def _count(
    cover: Cover, whole: torch.Tensor, weights: Sequence[float] | None = None
) -> torch.Tensor:
    return torch.from_numpy(cover.count(weights)).to(whole.dtype).expand(whole.shape)


def _largest(whole: torch.Tensor, kept: tuple[Indices | None, ...], part: torch.Tensor) -> None:
    block = block_of(whole, kept)
    if block:
        whole[block] = torch.maximum(whole[block], part)
    else:
        whole.copy_(torch.maximum(whole, part))
