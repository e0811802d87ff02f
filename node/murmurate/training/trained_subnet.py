"""The subnet that a member trains, inside the user's loop: one model object, one optimizer.

`CurrentSubnet` is what the loop calls. It stays the same object while subnets come and go inside
it, and the optimizer stays the user's: its groups get the parameters of the subnet, by name, and
its state starts anew with every subnet, as in the reference code of paper 001.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from murmurate.core.partition import Structure, build
from murmurate.core.partition.structure import Held
from murmurate.core.values.member_half import MemberHalf
from murmurate.errors import ConfigError, LocalProtocolError
from murmurate.training.member_values import MemberValues


class CurrentSubnet(nn.Module):
    """The subnet that is trained now, under one name. Calls go to it, and so does every attribute
    it has; `train()` and `eval()` reach it too."""

    subnet: nn.Module | None

    def __init__(
        self,
        begin: Callable[[tuple[Any, ...]], None],
        seen: Callable[[tuple[Any, ...]], None],
    ) -> None:
        """`begin` is called with what the model is called with, while there is no subnet yet;
        `seen` with what it is trained on."""
        super().__init__()
        self.subnet = None
        object.__setattr__(self, "_begin", begin)  # no part of the module
        object.__setattr__(self, "_seen", seen)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        subnet = self._modules.get("subnet")  # not by attribute: that takes several times as long
        if subnet is None:
            self._begin(args)
            subnet = self._modules["subnet"]
        assert subnet is not None
        if self.training and torch.is_grad_enabled():
            self._seen(args)
        return subnet(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            subnet = self.__dict__.get("_modules", {}).get("subnet")
            if subnet is None:
                raise
            return getattr(subnet, name)


class TrainedSubnet:
    """A model that is never trained as a whole, its optimizer, and the subnet both are about now.
    Only the training thread calls it."""

    def __init__(
        self, whole: nn.Module, optimizer: torch.optim.Optimizer, current: CurrentSubnet
    ) -> None:
        self.whole = whole
        self.optimizer = optimizer
        self.current = current
        self.structure: Structure
        """Found when the model is called first."""
        self._names = _names(whole, optimizer)
        self._values: MemberValues | None = None
        self._held: Held | None = None
        self._fresh = False
        """No step was made yet with this subnet."""

    def adopt(
        self, half: MemberHalf, held: Held, values: Mapping[str, torch.Tensor], lease: int
    ) -> None:
        """Train these units from now on."""
        del lease
        subnet, kept = self.current.subnet, self._values
        same = self._held is not None and bool((self._held == held).all())
        if subnet is not None and same and kept is not None and kept.half == half:
            kept.down(subnet, values)
        else:
            subnet = self._made(held, values)
            subnet.train(self.current.training)
            self.current.subnet, self._held = subnet, held
            self._bind(subnet)
            self._values = MemberValues(half)
            self._values.begin(subnet)
        self.optimizer.state.clear()
        self._fresh = True

    def stepped(self) -> None:
        """The optimizer has made a step. Once for each subnet it is checked that it was one: a loop
        that calls the model it has joined with trains nothing."""
        if self._fresh:
            self._fresh = False
            if all(p.grad is None for p in self.current.parameters()):
                raise LocalProtocolError(
                    "the step changed nothing: call swarm.model, not the model given to join()"
                )
        assert self._values is not None
        assert self.current.subnet is not None
        self._values.stepped(self.current.subnet)

    def close(self) -> None:
        """The model given to join() was never changed."""

    def up(self) -> dict[str, torch.Tensor]:
        """What goes into a push, as copies."""
        assert self._values is not None
        assert self.current.subnet is not None
        return self._values.up(self.current.subnet)

    def _made(self, held: Held, values: Mapping[str, torch.Tensor]) -> nn.Module:
        subnet = build(self.whole, self.structure, held, values)
        for name, tensor in (*subnet.named_parameters(), *subnet.named_buffers()):
            if tensor.is_meta:
                raise ConfigError(
                    f"model: {name} is not saved with the model (persistent=False) and has no value"
                    " on the meta device: make it where it is used, or save it"
                )
        return subnet

    def _bind(self, subnet: nn.Module) -> None:
        """The optimizer's groups get the subnet's parameters; settings stay with their group."""
        mine = dict(subnet.named_parameters())
        for group, names in zip(self.optimizer.param_groups, self._names, strict=True):
            group["params"] = [mine[name] if isinstance(name, str) else name for name in names]


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str | torch.Tensor]]:
    """By group of the optimizer the names of its parameters; what is not the model's stays."""
    names = {id(p): name for name, p in model.named_parameters()}
    groups: list[list[str | torch.Tensor]] = [
        [names.get(id(p), p) for p in group["params"]] for group in optimizer.param_groups
    ]
    if not any(isinstance(each, str) for group in groups for each in group):
        raise ConfigError("optimizer: none of its parameters is the model's")
    return groups
