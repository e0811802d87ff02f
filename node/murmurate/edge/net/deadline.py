"""How long to wait for something that was seen to take its time before.

As TCP finds out how long to wait for an answer (RFC 6298): a smoothed mean and four times the
smoothed deviation of what was observed, and on top of that a pause that any process may make (it is
stopped for a second, or its training holds the interpreter) and that says nothing about the link.

So a slow link that moves is not cut off, and on a fast one silence is noticed after little more
than the pause. When a deadline was missed the next one is twice as long, until something is
observed again: a link that became slower is given up a few times, not for ever.
"""

from __future__ import annotations


class Deadline:
    """`first` seconds before anything was observed, then `pause` and what is usual; never more
    than `most`."""

    __slots__ = ("_deviation", "_first", "_mean", "_missed", "_most", "_pause")

    def __init__(self, *, first: float, pause: float, most: float) -> None:
        self._first = first
        self._pause = min(pause, most)
        self._most = max(first, most)
        self._mean = -1.0
        """Negative: nothing was observed."""
        self._deviation = 0.0
        self._missed = 0

    def note(self, seconds: float) -> None:
        """It took so long."""
        self._missed = 0
        if self._mean < 0.0:
            self._mean, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
            self._mean += (seconds - self._mean) / 8

    def miss(self) -> None:
        """It did not come in time."""
        self._missed += 1

    @property
    def limit(self) -> float:
        usual = self._first
        if self._mean >= 0.0:
            usual = self._pause + self._mean + 4 * self._deviation
        return min(usual * 2.0 ** min(self._missed, 16), self._most)
