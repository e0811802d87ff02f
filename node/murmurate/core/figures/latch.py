"""A condition that begins and ends only when it was seen to several times in a row."""

from __future__ import annotations


class Latch:
    """On or off; a single look never turns it."""

    __slots__ = ("_in_a_row", "_looks", "on")

    def __init__(self, looks: int) -> None:
        """`looks`: so many in a row must agree."""
        self.on = False
        self._looks = looks
        self._in_a_row = 0

    def look(self, *, begins: bool, ends: bool) -> bool:
        """One look: what would turn it on, and what would turn it off. Whether it is on now."""
        self._in_a_row = self._in_a_row + 1 if (ends if self.on else begins) else 0
        if self._in_a_row >= self._looks:
            self.on, self._in_a_row = not self.on, 0
        return self.on
