"""Virtual time: one heap of events, real peers under the driver of nodes, a seeded world around."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.driver import Driver, Life
from murmurate.core.gossip.past import Past
from murmurate.core.gossip.peer import Peer
from murmurate.core.membership import epochs
from murmurate.core.message import Generation, Push
from murmurate.core.replica import Replica
from murmurate.errors import PromiseBroken
from murmurate.study.sim.disk import Disk, DiskFull, PowerCut, Saved
from murmurate.study.sim.events import Events
from murmurate.study.sim.forms import encoded, plain
from murmurate.study.sim.letting_go import LettingGo
from murmurate.study.sim.machine import Node
from murmurate.study.sim.network import Network
from murmurate.study.sim.options import Options, Setting, draw
from murmurate.study.sim.ports import SeededPorts
from murmurate.study.sim.truth import Truth
from murmurate.study.sim.votes import Votes

TICK_S = 0.1
LINGER_S = 10.0
"""How long one who leaves waits for its updates to be everywhere."""
BEGAN_S = 1000.0
"""What wall clocks show when a run begins, unless they are wrong."""


class SimulatedSwarm:
    """All machines, the network between them, and the truth about them."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.options = options or Options()
        self.rng = random.Random(f"murmurate/{seed}")
        self.setting: Setting = draw(self.rng, self.options)
        self.counts: Counter[str] = Counter()
        self.network = Network(self.setting.faults, self.rng, self.counts)
        self.events = Events()
        self.training = True
        self.nodes: dict[str, Node] = {}
        self.recent: deque[str] = deque(maxlen=40)
        self.digest = hashlib.blake2b(digest_size=8)
        dtype = torch.int64 if self.setting.exact else torch.float32
        self.w0 = torch.tensor([self.rng.randrange(1000) for _ in range(self.setting.elements)])
        self.w0 = self.w0.to(dtype)
        self.truth = Truth(self.w0)
        self.decided: dict[int, Generation] = {}
        width = 2 if self.setting.nodes <= 99 else 4
        names = [f"n{i:0{width}}" for i in range(self.setting.nodes)]
        self.founding = (Generation(0, tuple(names), memories=(1,) * len(names)),)
        self.votes = Votes(self.founding[0], lambda name: self.nodes[name].disk.memory)
        self._next_name = len(names)
        for name in names:
            self._found(name, names)

    # -- events ----------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        return self.events.time

    def at(self, time: float, act: Callable[..., None], *args: Any) -> None:
        self.events.at(time, act, *args)

    def run_until(self, time: float, done: Callable[[], bool] | None = None) -> bool:
        """Carry out events up to `time`; with `done`, stop as soon as it holds."""
        return self.events.run_until(time, done, look_every=8) or (done is not None and done())

    def note(self, kind: str, name: str, what: object = "") -> None:
        line = f"{self.time:.4f} {name} {kind} {what}"
        self.digest.update(line.encode())
        self.recent.append(line)

    # -- machines --------------------------------------------------------------------------------

    def _found(self, name: str, names: list[str]) -> None:
        """One of the first: starts with the common weights and knows the others."""
        node = self._machine(name)
        self._start(node, [n for n in names if n != name], founder=True)

    def _machine(self, name: str) -> Node:
        node = Node(
            name,
            Disk(self.rng, self.counts, self.setting.faults.torn_write),
            self.rng,
            self.setting.step_s,
        )
        self.nodes[name] = node
        return node

    def _start(self, node: Node, seed_peers: list[str], *, founder: bool = False) -> None:
        """A process starts, or a life that found no room for its number on the disk."""
        if node.driver is None:
            node.driver = Driver(SeededPorts(self, node).all())
            node.unread = 0
        life = self.life(node, seed_peers, founder=founder)
        if life is not None:
            node.driver.begin(life, node.now(self.time))
            self._pump(node)

    def life(
        self, node: Node, seed_peers: list[str], *, founder: bool = False
    ) -> Life[Peer] | None:
        """A life begins: a new epoch first, durable, then what the disk has."""
        try:
            epoch = node.disk.new_epoch(self._least_epoch(node, seed_peers))
        except DiskFull:
            self.at(self.time + 0.5, self._restart, node)
            return None
        node.last_epoch = epoch
        node.disk.memory = node.disk.memory or epoch
        # One of the first that crashed before its first checkpoint still has the common start.
        before_checkpoint = not node.disk.checkpoints and not node.disk.wiped
        founder = founder or (before_checkpoint and node.name in self.founding[0].roster)
        checkpoint = node.disk.newest_checkpoint(self.setting.faults.bit_flip)
        saved = None if checkpoint is None else checkpoint.snapshot
        if saved is not None:
            replica = Replica(saved.weights.clone(), saved.clock.copy(), saved.batches)
            history: tuple[Generation, ...] = saved.history
        else:
            replica = Replica(self.w0.clone())
            history = self.founding if founder else ()
        peer = Peer(
            node.name,
            epoch,
            replica,
            rng=random.Random(f"{self.seed}/{node.name}/{epoch}"),
            config=self.setting.config,
            history=history,
            past=Past(
                log=() if checkpoint is None else checkpoint.log,
                store=() if checkpoint is None else checkpoint.store,
                memory=node.disk.memory,
                vow=node.disk.vow,
                history=node.disk.history,
                met=node.disk.met,
            ),
            synced=checkpoint is not None or founder,
        )
        node.begin_life()
        for kept, each in enumerate(node.disk.checkpoints, 1):
            peer.checkpointed(each.snapshot.clock, kept=kept)
        if founder and checkpoint is None:
            peer.checkpointed(Clock())  # so far a crash leaves nothing but the common start
        self.truth.restored(node.name, saved)
        self.truth.check(peer)
        self.truth.check_kept(peer, saved)
        self.note("starts", node.name, epoch)
        self.at(self.time + self.rng.random() * TICK_S, self._tick, node, node.life)
        self.at(self.time + self.rng.random() * node.step_s, self._begin, node, node.life)
        self.at(self.time + self.rng.uniform(0.5, 2.0), self._checkpoint, node, node.life)
        return Life(peer, seed_peers)

    def _least_epoch(self, node: Node, asked: list[str]) -> int:
        """Of one whose disk does not say what lives it had: what members know, and its wall clock.

        That is set back at times, where they know its last life.
        """
        if node.disk.memory or not node.disk.wiped:
            return 1
        peers = [self.nodes[name].peer for name in asked]
        told = max((peer.membership.epoch(node.name) or 0 for peer in peers if peer), default=0)
        wrong = told == node.last_epoch and self.rng.random() < 0.5
        self.counts["back with its clock set back"] += wrong
        return epochs.epoch_after(1 if wrong else int(1000 * (BEGAN_S + self.time)), told)

    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.peer is not None]

    def peers(self) -> list[Peer]:
        """Peers that are there to stay."""
        return [n.peer for n in self.nodes.values() if n.peer is not None and not n.leaving_until]

    def some_live(self, name: str) -> list[str]:
        """A few who are there and stay, but not that one: whom a newcomer asks first."""
        names = [node.name for node in self.live() if node.name != name and not node.leaving_until]
        self.rng.shuffle(names)
        return names[:3]

    def _alive(self, node: Node, life: int) -> bool:
        return node.peer is not None and node.life == life

    def _postponed(self, node: Node, act: Callable[..., None], *args: Any) -> bool:
        if node.paused is None:
            return False
        node.paused.append((act, args))
        return True

    # -- a process's own events ------------------------------------------------------------------

    def _tick(self, node: Node, life: int) -> None:
        if not self._alive(node, life) or self._postponed(node, self._tick, node, life):
            return
        assert node.driver is not None
        self.at(self.time + TICK_S, self._tick, node, life)
        # Who does not train folds on its own tick.
        if node.leaving_until and not self._drain(node):
            return
        letting_go = LettingGo(self, node.driver.peer)
        node.driver.tick(node.now(self.time))
        if self._alive(node, life):
            letting_go.check(node)
        self._pump(node)
        if node.leaving_until and node.peer is not None:
            settled = node.peer.others.settled()
            if settled or self.time > node.leaving_until:
                self.counts["left in peace" if settled else "left in haste"] += 1
                if not settled:
                    self.given_up(node.name, self._only_here(node))
                self._stop(node, "left")
                node.stopped = True

    def _begin(self, node: Node, life: int) -> None:
        """A batch is started: its context is the clock of this instant."""
        if not self._alive(node, life) or self._postponed(node, self._begin, node, life):
            return
        assert node.peer is not None
        if not self.training or node.leaving_until:
            return
        if not self._drain(node):
            return
        if node.keep_soon and not self._write_checkpoint(node):
            return
        if node.peer.synced and node.batch is None:
            node.batch = (node.peer.context(), self.truth.context(node.name))
        compute = node.step_s * (0.5 + 0.5 * self.rng.expovariate(1.0))
        self.at(self.time + compute, self._finish, node, life)

    def _finish(self, node: Node, life: int) -> None:
        """The batch is done: its update goes in and out, and the next one starts."""
        if not self._alive(node, life) or self._postponed(node, self._finish, node, life):
            return
        if node.batch is not None and self.training and not node.leaving_until:
            self._publish(node)
        if node.peer is not None:
            self._begin(node, life)

    def _publish(self, node: Node) -> None:
        assert node.peer is not None
        assert node.batch is not None
        peer = node.peer
        context, true_context = node.batch
        node.batch = None
        if peer.baseline.lift(context) is None:
            return
        setting = self.setting
        values = [self.rng.randrange(-(2**20), 2**20) for _ in range(setting.elements)]
        delta = torch.tensor(values).to(self.w0.dtype)
        if node.pending is not None:
            delta = delta + node.pending
        if setting.heeds_room and not peer.room(setting.update_bytes, sparing=bool(setting.form)):
            node.batch, node.pending = (context, true_context), delta
            self.counts["added up"] += 1
            return
        node.pending = None
        update = encoded(setting.form, delta, peer.seq)
        dot = Dot(peer.name, peer.epoch, peer.seq + 1)
        batches = self.truth.next_batches()
        self.truth.published(dot, plain(update), true_context, batches)
        self.note("makes", node.name, dot)
        assert node.driver is not None
        node.driver.publish(update, context, node.now(self.time), batches)
        self.truth.check(peer)
        rate = setting.faults.crash_between_rate
        if rate and not self.network.calm and self.rng.random() < rate:
            self.counts["crash between making and sending"] += 1
            self._crash(node)
            return
        self._pump(node)

    def _drain(self, node: Node) -> bool:
        """Fold what has arrived, then let go what came of it. False: this life did not survive."""
        life = node.life
        while self._alive(node, life) and self._fold(node):
            pass
        self._pump(node)
        return self._alive(node, life)

    def _fold(self, node: Node) -> bool:
        """Fold in one of what was delivered; False: there was none."""
        assert node.driver is not None
        driver, peer = node.driver, node.peer
        folded = driver.fold(node.now(self.time))
        if folded is None:
            return False
        if node.peer is not None and node.peer is peer:
            node.keep_soon |= folded.began
            self.truth.check(node.peer)
            self._check_bounds(node.peer)
        return True

    def _check_bounds(self, peer: Peer) -> None:
        largest = self.setting.model_bytes
        limit = max(peer.config.outbox_bytes_max, largest) + largest
        for to in peer.outbox.waiting():
            if peer.outbox.nbytes(to) > limit:
                raise PromiseBroken("P10", f"{peer.name}: {peer.outbox.nbytes(to)} bytes for {to}")

    def _checkpoint(self, node: Node, life: int) -> None:
        if not self._alive(node, life) or self._postponed(node, self._checkpoint, node, life):
            return
        assert node.peer is not None
        self.at(self.time + self.rng.uniform(0.5, 2.0), self._checkpoint, node, life)
        if node.peer.synced:
            self._write_checkpoint(node)

    def _write_checkpoint(self, node: Node) -> bool:
        """False: the machine did not survive it."""
        assert node.peer is not None
        peer = node.peer
        saved = Saved(peer.snapshot(), tuple(peer.log), tuple(peer.store), peer.epoch)
        try:
            written = node.disk.checkpoint(saved)
        except DiskFull:
            return True
        except PowerCut:
            self._crash(node)
            return False
        kept = frozenset(dot for push in peer.log for dot in push.dots)
        self.truth.snapshot_made(node.name, written.snapshot, kept)
        node.keep_soon = False
        peer.checkpointed(saved.snapshot.clock, kept=len(node.disk.checkpoints))
        return True

    # -- messages --------------------------------------------------------------------------------

    def _arrive(self, sender: str, node: Node, message: Any) -> None:
        if node.peer is None or self._postponed(node, self._arrive, sender, node, message):
            return
        assert node.driver is not None
        if isinstance(message, Push):
            self.note("gets", node.name, message.stamps[0].dot)
        else:
            self.note("gets", node.name, type(message).__name__)
        node.unread += 1
        node.driver.receive(sender, message, node.now(self.time), node.read_one)
        self._pump(node)
        if not (self.setting.drain and self.training):
            self._drain(node)

    def _pump(self, node: Node) -> None:
        """Let leave what waits to, and tell the links what was read."""
        if node.driver is None:
            return
        node.driver.pump(node.now(self.time))
        if node.unread > len(node.driver.inbox):
            raise PromiseBroken("P10", f"{node.name} never says that it read a message")

    def link_free(self, node: Node, life: int, to: str, push: Push) -> None:
        """A push has left a slow link."""
        if not self._alive(node, life) or self._postponed(
            node, self.link_free, node, life, to, push
        ):
            return
        assert node.peer is not None
        node.peer.landed(to, push)
        node.busy.discard(to)
        self._pump(node)

    def transmit(self, source: str, target: str, message: Any, time: float) -> None:
        """Hand a message to the network, which leaves the source at that time."""
        node = self.nodes.get(target)
        if node is None:
            return
        kind = "updates in sums" if isinstance(message, Push) and len(message.stamps) > 1 else ""
        if kind:
            self.counts[kind] += len(message.stamps)
        for arrival in self.network.arrivals(source, target, time):
            self.at(arrival, self._arrive, source, node, message)

    def given_up(self, name: str, dots: tuple[Dot, ...]) -> None:
        """Given up here, an update must come back, unless no live node has it by itself."""
        for dot in dots:
            self.counts["given up"] += 1
            self.note("gives up", name, dot)
            if not any(dot in peer.log or peer.store.alone(dot) for peer in self.peers()):
                self.counts["given up for good"] += 1
                self.truth.retired.add(self.truth.dots[dot])

    def _only_here(self, node: Node) -> tuple[Dot, ...]:
        """What is in no other live node's weights, and by itself in none at all.

        A leaver that has it in a sum nobody can take apart cannot hand it over, however long it
        stays.
        """
        assert node.peer is not None
        others = [peer for peer in self.peers() if peer is not node.peer]
        return tuple(
            dot
            for dot in node.peer.clock
            if not any(self.truth.dots[dot] in self.truth.held[peer.name].ids for peer in others)
            and not any(dot in peer.log or peer.store.alone(dot) for peer in self.peers())
        )

    # -- faults ----------------------------------------------------------------------------------

    def stopped(self, node: Node, why: str) -> None:
        """A life is over."""
        node.paused = None
        node.was_away = True
        self.truth.stops(node.name)
        self.note("stops", node.name, why)

    def _stop(self, node: Node, why: str) -> None:
        """A process ends, and with it its driver and all that waited in it."""
        node.driver = None
        self.stopped(node, why)

    def _crash(self, node: Node, down_s: float | None = None) -> None:
        self.counts["crash"] += 1
        self._stop(node, "crash")
        if down_s is None:
            down_s = self.rng.choice((0.1, 0.5, 2.0, 8.0))
        self.at(self.time + down_s, self._restart, node)

    def _restart(self, node: Node) -> None:
        if node.peer is None and not node.stopped:
            self._start(node, self.some_live(node.name))
