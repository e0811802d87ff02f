"""Whom this node has met, and where: the way of a message from the driver to the transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from murmurate.core.message import Push
from murmurate.edge.net.wire import push_fits
from murmurate.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from murmurate.core.message import Snapshot
    from murmurate.edge.runtime.counting import Counting
    from murmurate.edge.runtime.node_state import NodeState

CALLERS_MAX = 1024
FORGET_S = 5.0
"""Between two looks for links to those of whom there is no record any more."""


class Links:
    """The driver's network, over a transport. On the thread of the event loop, but for `meet`."""

    def __init__(self, state: NodeState, counting: Counting) -> None:
        self._state = state
        self._counting = counting
        self._met: dict[str, str] = {}
        self._callers: dict[str, str] = {}
        """Where those are who opened a link to me, whether I have a record of them or not: one who
        was voted out and forgotten must still be told so."""
        self._forget_at = 0.0

    @property
    def met(self) -> Mapping[str, str]:
        """The names and addresses of those I may have a link to."""
        return self._met

    def know(self, name: str, address: str) -> None:
        """Where a peer is, if it is known; lock held. Who was where I am now is not there."""
        mine = self._state.transport.address
        if address and address != mine and self._met.get(name) != address:
            self._met[name] = address
            self._state.transport.meet(name, address)

    def called(self, name: str, address: str) -> None:
        """Somebody opened a link to me; lock held."""
        self._callers.pop(name, None)
        self._callers[name] = address
        if len(self._callers) > CALLERS_MAX:
            del self._callers[next(iter(self._callers))]
        self.know(name, address)

    def forget(self, now: float) -> None:
        """Close links to those of whom there is no record any more; lock held."""
        if now < self._forget_at:
            return
        self._forget_at = now + FORGET_S
        for name in list(self._met):
            if self._state.peer.membership.state(name) is None:
                del self._met[name]
                self._state.transport.drop(name)

    # -- the driver's network --------------------------------------------------------------------

    def meet(self, to: str) -> None:
        self.know(to, self._state.peer.membership.address(to) or self._callers.get(to, ""))

    def post(self, to: str, message: Any) -> None:
        try:
            self._state.transport.post(to, message)
        except LocalProtocolError as error:  # what others told me is too large for one message
            self._counting.rejected("too_large", self._state.name, str(error))

    def free(self, to: str) -> bool:
        return self._state.transport.free(to)

    def carry(self, to: str, message: Any) -> bool:
        state = self._state
        if isinstance(message, Push) and not push_fits(message):
            with state.lock:  # a sum of too many for one header: a snapshot will do
                state.tally.dropped["header"] += 1
            return False
        state.transport.carry(to, message)
        state.tally.send(to, message)
        return True

    def carry_snapshot(self, to: str, snapshot: Snapshot) -> bool:
        """Send one; False: it is too large for any link."""
        state = self._state
        with state.lock:
            self.meet(to)
        try:
            state.transport.carry(to, snapshot)
        except LocalProtocolError as error:
            self._counting.rejected("too_large", state.name, str(error))
            return False
        state.tally.send(to, snapshot)
        return True
