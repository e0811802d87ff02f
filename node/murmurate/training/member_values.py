"""What a member sends up of its model and does with what comes down, as its rule's half says.

values = MemberValues(half)
values.begin(model)                # what was given is in the model: count from here
… a step … values.stepped(model)   # where gradients go up, they are summed
values.up(model)                   # copies for a push: all since what was given last
                                   # (pipelined: since the last push)
values.down(model, given)          # the same tensors are given again: count from there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from murmurate.core.partition.subnet import weights_of, write
from murmurate.core.values.member_half import Down, MemberHalf, Up

Values = Mapping[str, torch.Tensor]


class MemberValues:
    """One model under one half. Where weights go up and replace, it holds nothing and costs
    nothing."""

    def __init__(
        self,
        half: MemberHalf,
        tensors: Callable[[nn.Module], Mapping[str, torch.Tensor]] = weights_of,
    ) -> None:
        """`tensors`: those of a model by name, for who knows where they are."""
        self.half = half
        self._of = tensors
        self._given: dict[str, torch.Tensor] = {}
        """The tensors as they were given, where a difference goes up."""
        self._gradients: dict[str, torch.Tensor] = {}
        """Their sum since then, where gradients go up; of what had none yet: nothing."""

    def begin(self, model: nn.Module) -> None:
        """The model holds what was given: from here on it counts."""
        if self.half.up is not Up.WEIGHTS:
            self._begin(model)

    def _begin(self, model: nn.Module) -> None:
        gradients = self.half.up is Up.GRADIENT
        self._gradients = {}
        self._given = {
            name: value.detach().clone()
            for name, value in self._of(model).items()
            if not (gradients and isinstance(value, nn.Parameter))
        }

    def stepped(self, model: nn.Module) -> None:
        """After a step, whose gradients are still there."""
        if self.half.up is not Up.GRADIENT:
            return
        for name, value in self._of(model).items():
            if not isinstance(value, nn.Parameter) or value.grad is None:
                continue
            if name in self._gradients:
                self._gradients[name].add_(value.grad)
            else:
                dense = value.grad.to_dense() if value.grad.is_sparse else value.grad
                self._gradients[name] = dense.detach().to(value.dtype, copy=True)

    def up(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """What goes into a push: copies, which training does not change any more."""
        out = {}
        gradients = self.half.up is Up.GRADIENT
        for name, value in self._of(model).items():
            if gradients and isinstance(value, nn.Parameter):
                sum_ = self._gradients.get(name)
                out[name] = torch.zeros_like(value.detach()) if sum_ is None else sum_.clone()
            elif name in self._given:
                out[name] = value.detach() - self._given[name]
            else:
                out[name] = value.detach().clone()
        if self.half.pipelined:
            self.begin(model)
        return out

    def down(self, model: nn.Module, values: Values) -> None:
        """A model of the same shapes is given these values."""
        if self.half.down is Down.ADD:
            mine = self._of(model)
            values = {name: mine[name].detach() + value for name, value in values.items()}
        elif self.half.pipelined and self.half.up is Up.DIFFERENCE:
            self._rebase(model, values)
            return
        self.replace(model, values)

    def _rebase(self, model: nn.Module, values: Values) -> None:
        """The model is these values, and what it changed that is not pushed yet on top of them."""
        mine = self._of(model)
        since = {name: mine[name].detach() - given for name, given in self._given.items()}
        write(mine, {name: value + since[name] for name, value in values.items()})
        self._given = {name: value.clone() for name, value in values.items()}

    def replace(self, model: nn.Module, values: Values) -> None:
        """The model is these values from now on."""
        write(self._of(model), values)
        self.begin(model)
