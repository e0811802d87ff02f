"""What a model is called with while it is trained: how many samples, and which batches first.

Samples are rows of the first tensor of a call, added up until the next step. That is what most
loops mean by them; whoever counts otherwise says so by `swarm.log(samples=…)`, and that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from murmurate.core.figures.progress import BATCHES_MAX
from murmurate.core.figures.same_batches import number_of


class BatchWatch:
    """Sees the arguments of each training call of one model."""

    def __init__(self) -> None:
        self.first: list[int] = []
        """What stands for the first batches."""
        self._samples = 0

    def called(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        batch = _tensor((*args, *named.values()))
        if batch is None or batch.dim() == 0:
            return
        self._samples += batch.shape[0]
        if len(self.first) < BATCHES_MAX and (number := number_of(batch)) is not None:
            self.first.append(number)

    def stepped(self) -> int:
        """The samples since the last step."""
        samples, self._samples = self._samples, 0
        return samples


def _tensor(values: Iterable[Any], depth: int = 0) -> torch.Tensor | None:
    """The first tensor among these, also inside a list or a dictionary."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        inner: Iterable[Any] = ()
        if isinstance(value, Mapping):
            inner = value.values()
        elif isinstance(value, list | tuple):
            inner = value
        if depth < 2 and (found := _tensor(inner, depth + 1)) is not None:
            return found
    return None
