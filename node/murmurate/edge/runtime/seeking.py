"""Looking for members that this node has not met, or has lost, while it is in the swarm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from murmurate.core.message import ALIVE, Ack, Rumour
from murmurate.edge.net.dns import addresses, is_named
from murmurate.edge.runtime.discovery import ASK_TIMEOUT_S
from murmurate.errors import MurmurateError

if TYPE_CHECKING:
    from murmurate.edge.net.wire import Description
    from murmurate.edge.runtime.counting import Counting
    from murmurate.edge.runtime.links import Links
    from murmurate.edge.runtime.node_state import NodeState
    from murmurate.edge.runtime.pump import Pump

SEEK_S, SEEK_S_MAX = 1.0, 60.0
"""Between two looks for seed peers that were not there when this node came back."""
NAMES_S = 5.0
"""Between two looks at what a name of peers stands for, at most."""


class Seeking:
    """Asks addresses who is there, and lets this node's peer meet those who are of its swarm."""

    def __init__(self, state: NodeState, links: Links, pump: Pump, counting: Counting) -> None:
        self._state = state
        self._links = links
        self._pump = pump
        self._counting = counting

    async def seek(self, places: Sequence[str]) -> None:
        """Whoever comes back at the same time may not have been there when I asked."""
        state = self._state
        left, pause_s = dict.fromkeys(places), SEEK_S
        while left:
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, SEEK_S_MAX)
            for address in list(left):
                try:
                    other = await state.transport.describe(address, ASK_TIMEOUT_S)
                except MurmurateError:
                    continue
                if other.instance == state.instance:
                    del left[address]
                elif other.synced and other.swarm == state.swarm:
                    del left[address]
                    self._introduced(other)

    async def follow_names(self) -> None:
        """Whom the names of my peers stand for by now: we may have lost, or never met, each other.

        Who joins tells everyone by itself; this is for two who each came back alone, or whose
        addresses have all changed while a network was cut.
        """
        state = self._state
        names = [peer for peer in state.settings.peers if is_named(peer)]
        seen: dict[str, str] = {}
        while True:
            await asyncio.sleep(NAMES_S * state.rng.uniform(0.5, 1.0))
            found = await addresses(names)
            with state.lock:
                membership = state.peer.membership
                live = membership.live()
                met = {membership.address(name) for name in live}
            seen = {at: name for at, name in seen.items() if at in found and name in live}
            for address in found:
                if address in met or address in seen:
                    continue
                try:
                    other = await state.transport.describe(address, ASK_TIMEOUT_S)
                except MurmurateError:
                    continue
                if other.instance == state.instance or (
                    other.swarm == state.swarm and other.name in live
                ):
                    seen[address] = other.name
                elif other.synced and other.swarm == state.swarm:
                    self._introduced(other)
                elif other.synced and other.run == state.settings.run:
                    self._counting.found_twice(other.name, address, other.run)

    def _introduced(self, other: Description) -> None:
        """Whom I found, as if it had said so itself."""
        state = self._state
        word = Rumour(other.name, other.epoch, 0, ALIVE, other.address)
        with state.lock:
            self._links.know(other.name, other.address)
            ack = Ack(0, other.name, rumours=(word,))
            state.driver.receive(other.name, ack, time.monotonic())
        self._pump.pump()
