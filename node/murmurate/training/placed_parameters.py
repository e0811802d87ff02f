"""The parameters of a node as they were last set: at the flat weights, or ahead of them.

What local steps gained is counted from there, so any change to the parameters since, by whatever
means, is in it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from murmurate.core import buffers
from murmurate.core.layout import Layout
from murmurate.training.background import Background
from murmurate.training.gain import OptimizerGain
from murmurate.training.gains import OptimizerGains

log = logging.getLogger("murmurate")

ALL = slice(None)


class PlacedParameters:
    """Only the thread that trains sets them."""

    def __init__(
        self, background: Background, layout: Layout, parameters: list[torch.nn.Parameter]
    ) -> None:
        self.background = background
        self.layout = layout
        self.parameters = parameters
        self.ahead = False
        """Whether they were set ahead of the weights, for the next gradient."""
        self.view: torch.Tensor | None = None
        """Where they were set, if that has to be known to tell what a step gained."""
        self.at_weights = False
        """Whether they were the weights, to the bit, when they were last set."""
        self.owned = False
        """Whether whoever made this changes them, too, and means it (`groups`)."""
        self._told = False

    def gained(self, place: slice, out: torch.Tensor | None = None) -> torch.Tensor:
        """What they have, in this place, that they had not when they were last set."""
        assert self.view is not None or not self.ahead
        base = self.background.weights if self.view is None else self.view
        if out is None:
            return self.layout.gained(self.parameters, base)
        values = self.layout.values(self.parameters, place)
        count = len(values)
        out[count:] = 0.0  # what is merged has no gain
        torch.sub(values, base[place][:count], out=out[:count])
        return out

    def to_weights(self) -> None:
        """Set them to the weights."""
        self.layout.scatter(self.background.weights, self.parameters)
        self.ahead, self.view = False, None
        self.at_weights = True

    def to_view(self, view: torch.Tensor, *, known: bool) -> None:
        """Set them ahead. `known`: what a step gains will be told by somebody else."""
        self.layout.scatter(view, self.parameters)
        self.view = None if known else view

    @property
    def moved(self) -> bool:
        """Whether they were set to a view, and are not there any more."""
        return self.view is not None and not self.layout.equal(self.parameters, self.view)

    def written(self) -> torch.Tensor | None:
        """By how much they are not the weights, though no step was made; None: they are them. It is
        said once: such a change is published all the same."""
        weights = self.background.weights
        if self.layout.equal(self.parameters, weights):
            return None
        if not self._told and not self.owned:
            self._told = True
            log.warning(
                "%s: the parameters were changed beside the optimizers given to join(); such"
                " changes are published, each peer's own, and add up: restore by"
                " swarm.restore(state), clamp on one peer (if swarm.chosen), or hand all optimizers"
                " over as a list",
                self.background.name,
            )
        return self.layout.gained(self.parameters, weights)


@dataclass(frozen=True, slots=True, eq=False)
class StepsGain:
    """What local steps gained in one place, computed when a rule asks for it."""

    placed: PlacedParameters
    gain: OptimizerGain | OptimizerGains
    place: slice
    out: torch.Tensor | None = None
    """Where the numbers go; None: into a new buffer."""

    def gained(self) -> torch.Tensor:
        return self.placed.gained(self.place, self.out)

    def room(self) -> torch.Tensor:
        layout = self.placed.layout
        return buffers.empty(layout.size, layout.dtype) if self.out is None else self.out

    def add_gain(self, gain: torch.Tensor) -> bool:
        placed = self.placed
        if self.gain.known:
            # Weights decay where they are: gradients were taken ahead, but decay is slow.
            self.gain.add_to(gain, lambda: placed.background.weights)
            if placed.view is not None and (others := self.gain.others()):
                changed = placed.gained(ALL)
                for span in others:
                    gain[span].add_(changed[span])
            return True
        gain.add_(placed.gained(ALL))
        return False

    def members(self) -> int:
        return self.placed.background.members_live()
