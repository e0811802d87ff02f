"""Rules that take the gains of local steps out of the parameters: what they have in common.

Such a rule keeps what was gained since its last update, publishes something made of it, and says
where the next gradient is to be taken; between two steps the parameters are the weights. A node
that is alone publishes what its optimizer does, untouched; it goes over between two updates when
others come, and back when they have gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from murmurate.core import buffers
from murmurate.core.message import Part, Push
from murmurate.core.publishing.company import Company
from murmurate.core.publishing.rule import Making, Span

AnyUpdate: TypeAlias = torch.Tensor | Part | Push
"""As it was made, as it was encoded, or as it was received."""
OwnUpdate: TypeAlias = torch.Tensor | Part


class PublishedPlace:
    """What is kept of one part of the weights, which is published by itself."""

    def __init__(self, place: slice, every: int) -> None:
        self.place = place
        self.steps = 0
        self.span = every
        """Steps of its last publication."""


class TakesGains(ABC):
    """One node's part in the swarm, for flat weights that are published whole or in places, one
    after another."""

    reads_gains = False

    def __init__(self, making: Making) -> None:
        self.company = Company(len(making.places))
        self._alone = True
        self._known = True
        """Whether the gain of the optimizer's steps is without its own momentum."""
        self._gain = torch.zeros(making.size, dtype=making.dtype)
        self._rest: torch.Tensor | None = None
        """What encoding left out, and what was changed by hand: in the next update as it is."""
        self._asked: torch.Tensor | None = None

    @property
    @abstractmethod
    def _places(self) -> list[Any]:
        """What is kept of each part."""

    @abstractmethod
    def _taken(self, span: Span) -> None:
        """Add what the last step gained to the gain."""

    @abstractmethod
    def _make(self, place: Any, update: torch.Tensor, *, onto: bool) -> None:
        """Write the update of what was gained there into memory for it, or add it `onto` what is in
        it; the gain is then zero."""

    @abstractmethod
    def _look(self, place: Any, here: torch.Tensor) -> None:
        """Add to `here`, the first so many numbers of that place, the way from the weights to where
        the next gradient is to be taken."""

    # -- the seam (`core.publishing.rule`) ---------------------------------------------------------

    def stepped(self, span: Span) -> bool:
        """Take the step's gain; alone it stays in the parameters."""
        self.company.members = span.members()
        for place in self._places:
            place.steps += 1
        if self._alone:
            return False
        self._taken(span)
        return True

    @property
    def fresh(self) -> bool:
        """What an update of so many steps should weigh is known when it is made."""
        return True

    def update(self, span: Span) -> torch.Tensor:
        """The update of the steps since the last one; they are in it, and in no other."""
        self.company.members = span.members()
        places = [each for each in self._places if span.place in (each.place, slice(None))]
        whole = len(places) == len(self._places)
        self.company.parts = 1 if whole else len(self._places)
        onto = whole and not self._alone and self._rest is not None
        if self._rest is not None and onto:  # made in its memory, for models are large
            update, self._rest = self._rest, None
        else:
            update = span.gained() if self._alone else span.room()
        for place in places:
            there = update[place.place] if len(places) > 1 else update
            if not self._alone:
                self._make(place, there, onto=onto)
            self._with_rest(place, there)
            place.span, place.steps = max(1, place.steps), 0
        if whole:  # else what waits for its turn is in the gain
            self._asked = None if self._alone else update
            self._alone = self._alone or self.company.members < 2
        return update

    def applied(self, update: AnyUpdate, *, own: bool, unseen: float = 0.0) -> None:
        """An update is in the weights from now on."""
        if own:
            self.company.published()
            self._keep_rest(update)
        elif isinstance(update, Push):
            self.company.heard(len(update.stamps), unseen)

    def changed(self, by: torch.Tensor) -> None:
        """The parameters were changed by hand, beside the optimizer: that goes out as it is."""
        self._rest = by.clone() if self._rest is None else self._rest.add_(by)

    def restored(self) -> None:
        """The weights are others; what a rule remembers of the way, it adds to this."""
        self._asked = None

    def rest(self) -> torch.Tensor | None:
        """What encoding left out, which then is here no more."""
        rest, self._rest = self._rest, None
        return rest

    def forget(self) -> None:
        """The steps since the last update are void."""
        self._gain.zero_()
        self._rest = None
        for place in self._places:
            place.steps = 0

    def leads(self, span: Span) -> bool:
        """Who was alone goes over here, between two updates: then nothing of its own steps is left
        in the parameters."""
        self.company.members = span.members()
        if self._alone and not any(place.steps for place in self._places):
            self._alone = self.company.members < 2
        return not self._alone

    def lead(self, flat: torch.Tensor) -> None:
        """From the weights to the view."""
        if self._rest is not None:
            flat.add_(self._rest[: len(flat)])
        for place in self._places:
            if len(here := flat[place.place]):
                self._look(place, here)

    # -- over a restart --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What was gained and is in no update. Alone it is in the parameters, and not here."""
        steps = [0 if self._alone else place.steps for place in self._places]
        rest = self._rest
        gain = self._gain if any(steps) else None
        return {"gain": gain, "steps": steps, "rest": rest, "alone": self._alone}

    def go_on(self, state: Mapping[str, Any]) -> None:
        """With what the earlier life had gained: it is in the next update."""
        if len(state["steps"]) != len(self._places):
            return  # it was published in other parts
        self._alone = bool(state["alone"])
        if state["gain"] is not None:
            self._gain.copy_(state["gain"])
        if state["rest"] is not None:
            self._rest = state["rest"].clone()
        for place, steps in zip(self._places, state["steps"], strict=True):
            place.steps = int(steps)

    # -- inside --------------------------------------------------------------------------------

    def _with_rest(self, place: PublishedPlace, update: torch.Tensor) -> None:
        if self._rest is not None:
            update.add_(self._rest[place.place])
            buffers.forget(
                self._rest[place.place].zero_()
            )  # its memory, where it is a part of a large model
            if not self._rest.any():
                self._rest = None  # or it would be a model that is kept for nothing

    def _keep_rest(self, sent: AnyUpdate) -> None:
        """What of the update that was asked for is not in the one that was sent; in its memory."""
        asked, self._asked = self._asked, None
        if asked is not None and not isinstance(sent, torch.Tensor):
            add(asked.neg_(), sent)
            self._rest = asked.neg_()


def add_there(here: torch.Tensor, own: OwnUpdate, place: slice, times: float) -> None:
    """Add an own update of this place, so many times, to `here`: the first so many numbers of it.

    It is added as it lies there, or is decoded block by block, for models are large.
    """
    if isinstance(own, torch.Tensor):
        here.add_(own[place][: len(here)], alpha=times)
    else:
        own.add_to(here, start=place.start or 0, times=times)


def add(flat: torch.Tensor, update: AnyUpdate) -> None:
    """Add an update, in whatever form, to flat numbers."""
    if isinstance(update, torch.Tensor):
        flat.add_(update)
    else:
        update.add_to(flat)
