"""Everybody's second moments, where peers hold different data: what Adam and its kin divide by.

A peer whose data has only some labels hardly ever sees a gradient in what the others train, so its
own second moment v is near zero there, and its few gradients become steps as large as everybody's.
So all divide by the same: by V, the mean of what all have. It travels as running statistics do
(`core.publishing.statistics`), in few numbers (`core.second_moments`), and only there: with
data="own", and an optimizer that has second moments. The own part of V is known exactly, and new:

    V   =  v/n + (what W has of the others')
    v*  =  V/n

For all together step along the mean of n gradients. Those of different data have little in common,
and the square of their mean is that much smaller than the mean of their squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from murmurate.core import second_moments
from murmurate.core.layout import Layout
from murmurate.core.publishing.statistics import MergedStatistics
from murmurate.training.gain import OptimizerGain, keeps_squares
from murmurate.training.gains import OptimizerGains
from murmurate.training.merged_numbers import MergedNumbers


def layout_of(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], data: str
) -> tuple[Layout, list[torch.nn.Parameter]]:
    """What a node's flat weights have in them, by what is said of the peers' data; and the trained
    parameters, in order."""
    moments = data == "own" and any(map(keeps_squares, optimizers))
    return Layout.of(model, statistics=True, moments=moments)


class SwarmMoments(MergedNumbers):
    """The second moments of one node's optimizer, and everybody's. Without room for them in the
    layout: none."""

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        gain: OptimizerGain | OptimizerGains,
    ) -> None:
        super().__init__(layout, layout.moments)
        self._parameters = parameters
        self._gain = gain
        self._spans = dict(zip(map(id, parameters), layout.moment_spans(), strict=False))
        count = layout.moments.stop - layout.moments.start
        none = torch.zeros(count, dtype=layout.dtype)
        self.merged = MergedStatistics(none, torch.ones(count, dtype=torch.bool))
        self._others = none.clone()
        """What is known of the others', a part of the mean of all."""
        self._members = 1
        self.late = False
        """Whether all this node has is a snapshot, which may be old: updates follow it."""
        if self:
            gain.divide_by(self._make_everybodys)

    def stepped(self, weights: torch.Tensor, members: int) -> None:
        """A step was taken, with so many members, and its gain is about to be read."""
        if self.late:
            self.late = False
            self.adopt(weights)
        self._members = max(1, members)
        torch.sub(
            weights[self._place], self.merged.told, alpha=1.0 / self._members, out=self._others
        )

    def _make_everybodys(self, parameter: torch.nn.Parameter, own: torch.Tensor) -> None:
        """What the optimizer divides by, from its own."""
        numbers = self._others[self._spans[id(parameter)]]
        others = second_moments.read(numbers, tuple(parameter.shape))
        own.div_(self._members).add_(others.to(own.device, own.dtype)).div_(self._members)

    def _change(self, weights: torch.Tensor, here: slice, members: int) -> torch.Tensor:
        self._read(weights[self._place])
        return super()._change(weights, here, members)

    def _read(self, merged: torch.Tensor) -> None:
        """What the optimizer has now is the own; of what it has nothing, there is nothing to say:
        neither has it changed, nor does it pull."""
        for parameter in self._parameters:
            span = self._spans[id(parameter)]
            numbers = self.merged.own[span]
            square = self._gain.square(parameter)
            if square is not None:
                second_moments.write(square, numbers)
            if square is None or not bool(numbers.isfinite().all()):
                self.merged.follow(span, merged)
