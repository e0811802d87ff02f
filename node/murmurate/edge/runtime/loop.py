"""The one thread beside the training, with its event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop on a thread of its own, from `start` to `stop`."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        """`fail` is told of work in the background that failed, on the loop's thread."""
        self._fail = fail
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # -- for other threads -----------------------------------------------------------------------

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="murmurate", daemon=True
        )
        self._thread.start()
        ready.wait()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Have this done on the loop's thread, and wait for what comes of it."""
        assert self._loop is not None
        doing = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return doing.result()
        except BaseException:
            doing.cancel()
            raise

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what is `last`, end the thread, and wait for that; nothing, if it has ended."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        if threading.current_thread() is not thread:
            try:
                asyncio.run_coroutine_threadsafe(last(), loop).result()
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()

    # -- for any thread --------------------------------------------------------------------------

    def call(self, act: Callable[..., None], *args: Any) -> None:
        """Call this soon, on the loop's thread; never, if that has ended."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act, *args)

    # -- for the loop's own thread ---------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done beside everything else; if it fails, so does training."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def later(self, delay_s: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        assert self._loop is not None
        return self._loop.call_later(delay_s, act)

    async def cancel_all(self) -> None:
        """End what is done beside, and wait for that."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _run(self, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._loop = loop
        loop.call_soon(ready.set)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
