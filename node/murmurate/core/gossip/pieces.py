"""Pieces: updates that no peer, and no checkpoint of one, can have a part of are kept as one sum.

What may come back from a disk is one of the checkpoints that its node has told of, the one that was
being written among them, or has all that the node was heard to have: what is written later has that
and more. So updates of one life
that all have, and that no checkpoint separates, are wanted together or not at all, even where every
node loses its power and each falls back to another file. Log and store are then as large as the
model times the pieces: one more for each life than the checkpoints that cut it.

All peers cut at the same places, each life for itself and only up to the first gap of what all
have. So of two sums that different peers made one holds the other, or they have nothing in common.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from murmurate.core.clock import Clock, Key
from murmurate.core.gossip.state import PeerState
from murmurate.core.message import STAMPS_MAX, Push

ORIGINS_FULL = 32
"""With more lives than that in a clock a piece has fewer updates: their contexts go with it."""

Piece = tuple[Key, int, int]


class Pieces:
    """One peer's log and store, summed up as far as nobody can want a part."""

    def __init__(self, state: PeerState) -> None:
        self._state = state
        self._left = 0
        """How many pushes were left when it was last summed up."""

    def sum_up(self, others: list[str]) -> None:
        """Sum up what I and all of these have, and no checkpoint of theirs or mine separates."""
        state = self._state
        kept = len(state.log) + len(state.store)
        if kept <= self._left + self._left // 4:
            return  # so what is summed again and again costs no more than what is new
        theirs = state.knowledge.cuts(others)
        common = state.knowledge.told_everywhere(state.clock, others)
        if theirs is None or common is None or state.receiving is not None:
            return  # one was not heard of; or each update is looked at by itself
        cuts = _Cuts(common, [*theirs, *state.durable.cuts()])

        def piece_of(push: Push) -> Piece | None:
            return cuts.piece_of(push)

        state.log.sum_up(piece_of)
        state.store.sum_up(piece_of)
        self._left = len(state.log) + len(state.store)


class _Cuts:
    """Between which updates of each life somebody's checkpoint, or the lack of one, may lie."""

    def __init__(self, common: Clock, clocks: Iterable[Clock]) -> None:
        self._common = common
        self._clocks = list(clocks)
        self._ends: dict[Key, list[int]] = {}
        self._updates_max = STAMPS_MAX
        while self._updates_max > 1 and common.spans * self._updates_max > STAMPS_MAX * (
            ORIGINS_FULL
        ):
            self._updates_max //= 2

    def piece_of(self, push: Push) -> Piece | None:
        """The piece to which all of it belongs; None: it is to stay as it is."""
        first, last = push.stamps[0].dot, push.stamps[-1].dot
        key = (first.origin, first.epoch)
        runs = self._common.runs(key)
        if not runs or runs[0] != 1 or last.seq > runs[1]:
            return None
        if len(push.stamps) > 1 and not _in_a_row(push):
            return None
        number = (first.seq - 1) // self._updates_max
        ends = self._ends_of(key)
        place = bisect_left(ends, first.seq)
        if (last.seq - 1) // self._updates_max != number or bisect_left(ends, last.seq) != place:
            return None
        return key, place, number

    def _ends_of(self, key: Key) -> list[int]:
        """The numbers after which one lies, sorted."""
        ends = self._ends.get(key)
        if ends is None:
            found: set[int] = set()
            for clock in self._clocks:
                runs = clock.runs(key)
                found.update(first - 1 for first in runs[::2])
                found.update(runs[1::2])
            ends = self._ends[key] = sorted(found)
        return ends


def _in_a_row(push: Push) -> bool:
    """Whether it is made of updates of one life that follow each other."""
    origin, epoch, seq = push.stamps[0].dot
    return all(dot == (origin, epoch, seq + at) for at, dot in enumerate(push.dots))
