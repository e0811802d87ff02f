"""Warm-up of the batch size (paper 003): small batches first, when gradients change quickly.

A batch is put together from an integer number of units, each an ordinary batch of a workload that
was asked for smaller ones. So any workload can do it, and every sample still comes once per pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from murmurate.errors import ConfigError

if TYPE_CHECKING:
    from murmurate.workloads import DataShare

UNITS = 8
"""A batch grows from one of so many equal parts."""


def unit_of(batch_size: int) -> int:
    """How large a unit is: the batch's size over as many equal parts as there can be, up to 8."""
    units = max(count for count in range(1, UNITS + 1) if batch_size % count == 0)
    if units == 1:
        raise ConfigError(
            f"batch_warmup: a batch of {batch_size} has no equal parts to grow by; take a"
            f" batch_size that 8 divides, such as {max(1, batch_size // 8) * 8}"
        )
    return batch_size // units


class GrowingBatches:
    """Batches of a size that grows with the part of the budget that is spent."""

    def __init__(
        self, units: Iterator[tuple[torch.Tensor, ...]], batch_size: int, warmup: float
    ) -> None:
        """`units`: batches of `unit_of(batch_size)`, without end. Of full size until `at`."""
        self._units = units
        self._unit = unit_of(batch_size)
        self._most = batch_size // self._unit
        self._warmup = warmup
        self._count = self._most

    def at(self, part: float) -> None:
        """From now on of the size that belongs to this part of the budget."""
        grown = 1.0 if part >= self._warmup else part / self._warmup
        self._count = max(1, min(self._most, 1 + int(grown * (self._most - 1))))

    @property
    def size(self) -> int:
        """Samples in the next batch."""
        return self._count * self._unit

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return self

    def __next__(self) -> tuple[torch.Tensor, ...]:
        parts = [next(self._units) for _ in range(self._count)]
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def batches_of(
    make: Callable[[DataShare], Iterator[tuple[torch.Tensor, ...]]],
    share: DataShare,
    warmup: float,
) -> Iterator[tuple[torch.Tensor, ...]]:
    """The batches that are made of a share; with a warm-up ones that grow."""
    if not warmup:
        return make(share)
    units = make(replace(share, batch_size=unit_of(share.batch_size)))
    return GrowingBatches(units, share.batch_size, warmup)
