"""A step on a gradient that is no number is not taken, where the optimizer would remember it.

Weights are taken back anyway when an update cannot be used (`training.publisher`), but the moments
of Adam and its kin would stay NaN, and every later step with them: one bad batch would end a node.
"""

from __future__ import annotations

import math
from typing import Any

import torch


class FiniteSteps:
    """Looks at the gradients before a step, and hides those that must not be taken."""

    def __init__(self) -> None:
        self._hidden: list[tuple[torch.nn.Parameter, torch.Tensor]] = []

    def before(self, optimizer: torch.optim.Optimizer, args: Any, named: Any) -> None:
        """A step is about to be taken."""
        self._hidden = []
        if len(args) > 1 or named or not _remembers(optimizer) or hasattr(optimizer, "found_inf"):
            return  # a closure computes them yet; a scaler looks itself
        stepped = [
            (parameter, gradient)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if (gradient := parameter.grad) is not None
        ]
        if _finite([gradient for _, gradient in stepped]):
            return
        self._hidden = stepped
        for parameter, _ in stepped:
            parameter.grad = None

    def after(self) -> bool:
        """The step is over. Whether it was left out; the gradients are where they were."""
        hidden, self._hidden = self._hidden, []
        for parameter, gradient in hidden:
            parameter.grad = gradient
        return bool(hidden)


def _remembers(optimizer: torch.optim.Optimizer) -> bool:
    if isinstance(optimizer, torch.optim.SGD):
        return any(group["momentum"] for group in optimizer.param_groups)
    return True


def _finite(gradients: list[torch.Tensor]) -> bool:
    dense = [each.coalesce().values() if each.is_sparse else each for each in gradients]
    narrow = [each for each in dense if each.dtype in (torch.float16, torch.bfloat16)]
    wide = [each for each in dense if each.dtype not in (torch.float16, torch.bfloat16)]
    with torch.no_grad():
        # A norm of few bits overflows long before its numbers do.
        if not all(bool(torch.isfinite(each).all()) for each in narrow):
            return False
        return not wide or all(_all_finite(each) for each in _by_device(wide))


def _all_finite(gradients: list[torch.Tensor]) -> bool:
    # Each operation takes as long as a small layer; only if this is not sure all are looked at.
    if math.isfinite(sum(torch.stack(torch._foreach_norm(gradients)).tolist())):
        return True
    return all(bool(torch.isfinite(each).all()) for each in gradients)


def _by_device(gradients: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    kinds: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for each in gradients:
        kinds.setdefault((each.device, each.dtype), []).append(each)
    return list(kinds.values())
