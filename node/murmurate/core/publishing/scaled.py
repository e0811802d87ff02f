"""Rules that publish a part of what local steps gained: the sum of all, kept from growing with n.

n nodes that each pass on their own optimizer's steps move the weights n times as far as one does.
How much of a gain is published is decided at the origin, from what it measures; so what is applied
is a function of the message alone, and replicas agree. Better than the plain sum, not as good as
rule `shared` (docs/convergence.md).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from murmurate.core.publishing.company import Company
from murmurate.core.publishing.rule import Making, Span
from murmurate.core.publishing.taken_gains import PublishedPlace, TakesGains

CAP = 2.0
"""All members together move the weights at most so many times as far as one does."""


def capped(company: Company) -> float:
    """As it is while few updates are made beside it, less the more there are: rule `capped`."""
    return min(1.0, CAP / (1.0 + company.staleness))


def mean(company: Company) -> float:
    """Its share of the mean of all members: for updates of several steps."""
    return 1.0 / company.members


class PartOfGain(TakesGains):
    """Publishes a part of what was gained; gradients are taken where own steps have led."""

    def __init__(self, making: Making, scale: Callable[[Company], float]) -> None:
        super().__init__(making)
        self._scale = scale
        self._parts = [PublishedPlace(place, making.every) for place in making.places]

    @property
    def fresh(self) -> bool:
        """A part of a gain is the same wherever it is made."""
        return False

    @property
    def _places(self) -> list[PublishedPlace]:
        return self._parts

    def _taken(self, span: Span) -> None:
        self._gain.add_(span.gained())

    def _make(self, place: PublishedPlace, update: torch.Tensor, *, onto: bool) -> None:
        gain, scale = self._gain[place.place], self._scale(self.company)
        if onto:
            update.add_(gain, alpha=scale)
        else:
            torch.mul(gain, scale, out=update)
        gain.zero_()

    def _look(self, place: PublishedPlace, here: torch.Tensor) -> None:
        here.add_(self._gain[place.place][: len(here)])
