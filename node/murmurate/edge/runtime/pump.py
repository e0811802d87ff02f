"""When the loop's thread hands over what waits: at once, after a pause, or at the next tick."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from murmurate.edge.runtime.loop import LoopThread
    from murmurate.edge.runtime.node_state import NodeState


class Pump:
    """Lets the driver hand over what waits, as often as the node's pace allows."""

    def __init__(self, state: NodeState, loop: LoopThread) -> None:
        self._state = state
        self._loop = loop
        self._kicked = False
        self._unsent = False
        self._next: asyncio.TimerHandle | None = None
        """The end of a pause between two messages."""
        self._stopped = False

    # -- for the training thread -----------------------------------------------------------------

    def made(self) -> None:
        """An update was made, and waits for `flush`."""
        self._unsent = True

    def flush(self, *, at_once: bool = False) -> None:
        """Let the loop's thread send what commit and fold have made.

        Once, at the end of a step: the two threads would only wait for each other in between. And
        not if it is about to look anyway, unless `at_once`.
        """
        driver = self._state.driver
        if (self._unsent or driver.consumed or driver.outgoing) and (at_once or self._next is None):
            self._unsent = False
            self.kick()

    def kick(self) -> None:
        """Let the loop's thread send what waits; once, however often this is called."""
        if not self._kicked:
            self._kicked = True
            self._loop.call(self.pump)

    # -- for the loop's thread -------------------------------------------------------------------

    def kick_unless_paused(self) -> None:
        """Something may be on its way to a link; the end of a pause would see to it as well."""
        if self._next is None:
            self.kick()

    def tick(self) -> None:
        """Now and then."""
        driver = self._state.driver
        if driver.outgoing or driver.consumed or self._next is None:
            self.pump()

    def pump(self) -> None:
        """Hand over what waits: small messages first, then what each free link takes."""
        self._kicked = False
        state, driver = self._state, self._state.driver
        driver.give_back()
        try:
            with state.lock:
                if not driver.alive or self._stopped:
                    return
                paced = driver.peer.links.keep_pause(state.pace.message_s)
            taken = driver.pump(time.monotonic(), state.lock)
            self._look_again(paced, taken=taken)
        except BaseException as error:
            state.fail(error)
            raise

    def stop(self) -> None:
        """Say the last words, if nothing has failed; nothing is handed over after them."""
        if not self._state.failed:
            self.pump()
        self._stopped = True

    def _look_again(self, paced: bool, *, taken: bool) -> None:
        """After the pause between two messages, if one has left or something waits."""
        state = self._state
        if self._next is not None and (taken or not paced):
            self._next.cancel()
            self._next = None
        if paced and self._next is None:
            with state.lock:
                paced = taken or state.peer.links.has_waiting(time.monotonic())
            if paced:
                self._next = self._loop.later(state.pace.message_s, self._pause_over)

    def _pause_over(self) -> None:
        self._next = None
        self.pump()
