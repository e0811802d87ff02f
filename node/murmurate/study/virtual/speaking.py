"""What a node's other threads do in virtual time: messages cost them time, and the node keeps the
pace that this leaves it, as a process does (`edge.runtime.pace`, `edge.runtime.pump`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from murmurate.edge.runtime.pace import Pace
from murmurate.edge.runtime.thread_load import IDLE
from murmurate.study.virtual.machine import Cores, Lane

if TYPE_CHECKING:
    from murmurate.study.virtual.gossip import GossipWorld
    from murmurate.study.virtual.node import VirtualNode

LOOP_PART = 0.7
"""Of what a message takes beside training, the loop's thread has so much and gRPC's own the rest;
the pace looks at the loop's."""
LATE = 1e-9
"""So much later a pause is over than it could be, or rounding would begin another one."""


class Speaking:
    """Of one node. Time is the world's; what a peer is told is on its own clock."""

    def __init__(self, world: GossipWorld, node: VirtualNode, cores: Cores, end_s: float) -> None:
        """`end_s`: what a message takes at each of its two ends."""
        self._world, self._node = world, node
        self._end_s = end_s
        self._lane = Lane(cores)
        self.pace = Pace(encoded=node.publisher.encoded)
        self._sending: set[str] = set()
        self._paused = False
        self._pauses = 0
        self._spoke_s = self._trained_s = self._wanted_s = 0.0
        self._looked_s = (0.0, 0.0)
        self._made_at = world.events.time

    # -- messages ----------------------------------------------------------------------------------

    def free(self, to: str) -> bool:
        """Whether nothing is being sent there."""
        return to not in self._sending

    def send(self, to: str, act: Callable[[], object]) -> None:
        """It happens when this end has done its part; then the next may follow."""

        def sent() -> None:
            self._sending.discard(to)
            act()
            self.pump()

        self._sending.add(to)
        self._work(sent)

    def receive(self, act: Callable[[], object]) -> None:
        self._work(act)

    def _work(self, act: Callable[[], object]) -> None:
        self._spoke_s += self._end_s
        self._lane.work(self._end_s, act)

    # -- what the pace follows ---------------------------------------------------------------------

    def trained(self, work_s: float, wanted_s: float) -> None:
        """So much processor time went into training, for which it ran or stood in line so long."""
        self._trained_s += work_s
        self._wanted_s += wanted_s

    def made(self, steps: int) -> None:
        """An update of so many steps."""
        now = self._world.events.time
        self.pace.made((now - self._made_at) / max(1, steps))
        self._made_at = now

    def tick(self) -> None:
        now = self._world.events.time
        if self.pace.due(now):
            since, wanted_s = self._looked_s
            idle = now > since and (self._wanted_s - wanted_s) / (now - since) < IDLE
            self._looked_s = now, self._wanted_s
            loop_s = LOOP_PART * self._spoke_s
            others = self._world.task.nodes - 1
            self.pace.look(now, loop_s, self._spoke_s + self._trained_s, peers=others, idle=idle)

    # -- when waiting messages leave ---------------------------------------------------------------

    def pump(self) -> None:
        """Hand over what waits, and look again after the pause between two messages."""
        world, node = self._world, self._node
        pause_s = self.pace.message_s
        paced = node.peer.links.keep_pause(pause_s / world.tempo)
        taken = node.driver.pump(world.now)
        if self._paused and (taken or not paced):
            self._paused = False
            self._pauses += 1
        if paced and not self._paused and (taken or node.peer.links.has_waiting(world.now)):
            self._paused = True
            world.events.after(pause_s * (1.0 + LATE) + LATE, self._pause_over, self._pauses)

    def _pause_over(self, number: int) -> None:
        if number == self._pauses and self._node.figures.state not in ("killed", "left"):
            self._paused = False
            self._pauses += 1
            self.pump()


def speaking_of(world: GossipWorld, node: VirtualNode, cores: Cores) -> Speaking | None:
    """None: messages cost nothing beside training, and leave at once."""
    name = node.figures.name
    message_s = world.task.costs.message_s / world.task.speed(name)
    return Speaking(world, node, cores, message_s / 2) if message_s else None


def carry(world: GossipWorld, node: VirtualNode, to: str, message: Any, nbytes: int) -> None:
    """A message by a link, when this end has done its part."""

    def leave() -> None:
        world.transmit(node, to, message, nbytes, carried=True)

    if node.speaking is None:
        leave()
    else:
        node.speaking.send(to, leave)
