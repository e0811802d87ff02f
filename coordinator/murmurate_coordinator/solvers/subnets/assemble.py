"""Subnets to full weights: Σ E_k x^k of paper 001.

Computed as `full + Σ E_k (x^k - full)`, which is the same because Σ E_k = I, and which changes
nothing to the bit where nothing was trained: a mean of n equal floats need not be that float.
What no subnet holds stays as it is. Counters (batch-norm's `num_batches_tracked`) take the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from murmurate.core.partition.cover import SPLIT, WHOLE, Cover, block_of, write
from murmurate.core.partition.structure import Held, Indices, Structure

Weights = Mapping[str, torch.Tensor]
CACHED = 1 << 18
"""Numbers that are worked on at a time: they stay in the cache between two passes."""


def covers(structure: Structure, shares: Sequence[Held]) -> dict[str, Cover]:
    """How these shares cover each tensor; to be kept as long as the shares are the same."""
    return {name: Cover.of(tensor, shares) for name, tensor in structure.tensors.items()}


def fold(
    full: Weights,
    by_tensor: Mapping[str, Cover],
    k: int,
    before: Weights,
    after: Weights,
) -> None:
    """One subnet alone: what it holds alone is replaced; elsewhere its change is added, by E_k.

    Folding in all subnets of a plan, one after another, assembles the model: Σ E_k x^k.
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


def _less(after: torch.Tensor, before: torch.Tensor, cover: Cover) -> torch.Tensor:
    """What was gained, in place of `after`; of a buffer too, which may hold infinities that stay
    (a mask)."""
    if cover.tensor.trained:
        return after.sub_(before)
    return torch.where(after == before, 0.0, after - before)


def _count(cover: Cover, whole: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(cover.count()).to(whole.dtype).expand(whole.shape)


def _largest(whole: torch.Tensor, kept: tuple[Indices | None, ...], part: torch.Tensor) -> None:
    block = block_of(whole, kept)
    if block:
        whole[block] = torch.maximum(whole[block], part)
    else:
        whole.copy_(torch.maximum(whole, part))
