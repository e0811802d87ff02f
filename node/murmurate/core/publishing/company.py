"""What a node measures of the swarm it publishes to, from what it receives and nothing else.

Every update carries the clock it was computed on. So how many of my own updates its origin had not
seen is known exactly, without anybody's clock on the wall.
"""

from __future__ import annotations

from collections import deque

WINDOW = 16
"""Own publications over which those of the others are counted."""
SILENCE = 8
"""Own publications after which others that were not heard of are taken to publish nothing: until
then what they made may be on its way."""
ROUNDS = 4
"""So many updates of each of the others the mean of what is unseen is over."""


class Company:
    """How many there are, how often they publish, and how much of mine is on its way to them."""

    def __init__(self, parts: int = 1) -> None:
        """`parts`: so many updates a large model takes, one after another, each computed since it
        was its turn before."""
        self.members = 1
        """Those that train, this node included."""
        self.parts = parts
        self._published = 0
        self._heard = 0
        self._marks: deque[int] = deque(maxlen=WINDOW + 1)
        """What was heard of others, at each of my own publications since the first of theirs."""
        self._made_before: float | None = None
        """Own updates before the first of another came: one way, until both are known."""
        self._unseen: float | None = None

    def published(self) -> None:
        """One more own update."""
        self._published += 1
        if self._heard:  # or the way of the first would count as rare publications
            self._marks.append(self._heard)

    def heard(self, count: int, unseen: float) -> None:
        """Updates of others came. `unseen`: own updates that these were computed without, each."""
        self._heard += count
        if self._unseen is None and unseen >= self._published:  # its origin had seen none of mine
            if self._made_before is None:
                self._made_before = unseen
            return
        part = min(1.0, count / max(1, ROUNDS * (self.members - 1)))
        before = unseen if self._unseen is None else self._unseen
        self._unseen = before + part * (unseen - before)

    @property
    def publications(self) -> float:
        """Of all members for each own one, own included; as many as members until it is known."""
        if not self._heard and self._published > SILENCE:
            return 1.0
        spans = len(self._marks) - 1
        if spans < 2:
            return float(self.members)
        return 1.0 + (self._marks[-1] - self._marks[0]) / spans

    @property
    def for_own(self) -> float:
        """The same, between one and the number of members."""
        return min(float(self.members), max(1.0, self.publications))

    @property
    def staleness(self) -> float:
        """Updates that one of mine meets and was computed without: as many of each of the others as
        theirs miss of mine. One round until it is known."""
        return (1.0 if self._unseen is None else self._unseen) * (self.publications - 1.0)

    @property
    def in_flight(self) -> float:
        """Own updates made while one of another is on its way to me.

        An update misses of mine what I made while mine were on their way to its origin, while it
        was computed, and while it was on its way to me: two ways, and the time between two updates
        of one part by one origin, which is parts (members - 1) / (publications - 1) of my own. The
        first that come have missed all of mine: one way. Until they come, all are on their way.
        """
        others = self.publications - 1.0
        if others <= 0.0:
            return 0.0
        computed = self.parts * (self.members - 1) / others
        if self._unseen is not None:
            return max(0.0, (self._unseen - computed) / 2.0)
        if self._made_before is not None:
            return max(0.0, self._made_before - computed)
        return float(self._published)
