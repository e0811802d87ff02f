"""What members add up at each step: their gradients, statistics, and a few words in numbers.

One flat buffer, so that a step is one sum. Behind gradients and statistics stand the weight of the
contribution (1, or 0 of one that has nothing to give), samples, whether somebody should be taken
in, whether groups change, whether something comes from other groups, what each member is about to
do, and which parameters have a gradient at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from murmurate.core.layout import Layout, tracked

TRAINING, DONE, GOING = 0, 1, 2
"""What a member is about to do: the next step; nothing more, but to wait for the others; to leave
after this one."""
HEAD = 5


class Said(NamedTuple):
    """What all said together, with one step."""

    weight: float
    """Members whose gradient is in the mean."""
    samples: int
    wish: bool
    """Somebody waits to be taken in."""
    moves: bool
    """Who is in which group was drawn anew."""
    gives: bool
    """Who speaks for the group has something of others for it, after this step."""
    intents: tuple[int, ...]
    """By rank."""


class JointGradient:
    """The buffer of one group. Of no other: a sum that was given up may still write into it."""

    def __init__(
        self,
        model: torch.nn.Module,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        size: int,
        device: torch.device,
    ) -> None:
        self._layout = layout
        self._parameters = parameters
        self._statistics = list(tracked(model).values()) if layout.trained < layout.size else []
        self._size = size
        self._tail = layout.size
        total = layout.size + HEAD + size + len(parameters)
        self.flat = torch.zeros(total, dtype=layout.dtype, device=device)
        self._views = [
            self.flat[layout.span(index)].view(parameter.shape)
            for index, parameter in enumerate(parameters)
        ]
        self._present = slice(total - len(parameters), total)

    def fill(
        self,
        rank: int,
        intent: int,
        samples: int,
        *,
        contributes: bool,
        wish: bool,
        moves: bool = False,
        gives: bool = False,
    ) -> bool:
        """With what this member has; whether its gradient is in it: not if it is no number."""
        flat, trained = self.flat, self._layout.trained
        gradients = [parameter.grad for parameter in self._parameters]
        there = [gradient is not None for gradient in gradients]
        if contributes:
            self._gather(gradients)
            contributes = bool(torch.isfinite(flat[:trained].sum()))
        words = [float(each) for each in (contributes, samples, wish, moves, gives)]
        words += [0.0] * self._size
        words[HEAD + rank] = float(intent)
        if contributes:
            place = trained
            for each in self._statistics:
                end = place + each.tensor.numel()
                flat[place:end].copy_(each.tensor.reshape(-1))
                place = end
            words += [float(each) for each in there]
        else:
            flat[: self._tail] = 0.0
            words += [0.0] * len(there)
        flat[self._tail :] = torch.tensor(words, dtype=flat.dtype)
        return contributes

    def _gather(self, gradients: Sequence[torch.Tensor | None]) -> None:
        dense = [
            gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient
            for gradient in gradients
        ]
        whole = [each for each in dense if each is not None]
        if len(whole) == len(dense) and all(
            each.device == self.flat.device and each.dtype == self.flat.dtype for each in whole
        ):
            torch.cat([each.reshape(-1) for each in whole], out=self.flat[: self._layout.trained])
            return
        for view, gradient in zip(self._views, dense, strict=True):
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)

    def said(self) -> Said:
        """What the sum of all says."""
        words = self.flat[self._tail : self._present.start].tolist()
        return Said(
            weight=words[0],
            samples=round(words[1]),
            wish=words[2] > 0,
            moves=words[3] > 0,
            gives=words[4] > 0,
            intents=tuple(round(each) for each in words[HEAD:]),
        )

    def put_back(self, weight: float) -> None:
        """The mean becomes the gradient of the parameters, and their statistics. Nobody had one:
        there is none, and an optimizer leaves such a parameter as it is."""
        if weight <= 0:
            for parameter in self._parameters:
                parameter.grad = None
            return
        if weight != 1:
            self.flat[: self._tail].mul_(1.0 / weight)
        present = self.flat[self._present].tolist()
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for parameter, view, count in zip(self._parameters, self._views, present, strict=True):
            if count <= 0:
                parameter.grad = None
                continue
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            targets.append(parameter.grad)
            sources.append(view)
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)
        place = self._layout.trained
        for each in self._statistics:
            end = place + each.tensor.numel()
            each.tensor.data.copy_(self.flat[place:end].view(each.tensor.shape))
            place = end
