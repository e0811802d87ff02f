"""What is seen of a model: its weights, except while a gradient is taken.

Rule `shared` takes gradients ahead of the weights, about where the swarm will be. Whoever
evaluates, saves or exports the model is to see the weights. So the parameters go ahead when the
model is called to be trained, and come back with the optimizer's step, or as soon as the model is
called otherwise or asked for its state. Running statistics go and come with them: the node's own
in a training call, the swarm's otherwise (`training.statistics`).
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate.training.batch_watch import BatchWatch
from murmurate.training.hook import Hook, computes_nothing
from murmurate.training.loop_watch import LoopWatch
from murmurate.training.loss_watch import LossWatch
from murmurate.training.publisher import Publisher


class ModelSight:
    """Watches one model being called, until it is removed."""

    def __init__(
        self, model: torch.nn.Module, publisher: Publisher, watch: LoopWatch | None = None
    ) -> None:
        self._publisher = publisher
        self.watch = watch
        self.model = model
        self.batches = BatchWatch()
        self.losses = LossWatch()
        self._called = self._called_evaluating = False
        """Whether it was, with a gradient, in training and in evaluation mode since a step."""
        self._trains_evaluating = False
        """Whether steps are made on calls in evaluation mode, as some do who keep normalization or
        dropout as it is: then such a call is to train."""
        self._hooks: list[Any] = []
        if isinstance(model, torch.jit.ScriptModule):
            return  # it takes no hooks: it goes ahead after each step, and comes back at the end
        self._hooks = [
            model.register_forward_pre_hook(Hook(self.called), with_kwargs=True),
            model.register_forward_hook(Hook(self.returned)),
            model.register_state_dict_pre_hook(Hook(self.asked)),  # type: ignore[no-untyped-call]
        ]

    def called(self, model: torch.nn.Module, args: Any = (), named: Any = None) -> None:
        """The model is about to compute something."""
        if computes_nothing():
            return
        if torch.is_grad_enabled():
            self._called |= model.training
            self._called_evaluating |= not model.training
        if self._is_trained(model):
            self._publisher.look.ahead()
            self.batches.called(args, named or {})
            if self.watch is not None:
                self.watch.called()
            return
        self._publisher.look.at_weights(within_step=True)
        if model.training:  # without a gradient, but running statistics are written
            self._publisher.look.at_statistics()

    def returned(self, model: torch.nn.Module, args: Any, output: Any) -> None:
        """The model has computed this."""
        if self._is_trained(model) and not computes_nothing():
            self.losses.returned(output)

    def stepped(self) -> None:
        """A step was made of what was computed."""
        if self.watch is not None:
            self.watch.stepped()
        if self._called or self._called_evaluating:
            self._trains_evaluating = not self._called
        self._called = self._called_evaluating = False

    def over(self) -> None:
        """The block around the loop has ended."""
        if self.watch is not None:
            self.watch.over()

    def _is_trained(self, model: torch.nn.Module) -> bool:
        return (model.training or self._trains_evaluating) and torch.is_grad_enabled()

    def asked(self, *_: Any) -> None:
        """Somebody wants the model's state."""
        self._publisher.look.at_weights(within_step=True)

    def remove(self) -> None:
        """From now on nobody watches; what is seen are the weights."""
        for hook in self._hooks:
            hook.remove()
        self._publisher.statistics.remove()
        self._publisher.look.at_weights()
