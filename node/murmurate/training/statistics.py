"""A model's running statistics (batch-norm): the node's own while it trains, the swarm's otherwise.

What they are, and what is published of them, is in `core.publishing.statistics`. Here is which of
both is in the buffers. A module in training mode writes its statistics at each call and reads none,
so it has the node's own; one in evaluation mode, and whoever saves or copies the model, gets the
swarm's. What somebody else writes into the buffers is the node's own from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from murmurate.core.layout import Layout, tracked
from murmurate.core.publishing.statistics import MergedStatistics
from murmurate.training.hook import Hook
from murmurate.training.merged_numbers import MergedNumbers


def first_weights(
    layout: Layout, parameters: Sequence[torch.Tensor], model: torch.nn.Module
) -> torch.Tensor:
    """The flat weights of a model as it is, with its statistics where the layout has room for them,
    and second moments of which nothing is known yet; a new buffer."""
    if layout.trained == layout.size:
        return layout.gather(parameters)
    running = tracked(model).values() if layout.statistics.stop > layout.trained else ()
    return layout.gather_all([*parameters, *(each.tensor for each in running)])


class ModelStatistics(MergedNumbers):
    """The running statistics in the buffers of one model. Of a model without any, nothing."""

    def __init__(self, model: torch.nn.Module, layout: Layout, *, mixed: bool = False) -> None:
        super().__init__(layout, layout.statistics)
        self._tracked = list(tracked(model).values()) if self else []
        self._sizes = [each.tensor.numel() for each in self._tracked]
        self._own = [True] * len(self._tracked)
        """Which buffers have the node's own in them, and not the swarm's."""
        now = self._read()
        self._seen = now.clone()
        """What was last written into the buffers."""
        self._hooks: list[Any] = []
        self._fresh = True
        """Whether no step was taken since the swarm's were adopted."""
        self.merged = MergedStatistics(now, self._mask("running_var"), mixed=mixed)

    # -- what is in the buffers ------------------------------------------------------------------

    def adopt(self, weights: torch.Tensor) -> None:
        """Begin with the swarm's."""
        if self._tracked:
            super().adopt(weights)
            self._fresh = True
            self._write(self._own, weights)

    def called(self, weights: torch.Tensor) -> None:
        """The model is about to compute: each module has what its mode wants."""
        wanted = [self.merged.alone or each.module.training for each in self._tracked]
        if wanted != self._own:
            self._take()
            self._write(wanted, weights)

    def stepped(self, members: int) -> None:
        """A step was taken, with so many members."""
        if self._tracked:
            self._take()
            self._fresh = False
            self.merged.alone = members < 2

    def show(self, weights: torch.Tensor, *, changed: bool = False) -> None:
        """Set the buffers to the swarm's. `changed`: also where they are already, for these are
        others now."""
        alone = self.merged.alone
        wanted = [alone] * len(self._tracked)
        if self._tracked and (wanted != self._own or (changed and not alone)):
            self._take()
            if self._fresh and self.merged.as_told:
                self.merged.adopt(weights[self._place])  # a snapshot may be old, and updates follow
            self._write(wanted, weights)

    def watch(self, weights: Any) -> None:
        """Notice calls of the modules themselves, in a model that is not called as a whole.
        `weights()`: the flat weights as they are then."""
        if self._hooks:
            return
        for module in {id(each.module): each.module for each in self._tracked}.values():
            if not isinstance(module, torch.jit.ScriptModule):  # it takes no hooks
                act = Hook(lambda *_: self.called(weights()))
                self._hooks.append(module.register_forward_pre_hook(act))

    def remove(self) -> None:
        """From now on nobody watches."""
        for hook in self._hooks:
            hook.remove()

    # -- what is published -----------------------------------------------------------------------

    def published(self, place: slice, weights: torch.Tensor) -> None:
        """What was asked for in this place is in the weights."""
        if self._tracked:
            super().published(place, weights)
            if not any(self._own):
                self.show(weights, changed=True)

    def mend(self, weights: torch.Tensor) -> None:
        """Steps were taken back: what they made of the statistics is not kept where it is no
        number."""
        if self._tracked:
            self._take()
            self.merged.mend(weights[self._place])
            self._write(self._own, weights)

    def written(self, change: torch.Tensor, weights: torch.Tensor) -> None:
        """Somebody has set the buffers to what the swarm's should be: put into `change` by how much
        these are others."""
        if self._tracked:
            change[self._place] = self._read() - weights[self._place]

    # -- inside --------------------------------------------------------------------------------

    def _mask(self, key: str) -> torch.Tensor:
        return self._each([each.key == key for each in self._tracked])

    def _each(self, values: list[bool]) -> torch.Tensor:
        """For every number what is said of its tensor."""
        return torch.repeat_interleave(torch.tensor(values, dtype=torch.bool), self._counts())

    def _counts(self) -> torch.Tensor:
        return torch.tensor(self._sizes, dtype=torch.int64)

    def _read(self) -> torch.Tensor:
        flat = torch.empty(sum(self._sizes), dtype=self._layout.dtype)
        for part, each in zip(torch.split(flat, self._sizes), self._tracked, strict=True):
            part.copy_(each.tensor.reshape(-1))
        return flat

    def _take(self) -> None:
        """Whatever was written into the buffers is the node's own."""
        now = self._read()
        if all(self._own):
            self.merged.own.copy_(now)
        else:
            written = now != self._seen
            if any(self._own):
                written |= self._each(self._own)
            self.merged.own.copy_(torch.where(written, now, self.merged.own))

    def _write(self, own: list[bool], weights: torch.Tensor) -> None:
        self._own = list(own)
        flat = self.merged.own
        if not all(own):
            shown = self.merged.shown(weights[self._place])
            flat = torch.where(self._each(own), flat, shown) if any(own) else shown
        tensors = [each.tensor for each in self._tracked]
        for tensor, part in zip(tensors, torch.split(flat, self._sizes), strict=True):
            # As torch's own kernels write them: without a word to autograd, which keeps a reference
            # from the forward pass on and would refuse the backward pass.
            tensor.data.copy_(part.view(tensor.shape))
        exact = all(t.is_cpu and t.dtype is flat.dtype for t in tensors)
        self._seen = flat.clone() if exact else self._read()
