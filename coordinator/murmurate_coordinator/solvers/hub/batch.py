"""Gradients that wait for others, as one sum: so memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.leases import Values


class GradientBatch:
    """The sum of what came since the last update, each as the mean of its own steps."""

    def __init__(self) -> None:
        self.count = 0
        self.owners: set[str] = set()
        self.sum: dict[str, torch.Tensor] = {}

    def add(self, push: MemberPush, trained: Iterable[str], weight: float = 1.0) -> None:
        """The first one's tensors are the sum's from now on: nothing is copied."""
        for name in trained:
            if push.steps > 1 or weight != 1.0:
                push.values[name].mul_(weight / push.steps)
        if not self.count:
            self.sum = dict(push.values)
        else:
            for name, value in push.values.items():
                self.sum[name].add_(value)
        self.count += 1
        self.owners.add(push.peer)

    def take(self) -> dict[str, torch.Tensor]:
        """The sum; the next batch begins."""
        out, self.sum = self.sum, {}
        self.count = 0
        self.owners = set()
        return out

    # -- over a restart ----------------------------------------------------------------------------

    def save(self, tensors: dict[str, torch.Tensor]) -> list[object]:
        tensors.update({f"batch/{name}": value.clone() for name, value in self.sum.items()})
        return [self.count, sorted(self.owners)]

    def load(self, tensors: Values, about: list[object]) -> None:
        count, owners = about
        assert isinstance(count, int)
        assert isinstance(owners, list)
        self.count, self.owners = count, {str(name) for name in owners}
        prefix = "batch/"
        self.sum = {
            name.removeprefix(prefix): value.clone()
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
