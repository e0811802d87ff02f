"""Numbers behind the parameters in the flat weights, which are merged and not trained.

What is published of them is in `core.publishing.statistics`; here is how it gets into an update:
whole, in the part of a large model that they lie in, or beside an encoded form.
"""

from __future__ import annotations

import torch

from murmurate.core.codecs.codec import Encoded, part_in
from murmurate.core.layout import Layout
from murmurate.core.publishing.statistics import MergedStatistics


class MergedNumbers:
    """Those of one kind, in one place of the weights. There may be none."""

    merged: MergedStatistics

    def __init__(self, layout: Layout, place: slice) -> None:
        self._layout = layout
        self._place = place

    def __bool__(self) -> bool:
        return bool(self._place.start < self._place.stop)

    def put_into(
        self, update: torch.Tensor, place: slice, weights: torch.Tensor, members: int
    ) -> None:
        """Write what is to be published into an update that concerns this place of the weights."""
        here = self._within(place)
        if here.start < here.stop:
            start = place.indices(self._layout.size)[0]
            first = self._place.start + here.start - start
            change = self._change(weights, here, members)
            update[first : first + len(change)] = change

    def part(self, weights: torch.Tensor, members: int) -> Encoded:
        """The same as it goes beside an encoded update, as it is: a scale shared with weights would
        leave nothing of one or the other."""
        change = self._change(weights, slice(0, self._place.stop - self._place.start), members)
        return part_in(self._place, self._layout.size, lambda numbers: numbers.copy_(change))

    def published(self, place: slice, weights: torch.Tensor) -> None:
        """What was asked for in this place is in the weights."""
        self.merged.published(self._within(place))

    def adopt(self, weights: torch.Tensor) -> None:
        """Begin with the swarm's."""
        self.merged.adopt(weights[self._place])

    def _change(self, weights: torch.Tensor, here: slice, members: int) -> torch.Tensor:
        return self.merged.update(weights[self._place], here, members)

    def _within(self, place: slice) -> slice:
        """As much of a place of the weights as is of these, counted from their first."""
        start, stop, _ = place.indices(self._layout.size)
        first, last = self._place.start, self._place.stop
        return slice(min(max(start, first), last) - first, min(max(stop, first), last) - first)
