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
CACHED = 1 << 18
"""Numbers that are worked on at a time: they stay in the cache between two passes."""


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
                _add(whole, cover, k, before[name], after[name])


def _add(
    whole: torch.Tensor, cover: Cover, k: int, before: torch.Tensor, after: torch.Tensor
) -> None:
    if cover.kind == WHOLE and whole.is_contiguous():
        part = 1.0 / len(cover.kept)
        flat, old, new = whole.view(-1), before.reshape(-1), after.reshape(-1)
        for start in range(0, len(flat), CACHED):
            change = _less(new[start : start + CACHED].clone(), old[start : start + CACHED], cover)
            flat[start : start + CACHED].add_(change, alpha=part)
    else:
        block = block_of(whole, cover.kept[k])
        whole[block] += _less(after.clone(), before, cover) / _count(cover, whole)[block]


def _place(whole: torch.Tensor, cover: Cover, parts: Sequence[torch.Tensor]) -> None:
    columns = _columns(whole, cover)
    if columns is None:
        for kept, part in zip(cover.kept, parts, strict=True):
            write(whole, kept, part)
        return
    # Column by column: 7 times a copy. Some rows of all parts side by side, then sorted: 2 to 3.
    order = torch.from_numpy(np.argsort(np.concatenate(columns), kind="stable"))
    matrix = whole.view(whole.shape[0], -1)
    inner = matrix.shape[1] // whole.shape[1]
    if inner > 1:
        order = (order[:, None] * inner + torch.arange(inner)).reshape(-1)
    rows_max = max(1, min(CACHED // matrix.shape[1], len(matrix)))
    side = torch.empty(rows_max, matrix.shape[1], dtype=whole.dtype)
    flat = [part.reshape(whole.shape[0], -1) for part in parts]
    for start in range(0, len(matrix), rows_max):
        rows = matrix[start : start + rows_max]
        some = side[: len(rows)]
        torch.cat([part[start : start + rows_max] for part in flat], 1, out=some)
        torch.index_select(some, 1, order, out=rows)


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
    if cover.kind == WHOLE and whole.is_contiguous():
        shares = torch.tensor(given, dtype=torch.float64).div_(sum(given)).to(whole.dtype)
        flat, each = whole.view(-1), [part.reshape(-1) for part in parts]
        for start in range(0, len(flat), (size := max(1, CACHED // len(parts)))):
            some = flat[start : start + size]
            change = torch.stack([part[start : start + size] for part in each])
            change = _less(change, some, cover)
            some.add_(shares @ change)
        return
    total = torch.zeros_like(whole)
    counts = _count(cover, whole, given)
    for kept, part, weight in zip(cover.kept, parts, given, strict=True):
        block = block_of(whole, kept)
        total[block] += _less(part.clone(), whole[block], cover) * weight / counts[block]
    whole.add_(total)


def _less(after: torch.Tensor, before: torch.Tensor, cover: Cover) -> torch.Tensor:
    """What was gained, in place of `after`; of a buffer too, which may hold infinities that stay
    (a mask)."""
    if cover.tensor.trained:
        return after.sub_(before)
    return torch.where(after == before, 0.0, after - before)


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
