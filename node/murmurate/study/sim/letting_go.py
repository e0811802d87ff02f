"""What a peer lets go of, or sums up, beside the disks of all members: no crash may take it.

Looked at only where the log has room: a log that is half full lets go of what all have applied,
which several crashes may take (docs/promises.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from murmurate.core.clock import Dot
from murmurate.core.gossip.peer import Peer
from murmurate.errors import PromiseBroken
from murmurate.study.sim.machine import Node

if TYPE_CHECKING:
    from murmurate.study.sim.swarm import SimulatedSwarm

ROOMY = 512
"""A log for so many updates is never half full in one run."""


class LettingGo:
    """The log of one peer as it was before something was done, to be held against what is left."""

    def __init__(self, swarm: SimulatedSwarm, peer: Peer) -> None:
        self._swarm = swarm
        self._logged = self._single(peer)
        self._sums = self._summed(peer)

    def check(self, node: Node) -> None:
        """PromiseBroken unless each member has for good what is not there any more, and all or
        nothing of what is a sum now. (Not one that forgot, or began a life, of which the node has
        not heard yet.)"""
        peer = node.peer
        assert peer is not None
        if gone := self._logged - self._single(peer):
            self._check_gone(peer, gone)
        if new := self._summed(peer) - self._sums:
            self._check_sums(peer, new)

    def _check_gone(self, peer: Peer, gone: set[Dot]) -> None:
        truth = self._swarm.truth
        for name in peer.baseline.roster:
            other = self._swarm.nodes[name]
            forgot = other.disk.memory > (peer.membership.epoch(name) or 0)
            if other.stopped or forgot or not other.disk.checkpoints:
                continue
            safe = truth.snapshots[id(other.disk.checkpoints[0].snapshot)][1].ids
            for dot in gone:
                one = truth.dots[dot]
                if one not in safe and one not in truth.retired:
                    raise PromiseBroken("P3", f"{peer.name} lets go of {dot}, {name} may lose it")

    def _check_sums(self, peer: Peer, new: set[tuple[Dot, ...]]) -> None:
        truth = self._swarm.truth
        for name in peer.baseline.roster:
            other, life = self._swarm.nodes[name], peer.membership.epoch(name) or 0
            for saved in other.disk.checkpoints if not other.stopped else ():
                lifted = peer.baseline.lift(saved.snapshot.clock)
                if saved.epoch > life or lifted is None or lifted.apart:
                    continue
                held = truth.snapshots[id(saved.snapshot)][1].ids
                for dots in new:
                    if len({truth.dots[dot] in held for dot in dots}) > 1:
                        raise PromiseBroken("P3", f"{peer.name} sums what {name} has in part")

    def _single(self, peer: Peer) -> set[Dot]:
        if not self._has_room(peer):
            return set()
        return {dot for push in peer.log for dot in push.dots}

    def _summed(self, peer: Peer) -> set[tuple[Dot, ...]]:
        if not self._has_room(peer):
            return set()
        return {push.dots for push in peer.log if len(push.stamps) > 1}

    def _has_room(self, peer: Peer) -> bool:
        return peer.config.log_bytes_max >= ROOMY * self._swarm.setting.model_bytes
