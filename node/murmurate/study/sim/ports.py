"""What surrounds one simulated driver: a seeded network and disk, and the truth that watches.

Here is checked what must hold when something leaves a machine: that its disk has what a crash would
otherwise make it forget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from murmurate.core.clock import Dot
from murmurate.core.driver import Life, Ports, Seen
from murmurate.core.effect import Adopted, Applied, Drop, Moved, Verdict
from murmurate.core.forgetting.vow import Vow
from murmurate.core.gossip.peer import Peer
from murmurate.core.message import Accepted, Prepare, Promise, Push, Snapshot
from murmurate.errors import PromiseBroken
from murmurate.study.sim.disk import DiskFull
from murmurate.study.sim.machine import Node

if TYPE_CHECKING:
    from murmurate.study.sim.swarm import SimulatedSwarm


class SeededPorts:
    """All four ports of one machine's driver (`core.driver.Ports`)."""

    def __init__(self, swarm: SimulatedSwarm, node: Node) -> None:
        self._swarm = swarm
        self._node = node

    def all(self) -> Ports[Peer]:
        return Ports(network=self, disk=self, lives=self, watch=self)

    # -- network ---------------------------------------------------------------------------------

    def meet(self, to: str) -> None:
        """Names are addresses here."""

    def post(self, to: str, message: Any) -> None:
        swarm, node = self._swarm, self._node
        self._check_vow(message)
        if isinstance(message, Snapshot):
            swarm.counts["snapshots"] += 1
            swarm.truth.snapshot_made(node.name, message)
        swarm.transmit(node.name, to, message, swarm.time)

    def free(self, to: str) -> bool:
        return to not in self._node.busy

    def carry(self, to: str, message: Push) -> bool:
        """A slow link is busy for a while. This network never says what it lost."""
        swarm, node = self._swarm, self._node
        sending_s = swarm.network.sending_s(node.name, to)
        swarm.transmit(node.name, to, message, swarm.time + sending_s)
        if not sending_s:
            return False
        node.busy.add(to)
        swarm.at(swarm.time + sending_s, swarm.link_free, node, node.life, to, message)
        return True

    def _check_vow(self, message: Any) -> None:
        """Nobody gives its word that a crash could make it forget."""
        if not isinstance(message, Prepare | Promise | Accepted):
            return
        vow = self._node.disk.vow
        word = message.number, message.ballot
        if vow is None or (vow.number, vow.promised) < word:
            raise PromiseBroken("P11", f"{self._node.name} says {word}, its disk has {vow}")
        accepts = isinstance(message, Accepted) and vow.number == message.number
        if accepts and (vow.accepted_ballot is None or vow.accepted_ballot < message.ballot):
            raise PromiseBroken("P11", f"{self._node.name} accepts {word}, its disk has {vow}")

    # -- disk ------------------------------------------------------------------------------------

    def save(self, key: str, value: Any) -> bool:
        try:
            self._node.disk.save(key, value)
        except DiskFull:
            return False
        if isinstance(value, Vow):
            self._swarm.votes.saved(self._node.name, value)
        return True

    # -- lives -----------------------------------------------------------------------------------

    def begin_again(self, reason: str, now: float) -> Life[Peer] | None:
        """Voted out while away: whatever only this node had is void, and says so."""
        swarm, node = self._swarm, self._node
        swarm.counts["voted out and back"] += 1
        swarm.note("rejoins", node.name, reason)
        held = swarm.truth.held[node.name].ids
        others = [n.name for n in swarm.live() if n is not node]
        elsewhere = set().union(*(swarm.truth.held[name].ids for name in others))
        swarm.truth.retired |= held - elsewhere
        swarm.stopped(node, "rejoin")
        node.disk.wipe_state()
        return swarm.life(node, swarm.some_live(node.name))

    # -- watch -----------------------------------------------------------------------------------

    def saw(self, effect: Seen) -> None:
        swarm, name = self._swarm, self._node.name
        match effect:
            case Applied(dots, staleness):
                swarm.note("folds", name, dots[0])
                swarm.truth.applied_at(name, dots, staleness)
            case Drop(_, reason, _, count):
                swarm.counts[f"dropped: {reason}"] += count
            case Adopted(giver, snapshot, kept, retired, given_up):
                swarm.note("adopts", name, giver)
                swarm.counts["snapshots adopted"] += 1
                swarm.given_up(name, given_up)
                self._retired(retired)
                swarm.truth.adopted(name, snapshot, kept, retired, given_up)
            case Verdict(member, epoch, state, _):
                swarm.counts[f"verdict: {state}"] += 1
                swarm.note(state, name, member)
                swarm.truth.verdict(name, (member, epoch), state)
            case Moved(generation):
                swarm.note("moves", name, generation.number)
                swarm.counts["moves to a new baseline"] += 1
                swarm.truth.left[name] = set()
                swarm.decided[generation.number] = generation
                swarm.votes.taken_for_decided(generation)

    def _retired(self, dots: tuple[Dot, ...]) -> None:
        """Only the updates of one who was away can have been closed without it."""
        for dot in dots:
            self._swarm.counts["retired"] += 1
            if not self._swarm.nodes[dot.origin].was_away:
                raise PromiseBroken("P3", f"{dot} was voted out, but its origin was never away")
