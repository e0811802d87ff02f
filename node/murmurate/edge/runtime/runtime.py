"""What runs beside the training: one thread, one event loop, and the parts that share them.

The parts talk through what the node is (`node_state`), under its one lock. The training thread
reaches them through `Runtime.training` and `Runtime.figures` (`training_port`, `node_figures`),
whoever shows something through `Runtime.look`.

A failure in the background is kept and raised in the training thread, at its next step.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from murmurate.core import buffers
from murmurate.core.driver import Driver, Ports
from murmurate.edge.net.dns import is_named
from murmurate.edge.runtime.counting import Counting
from murmurate.edge.runtime.discovery import ASK_AGAIN_S, Wish, find_place
from murmurate.edge.runtime.ears import NodeEars
from murmurate.edge.runtime.links import Links
from murmurate.edge.runtime.lives import NodeDisk, NodeLives
from murmurate.edge.runtime.loop import LoopThread
from murmurate.edge.runtime.node_figures import NodeFigures
from murmurate.edge.runtime.node_state import NodeState, Settings
from murmurate.edge.runtime.pump import Pump
from murmurate.edge.runtime.seeking import Seeking
from murmurate.edge.runtime.snapshot_giver import Giving
from murmurate.edge.runtime.telling import Telling
from murmurate.edge.runtime.training_port import TrainingPort

if TYPE_CHECKING:
    import torch

    from murmurate.core.layout import Layout
    from murmurate.core.message import Snapshot
    from murmurate.edge.disk.checkpointer import Keeper
    from murmurate.edge.net.http import Pages
    from murmurate.edge.net.transport import Transport
    from murmurate.edge.net.wire import Description, Hello

log = logging.getLogger("murmurate")

TICK_S = 0.1
CALLED_S = 1.5
"""So long a founder listens for a swarm of its run that was there before it."""

T = TypeVar("T")


class Runtime:
    """The background of one node, from `start` to `stop`."""

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        weights: torch.Tensor,
        transport: Transport,
        keeper: Keeper | None = None,
    ) -> None:
        state = self._state = NodeState(settings, layout, weights, transport, keeper)
        loop = self._loop = LoopThread(state.fail)
        counting = Counting(state)
        links = self._links = Links(state, counting)
        lives = self._lives = NodeLives(state, links, self._introduce_soon)
        state.driver = Driver(
            Ports(network=links, disk=NodeDisk(state), lives=lives, watch=counting)
        )
        pump = self._pump = Pump(state, loop)
        telling = self._telling = Telling(state)
        giving = self.giving = Giving(
            transport,
            weights,
            make=self._make_snapshot,
            carry=links.carry_snapshot,
            do=loop.do,
            now=time.monotonic,
        )
        self._seeking = Seeking(state, links, pump, counting)
        self.ears = NodeEars(state, links, pump, telling, giving, counting)
        self.figures = NodeFigures(state, telling, counting)
        self.training = TrainingPort(
            state, loop, lives, pump, telling, giving, counting, tick=self._tick
        )

    # -- for other threads -----------------------------------------------------------------------

    def serve(self, pages: Pages) -> None:
        """Have these served while this node lives; to be called before `start`."""
        self._state.pages = pages

    def start(self) -> None:
        """Listen, find the swarm, and begin to speak. Returns before the first snapshot is here."""
        self._loop.start()
        try:
            self._loop.wait_for(self._enter())
        except BaseException:
            self.stop(grace_s=0.0)
            raise

    def stop(self, grace_s: float = 1.0) -> None:
        """Close everything; no thread and no port remains."""
        self._loop.stop(lambda: self._shut(grace_s))

    @property
    def failed(self) -> bool:
        """Whether something went wrong in the background."""
        return self._state.failed

    def look(self, read: Callable[[NodeState], T]) -> T:
        """What somebody reads from the node, of one instant: the lock is held meanwhile."""
        with self._state.lock:
            return read(self._state)

    def describe(self) -> Description:
        """What this node tells whoever asks who it is."""
        return self.ears.describe()

    # -- the loop's thread -----------------------------------------------------------------------

    async def _enter(self) -> None:
        state, settings = self._state, self._state.settings
        if state.pages is not None:
            await state.pages.start()
        await state.transport.start(self.ears)
        wish = Wish(
            run=settings.run,
            rule=settings.rule,
            name=settings.name,
            instance=state.instance,
            layout=state.layout,
            peers=settings.peers,
            found=settings.found,
            careful=settings.careful and any(map(is_named, settings.peers)),
            timeout_s=settings.join_timeout_s,
            memory=self._lives.memory(),
            address=state.transport.address,
        )
        if not settings.found and state.layout.nbytes >= buffers.BLOCK_BYTES_MIN:
            # For the snapshot: while the giver makes its copy.
            running = asyncio.get_running_loop()
            running.run_in_executor(None, buffers.touch, state.layout.size, state.layout.dtype)
        began = time.monotonic()
        if not wish.peers and wish.memory is None and settings.known_port:
            wish = replace(wish, peers=await self._called_back())
        place = await find_place(state.transport, wish, secrets.token_hex(8))
        self.figures.waited(time.monotonic() - began)
        if place.last_life and not place.back:
            log.warning(
                "%s was here before and its memory is gone: it takes a snapshot, and has no vote"
                " until the others agreed on it",
                place.name,
            )
        self._lives.look_back(place)
        with state.lock:
            state.driver.begin(self._lives.begin(place), time.monotonic())
        self._loop.do(self._tick_for_ever())
        if self._lives.resumed is not None:
            known, before = place.members.values(), wish.memory.peers if wish.memory else ()
            asked = [at for at in (*wish.peers, *before) if at not in known]
            self._loop.do(self._seeking.seek([at for at in asked if not is_named(at)]))
        if wish.named:
            self._loop.do(self._seeking.follow_names())

    async def _called_back(self) -> tuple[str, ...]:
        """A founder at an address that others may know asks whoever it can find: members of an
        earlier life's swarm still look for it there, twice a second."""
        state, until = self._state, time.monotonic() + CALLED_S
        while time.monotonic() < until:
            with state.lock:
                callers = dict(state.other_swarms.callers)
            if callers:
                (address, name), *_ = callers.items()
                log.warning(
                    "run %r is there already (%s at %s still looks for this address): joining it"
                    " instead of founding a second swarm",
                    state.settings.run,
                    name,
                    address,
                )
                return tuple(callers)
            await asyncio.sleep(ASK_AGAIN_S)
        return ()

    def _introduce_soon(self, hello: Hello, members: dict[str, str]) -> None:
        """A life begins, on whichever thread."""
        self._loop.call(self._introduce, hello, members)

    def _introduce(self, hello: Hello, members: dict[str, str]) -> None:
        state = self._state
        self.giving.forget()
        state.transport.hello(hello)
        with state.lock:
            for name, address in members.items():
                self._links.know(name, address)
        self._pump.pump()

    async def _tick_for_ever(self) -> None:
        while True:
            self._tick()
            await asyncio.sleep(TICK_S)

    def _tick(self) -> None:
        state, now = self._state, time.monotonic()
        if state.pace.due(now):
            state.pace.look(
                now,
                time.thread_time(),
                time.process_time(),
                peers=len(self._links.met),
                idle=state.demand.idle(now),
            )
        with state.lock:
            if not state.joined:
                return
            state.driver.tick(now)
            self._telling.tick(now)
            self._links.forget(now)
            state.news.notify_all()
            live = state.peer.membership.live()
        self.giving.sweep(live)
        self._pump.tick()

    def _make_snapshot(self) -> Snapshot | None:
        with self._state.lock:
            peer = self._state.peer
            return peer.snapshot() if peer.gives() else None

    async def _shut(self, grace_s: float) -> None:
        await self._loop.cancel_all()
        self._pump.stop()
        await self._state.transport.stop(grace_s)
        if self._state.pages is not None:
            await self._state.pages.stop()
