"""The real peers of averaging, `MixingPeer` under the driver of nodes, on a bad network.

First a phase with steps, loss, cuts, crashes, newcomers and departures; then one without, until all
have the same model. After every event all mass is somewhere: what all lives hold or held, and what
is on the links between them, is what was put in. (`averaging` checks the arithmetic beneath by
itself, against a dumb twin.)
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from murmurate.core.driver import Driver, Life, Ports, Seen
from murmurate.core.effect import Adopted
from murmurate.core.gossip.average.mixing import MixingPeer
from murmurate.core.gossip.average.partners import EVEN
from murmurate.core.gossip.average.push_sum import IsFar, Merged, Share, Stale, mass
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.replica import Replica
from murmurate.errors import PromiseBroken
from murmurate.study.sim.events import Events
from murmurate.study.sim.network import Network
from murmurate.study.sim.options import SIM_TIMING, Faults

SIZE, FAULTS_S, TICK_S, STEP_S = 3, 8.0, 0.1, 0.25
SETTLE_S_MAX = 60.0
LEAK_MAX = 1e-9
GRAPHS = ("full", "ring", "exponential", "one-peer-exponential", "star", "tree")
LifeId = tuple[str, int]


@dataclass(slots=True)
class MixingResult:
    """What one seed came to. `leak`: the largest part ever missing of what was put in."""

    seed: int
    nodes: int
    graph: str
    events: int = 0
    steps: int = 0
    leak: float = 0.0
    settle_s: float = 0.0
    trace_hash: str = ""
    counts: Counter[str] = field(default_factory=Counter)


class _Machine:
    """One node: its driver, and the ports around it."""

    def __init__(self, world: MixingWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.epoch = 0
        self.driver: Driver[MixingPeer] | None = None
        self.flying: dict[str, Share] = {}
        self.leaving = False

    @property
    def peer(self) -> MixingPeer | None:
        return self.driver.peer if self.driver is not None and self.driver.alive else None

    def start(self, seed_peers: list[str], *, synced: bool) -> None:
        """A process starts: a new number first, then its peer."""
        ports = Ports(network=self, disk=self, lives=self, watch=self)
        self.driver = Driver(ports)
        self.driver.begin(Life(self.born(synced=synced), seed_peers), self.world.time)

    def born(self, *, synced: bool) -> MixingPeer:
        self.epoch += 1
        self.flying = {}
        return self.world.peer(self.name, self.epoch, synced=synced)

    def end_if_settled(self) -> None:
        """Who leaves is driven on until nobody waits for it."""
        if self.leaving and self.peer is not None and self.peer.others.settled():
            self.driver = None

    # -- ports -----------------------------------------------------------------------------------

    def meet(self, to: str) -> None:
        """Names are addresses here."""

    def post(self, to: str, message: Any) -> None:
        self.world.transmit(self.name, to, message)

    def free(self, to: str) -> bool:
        return to not in self.flying

    def carry(self, to: str, message: Share) -> bool:
        """A link tells what became of a share, now and then wrongly that it was lost."""
        world = self.world
        self.flying[to] = message
        arrivals = world.transmit(self.name, to, message)
        said = bool(arrivals) and world.rng.random() > world.network.faults.loss
        at = max(arrivals, default=world.time + 0.1)
        world.events.at(at, self.ended, to, message, self.epoch, said)
        return True

    def ended(self, to: str, message: Share, epoch: int, landed: bool) -> None:
        if self.peer is None or self.epoch != epoch:
            return
        del self.flying[to]
        (self.peer.landed if landed else self.peer.lost)(to, message)
        self.pump()

    def save(self, key: str, value: Any) -> bool:
        return True

    def begin_again(self, reason: str, now: float) -> Life[MixingPeer] | None:
        self.world.counts["apart for too long"] += 1
        return Life(self.born(synced=False), self.world.others(self.name))

    def saw(self, effect: Seen) -> None:
        if isinstance(effect, Adopted):
            one = torch.ones(1, dtype=torch.float64)
            self.world.put_in += torch.cat([effect.snapshot.weights, one])
            self.world.counts["snapshots adopted"] += 1

    def pump(self) -> None:
        assert self.driver is not None
        self.driver.pump(self.world.time)


class MixingWorld:
    """Machines, the network between them, and the book of what went where."""

    def __init__(self, seed: int, kind: type[MixingPeer] = MixingPeer) -> None:
        self.kind = kind
        self.rng = rng = random.Random(f"mixing/{seed}")
        self.result = MixingResult(seed, rng.randint(3, 7), rng.choice(GRAPHS))
        self.counts = self.result.counts
        self.faults = faults = Faults(
            loss=rng.choice((0.0, rng.uniform(0.0, 0.3))),
            duplicate=rng.choice((0.0, rng.uniform(0.0, 0.5))),
            delay_s=rng.choice((0.002, 0.03, 0.1)),
            reorder_s=rng.choice((0.0, 0.3)),
            late_duplicate_s=rng.choice((0.0, 2.0)),
            cut_rate=rng.choice((0.0, 0.1)),
            cut_s_max=rng.choice((2.0, 8.0)),
            one_way=rng.random() < 0.3,
            crash_rate=rng.choice((0.0, 0.04)),
            join_rate=rng.choice((0.0, 0.04)),
            leave_rate=rng.choice((0.0, 0.04)),
        )
        self.network = Network(faults, rng, self.counts)
        self.events = Events()
        self.config = PeerConfig(
            topology=self.result.graph,
            snapshot_wait_s=1.0,
            forget_after_s=rng.choice((1.0, 6.0)),
            timing=SIM_TIMING,
        ).for_updates(8 * SIZE)
        self.put_in = torch.zeros(SIZE + 1, dtype=torch.float64)
        self.lives: dict[LifeId, MixingPeer] = {}
        self.on_links: dict[tuple[LifeId, LifeId], torch.Tensor] = {}
        self.merged: set[tuple[LifeId, LifeId, int]] = set()
        self.machines: dict[str, _Machine] = {}
        names = [f"n{i}" for i in range(self.result.nodes)]
        for name in names:
            self.add(name, [other for other in names if other != name], synced=True)
        self.events.at(TICK_S, self.trouble)

    @property
    def time(self) -> float:
        return self.events.time

    # -- machines --------------------------------------------------------------------------------

    def add(self, name: str, seed_peers: list[str], *, synced: bool) -> None:
        machine = self.machines[name] = _Machine(self, name)
        machine.start(seed_peers, synced=synced)
        self.events.after(self.rng.random() * TICK_S, self.tick, machine)
        self.events.after(self.rng.random() * STEP_S, self.step, machine)

    def peer(self, name: str, epoch: int, *, synced: bool) -> MixingPeer:
        rng = random.Random(f"{self.result.seed}/{name}/{epoch}")
        replica = Replica(self.vector())
        made = self.kind(name, epoch, replica, rng=rng, config=self.config, synced=synced)
        if synced:
            self.put_in += made.averager.mass
        self._keep_book(made)
        self.lives[name, epoch] = made
        return made

    def vector(self) -> torch.Tensor:
        return torch.tensor([self.rng.gauss(0, 1) for _ in range(SIZE)], dtype=torch.float64)

    def live(self) -> list[_Machine]:
        return [machine for machine in self.machines.values() if machine.peer is not None]

    def staying(self) -> list[MixingPeer]:
        return [m.peer for m in self.live() if m.peer is not None and not m.leaving]

    def others(self, name: str) -> list[str]:
        return [peer.name for peer in self.staying() if peer.name != name and peer.synced][:3]

    # -- what happens ----------------------------------------------------------------------------

    def transmit(self, source: str, to: str, message: Any) -> list[float]:
        arrivals = self.network.arrivals(source, to, self.time)
        for at in arrivals:
            self.events.at(at, self.arrive, source, to, message)
        return arrivals

    def arrive(self, source: str, to: str, message: Any) -> None:
        machine = self.machines[to]
        if machine.peer is not None and machine.driver is not None:
            machine.driver.receive(source, message, self.time)
            machine.pump()

    def tick(self, machine: _Machine) -> None:
        self.events.after(TICK_S, self.tick, machine)
        if machine.driver is None or machine.peer is None:
            return
        self.fold(machine)
        machine.driver.tick(self.time)
        machine.pump()
        machine.end_if_settled()

    def fold(self, machine: _Machine) -> None:
        while machine.driver is not None and machine.driver.fold(self.time) is not None:
            pass

    def step(self, machine: _Machine) -> None:
        if self.network.calm:
            return
        self.events.after(STEP_S * self.rng.uniform(0.5, 1.5), self.step, machine)
        if machine.driver is None or machine.peer is None or machine.leaving:
            return
        self.fold(machine)
        peer = machine.driver.peer
        if peer.synced:
            delta = self.vector()
            self.put_in[:-1] += delta * peer.averager.weight
            machine.driver.publish(delta, peer.context(), self.time)
            self.result.steps += 1
            machine.pump()

    def trouble(self) -> None:
        if self.network.calm:
            return
        self.events.after(TICK_S, self.trouble)
        faults, rng, live = self.faults, self.rng, self.live()
        names = [machine.name for machine in live]
        rate = TICK_S * len(live)
        synced = [peer for peer in self.staying() if peer.synced]
        if len(live) > 1 and rng.random() < faults.cut_rate * rate:
            side = set(rng.sample(names, rng.randint(1, len(names) - 1)))
            paths = self.network.cut(side, set(names) - side)
            self.events.after(rng.uniform(0.2, faults.cut_s_max), self.network.heal, paths)
        if len(synced) > 2 and rng.random() < faults.crash_rate * rate:
            machine = self.machines[rng.choice(synced).name]
            machine.driver = None
            self.counts["crash"] += 1
            self.events.after(rng.choice((0.5, 4.0)), self.restart, machine)
        if len(synced) > 3 and rng.random() < faults.leave_rate * rate:
            machine = self.machines[rng.choice(synced).name]
            if machine.driver is not None:
                machine.leaving = True
                self.counts["leave"] += 1
                machine.driver.leave(self.time)
                machine.pump()
        if synced and rng.random() < faults.join_rate * rate:
            self.counts["join"] += 1
            self.add(f"n{len(self.machines)}", self.others(""), synced=False)

    def restart(self, machine: _Machine) -> None:
        """Mixed weights of before would pull the others back: it begins as a newcomer."""
        machine.start(self.others(machine.name), synced=False)

    # -- the book --------------------------------------------------------------------------------

    def _keep_book(self, peer: MixingPeer) -> None:
        """Of what a life gives and puts in."""
        averager, me = peer.averager, (peer.name, peer.epoch)
        assign, receive = averager.assign, averager.receive
        given: dict[LifeId, int] = {}

        def count(source: LifeId, to: LifeId, share: Share, sign: int) -> None:
            there = self.on_links.get((source, to), torch.zeros_like(self.put_in))
            self.on_links[source, to] = there + sign * mass(share.model, share.weight)

        def noted_assign(partner: str, epoch: int, part: float) -> Share | None:
            share = assign(partner, epoch, part)
            if share is not None and share.seq > given.get((partner, share.to_epoch), 0):
                given[partner, share.to_epoch] = share.seq
                count(me, (partner, share.to_epoch), share, 1)
            return share

        def noted_receive(sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
            outcome = receive(sender, share, is_far)
            if isinstance(outcome, Merged):
                one = (sender, share.epoch), me, share.seq
                if one in self.merged:
                    raise PromiseBroken("P1", f"{peer.name} put share {one} in twice")
                self.merged.add(one)
                self.counts["merges"] += 1
                count((sender, share.epoch), me, share, -1)
            return outcome

        averager.assign = noted_assign  # type: ignore[method-assign]
        averager.receive = noted_receive  # type: ignore[method-assign]

    def check(self) -> None:
        total = torch.stack([peer.averager.mass for peer in self.lives.values()]).sum(0)
        total = total + sum(self.on_links.values(), torch.zeros_like(total))
        leak = float((total - self.put_in).abs().max() / (1.0 + self.put_in.abs().max()))
        self.result.leak = max(self.result.leak, leak)
        if not leak <= LEAK_MAX:
            raise PromiseBroken("mass", f"{total} is there, {self.put_in} was put in")
        for peer in self.lives.values():
            if peer.seq != peer.clock.last(peer.name, peer.epoch):
                raise PromiseBroken("P4", f"the clock of {peer.name} lacks an own step")

    # -- a run -----------------------------------------------------------------------------------

    def run(self) -> MixingResult:
        digest = hashlib.blake2b(digest_size=8)
        while not self._agreed():
            if self.time > FAULTS_S + SETTLE_S_MAX:
                raise PromiseBroken("mean", f"no agreement: {self._apart():.1e} apart")
            if self.events.next_time > FAULTS_S and not self.network.calm:
                self.network.calm_down()
            act, _ = self.events.step()
            digest.update(f"{self.time} {act.__name__}".encode())
            self.result.events += 1
            self.check()
        self.result.settle_s = self.time - FAULTS_S
        self.result.trace_hash = digest.hexdigest()
        return self.result

    def _apart(self) -> float:
        models = torch.stack([peer.averager.model for peer in self.staying()])
        return float((models - models[0]).abs().max() / (1.0 + models.abs().max()))

    def _agreed(self) -> bool:
        """Everyone is there, has all that anybody has a part of, and the same model."""
        if not self.network.calm or self.result.events % 16:
            return False
        staying = self.staying()
        if len(staying) != sum(not machine.leaving for machine in self.machines.values()):
            return False
        return (
            all(peer.synced and peer.clock == staying[0].clock for peer in staying)
            and self._apart() <= 4 * EVEN
        )


def run(seed: int, *, kind: type[MixingPeer] = MixingPeer) -> MixingResult:
    """One seed; `PromiseBroken` when anything does not hold."""
    world = MixingWorld(seed, kind)
    try:
        return world.run()
    except PromiseBroken as broken:
        where = f"seed {seed}, {world.result.nodes} nodes, {world.result.graph}"
        where += f", event {world.result.events}, {world.time:.2f} s"
        raise PromiseBroken(broken.promise, f"{broken.detail} ({where})") from broken


def figures(seeds: range) -> tuple[str, ...]:
    """A row of the report: as the other patterns have it."""
    runs = [run(seed) for seed in seeds]
    sums = sum((one.counts for one in runs), Counter[str]())
    lost, twice = sums["lost"] + sums["cut off"], sums["duplicated"] + sums["late duplicate"]
    events = sum(one.events for one in runs)
    numbers = (len(runs), events, sums["merges"], sum(one.steps for one in runs), lost, twice)
    leak = max(one.leak for one in runs)
    return ("real peers", *(f"{n:,}" for n in numbers), f"{4 * EVEN:.1e}", f"{leak:.1e}")
