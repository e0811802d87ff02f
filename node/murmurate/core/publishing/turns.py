"""Whose turn it is: a large model is published a part at a time, each with an age of its own.

A part waits for its turn, and what it gained meanwhile was computed on weights as old as its wait.
So each part keeps the clock and the time of its own first step since it was published: its update
carries that clock, and its staleness is counted from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from murmurate.core.clock import Clock


class Turns:
    """The parts of one node's parameters, and what of them is not published yet."""

    __slots__ = ("_contexts", "_next", "_rest", "_started", "_steps", "places")

    def __init__(self, places: Sequence[slice]) -> None:
        self.places = tuple(places)
        self._next = 0
        self._steps = [0] * len(self.places)
        """In each part, not published."""
        self._rest = [False] * len(self.places)
        """Whether encoding has left something out there."""
        self._contexts = [Clock()] * len(self.places)
        self._started = [0.0] * len(self.places)

    @property
    def place(self) -> slice:
        """Of the part whose turn it is."""
        return self.places[self._next]

    @property
    def context(self) -> Clock:
        """Of the weights that its first unpublished step was computed on."""
        return self._contexts[self._next]

    @property
    def started(self) -> float:
        """When that step was begun."""
        return self._started[self._next]

    @property
    def steps(self) -> int:
        """So many it has by now."""
        return self._steps[self._next]

    @property
    def waiting(self) -> bool:
        """Whether any part has something to publish."""
        return any(self._steps) or any(self._rest)

    def begin(self, context: Clock, now: float) -> None:
        """A batch is begun on these weights: the first for parts that are published."""
        for part, steps in enumerate(self._steps):
            if not steps:
                self._contexts[part], self._started[part] = context, now

    def stepped(self) -> None:
        self._steps = [steps + 1 for steps in self._steps]

    def published(self) -> None:
        """The part whose turn it was. The next one is on, of those with something to publish."""
        self._steps[self._next], self._rest[self._next] = 0, False
        count = len(self.places)
        after = [(self._next + ahead) % count for ahead in range(1, count + 1)]
        waiting = (part for part in after if self._steps[part] or self._rest[part])
        self._next = next(waiting, after[0])

    def state(self) -> list[list[Any]]:
        """What a restart goes on with: of each part its steps, and the clock of the first."""
        pairs = zip(self._steps, self._contexts, strict=True)
        return [[steps, context.to_bytes().hex() if steps else ""] for steps, context in pairs]

    def go_on(self, state: Sequence[Sequence[Any]], now: float) -> None:
        """With the steps of an earlier life."""
        for part, (steps, context) in enumerate(state):
            if steps:
                self._steps[part] = int(steps)
                self._contexts[part] = Clock.from_bytes(bytes.fromhex(context))
                self._started[part] = now

    def forget(self) -> None:
        """All parts are as in the weights: published at once, or taken back."""
        self._steps = [0] * len(self.places)
        self.left_out(anything=False)

    def left_out(self, *, anything: bool = True) -> None:
        """Of all parts encoding has left something out, which is in no update."""
        self._rest = [anything] * len(self.places)
