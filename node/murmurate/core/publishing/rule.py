"""What an origin makes of its own steps: the seam between a rule and whoever publishes.

A rule is a pure object, one for each node. The publisher (`training.publisher`) tells it of every
local step and of every update that goes into the weights, own or another's, and asks it two things:
what to publish of a span of steps, and where the next gradient is to be taken. What a rule
publishes is added as it is by everyone, its origin too; so replicas agree whatever the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from murmurate.core.publishing.likeness import Likeness


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What a rule is made for."""

    size: int
    """Numbers in the flat weights."""
    dtype: torch.dtype = torch.float32
    places: Sequence[slice] = (slice(None),)
    """Where they are published: all at once, or a part at a time."""
    every: int = 1
    """Local steps per update, as far as links allow."""
    data: str = "same"
    """What is said of the peers' data (`core.gossip.ways.DATA`)."""
    likeness: Likeness | None = None
    """Who is told what was gained, by a rule whose gains are without momentum."""


class Span(Protocol):
    """The steps since an origin's last update. Each figure is computed when it is asked for."""

    @property
    def place(self) -> slice:
        """The part of the flat weights that is concerned: all of them, or one part's turn."""

    def gained(self) -> torch.Tensor:
        """What the parameters have, in this place, that they had not when they were last set, to
        the weights or ahead of them. Not for a rule that reads gains and leads.

        A new buffer, which the rule may change.
        """

    def room(self) -> torch.Tensor:
        """Memory for the update of this place, with anything in it; where it is sent from, if that
        is known."""

    def add_gain(self, gain: torch.Tensor) -> bool:
        """Add what the last step gained, all of it, without the optimizer's own momentum; False:
        that cannot be known of this optimizer, and what it changed was added, momentum and all."""

    def members(self) -> int:
        """How many members are believed alive, this node included."""


class PublishingRule(Protocol):
    """Makes updates of what an origin's steps gained."""

    @property
    def reads_gains(self) -> bool:
        """Whether it takes what can be read of an optimizer (`Span.add_gain`), so that nobody need
        remember where it led the parameters."""

    def stepped(self, span: Span) -> bool:
        """A local step was taken. True: the rule has taken what was gained into itself, and the
        parameters are to be the weights again."""

    @property
    def fresh(self) -> bool:
        """Whether an update of more steps, made when a busy link is free again, is better than
        several of a few steps each that wait for it and are summed there."""

    def update(self, span: Span) -> torch.Tensor:
        """What is to be published of a span of steps, before it is encoded."""

    def applied(self, update: Any, *, own: bool, unseen: float = 0.0) -> None:
        """An update is in the weights from now on, as it was sent: a tensor, or a part of one, or
        another's message, which may be a sum of several. What encoding left out of an own one stays
        in the parameters; a rule that takes the gains keeps it itself. `unseen`: so many updates of
        mine its origin had not seen when it was begun."""

    def changed(self, by: torch.Tensor) -> None:
        """The parameters were changed beside the optimizer, in a rule that leads: the change is the
        rule's from now on, on the way it leads and in an update."""

    def restored(self) -> None:
        """The weights were restored, by whomever: where steps led before says nothing any more."""

    def rest(self) -> torch.Tensor | None:
        """What encoding left out, as far as it is in the rule, which then has it no more."""

    def forget(self) -> None:
        """The steps since the last update are void: the parameters are the weights again."""

    def state(self) -> dict[str, Any]:
        """What a restart goes on with: numbers, lists and tensors, by name. The tensors are the
        rule's own, and change with its next call."""

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Be as the rule was that told this state."""

    def leads(self, span: Span) -> bool:
        """Whether the next gradient is to be taken ahead of the weights; False: where the origin's
        own unpublished steps have led, which then stay in the parameters."""

    def lead(self, flat: torch.Tensor) -> None:
        """Move `flat` to there: it has the weights, the first so many of them. In place, for models
        are large."""
