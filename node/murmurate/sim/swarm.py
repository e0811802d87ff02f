"""Virtual time: one heap of events drives real `Peer` objects, a seeded network and disks."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch

from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.effect import (
    Adopted,
    Applied,
    Deliver,
    Drop,
    Effect,
    Moved,
    Prune,
    Rejoin,
    Save,
    Send,
    Verdict,
)
from murmurate.core.message import Decided, Generation, Push, Snapshot
from murmurate.core.peer import Past, Peer
from murmurate.core.replica import Replica
from murmurate.errors import PromiseBroken
from murmurate.sim.disk import Disk, DiskFull, PowerCut
from murmurate.sim.machine import Node
from murmurate.sim.network import Network
from murmurate.sim.options import ELEMENTS, PAYLOAD_BYTES, Options, Setting, draw
from murmurate.sim.truth import Truth

TICK_S = 0.1
LINGER_S = 10.0
"""How long one who leaves waits for its updates to be everywhere."""


class Swarm:
    """All machines, the network between them, and the truth about them."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.options = options or Options()
        self.rng = random.Random(f"murmurate/{seed}")
        self.setting: Setting = draw(self.rng, self.options)
        self.counts: Counter[str] = Counter()
        self.network = Network(self.setting.faults, self.rng, self.counts)
        self.time = 0.0
        self.events = 0
        self.training = True
        self.nodes: dict[str, Node] = {}
        self.recent: deque[str] = deque(maxlen=40)
        self.digest = hashlib.blake2b(digest_size=8)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        dtype = torch.int64 if self.setting.exact else torch.float32
        self.w0 = torch.tensor([self.rng.randrange(1000) for _ in range(ELEMENTS)]).to(dtype)
        self.truth = Truth(self.w0)
        self.decided: dict[int, Generation] = {}
        self.newest = 0
        self.closed: set[Key] = set()
        width = 2 if self.setting.nodes <= 99 else 4
        names = [f"n{i:0{width}}" for i in range(self.setting.nodes)]
        self.founding = (Generation(0, tuple(names)),)
        self._next_name = len(names)
        for name in names:
            self._found(name, names)

    # -- events ----------------------------------------------------------------------------------

    def at(self, time: float, act: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, act, args))

    def run_until(self, time: float, done: Callable[[], bool] | None = None) -> bool:
        """Carry out events up to `time`; with `done`, stop as soon as it holds."""
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.time, _, act, args = heapq.heappop(heap)
            self.events += 1
            act(*args)
            if done is not None and self.events % 8 == 0 and done():
                return True
        self.time = time
        return done is not None and done()

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
        """A process starts: a new epoch first, durable, then what the disk has."""
        try:
            epoch = node.disk.new_epoch()
        except DiskFull:
            self.at(self.time + 0.5, self._start, node, seed_peers)
            return
        # One of the first that crashed before its first checkpoint still has the common start.
        before_checkpoint = not node.disk.checkpoints and not node.disk.wiped
        founder = founder or (before_checkpoint and node.name in self.founding[0].roster)
        checkpoint = node.disk.newest_checkpoint(self.setting.faults.bit_flip)
        log = tuple(node.disk.log.values())
        store: tuple[Push, ...] = ()
        if checkpoint is not None and not self.setting.log_each:
            log, store = node.disk.kept[id(checkpoint)]
        if checkpoint is not None:
            replica = Replica(checkpoint.weights.clone(), checkpoint.clock.copy())
            history: tuple[Generation, ...] = checkpoint.history
        else:
            replica = Replica(self.w0.clone())
            history = self.founding if founder else ()
        node.peer = Peer(
            node.name,
            epoch,
            replica,
            rng=random.Random(f"{self.seed}/{node.name}/{epoch}"),
            config=self.setting.config,
            history=history,
            past=Past(
                log=log,
                store=store,
                vow=node.disk.vow,
                history=node.disk.history,
                met=node.disk.met,
            ),
            synced=checkpoint is not None or founder,
        )
        node.life += 1
        node.inbox = []
        node.batch = None
        node.pending = None
        node.busy = set()
        node.leaving_until = 0.0
        for kept, saved in enumerate(node.disk.checkpoints, 1):
            node.peer.checkpointed(saved.clock, kept=kept)
        if founder and checkpoint is None:
            node.peer.checkpointed(Clock())  # so far a crash leaves nothing but the common start
        dots = {dot: push for push in log for dot in push.dots}
        self.truth.restored(node.name, checkpoint, list(dots), node.peer.clock)
        self._check_void(node.peer, dots)
        self.note("starts", node.name, epoch)
        self._carry_out(node, node.peer.join(seed_peers, node.now(self.time)))
        self.at(self.time + self.rng.random() * TICK_S, self._tick, node, node.life)
        self.at(self.time + self.rng.random() * node.step_s, self._begin, node, node.life)
        self.at(self.time + self.rng.uniform(0.5, 2.0), self._checkpoint, node, node.life)

    def _check_durable(self, node: Node, dots: tuple[Dot, ...]) -> None:
        """What is let go of must be with every member for good: no crash may take it from all."""
        assert node.peer is not None
        for name in node.peer.baseline.roster:
            other = self.nodes[name]
            if other.stopped or not other.disk.checkpoints:
                continue
            known = self.truth.snapshots.get(id(other.disk.checkpoints[0]))
            if known is None:
                continue  # a torn one (mutant): found when it is loaded
            safe = known[1].ids
            for dot in dots:
                one = self.truth.dots[dot]
                if one in self.truth.retired or dot in node.peer.void_log:
                    continue
                if one not in safe and dot not in other.disk.log:
                    raise PromiseBroken("P3", f"{node.name} lets go of {dot}, {name} may lose it")

    def _check_void(self, peer: Peer, log: dict[Dot, Push]) -> None:
        """What is not taken from the log must be closed, or older than anyone can understand."""
        for dot in peer.void_log:
            age = self.newest - log[dot].stamps[0].context.generation
            if (dot.origin, dot.epoch) not in self.closed and age < peer.config.history_max:
                raise PromiseBroken("P3", f"{peer.name} does not take {dot} from its log")

    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.peer is not None]

    def peers(self) -> list[Peer]:
        """Peers that are there to stay."""
        return [n.peer for n in self.nodes.values() if n.peer is not None and not n.leaving_until]

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
        assert node.peer is not None
        self.at(self.time + TICK_S, self._tick, node, life)
        # Who does not train folds on its own tick.
        if node.leaving_until and not self._drain(node):
            return
        self._carry_out(node, node.peer.tick(node.now(self.time)))
        self._pump(node)
        if node.leaving_until and node.peer is not None:
            settled = node.peer.settled()
            if settled or self.time > node.leaving_until:
                self.counts["left in peace" if settled else "left in haste"] += 1
                if not settled:
                    self._given_up(node, self._only_here(node))
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
        if node.peer.synced and node.batch is None:
            node.batch = (node.peer.context(), self.truth.context(node.name))
        compute = node.step_s * (0.5 + 0.5 * self.rng.expovariate(1.0))
        self.at(self.time + compute, self._finish, node, life)

    def _finish(self, node: Node, life: int) -> None:
        """The batch is done: log, then fold and send, and start the next."""
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
        delta = torch.tensor([self.rng.randrange(-(2**20), 2**20) for _ in range(ELEMENTS)])
        delta = delta.to(self.w0.dtype)
        if node.pending is not None:
            delta = delta + node.pending
        if self.setting.heeds_room and not peer.room(PAYLOAD_BYTES):
            node.batch, node.pending = (context, true_context), delta
            self.counts["added up"] += 1
            return
        push = peer.prepare(delta, context)
        try:
            self._log(node, push, true_context)
        except DiskFull:
            node.pending = delta
            return
        except PowerCut:
            self._crash(node)
            return
        node.pending = None
        rate = self.setting.faults.crash_between_rate
        if rate and not self.network.calm and self.rng.random() < rate:
            self.counts["crash between log and send"] += 1
            self._crash(node)
            return
        if node.peer is not None:
            self._commit(node, push)

    def _log(self, node: Node, push: Push, true_context: frozenset[int]) -> None:
        if self.setting.log_each:
            node.disk.append(push)
        self.truth.published(push, true_context)
        self.note("logs", node.name, push.stamps[0].dot)

    def _commit(self, node: Node, push: Push) -> None:
        assert node.peer is not None
        self._carry_out(node, node.peer.commit(push))
        self.truth.check(node.peer)
        self._pump(node)

    def _drain(self, node: Node) -> bool:
        """Fold what has arrived since the last step. False: the process did not survive it."""
        life = node.life
        while node.inbox and self._alive(node, life):
            sender, message = node.inbox.pop(0)
            self._fold(node, sender, message)
        return self._alive(node, life)

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
        snapshot = node.peer.snapshot()
        self.truth.snapshot_made(node.name, snapshot)
        try:
            if self.setting.log_each:
                node.disk.checkpoint(snapshot)
            else:
                node.disk.checkpoint(snapshot, tuple(node.peer.log), tuple(node.peer.store))
        except DiskFull:
            return True
        except PowerCut:
            self._crash(node)
            return False
        node.peer.checkpointed(snapshot.clock, kept=len(node.disk.checkpoints))
        return True

    # -- messages --------------------------------------------------------------------------------

    def _arrive(self, sender: str, node: Node, message: Any) -> None:
        if node.peer is None or self._postponed(node, self._arrive, sender, node, message):
            return
        peer = node.peer
        if isinstance(message, Push):
            self.note("gets", node.name, message.stamps[0].dot)
        else:
            self.note("gets", node.name, type(message).__name__)
        self._carry_out(node, peer.receive(sender, message, node.now(self.time)))
        if node.peer is not None:
            self._pump(node)

    def _fold(self, node: Node, sender: str, message: Push | Snapshot | Decided) -> None:
        assert node.peer is not None
        peer = node.peer
        self._carry_out(node, peer.fold(sender, message, node.now(self.time)))
        if node.peer is peer:
            self.truth.check(peer)
            self._check_bounds(peer)

    def _check_bounds(self, peer: Peer) -> None:
        limit = max(peer.config.outbox_bytes_max, PAYLOAD_BYTES) + PAYLOAD_BYTES
        for to in peer.outbox.waiting():
            if peer.outbox.nbytes(to) > limit:
                raise PromiseBroken("P10", f"{peer.name}: {peer.outbox.nbytes(to)} bytes for {to}")

    def _pump(self, node: Node) -> None:
        """Hand pushes to every link that is free."""
        peer = node.peer
        if peer is None:
            return
        now = node.now(self.time)
        for to in peer.ready(now):
            while to not in node.busy:
                push = peer.take(to, now)
                if push is None:
                    break
                self._check_logged(node, push)
                sending_s = self.network.sending_s(node.name, to)
                self._transmit(node.name, to, push, self.time + sending_s)
                if sending_s:
                    node.busy.add(to)
                    self.at(self.time + sending_s, self._link_free, node, node.life, to, push)
                    continue
                peer.landed(to, push)  # this network never says what it lost
                if peer.config.pace_s:
                    break

    def _check_logged(self, node: Node, push: Push) -> None:
        """Nothing of its own leaves a machine that its disk does not have."""
        for dot in push.dots if self.setting.log_each else ():
            if dot.origin == node.name and not node.disk.has_logged(dot):
                raise PromiseBroken("P2", f"{node.name} sends {dot}, which is not in its log")

    def _link_free(self, node: Node, life: int, to: str, push: Push) -> None:
        if not self._alive(node, life) or self._postponed(
            node, self._link_free, node, life, to, push
        ):
            return
        assert node.peer is not None
        node.peer.landed(to, push)
        node.busy.discard(to)
        self._pump(node)

    def _transmit(self, source: str, target: str, message: Any, time: float) -> None:
        node = self.nodes.get(target)
        if node is None:
            return
        kind = "updates in sums" if isinstance(message, Push) and len(message.stamps) > 1 else ""
        if kind:
            self.counts[kind] += len(message.stamps)
        for arrival in self.network.arrivals(source, target, time):
            self.at(arrival, self._arrive, source, node, message)

    def _carry_out(self, node: Node, effects: list[Effect]) -> None:
        """In order; when one fails, the rest is dropped."""
        for effect in effects:
            if isinstance(effect, Send):
                if effect.to == node.name:
                    self.at(self.time, self._arrive, node.name, node, effect.message)
                    continue
                if isinstance(effect.message, Snapshot):
                    self.counts["snapshots"] += 1
                    self.truth.snapshot_made(node.name, effect.message)
                self._transmit(node.name, effect.to, effect.message, self.time)
            elif isinstance(effect, Deliver):
                if self.setting.drain and self.training:
                    node.inbox.append((effect.sender, effect.message))
                else:
                    self._fold(node, effect.sender, effect.message)
                    if node.peer is None:
                        return
            elif isinstance(effect, Applied):
                self.note("folds", node.name, effect.dots[0])
                self.truth.applied_at(node.name, effect.dots, effect.staleness)
            elif isinstance(effect, Drop):
                self.counts[f"dropped: {effect.reason}"] += effect.count
            elif isinstance(effect, Adopted):
                self.note("adopts", node.name, effect.giver)
                self.counts["snapshots adopted"] += 1
                self._given_up(node, effect.given_up)
                self._retired(effect.retired)
                self.truth.adopted(
                    node.name, effect.snapshot, effect.kept, effect.retired, effect.given_up
                )
                node.batch = None
                if not self._write_checkpoint(node):
                    return
            elif isinstance(effect, Save):
                try:
                    node.disk.save(effect.key, effect.value)
                except DiskFull:
                    return
            elif isinstance(effect, Prune):
                if self.setting.log_each:
                    self._check_durable(node, effect.dots)
                    node.disk.prune(effect.dots)
            elif isinstance(effect, Verdict):
                self.counts[f"verdict: {effect.state}"] += 1
                self.note(effect.state, node.name, effect.name)
                self.truth.verdict(node.name, (effect.name, effect.epoch), effect.state)
            elif isinstance(effect, Moved):
                self.note("moves", node.name, effect.generation.number)
                self.counts["moves to a new baseline"] += 1
                self.truth.left[node.name] = set()
                self.decided[effect.generation.number] = effect.generation
                self.newest = max(self.newest, effect.generation.number)
                self.closed.update(key for key, _ in effect.generation.folds)
            elif isinstance(effect, Rejoin):
                self._rejoin(node, effect.reason)
                return

    def _given_up(self, node: Node, dots: tuple[Dot, ...]) -> None:
        """Given up here, an update must come back, unless no live node has it by itself."""
        for dot in dots:
            self.counts["given up"] += 1
            self.note("gives up", node.name, dot)
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

    def _retired(self, dots: tuple[Dot, ...]) -> None:
        """Only the updates of one who was away can have been closed without it."""
        for dot in dots:
            self.counts["retired"] += 1
            if not self.nodes[dot.origin].was_away:
                raise PromiseBroken("P3", f"{dot} was voted out, but its origin was never away")

    # -- faults ----------------------------------------------------------------------------------

    def _stop(self, node: Node, why: str) -> None:
        node.peer = None
        node.paused = None
        node.was_away = True
        self.truth.stops(node.name)
        self.note("stops", node.name, why)

    def _crash(self, node: Node, down_s: float | None = None) -> None:
        self.counts["crash"] += 1
        self._stop(node, "crash")
        node.disk.crash()
        if down_s is None:
            down_s = self.rng.choice((0.1, 0.5, 2.0, 8.0))
        self.at(self.time + down_s, self._restart, node)

    def _restart(self, node: Node) -> None:
        if node.peer is None and not node.stopped:
            self._start(node, self._some_live(node.name))

    def _rejoin(self, node: Node, reason: str) -> None:
        """Voted out while away: whatever only this node had is void, and says so."""
        self.counts["voted out and back"] += 1
        self.note("rejoins", node.name, reason)
        held = self.truth.held[node.name].ids
        others = [n.name for n in self.live() if n is not node]
        elsewhere = set().union(*(self.truth.held[name].ids for name in others))
        self.truth.retired |= held - elsewhere
        self._stop(node, "rejoin")
        node.disk.wipe_state()
        self._start(node, self._some_live(node.name))

    def _some_live(self, name: str) -> list[str]:
        names = [node.name for node in self.live() if node.name != name and not node.leaving_until]
        self.rng.shuffle(names)
        return names[:3]
