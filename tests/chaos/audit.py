"""What a node did, written down beside it: the tests judge by this, not by what a node says.

`Seen` is a second, dumb account of which updates are in the weights. It hears of every effect the
core asks for and shares no code with the clock it watches: an update that is folded in twice, or
one that was already in a snapshot, is a broken promise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Key = tuple[str, int]
"""Origin and epoch."""


@dataclass(slots=True)
class Row:
    """The updates of one life: all up to `upto`, and some beyond it."""

    upto: int = 0
    beyond: set[int] = field(default_factory=set)

    def __contains__(self, seq: int) -> bool:
        return seq <= self.upto or seq in self.beyond

    def add(self, seq: int) -> None:
        self.beyond.add(seq)
        while self.upto + 1 in self.beyond:
            self.upto += 1
            self.beyond.discard(self.upto)


class Seen:
    """Updates by origin and epoch. Small: what came in order is one number."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}

    def add(self, key: Key, seq: int) -> bool:
        """False: it was here already."""
        row = self.rows.setdefault(key, Row())
        if seq in row:
            return False
        row.add(seq)
        return True

    def replace(self, spans: Iterable[tuple[str, int, int, int]]) -> None:
        """The weights are a snapshot now: origin, epoch, first and last of what is in it."""
        self.rows = {}
        for origin, epoch, first, last in spans:
            row = self.rows.setdefault((origin, epoch), Row())
            if first <= row.upto + 1:
                row.upto = max(row.upto, last)
            else:
                row.beyond.update(range(first, last + 1))

    def upto(self) -> dict[str, int]:
        """Per life, as `origin/epoch`: every update up to this one is here."""
        return {f"{origin}/{epoch}": row.upto for (origin, epoch), row in self.rows.items()}

    def count(self) -> dict[str, int]:
        """Per life: how many updates are here."""
        return {
            f"{origin}/{epoch}": row.upto + len(row.beyond)
            for (origin, epoch), row in self.rows.items()
        }
