"""The training loss as nodes show it: the mean of the last minibatches, not the last one of them.

One minibatch's loss jumps by its own size where batches are small, and a curve of such points can
be read as anything. It is of one node's own data, in training mode (dropout is on), at the weights
that gradients were taken at, so it does not compare with a test loss to the last digit.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STEPS = 20
"""Local steps whose mean it is; of fewer, as long as there are no more."""


class TrainingLoss:
    """Of one node. Values stay where they were computed until somebody asks for the mean: fetching
    one lets a GPU finish all that it has begun."""

    def __init__(self) -> None:
        self._last: deque[torch.Tensor] = deque(maxlen=STEPS)

    def add(self, loss: torch.Tensor) -> None:
        """A local step had this loss."""
        self._last.append(loss.detach())

    @property
    def known(self) -> bool:
        """Whether there was a step."""
        return bool(self._last)

    def mean(self) -> float:
        """NaN: there was no step yet, or one of these was none."""
        if not self._last:
            return math.nan
        return sum(float(each) for each in self._last) / len(self._last)
