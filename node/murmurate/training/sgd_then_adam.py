"""Two stages: plain SGD during the warm-up, Adam after it (paper 003).

Adam divides by what it has seen of the gradients, which at the beginning is little, and of a large
batch soon decides much. SGD makes the first steps instead; Adam then begins with weights that are
no longer random, and with moments of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SGD, ADAM = 1, 2


class SgdThenAdam(torch.optim.Optimizer):
    """An ordinary torch optimizer; `change_over()` begins its second stage. Which stage it is in is
    in its groups, and so in its `state_dict()`."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        sgd_lr: float = 0.1,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        """`lr`: Adam's."""
        first = [torch.nn.Parameter(torch.zeros(1))]  # only to be told what is right, and defaults
        sgd = torch.optim.SGD(first, lr=sgd_lr, momentum=momentum, nesterov=nesterov)
        adam = torch.optim.Adam(first, lr=lr, weight_decay=weight_decay)
        self._stages: dict[int, torch.optim.Optimizer] = {SGD: sgd, ADAM: adam}
        rates = {"lr": sgd_lr, "adam_lr": lr, "stage": SGD, "weight_decay": weight_decay}
        super().__init__(params, {**sgd.defaults, **adam.defaults, **rates})

    @property
    def second(self) -> bool:
        """Whether Adam makes the steps now."""
        return all(group["stage"] == ADAM for group in self.param_groups)

    def change_over(self) -> None:
        """Adam makes the steps from now on, at its own rate; nothing of SGD's momentum is kept."""
        if self.second:
            return
        self.state.clear()
        for group in self.param_groups:
            group["stage"], group["lr"] = ADAM, group["adam_lr"]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of the stage it is in."""
        stage = self._stages[ADAM if self.second else SGD]
        stage.param_groups, stage.state = self.param_groups, self.state  # also after a restart
        return stage.step(closure) if closure is not None else stage.step()
