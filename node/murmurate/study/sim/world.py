"""A run: faults first, then calm, in which all live peers must come to the same set and weights."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field

from murmurate.errors import MurmurateError, PromiseBroken
from murmurate.study.sim.disk import Disk
from murmurate.study.sim.hostile import strike
from murmurate.study.sim.machine import Node
from murmurate.study.sim.options import Options
from murmurate.study.sim.swarm import LINGER_S, SimulatedSwarm

LONG_CUT_S = 10.0
"""Runs with cuts that may last so long are about members that are voted out."""


@dataclass(slots=True)
class Result:
    """What one seed came to."""

    seed: int
    nodes: int = 0
    topology: str = ""
    events: int = 0
    virtual_s: float = 0.0
    settle_s: float = 0.0
    applied: int = 0
    staleness_checks: int = 0
    generations: int = 0
    trace_hash: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    last_events: tuple[str, ...] = ()


class World(SimulatedSwarm):
    """A swarm, what is done to it, and what must hold at the end."""

    # -- trouble ---------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Every 0.1 s: perhaps something bad happens to somebody."""
        if self.network.calm:
            return
        self.at(self.time + 0.1, self._fault)
        faults, rng = self.setting.faults, self.rng
        live = self.live()
        names = [node.name for node in live]
        rate = 0.1 * len(live)
        if faults.cut_rate and len(live) > 1 and rng.random() < faults.cut_rate * rate:
            # One that is cut off alone for long is voted out: a majority remains.
            alone = faults.cut_s_max > LONG_CUT_S and rng.random() < 0.5
            side = set(rng.sample(names, 1 if alone else rng.randint(1, len(names) - 1)))
            paths = self.network.cut(side, set(names) - side)
            for node in live:
                node.was_away = True
            self.at(self.time + rng.uniform(0.2, faults.cut_s_max), self.network.heal, paths)
        if faults.clog_rate and len(live) > 1 and rng.random() < faults.clog_rate * rate:
            a, b = rng.sample(names, 2)
            self.network.clog(a, b, self.time + rng.uniform(0.2, 2.0))
        if faults.pause_rate and rng.random() < faults.pause_rate * rate:
            self._pause(rng.choice(live), rng.uniform(0.1, faults.pause_s_max))
        if faults.crash_rate and len(live) > 1 and rng.random() < faults.crash_rate * rate:
            self._crash_or_lose(rng.choice(live))
        if faults.disk_full_rate and rng.random() < faults.disk_full_rate * rate:
            self._fill_disk(rng.choice(live).disk, rng.uniform(0.2, 2.0))
        if faults.clock_jumps and rng.random() < 0.02 * rate:
            self.counts["clock jump"] += 1
            rng.choice(live).offset += rng.choice((1.0, 10.0, 3600.0))
        if faults.join_rate and rng.random() < faults.join_rate * rate:
            self._join()
        if faults.leave_rate and len(live) > 2 and rng.random() < faults.leave_rate * rate:
            self._leave(rng.choice(live))
        if faults.hostile_rate and live and rng.random() < faults.hostile_rate * rate:
            target = rng.choice(live)
            if target.peer is not None and target.paused is None:
                self.counts["hostile message"] += 1
                strike(target.peer, rng, target.now(self.time))
                self.truth.check(target.peer)

    def _pause(self, node: Node, seconds: float) -> None:
        if node.peer is None or node.paused is not None:
            return
        self.counts["pause"] += 1
        node.was_away = True
        node.paused = []
        self.at(self.time + seconds, self._resume, node, node.life)

    def _resume(self, node: Node, life: int) -> None:
        if not self._alive(node, life) or node.paused is None:
            return
        waiting, node.paused = node.paused, None
        for act, args in waiting:
            if self._alive(node, life):
                act(*args)

    def _crash_or_lose(self, node: Node) -> None:
        if node.peer is None:
            return
        lost = self.counts["disk lost"]
        may_lose = self.setting.faults.disk_loss and lost < max(1, self.setting.nodes // 3)
        if may_lose and len(self.live()) > 2 and self.rng.random() < 0.3:
            self.counts["disk lost"] += 1
            self._stop(node, "disk lost")
            node.stopped = True
            self.at(self.time + 0.5, self._join)
        else:
            self._crash(node)

    def _crash(self, node: Node, down_s: float | None = None) -> None:
        """Some take the disk: then the machine comes back as one that remembers nothing."""
        super()._crash(node, down_s)
        forgets = self.setting.faults.forgets
        if forgets and self.rng.random() < forgets and self._others_keep(node):
            self.counts["memory lost"] += 1
            node.disk.lose()

    def _others_keep(self, node: Node) -> bool:
        """Whether two others that stay have checkpoints: if all forget, a new swarm begins."""
        keep = [
            each
            for each in self.nodes.values()
            if each is not node
            and not each.stopped
            and not each.leaving_until
            and each.disk.checkpoints
        ]
        return len(keep) >= 2

    def _fill_disk(self, disk: Disk, seconds: float) -> None:
        disk.full = True
        self.at(self.time + seconds, self._free_disk, disk)

    def _free_disk(self, disk: Disk) -> None:
        disk.full = False

    def _join(self) -> None:
        """A newcomer, or one who left and comes back with its old disk."""
        gone = [
            node
            for node in self.nodes.values()
            if node.stopped and node.peer is None and node.leaving_until
        ]
        seed_peers = self.some_live("")
        if not seed_peers:
            return
        if gone and self.rng.random() < 0.3:
            self.counts["rejoin"] += 1
            node = self.rng.choice(gone)
            node.stopped = False
        else:
            self.counts["join"] += 1
            node = self._machine(f"n{self._next_name:02}")
            self._next_name += 1
        self._start(node, seed_peers)

    def _leave(self, node: Node) -> None:
        staying = [n for n in self.live() if not n.leaving_until]
        if node.peer is None or node.leaving_until or node.paused is not None or len(staying) < 3:
            return
        if not node.peer.synced:
            return
        if not self._drain(node):
            return
        self.counts["leave"] += 1
        node.leaving_until = self.time + LINGER_S
        assert node.driver is not None
        node.driver.leave(node.now(self.time))
        self._pump(node)

    # -- the two phases --------------------------------------------------------------------------

    def run(self) -> Result:
        """Faults, then calm; raises `PromiseBroken` when a promise does not hold."""
        self.at(0.1, self._fault)
        self.run_until(self.setting.faults_s)
        must_have = self._calm_down()
        calm_at = self.time
        patience_s = self.options.settle_s_max * max(1.0, len(self.peers()) / 16)
        if not self.run_until(calm_at + patience_s, self._settled):
            raise PromiseBroken(
                "P5",
                f"not the same set {patience_s:.0f} s after the last fault: {self._differences()}",
            )
        settle_s = self.time - calm_at
        self.truth.final(self.peers(), must_have)
        if self.setting.compact and self._quorum():
            if not self.run_until(self.time + 60.0, self._compacted):
                raise PromiseBroken("P12", f"finished epochs stay in the clocks: {self._entries()}")
            self.truth.final(self.peers(), must_have)
        return Result(
            seed=self.seed,
            nodes=self.setting.nodes,
            topology=self.setting.config.topology,
            events=self.events.happened,
            virtual_s=self.time,
            settle_s=settle_s,
            applied=self.truth.applied,
            staleness_checks=self.truth.staleness_checks,
            generations=max(peer.baseline.number for peer in self.peers()),
            trace_hash=self.digest.hexdigest(),
            counts=self.counts,
        )

    def _calm_down(self) -> set[int]:
        """All faults end, everyone who can comes back; returns what must not get lost."""
        self.training = False
        self.network.calm_down()
        for node in list(self.nodes.values()):
            node.disk.full = False
            node.disk.torn = 0.0
            if node.leaving_until and node.peer is not None:
                node.leaving_until = self.time + LINGER_S
            if node.paused is not None:
                self._resume(node, node.life)
            if node.peer is None and not node.stopped:
                self._restart(node)
        must_have: set[int] = set()
        for node in self.live():
            self._drain(node)
        newest = max(peer.baseline.number for peer in self.peers())
        for node in self.live():
            assert node.peer is not None
            # Who leaves from further behind than the others' history cannot hand anything over.
            if newest - node.peer.baseline.number < self.setting.config.history_max:
                must_have |= self.truth.held[node.name].ids
                must_have |= {self.truth.dots[dot] for push in node.peer.log for dot in push.dots}
        return must_have

    def _settled(self) -> bool:
        return all(not n.leaving_until for n in self.live()) and self.truth.same_everywhere(
            self.peers()
        )

    def _differences(self) -> str:
        peers = self.peers()
        sets = {peer.name: self.truth.held[peer.name].ids for peer in peers}
        everything = set().union(*sets.values())
        return "; ".join(
            f"{name} lacks {len(everything - have)}" + ("" if peer.synced else " (not synced)")
            for peer, (name, have) in zip(peers, sets.items(), strict=True)
        )

    def _quorum(self) -> bool:
        """Whether the newest roster has a live majority: without it nothing can be agreed on."""
        newest = max((peer.baseline for peer in self.peers()), key=lambda b: b.number)
        live = {peer.name: peer.state.memory for peer in self.peers()}
        there = [name for name in newest.roster if name in live]
        votes = [name for name in there if newest.history[-1].has_vote(name, live[name])]
        half = 2 * len(votes) == len(newest.roster) == len(there)
        return half or 2 * len(votes) > len(newest.roster)

    def _compacted(self) -> bool:
        lives = {(peer.name, peer.epoch) for peer in self.peers()}
        return all(set(peer.clock.keys()) <= lives for peer in self.peers())

    def _entries(self) -> str:
        lives = {(peer.name, peer.epoch) for peer in self.peers()}
        return "; ".join(
            f"{peer.name}: {[key for key in peer.clock.keys() if key not in lives]}"
            for peer in self.peers()
        )


def simulate(seed: int, options: Options | None = None) -> Result:
    """Run one seed; a broken promise is in `failure`, with the last events before it."""
    world = World(seed, options)
    try:
        return world.run()
    except MurmurateError as error:
        where = "" if isinstance(error, PromiseBroken) else traceback.format_exc(limit=-3)
        return Result(
            seed=seed,
            nodes=world.setting.nodes,
            topology=world.setting.config.topology,
            events=world.events.happened,
            virtual_s=world.time,
            staleness_checks=world.truth.staleness_checks,
            applied=world.truth.applied,
            trace_hash=world.digest.hexdigest(),
            counts=world.counts,
            failure=f"{type(error).__name__} {error}{where}",
            last_events=tuple(world.recent),
        )
