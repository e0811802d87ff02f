"""The thread that speaks over one link while the training thread computes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class LinkThread:
    """A daemon thread with an event loop of its own, which ends when `speak` returns."""

    def __init__(self, name: str, speak: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._speak = speak
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name=name, daemon=True
        )

    def start(self) -> None:
        """Returns when the loop turns: from then on `call` reaches it."""
        self._thread.start()
        self._turns.wait()

    def call(self, act: Callable[[], object]) -> None:
        """From any thread: `act` soon, on the loop. Nothing when the thread has not begun or has
        ended."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it ended just now
                loop.call_soon_threadsafe(act)

    def join(self, timeout_s: float) -> None:
        """Wait for its end, no longer than that."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns.set()
        await self._speak()
