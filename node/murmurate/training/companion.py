"""A node of a run whose members know each other by our membership, and train by other means.

What modes `allreduce` and `hogwild` have in common: how a node comes, waits and goes.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from murmurate.core.clock import Clock
from murmurate.core.layout import Layout
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.runtime.runtime import Runtime
from murmurate.errors import PeerUnavailable
from murmurate.training.run_view import RunView
from murmurate.training.signals import Interrupts

WAIT_S = 0.05
BOARD_S = 3.0
"""A newcomer waits so long to hear from all, to know whether they train."""
GOODBYE_S = 0.5
"""For the word that I leave: nobody needs more of me."""


class Companion(RunView):
    """Such a node's place in its run: a context manager."""

    def __init__(self, runtime: Runtime, layout: Layout) -> None:
        super().__init__(runtime, layout)
        self.credentials: Credentials
        """What this process opens its ports and channels with."""
        self._port = runtime.training
        self._interrupts = Interrupts()
        self._hooks: list[Any] = []
        self._left = False
        self._resumed = time.monotonic()
        """When the last step, or a wait for others, was over."""

    @property
    def clock(self) -> Clock:
        """Empty: no update has a name of its own here."""
        return self._port.context()

    # -- not training ----------------------------------------------------------------------------

    def publish(self) -> None:
        """Nothing: each step was everybody's already."""

    def follow(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is true; False: it took too long."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._port.check()
            self._take_in()
            self._resumed = time.monotonic()
            if until():
                return True
            left = deadline - self._resumed
            if left <= 0:
                return False
            self._port.wait_for_news(min(left, WAIT_S))

    def _take_in(self) -> None:
        """A snapshot of membership's own: what is trained here are other weights."""
        if waiting := self._port.waiting():
            self._port.fold(len(waiting))
            self._port.flush(at_once=True)

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Nothing is under way between two steps."""
        del timeout_s
        self._port.check()
        return True

    # -- coming and going ------------------------------------------------------------------------

    def _meet(self, timeout_s: float) -> None:
        """Wait for the founder's weights, and to hear from all."""
        port = self._port
        if not self.follow(lambda: port.synced, timeout_s):
            raise PeerUnavailable(f"{', '.join(port.peers)}: no snapshot in {timeout_s:g} s")
        self.follow(lambda: len(self.board) >= len(port.others.meetings()), BOARD_S)

    def _begin(self, began: float) -> None:
        """Came, at that time, and begins now."""
        self._figures.waited(time.monotonic() - began)
        atexit.register(self.leave)
        self._interrupts.watch()
        self._resumed = time.monotonic()

    def _farewell(self, deadline: float) -> None:
        """What a mode does before its node goes."""

    def going(self) -> None:
        """This node will leave soon: it is not ready any more (`/readyz`)."""
        self._port.going()

    def leave(self, timeout_s: float = 5.0) -> None:
        """Say that I leave, and go. What the optimizer does after this is local again."""
        if self._left:
            return
        self._left = True
        for hook in self._hooks:
            hook.remove()
        atexit.unregister(self.leave)
        self._interrupts.restore()
        try:
            deadline = time.monotonic() + timeout_s
            self._farewell(deadline)
            if timeout_s > 0 and not self.runtime.failed:
                self._port.others.take_leave()
                left_s = min(GOODBYE_S, deadline - time.monotonic())
                self.follow(self._port.others.may_go, max(0.0, left_s))
        finally:
            self.runtime.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
