"""SIGTERM and SIGINT as exceptions, but never in the middle of something that must stay whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Handlers of its own, from `watch` to `restore`, where nothing else handles those signals."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._told_to_end = 0
        self._busy = False

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
        """A signal that comes here is raised at the end of it."""
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
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
