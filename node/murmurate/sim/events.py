"""Virtual time alone: a heap of events, for whatever is to run on it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Events:
    """What happens at the same instant happens in the order it was asked for."""

    def __init__(self) -> None:
        self.time = 0.0
        self.count = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time: float, act: Callable[..., None], *args: Any) -> None:
        self.count += 1
        heapq.heappush(self._heap, (max(time, self.time), self.count, act, args))

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self.at(self.time + seconds, act, *args)

    def run_until(self, time: float, done: Callable[[], bool] | None = None) -> bool:
        """Everything up to and at this time; with `done`, not further than the event after which it
        holds. True: it does."""
        while self._heap and self._heap[0][0] <= time:
            self.time, _, act, args = heapq.heappop(self._heap)
            act(*args)
            if done is not None and done():
                return True
        self.time = max(self.time, time)
        return False
