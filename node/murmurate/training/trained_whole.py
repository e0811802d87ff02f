"""The model that a hub's member trains, inside the user's loop: its own model, its own optimizer.

Where the rule decides centrally, the gradient is taken before the step of the optimizer, which then
finds none and changes nothing: neither weights nor momentum. After it the gradients are back where
they were. Where the rule leaves steps to the members, the optimizer does what it always does, and
keeps its state when weights come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from murmurate.core.partition.structure import Held
from murmurate.core.partition.whole import whole_structure
from murmurate.core.values.member_half import MemberHalf
from murmurate.errors import ConfigError, LocalProtocolError
from murmurate.training.member_momentum import MemberMomentum
from murmurate.training.member_values import MemberValues
from murmurate.training.model_tensors import ModelTensors


class TrainedWhole:
    """The same calls as `TrainedSubnet`. Only the training thread calls it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seen: Callable[[tuple[Any, ...]], None],
    ) -> None:
        mine = {id(p) for p in model.parameters()}
        theirs = [p for group in optimizer.param_groups for p in group["params"]]
        if not any(id(p) in mine for p in theirs):
            raise ConfigError("optimizer: none of its parameters is the model's")
        self.model = model
        self.optimizer = optimizer
        self.structure = whole_structure(model)
        self._tensors = ModelTensors()
        self._values: MemberValues | None = None
        self._momentum: MemberMomentum | None = None
        """Where the rule asks for it. It outlives a lease, as an optimizer's state does."""
        self._lease = 0
        self._hidden: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._fresh = False
        self._hooks = [
            model.register_forward_pre_hook(self._called(seen)),
            optimizer.register_step_pre_hook(self._before_step),
        ]

    def adopt(
        self, half: MemberHalf, held: Held, values: Mapping[str, torch.Tensor], lease: int
    ) -> None:
        """Train these weights from now on. What is added (`Down.ADD`) is so under one lease only:
        another one begins with the weights themselves."""
        del held
        if self._values is None or self._values.half != half or lease != self._lease:
            self._values = MemberValues(half, self._tensors)
            if self._momentum is None and half.momentum:
                self._momentum = MemberMomentum(self.optimizer, half.momentum)
            self._values.replace(self.model, values)
        else:
            self._values.down(self.model, values)
        self._lease = lease
        self._fresh = True

    def stepped(self) -> None:
        """The optimizer's step is over."""
        if self._fresh:
            self._fresh = False
            if not self._hidden and all(p.grad is None for p in self._parameters()):
                raise LocalProtocolError(
                    "the step changed nothing: no parameter of the model given to join() has a"
                    " gradient"
                )
        hidden, self._hidden = self._hidden, []
        for parameter, gradient in hidden:
            if parameter.grad is None:
                parameter.grad = gradient

    def up(self) -> dict[str, torch.Tensor]:
        """What goes into a push, as copies."""
        assert self._values is not None
        return self._values.up(self.model)

    def close(self) -> None:
        """The model and its optimizer are the loop's alone again."""
        for hook in self._hooks:
            hook.remove()
        if self._momentum is not None:
            self._momentum.close()

    def _before_step(self, *_: Any) -> None:
        values = self._values
        if values is None or not values.half.central:
            return
        values.stepped(self.model)
        for parameter in self._parameters():
            if parameter.grad is not None:
                self._hidden.append((parameter, parameter.grad))
                parameter.grad = None

    def _parameters(self) -> list[nn.Parameter]:
        return [p for p in self._tensors(self.model).values() if isinstance(p, nn.Parameter)]

    def _called(self, seen: Callable[[tuple[Any, ...]], None]) -> Callable[..., None]:
        def called(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module.training and torch.is_grad_enabled():
                seen(args)

        return called
