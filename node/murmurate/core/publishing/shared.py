"""Rule `shared`: one momentum for the swarm, and own updates stand for everybody's.

At the rate that suits one node, n nodes that each pass on their own optimizer's steps move the
weights n times as far as one does, on weights that are n updates old, with n momenta that fight
each other. Three ideas undo that; each is essential (docs/convergence.md):

- the momentum is the swarm's: a mean over the updates of all;
- the loop is closed locally: what I published a moment ago and what I gained since, times n, stands
  for what everybody did meanwhile and I cannot see yet, so that a gradient is taken about where the
  swarm will be when it counts (the *view*);
- the mean of n gradients has less noise, so the step may be larger, by n^¼, unless it is seen late.

With W the weights, n members, c publications of all for each own one, P the own updates that others
had not seen when what arrives now was made, and on every update u, sent or received,
U ← (1-1/n) U + u, Q ← (1-1/n) Q + 1, ū = U/Q:

    e = (1-β) min(n, 64/|P|)^¼                        (a gain has the optimizer's 1/(1-μ) in it)
    view   = W + (c-1) ΣP + (c/n) e gain + ½ n ū
    update = (e/n) gain + β ũ          ũ = ū, then for p in P, oldest first: ũ ← .7 ũ + .3 p

Where peers hold different data the same rule has other numbers (`core.publishing.forms`). What is
applied elsewhere is a function of the message alone, as with every rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from murmurate.core.codecs.codec import places_of
from murmurate.core.message import Push
from murmurate.core.publishing.forms import FORMS
from murmurate.core.publishing.rule import Making, Span
from murmurate.core.publishing.taken_gains import (
    AnyUpdate,
    OwnUpdate,
    PublishedPlace,
    TakesGains,
    add,
    add_there,
)

MOMENTA = ((1, 0.9), (32, 0.8), (64, 0.66))
MOMENTUM_RARE = 0.5
MOMENTUM_UNKNOWN = 0.5
"""Of an optimizer whose gain cannot be read: what it changed has its own momentum in it."""


def momentum_over(steps: int) -> float:
    """The momentum that suits publications so many local steps apart."""
    return next((beta for most, beta in MOMENTA if steps <= most), MOMENTUM_RARE)


class _SharedPlace(PublishedPlace):
    """With the momentum of that part."""

    def __init__(self, place: slice, every: int) -> None:
        super().__init__(place, every)
        self.count = 0.0
        self.own: deque[OwnUpdate] = deque()


class Shared(TakesGains):
    """One node's part in the swarm's momentum."""

    reads_gains = True

    def __init__(self, making: Making) -> None:
        super().__init__(making)
        self._form = FORMS[making.data]()
        self._likeness = making.likeness
        self._parts = [_SharedPlace(place, self._form.every) for place in making.places]
        self._sum = torch.zeros(making.size, dtype=making.dtype)

    @property
    def _places(self) -> list[_SharedPlace]:
        return self._parts

    def _taken(self, span: Span) -> None:
        self._known = span.add_gain(self._gain)

    def applied(self, update: AnyUpdate, *, own: bool, unseen: float = 0.0) -> None:
        """An update is in the weights from now on: it moves the momentum."""
        super().applied(update, own=own, unseen=unseen)
        if not own and not isinstance(update, Push):
            return  # a snapshot is no update
        count = len(update.stamps) if isinstance(update, Push) else 1
        keep = 1.0 - 1.0 / max(1, self.company.members)
        for part, times in self._touched(update, count):
            self._sum[part.place].mul_(keep**times)
            part.count = part.count * keep**times + times
            if own and not self._alone and not isinstance(update, Push):
                part.own.append(update)
        add(self._sum, update)

    def restored(self) -> None:
        """All members do this with the same update: the momentum begins anew."""
        super().restored()
        self._sum.zero_()
        for part in self._parts:
            part.count = 0.0
            part.own.clear()

    # -- over a restart --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        counts = [part.count for part in self._parts]
        return {**super().state(), "sum": self._sum, "counts": counts}

    def go_on(self, state: Mapping[str, Any]) -> None:
        super().go_on(state)
        self._sum.copy_(state["sum"])
        for part, count in zip(self._parts, state["counts"], strict=True):
            part.count = float(count)

    # -- what is published, and where a gradient is taken ----------------------------------------

    def _make(self, place: _SharedPlace, update: torch.Tensor, *, onto: bool) -> None:
        if self._likeness is not None and self._known and place is self._parts[0]:
            self._likeness.gained(self._gain)
        gain, beta = self._gain[place.place], self._momentum(place.steps)
        blend = self._form.blend
        unseen = self._unseen(place) if blend else []
        weight = beta * (1.0 - blend) ** len(unseen) / place.count if place.count else 0.0
        if onto:
            update.add_(self._sum[place.place], alpha=weight)
        else:
            torch.mul(self._sum[place.place], weight, out=update)
        for later, own in enumerate(reversed(unseen)):
            add_there(update, own, place.place, beta * blend * (1.0 - blend) ** later)
        update.add_(gain, alpha=self._step(beta) / self.company.members)
        gain.zero_()

    def _look(self, place: _SharedPlace, here: torch.Tensor) -> None:
        # As it will be when the steps of now are published, if that takes as many as before.
        beta = self._momentum(max(place.span, place.steps))
        view = self._form.view(self.company, self._step(beta))
        if view.gain:
            here.add_(self._gain[place.place][: len(here)], alpha=view.gain)
        if place.count:
            momentum = self._sum[place.place][: len(here)]
            here.add_(momentum, alpha=view.momentum / place.count)
        for own in self._unseen(place) if view.own else ():
            add_there(here, own, place.place, view.own)

    # -- inside --------------------------------------------------------------------------------

    def _momentum(self, steps: int) -> float:
        return momentum_over(max(1, steps)) if self._known else MOMENTUM_UNKNOWN

    def _step(self, beta: float) -> float:
        """What a gain counts for, times the members."""
        return (1.0 - beta) * self._form.step(self.company)

    def _unseen(self, place: _SharedPlace) -> list[OwnUpdate]:
        while len(place.own) > round(self.company.in_flight / self.company.parts):
            place.own.popleft()
        return list(place.own)

    def _touched(self, update: AnyUpdate, count: int) -> list[tuple[_SharedPlace, int]]:
        """The places an update changes, and how many updates of each it is a sum of."""
        changed = _changed(update)
        if changed is None or len(self._parts) == 1:
            return [(part, count) for part in self._parts]
        touched = [
            part
            for part in self._parts
            if any(p.start < part.place.stop and part.place.start < p.stop for p in changed)
        ]
        return [(part, max(1, count // max(1, len(touched)))) for part in touched]


def _changed(update: AnyUpdate) -> list[slice] | None:
    """Where it changes the weights; None: everywhere."""
    if isinstance(update, torch.Tensor):
        return None
    return places_of(update.parts if isinstance(update, Push) else (update,))
