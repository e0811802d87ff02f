"""The parameters of a node as they were last set: at the flat weights, or ahead of them.

What local steps gained is counted from there, so any change to the parameters since, by whatever
means, is in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from murmurate.core import buffers
from murmurate.core.layout import Layout
from murmurate.core.publishing.statistics import LOOP, SMOOTHED
from murmurate.training.background import Background
from murmurate.training.gain import OptimizerGain
from murmurate.training.gains import OptimizerGains

log = logging.getLogger("murmurate")

ALL = slice(None)
ROUNDING = 1e-6
"""Beside a weight and the largest: who writes into parameters does not change all by so little."""


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
        self.constraint: Callable[[], object] | None = None
        """Brings them to where they may be, in place; the same on every peer."""
        self.mixed = False
        """Whether the weights are this node's own, and mixed with the others'."""
        self._told = False
        self._unseen = 0.0

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

    def constrained(self, update: torch.Tensor, place: slice) -> torch.Tensor:
        """The update so that weights which may be where they are stay so when all members have made
        one like it; and a part of the way back, if they are beyond: a part, or all would go back at
        once, by as much as one should (as with statistics, `core.publishing.statistics`)."""
        if self.constraint is None:
            return update
        members = 1 if self.mixed else max(1, self.background.members_live())
        pull = 1.0 if members < 2 else min(1.0, LOOP / (1.0 + self._unseen))
        kept = self.layout.gather(self.parameters)
        reached = buffers.clone(self.background.weights)
        try:
            back = self._change_at(reached)
            reached[: len(back)].add_(back)
            reached[place].add_(update, alpha=members)
            part = self._change_at(reached).add_(back, alpha=pull).div_(members)[place]
            update[: len(part)].add_(part)
            if not self.at_weights:  # steps stay in them until they are published
                kept[place].add_(part)
        finally:
            self.layout.scatter(kept, self.parameters)
        return update

    def _change_at(self, flat: torch.Tensor) -> torch.Tensor:
        """What the constraint changes of weights, which then are in the parameters."""
        self.layout.scatter(flat, self.parameters)
        before = self.layout.gather(self.parameters)
        self.constrain()
        return self.layout.gather(self.parameters).sub_(before)

    def heard(self, unseen: float) -> None:
        """An update of another came, made without so many of mine."""
        self._unseen += SMOOTHED * (unseen - self._unseen)

    def constrain(self) -> None:
        """Bring them to where they may be."""
        if self.constraint is not None:
            with torch.no_grad():
                self.constraint()

    @contextmanager
    def constrained_for_a_look(self) -> Iterator[None]:
        """They are where they may be as long as somebody looks."""
        if self.constraint is None:
            yield
            return
        kept = self.layout.gather(self.parameters)
        try:
            self.constrain()
            yield
        finally:
            self.layout.scatter(kept, self.parameters)

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
        by = self._beside(self.background.weights)
        if by is None:
            return None
        if self._is_rounding(by):
            # Steps of one who was alone, one by one, and the weights with their sum.
            self.to_weights()
            return None
        if not self._told and not self.owned:
            self._told = True
            log.warning(
                "%s: the parameters were changed beside the optimizers given to join(); such"
                " changes are published, each peer's own, and add up: restore by"
                " swarm.restore(state), clamp by swarm.constrain(clamp), or hand all optimizers"
                " over as a list",
                self.background.name,
            )
        return by

    def end_at_weights(self, placed_at: torch.Tensor) -> None:
        """At the end: what was written into them since they were placed there goes to nobody."""
        if self.owned or self.mixed or self.background.members_live() < 2:
            return
        by = self._beside(placed_at)
        if by is not None and not self._is_rounding(by):
            self.to_weights()
            log.warning(
                "%s: the parameters were changed after the last step of the optimizers given to"
                " join(); nobody else gets that, and the model ends with the swarm's weights:"
                " change them after the `with` block, or restore by swarm.restore(state)",
                self.background.name,
            )

    def _beside(self, placed_at: torch.Tensor) -> torch.Tensor | None:
        """By how much they are not there; None: they are."""
        if self.layout.equal(self.parameters, placed_at):
            return None
        return self.layout.gained(self.parameters, placed_at)

    def _is_rounding(self, by: torch.Tensor) -> bool:
        sizes = self.background.weights.abs()
        return bool((by.abs() <= ROUNDING * (sizes + sizes.max())).all())


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
