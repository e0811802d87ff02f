"""LARS: a rate for each layer, for large batches (You et al.; paper 003).

    local = trust · ‖w‖ / (‖g‖ + wd · ‖w‖)
    v     = momentum · v + local · (g + wd · w)
    w     = w - lr · v

Each tensor moves by about lr · trust of its own size, however large its gradient is. So `lr` is a
number above 1, not near 0.1, and a layer whose gradients are small against its weights is not left
behind when the batch, and with it the rate, grows. A tensor that is zero, or whose gradient is, has
no size to go by: there `local` is `trust`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TRUST = 0.001


class Lars(torch.optim.Optimizer):
    """An ordinary torch optimizer, for whoever writes a training loop."""

    def __init__(
        self,
        params: Any,
        lr: float = 3.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        trust: float = TRUST,
    ) -> None:
        if not lr >= 0 or not 0 <= momentum < 1 or not weight_decay >= 0 or not trust > 0:
            raise ValueError(
                f"Lars: lr {lr}, momentum {momentum}, weight_decay {weight_decay}, trust {trust}:"
                " expected numbers from 0 on, a momentum below 1 and a trust above 0"
            )
        if nesterov and not momentum:
            raise ValueError("Lars: nesterov needs a momentum above 0")
        settings = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "trust": trust,
        }
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of every tensor that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            momentum, decay = float(group["momentum"]), float(group["weight_decay"])
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad
                gradient = gradient.to_dense() if gradient.is_sparse else gradient
                state = self.state[parameter]
                state["local"] = local_rate(parameter, gradient, decay, float(group["trust"]))
                step = gradient.add(parameter, alpha=decay).mul_(state["local"])
                if momentum:
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(parameter)
                    kept = state["momentum_buffer"].mul_(momentum).add_(step)
                    step = step.add_(kept, alpha=momentum) if group["nesterov"] else kept
                parameter.add_(step, alpha=-float(group["lr"]))
        return loss


def local_rate(weights: torch.Tensor, gradient: torch.Tensor, decay: float, trust: float) -> float:
    """What the rate is multiplied by for this tensor."""
    size, slope = float(weights.norm()), float(gradient.norm())
    return trust * size / (slope + decay * size) if size > 0 and slope > 0 else trust
