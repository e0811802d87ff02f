"""What the training thread asks about the other members, and tells them.

Each method takes the lock itself, as those of `training_port` do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from murmurate.core.figures.progress import Progress

if TYPE_CHECKING:
    from murmurate.edge.runtime.loop import LoopThread
    from murmurate.edge.runtime.node_state import NodeState
    from murmurate.edge.runtime.pump import Pump
    from murmurate.edge.runtime.telling import Telling

LEVEL_UPDATES = 64
"""Who comes, or comes back, is level with the others once it lacks no more of one's updates."""


class OthersPort:
    """The other members, as one node's training thread knows them."""

    def __init__(
        self,
        state: NodeState,
        loop: LoopThread,
        pump: Pump,
        telling: Telling,
        tick: Callable[[], None],
    ) -> None:
        self._state = state
        self._loop = loop
        self._pump = pump
        self._telling = telling
        self._tick = tick

    # -- whether they have what I have -----------------------------------------------------------

    def is_level(self) -> bool:
        """Whether I lack at most a few updates of one of the others, or came alone."""
        with self._state.lock:
            return not self._state.company or self._state.peer.others.is_level(LEVEL_UPDATES)

    def is_caught_up(self) -> bool:
        """Whether every known update is in, and mine are with everyone alive."""
        with self._state.lock:
            return self._state.peer.others.caught_up()

    def is_even(self) -> bool:
        """Whether the others were last seen with what I have."""
        with self._state.lock:
            return self._state.peer.others.even()

    def may_go(self) -> bool:
        """Whether nobody waits for anything that only I can give."""
        with self._state.lock:
            return self._state.peer.others.settled()

    def are(self, what: Literal["done", "settled"]) -> bool:
        """Whether all live members have said so."""
        state = self._state
        with state.lock:
            for name in state.peer.membership.live():
                entry = state.board.get(name)
                if name != state.name and (entry is None or not getattr(entry, what)):
                    return False
        return True

    def not_done(self) -> list[Progress]:
        """The last word of each live member that has not said that it is done."""
        state, found = self._state, []
        with state.lock:
            for name in state.peer.membership.live():
                told = state.board.get(name)
                if name != state.name and (told is None or not told.done):
                    found.append(told or Progress(name=name, epoch=0, version=0))
        return found

    def without_mine(self) -> list[str]:
        """Live members that are not known to have all that I have made."""
        with self._state.lock:
            return self._state.peer.others.without_mine()

    def never_came(self) -> dict[str, int]:
        """Of members that have left: how many of their last updates are not in these weights."""
        with self._state.lock:
            return self._state.peer.others.never_came()

    # -- what they are told, and say -------------------------------------------------------------

    def tell(self, what: Literal["done", "settled"]) -> None:
        """Tell everyone now that I am done, or settled; not at the next turn."""
        with self._state.lock:
            setattr(self._telling, what, True)
            self._telling.soon()
        self._loop.call(self._tick)

    def trains_again(self) -> None:
        """It was not the end: I am neither done nor settled."""
        with self._state.lock:
            self._telling.done = self._telling.settled = False

    def meet(self, address: str) -> None:
        """Tell everyone now where I wait for those who train in step with me; empty: nowhere."""
        with self._state.lock:
            if self._telling.meeting == address:
                return
            self._telling.meeting = address
            self._telling.soon()
        self._loop.call(self._tick)

    def meetings(self) -> dict[str, str]:
        """Members that are not known to be gone, and where each is met; mine included."""
        state = self._state
        with state.lock:
            live = state.peer.membership.live()
            told = {each.name: each.meeting for each in state.board if each.name in live}
            return {name: told.get(name, "") for name in live} | {state.name: self._telling.meeting}

    def take_leave(self) -> None:
        """Say that I leave; and go on until I `may_go`."""
        self._state.leaving = True
        with self._state.lock:
            self._state.driver.leave(time.monotonic())
        self._pump.kick()
