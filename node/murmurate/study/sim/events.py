"""Virtual time alone: a heap of events, for whatever is to run on it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Any


class Events:
    """What happens at the same instant happens in the order it was asked for."""

    def __init__(self, time: float = 0.0) -> None:
        self.time = time
        self.count = 0
        """Events that were asked for; `happened`: those that were carried out."""
        self.happened = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, time: float, act: Callable[..., object], *args: Any) -> None:
        self.count += 1
        heapq.heappush(self._heap, (max(time, self.time), self.count, act, args))

    def after(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        self.at(self.time + seconds, act, *args)

    def __len__(self) -> int:
        """How many are still to happen."""
        return len(self._heap)

    @property
    def next_time(self) -> float:
        """When the next event happens; infinite: there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pending(self) -> Iterator[tuple[Any, ...]]:
        """The arguments of every event to come, in no order."""
        return (args for _, _, _, args in self._heap)

    def step(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        """Carry out the next event; what it was."""
        self.time, _, act, args = heapq.heappop(self._heap)
        self.happened += 1
        act(*args)
        return act, args

    def run_until(
        self, time: float, done: Callable[[], bool] | None = None, *, look_every: int = 1
    ) -> bool:
        """Everything up to and at this time; with `done`, not further than the event after which it
        holds, looked at after every so many. True: it does."""
        while self._heap and self._heap[0][0] <= time:
            self.step()
            if done is not None and self.happened % look_every == 0 and done():
                return True
        self.time = max(self.time, time)
        return False
