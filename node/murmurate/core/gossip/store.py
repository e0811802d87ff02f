"""Updates kept as they were sent or received, until everyone has them.

A node's own updates are its log: kept until every member has them for good, those included who are
away and may come back. Updates of others are kept up to a number of bytes, so that one whose origin
dies right after reaching a single peer is still passed on to the rest. Past the bound the oldest
go: they are then only in the weights, and are passed on by snapshot.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator

from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.message import STAMPS_MAX, Push, summed


class Store:
    """Pushes by the dots in them; each dot stands in one push at most."""

    __slots__ = ("_by_dot", "_bytes_max", "_entries", "nbytes")

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._by_dot: dict[Dot, Push] = {}
        self._entries: dict[Dot, Push] = {}  # by first dot, in order of arrival
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, dot: Dot) -> bool:
        return dot in self._by_dot

    def __iter__(self) -> Iterator[Push]:
        return iter(list(self._entries.values()))

    @property
    def updates(self) -> int:
        """How many updates are kept, by themselves or in sums."""
        return len(self._by_dot)

    def alone(self, dot: Dot) -> bool:
        """Whether it is kept by itself, not in a sum."""
        push = self._by_dot.get(dot)
        return push is not None and len(push.stamps) == 1

    def fits(self, push: Push) -> bool:
        """Whether it can be kept without letting go of another."""
        return self._bytes_max is None or self.nbytes + push.nbytes <= self._bytes_max

    def add(self, push: Push) -> None:
        """Keep a push, unless one of its updates is kept already."""
        if any(stamp.dot in self._by_dot for stamp in push.stamps):
            return
        for stamp in push.stamps:
            self._by_dot[stamp.dot] = push
        self._entries[push.stamps[0].dot] = push
        self.nbytes += push.nbytes
        if self._bytes_max is not None:
            while self.nbytes > self._bytes_max:
                self._remove(next(iter(self._entries.values())))

    def serve(self, ranges: Iterable[Range], most: int) -> tuple[list[Push], list[Dot]]:
        """Pushes made of wanted updates only, and the wanted dots that none of them has: the first,
        `most` in all. Who wants more asks again."""
        wanted = Clock()
        for span in ranges:
            wanted.add_range(span)
        found: dict[Dot, Push] = {}
        lacking: list[Dot] = []
        left = most
        for dot in itertools.chain.from_iterable(span.dots() for span in wanted.ranges()):
            push = self._by_dot.get(dot)
            if push is not None and not all(stamp.dot in wanted for stamp in push.stamps):
                push = None  # of this sum only a part is wanted
            if push is not None and push.stamps[0].dot in found:
                continue
            left -= 1 if push is None else len(push.stamps)
            if left < 0:
                break
            if push is None:
                lacking.append(dot)
            else:
                found[push.stamps[0].dot] = push
        return list(found.values()), lacking

    def cover(self, wanted: dict[Dot, None]) -> tuple[list[Push], list[Dot]]:
        """As `serve`, for a set of dots in a given order: all of them."""
        found: dict[Dot, Push] = {}
        lacking: list[Dot] = []
        for dot in wanted:
            push = self._by_dot.get(dot)
            if push is not None and (
                len(push.stamps) == 1 or all(stamp.dot in wanted for stamp in push.stamps)
            ):
                found[push.stamps[0].dot] = push
            else:
                lacking.append(dot)
        return list(found.values()), lacking

    def prune(self, stable: Clock) -> list[Dot]:
        """Let go of what is in `stable` altogether; the dots of it."""
        return self._drop(lambda push: all(stamp.dot in stable for stamp in push.stamps))

    def change(self, change: Callable[[Push], Push | None]) -> list[Dot]:
        """Put another form of each push in its place; None: let go of it. The dots let go of."""
        gone: list[Dot] = []
        for push in list(self._entries.values()):
            new = change(push)
            if new is None:
                self._remove(push)
                gone += push.dots
            elif new is not push:
                self._entries[push.stamps[0].dot] = new
                for dot in new.dots:
                    self._by_dot[dot] = new
        return gone

    def squeeze(self, wanted: Callable[[Push], bool]) -> None:
        """Sum up pushes that are only kept for the same absent peers: they lack all or none."""
        batch: list[Push] = []
        for push in [push for push in self._entries.values() if wanted(push)]:
            if sum(len(p.stamps) for p in batch) + len(push.stamps) > STAMPS_MAX:
                self._replace(batch)
                batch = []
            batch.append(push)
        self._replace(batch)

    def sum_up(self, piece_of: Callable[[Push], Hashable | None]) -> None:
        """Sum up pushes of one piece whose updates follow each other; None: leave it as it is.

        A sum stands where the newest push in it stood: the oldest are the first to go.
        """
        pieces: dict[Hashable, list[Push]] = {}
        for push in self._entries.values():
            if (piece := piece_of(push)) is not None:
                pieces.setdefault(piece, []).append(push)
        sums: dict[Dot, Push] = {}
        for batch in pieces.values():
            batch.sort(key=lambda push: push.stamps[0].dot.seq)
            for row in _rows(batch):
                total = summed(row)
                sums.update((push.stamps[0].dot, total) for push in row)
        if not sums:
            return
        before, self._entries = self._entries, {}
        for first, push in reversed(before.items()):
            total = sums.get(first, push)
            self._entries.setdefault(total.stamps[0].dot, total)
        self._entries = dict(reversed(self._entries.items()))
        for push in sums.values():
            self._by_dot.update((stamp.dot, push) for stamp in push.stamps)
        self.nbytes = sum(push.nbytes for push in self._entries.values())

    def _replace(self, batch: list[Push]) -> None:
        if len(batch) > 1:
            total = summed(batch)
            for push in batch:
                self._remove(push)
            self.add(total)

    def _drop(self, unwanted: Callable[[Push], bool]) -> list[Dot]:
        out: list[Dot] = []
        for push in [push for push in self._entries.values() if unwanted(push)]:
            self._remove(push)
            out += push.dots
        return out

    def _remove(self, push: Push) -> None:
        del self._entries[push.stamps[0].dot]
        for stamp in push.stamps:
            del self._by_dot[stamp.dot]
        self.nbytes -= push.nbytes


def _rows(pushes: list[Push]) -> Iterator[list[Push]]:
    """Those of several that follow each other without a gap, in the order of their numbers."""
    row: list[Push] = []
    for push in pushes:
        if row and row[-1].stamps[-1].dot.seq + 1 != push.stamps[0].dot.seq:
            if len(row) > 1:
                yield row
            row = []
        row.append(push)
    if len(row) > 1:
        yield row
