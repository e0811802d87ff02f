"""The processor in virtual time: threads that share a machine's cores, and what nodes run beside
their training."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from murmurate.study.sim.events import Events

Work = tuple[float, Callable[..., object], tuple[Any, ...]]


class Cores:
    """So many, shared equally by all threads that have something to do; each uses one at most.

    All threads run equally fast at any instant, so one number says what each has had since the
    beginning, and a thread is done when that number has grown by its work.
    """

    def __init__(self, events: Events, count: float | None = None) -> None:
        """`count` None: one for each thread, however many there are."""
        self._events = events
        self._count = math.inf if count is None else count
        self._had_s = 0.0
        self._since = events.time
        self._running: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self._looks = 0

    def work(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """A thread has so much to do alone on a core; then this happens."""
        if math.isinf(self._count):
            self._events.after(seconds, act, *args)
            return
        self._catch_up()
        self._number += 1
        heapq.heappush(self._running, (self._had_s + seconds, self._number, act, args))
        self._look_again()

    def _speed(self) -> float:
        return min(1.0, self._count / len(self._running))

    def _catch_up(self) -> None:
        if self._running:
            self._had_s += (self._events.time - self._since) * self._speed()
        self._since = self._events.time

    def _look_again(self) -> None:
        """When the next one is done, if nothing changes until then."""
        self._looks += 1
        if self._running:
            left_s = max(0.0, self._running[0][0] - self._had_s)
            self._events.after(left_s / self._speed(), self._look, self._looks)

    def _look(self, number: int) -> None:
        if number != self._looks:
            return  # something changed, and another look was asked for
        self._catch_up()
        until, _, act, args = heapq.heappop(self._running)
        self._had_s = max(self._had_s, until)  # what rounding left of it
        self._look_again()
        act(*args)


class Lane:
    """A thread that does one thing after another."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._waiting: deque[Work] = deque()
        self.busy = False

    def work(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        if self.busy:
            self._waiting.append((seconds, act, args))
        else:
            self.busy = True
            self._cores.work(seconds, self._done, act, args)

    def _done(self, act: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self._waiting:
            seconds, next_act, next_args = self._waiting.popleft()
            self._cores.work(seconds, self._done, next_act, next_args)
        else:
            self.busy = False
        act(*args)
