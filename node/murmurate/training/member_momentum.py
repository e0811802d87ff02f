"""Momentum at a member whose rule asks for it (`ea-msgd`): v = mu v + g, and the optimizer's step
is made with v in the gradient's place.

An optimizer that has a momentum of its own keeps it, and nothing is added here.
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate.errors import ConfigError


class MemberMomentum:
    """Around the steps of one optimizer, until `close`."""

    def __init__(self, optimizer: torch.optim.Optimizer, momentum: float) -> None:
        for group in optimizer.param_groups:
            own = group.get("momentum", 0.0)
            if isinstance(own, float | int) and not 0 <= own < 1:
                raise ConfigError(f"momentum {own:g}: must be from 0 on, below 1")
        self._momentum = momentum
        self._groups = optimizer.param_groups
        self._velocity: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._gradients: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, *_: Any) -> None:
        for group in self._groups:
            if group.get("momentum", 0.0) or "betas" in group:
                continue
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._gradients.append((parameter, parameter.grad))
                    parameter.grad = self._moved(parameter, parameter.grad)

    def _moved(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
        velocity = self._velocity.get(parameter)
        if velocity is None:
            self._velocity[parameter] = velocity = gradient.detach().clone()
        else:
            velocity.mul_(self._momentum).add_(gradient.detach())
        return velocity

    def _after(self, *_: Any) -> None:
        """The loop finds its gradients as it left them."""
        gradients, self._gradients = self._gradients, []
        for parameter, gradient in gradients:
            parameter.grad = gradient
