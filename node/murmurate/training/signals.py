"""SIGTERM and SIGINT: the one place that handles them.

A training script gets them as exceptions, but never in the middle of something that must stay whole
(`Interrupts`). A program finishes first: it is told why to end, and looks when it can (`Stop`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGINT)


class Interrupts:
    """Handlers of its own, from `watch` to `restore`, where nothing else handles those signals."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._told_to_end = 0
        self._busy = False
        self.ended = False
        """Whether a signal was raised as an exception."""

    def watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        for number, default in defaults.items():
            if signal.getsignal(number) is default:
                self._before[number] = signal.signal(number, self._heard)

    def restore(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, way in self._before.items():
                signal.signal(number, way)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """A signal that comes here is raised at the end of it: in the middle of a fold it would
        leave weights and clock apart."""
        if self._busy:
            yield
            return
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._told_to_end:
            raise self._end()

    def _heard(self, number: int, *_: Any) -> None:
        """As an exception, so that `with` blocks end in order, as soon as it does no harm."""
        self._told_to_end = number
        if not self._busy:
            raise self._end()

    def _end(self) -> BaseException:
        number, self._told_to_end = self._told_to_end, 0
        self.ended = True
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


class Stopped(BaseException):
    """A signal came while there was nothing to finish."""


class Stop:
    """Why a program ends; empty: it goes on."""

    def __init__(self) -> None:
        self.reason = ""
        self.training = False
        """There is something to finish. Else a signal raises `Stopped`."""
        self.told: Callable[[], None] | None = None
        """Called at once, from the signal."""

    def heard(self, number: int, _frame: FrameType | None) -> None:
        """A second one does not wait."""
        if self.reason:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
        if self.told is not None:
            self.told()
        if not self.training:
            raise Stopped


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Signals give the program a reason to end."""
    stop = Stop()
    with heard_by(stop.heard):
        yield stop


@contextmanager
def heard_by(heard: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals go there; as they were before, afterwards."""
    before = {each: signal.signal(each, heard) for each in ENDING}
    try:
        yield
    finally:
        for each, way in before.items():
            signal.signal(each, way)
