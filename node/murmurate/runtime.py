"""What runs beside the training: one thread, one event loop, and the rules for sharing.

The peer (`core.peer`) is guarded by one lock, held for single calls. The loop's thread lets it hear
and speak; the training thread makes updates and folds in what came, and is the only one to change
weights. So nothing here ever waits for training, and training waits for nothing here but the lock.

A failure in the background is kept and raised in the training thread, at its next step.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from murmurate.core import buffers
from murmurate.core.clock import Clock, Key
from murmurate.core.effect import (
    Adopted,
    Applied,
    Deliver,
    Drop,
    Effect,
    Rejoin,
    Save,
    Send,
    Verdict,
)
from murmurate.core.layout import Layout
from murmurate.core.message import (
    ALIVE,
    SUSPECT,
    Ack,
    Decided,
    Generation,
    Part,
    Push,
    Rumour,
    Snapshot,
    SnapshotRequest,
)
from murmurate.core.peer import Past, Peer, PeerConfig
from murmurate.core.replica import Replica
from murmurate.core.runs import Runs
from murmurate.core.timing import Timing
from murmurate.entry import ASK_TIMEOUT_S, Memory, Place, Wish, find_place
from murmurate.errors import (
    CheckpointError,
    LocalProtocolError,
    MurmurateError,
    PeerExists,
    PeerTimeout,
    RemoteProtocolError,
    SchemaMismatch,
)
from murmurate.giving import Giving
from murmurate.io.names import addresses, is_named
from murmurate.io.processor import Demand
from murmurate.io.progress import Board, Progress
from murmurate.io.transport import Transport
from murmurate.io.wire import (
    PROTOCOL_VERSION,
    BulkHead,
    DescribedMember,
    DescribedTensor,
    Description,
    Hello,
    PushHead,
    ShareHead,
    SnapshotHead,
    Welcome,
    parts_bytes,
    push_fits,
)
from murmurate.keeper import Keeper
from murmurate.pace import Pace
from murmurate.tally import Tally
from murmurate.watch.curves import Curves
from murmurate.watch.outlook import Outlook
from murmurate.watch.sketch import Sketches

if TYPE_CHECKING:
    from murmurate.core.mixing import MixingPeer
    from murmurate.io.checkpoint import Checkpoint
    from murmurate.io.http import Pages

log = logging.getLogger("murmurate")

TICK_S = 0.1
TELL_S = 0.5
"""Between two accounts of my progress to the others."""
TOLD_MAX = 8
"""Members told at a time, and entries of others that go along where not all are told."""
FORGET_LINKS_S = 5.0
CALLERS_MAX = 1024
WARN_S = 1.0
"""At most one line for each reason in this time; the counters have all of it."""
BUFFER_BYTES = 32 << 20
"""Own updates that may be without everyone's answer, in models smaller than this."""
NAMES_S = 5.0
"""Between two looks at what a name of peers stands for, at most."""
SEEK_S, SEEK_S_MAX = 1.0, 60.0
"""Between two looks for seed peers that were not there when this node came back."""
DECIDED_MAX = 64
"""Decisions that wait to be folded in."""
WAITING_MAX = 8
"""Updates that wait for one link by themselves; more are summed: what waits gets old."""
COMPANY_MAX = 16
"""Updates that may wait for all links, summed or not: more than do for each other's company."""
Gossip: TypeAlias = "Peer | MixingPeer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Who I am in which run."""

    run: str
    name: str
    peers: tuple[str, ...] = ()
    found: bool = True
    careful: bool = False
    rule: str = "sum"
    encoded: bool = False
    """Whether updates of mine go through a codec."""
    update_bytes: int = 0
    """Of each update, where it is a part of a large model (`core.turns`)."""
    topology: str = "full"
    timing: Timing = field(default_factory=Timing)
    join_timeout_s: float = 30.0
    seed: int | None = None


@dataclass(slots=True)
class _Delivery:
    sender: str
    message: Any
    done: Callable[[], None]


class Runtime:
    """The background of one node. Methods without an underscore are for the training thread, those
    of `Ears` for the transport."""

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        weights: torch.Tensor,
        transport: Transport,
        keeper: Keeper | None = None,
    ) -> None:
        self.settings = settings
        self.keeper = keeper
        self.resumed: Checkpoint | None = None
        """What this node goes on from; the flat weights have it, the model has not yet."""
        self.company = False
        """Whether others were there when I came."""
        self.torn = False
        """Whether something broke in between changing weights and clock."""
        self.layout = layout
        self.weights = weights
        self.transport = transport
        self.tally = Tally()
        self.board = Board()
        self.outlook = Outlook()
        self.sketches = Sketches(layout.size)
        self.pages: Pages | None = None
        """Served while this node lives, if any."""
        self.curves = Curves()
        self.born = time.monotonic()
        self.leaving = False
        self.pace = Pace(encoded=settings.encoded)
        self._demand = Demand()
        self.lock = threading.Lock()
        self.news = threading.Condition(self.lock)
        """Notified when something was delivered, or may have become true for one who waits."""
        self.name = settings.name
        self.swarm = ""
        self.done = False
        self.settled = False
        self.adopted = False
        """Set when a snapshot replaced the weights; whoever scatters them takes it back."""
        self._tensors = tuple(DescribedTensor(t.name, t.dtype, t.shape) for t in layout.tensors)
        self._instance = secrets.token_hex(8)
        self._rng = random.Random(settings.seed)
        self._peer: Gossip | None = None
        self._inbox: deque[_Delivery] = deque()
        self._outgoing: deque[Send] = deque()
        self._consumed: deque[Callable[[], None]] = deque()
        self._met: dict[str, str] = {}
        self._callers: dict[str, str] = {}
        """Where those are who opened a link to me, whether I have a record of them or not: one who
        was voted out and forgotten must still be told so."""
        self._failure: BaseException | None = None
        self._giving = Giving(
            transport,
            weights,
            make=self._make_snapshot,
            carry=self._carry_snapshot,
            do=self._do,
            now=time.monotonic,
        )
        self._refusals: dict[str, str] = {}
        self._warned: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._kicked = False
        self._unsent = False
        self._next_pump: asyncio.TimerHandle | None = None
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._tell_at = 0.0
        self._told_version = 0
        """Of the membership, when my progress was told last: a newcomer is told at once."""
        self._forget_at = 0.0

    # -- for the training thread -----------------------------------------------------------------

    @property
    def peer(self) -> Gossip:
        if self._peer is None:
            raise LocalProtocolError("not started")
        return self._peer

    @property
    def joined(self) -> bool:
        """Whether there is a peer; its weights may still be on their way."""
        return self._peer is not None

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def inbox(self) -> Iterable[_Delivery]:
        """What waits for the end of a step; lock held."""
        return self._inbox

    def start(self) -> None:
        """Listen, find the swarm, and begin to speak. Returns before the first snapshot is here."""
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="murmurate", daemon=True
        )
        self._thread.start()
        ready.wait()
        assert self._loop is not None
        entering = asyncio.run_coroutine_threadsafe(self._enter(), self._loop)
        try:
            entering.result()
        except BaseException:
            entering.cancel()
            self.stop(grace_s=0.0)
            raise

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._failure is not None:
            raise self._failure

    def commit(
        self, delta: torch.Tensor | Part, context: Any, compute_s: float, worth: int = 1
    ) -> None:
        """Publish an update that is not in the flat weights yet. `worth`: of so many updates, had
        there been room for each."""
        with self.lock:
            peer = self.peer
            try:
                if isinstance(peer, Peer):
                    effects = peer.commit(peer.prepare(delta, context))
                else:
                    assert isinstance(delta, torch.Tensor)
                    effects = peer.commit(peer.prepare(delta, context))
            except LocalProtocolError:
                raise  # before anything changed
            except BaseException:
                self.torn = True
                raise
            self.weights = peer.replica.weights  # rule average: not always the same buffer
            self.tally.publish(compute_s)
            self.outlook.make(time.time())
            self.pace.made(compute_s / worth)
            self._demand.thread = threading.get_native_id()
            self._carry_out(effects)
            self._unsent = True

    def waiting(self) -> bool:
        return bool(self._inbox)

    def gives(self) -> bool:
        """Whether a newcomer is getting a snapshot right now."""
        return self._giving.busy()

    def fold(self, count: int) -> bool:
        """Fold in so many of what was delivered; whether the weights changed."""
        changed = False
        for _ in range(count):
            with self.lock:
                if not self._inbox:
                    break
                item = self._inbox.popleft()
                try:
                    effects = self.peer.fold(item.sender, item.message, time.monotonic())
                except BaseException:
                    self.torn = True
                    raise
                self.weights = self.peer.replica.weights
                changed = changed or any(isinstance(e, Applied | Adopted) for e in effects)
                self._carry_out(effects)
                self._consumed.append(item.done)
        return changed

    def flush(self, *, at_once: bool = False) -> None:
        """Let the loop's thread send what commit and fold have made.

        Once, at the end of a step: the two threads would only wait for each other in between. And
        not if it is about to look anyway, unless `at_once`.
        """
        if (self._unsent or self._consumed or self._outgoing) and (
            at_once or self._next_pump is None
        ):
            self._unsent = False
            self._kick()

    def progress(self) -> Progress:
        """Mine, of this instant."""
        with self.lock:
            return self._progress()

    def tell(self) -> None:
        """Tell everyone about my progress now, not at the next turn."""
        self._tell_at = 0.0
        self._call(self._tick)

    def leave(self) -> None:
        self.leaving = True
        with self.lock:
            self._carry_out(self.peer.leave(time.monotonic()))
        self._kick()

    def stop(self, grace_s: float = 1.0) -> None:
        """Close everything; no thread and no port remains."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        if threading.current_thread() is not thread:
            try:
                asyncio.run_coroutine_threadsafe(self._shut(grace_s), loop).result()
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()

    # -- the loop's thread -----------------------------------------------------------------------

    def _run(self, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._loop = loop
        loop.call_soon(ready.set)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    async def _shut(self, grace_s: float) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is None:
            self._pump()  # the last words
        self._stopping = True
        await self.transport.stop(grace_s)
        if self.pages is not None:
            await self.pages.stop()

    async def _enter(self) -> None:
        settings = self.settings
        if self.pages is not None:
            await self.pages.start()
        await self.transport.start(self)
        wish = Wish(
            run=settings.run,
            rule=settings.rule,
            name=settings.name,
            instance=self._instance,
            layout=self.layout,
            peers=settings.peers,
            found=settings.found,
            careful=settings.careful and any(map(is_named, settings.peers)),
            timeout_s=settings.join_timeout_s,
            memory=self._memory(),
        )
        if not settings.found and self.layout.nbytes >= buffers.BLOCK_BYTES_MIN:
            # For the snapshot: while the giver makes its copy.
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, buffers.touch, self.layout.size, self.layout.dtype)
        began = time.monotonic()
        place = await find_place(self.transport, wish, secrets.token_hex(8))
        self.tally.wait_s += time.monotonic() - began
        if place.name != settings.name and not place.back:
            log.warning(
                "%s was here before and its memory is gone: joining as %s",
                settings.name,
                place.name,
            )
        self._look_back(place)
        self.company = bool(place.members)
        with self.lock:
            self.name, self.swarm = place.name, place.swarm
            self._begin_life(place, founding=not place.members and self.resumed is None)
        self._do(self._tick_for_ever())
        if self.resumed is not None:
            known, before = place.members.values(), wish.memory.peers if wish.memory else ()
            asked = [at for at in (*wish.peers, *before) if at not in known]
            self._do(self._seek([at for at in asked if not is_named(at)]))
        if wish.named:
            self._do(self._follow_names())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside everything else; if it fails, so does training."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _memory(self) -> Memory | None:
        keeper = self.keeper
        if keeper is None or not keeper.swarm:
            return None
        self.swarm = keeper.swarm  # told to those who ask, so that they do not found another
        return Memory(
            swarm=keeper.swarm,
            name=keeper.name,
            address=self.transport.address,
            peers=tuple(keeper.addresses.values()),
            weights=keeper.restored is not None,
        )

    def _look_back(self, place: Place) -> None:
        """What of an earlier life goes on here. With rule `average` only what is nowhere else: the
        others have mixed on, and these weights would pull them back."""
        keeper = self.keeper
        if keeper is None:
            return
        if keeper.swarm and keeper.swarm != place.swarm:
            keeper.set_aside()
        elif self.settings.rule != "average" or not place.members:
            self.resumed = keeper.restored
        keeper.on_saved = self._checkpointed
        keeper.on_failure = self._fail

    async def _seek(self, addresses: list[str]) -> None:
        """Whoever comes back at the same time may not have been there when I asked."""
        left, pause_s = dict.fromkeys(addresses), SEEK_S
        while left:
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, SEEK_S_MAX)
            for address in list(left):
                try:
                    other = await self.transport.describe(address, ASK_TIMEOUT_S)
                except MurmurateError:
                    continue
                if other.instance == self._instance:
                    del left[address]
                elif other.synced and other.swarm == self.swarm:
                    del left[address]
                    self._introduced(other)

    async def _follow_names(self) -> None:
        """Whom the names of my peers stand for by now: we may have lost, or never met, each other.

        Who joins tells everyone by itself; this is for two who each came back alone, or whose
        addresses have all changed while a network was cut.
        """
        names = [peer for peer in self.settings.peers if is_named(peer)]
        seen: dict[str, str] = {}
        while True:
            await asyncio.sleep(NAMES_S * self._rng.uniform(0.5, 1.0))
            found = await addresses(names)
            with self.lock:
                membership = self.peer.membership
                live = membership.live()
                met = {membership.address(name) for name in live}
            seen = {at: name for at, name in seen.items() if at in found and name in live}
            for address in found:
                if address in met or address in seen:
                    continue
                try:
                    other = await self.transport.describe(address, ASK_TIMEOUT_S)
                except MurmurateError:
                    continue
                if other.instance == self._instance or (
                    other.swarm == self.swarm and other.name in live
                ):
                    seen[address] = other.name
                elif other.synced and other.swarm == self.swarm:
                    self._introduced(other)
                elif other.synced and other.run == self.settings.run:
                    self._found_twice(other, address)

    def _found_twice(self, other: Description, address: str) -> None:
        """Two swarms of one run cannot become one: they began with different weights."""
        why = f"is in another swarm of run {other.run!r}; end one of the two and start it anew"
        if self._refusals.get(address) != why:
            self._refusals[address] = why
            log.warning("%s at %s %s", other.name, address, why)

    def _introduced(self, other: Description) -> None:
        """Whom I found, as if it had said so itself."""
        word = Rumour(other.name, other.epoch, 0, ALIVE, other.address)
        with self.lock:
            self._meet(other.name, other.address)
            ack = Ack(0, other.name, rumours=(word,))
            self._carry_out(self.peer.receive(other.name, ack, time.monotonic()))
        self._pump()

    def _begin_life(self, place: Place, *, founding: bool) -> None:
        """A new epoch: at the start, and after the others have voted me out."""
        again = self._peer is not None
        epoch = self._new_epoch(place)
        more = self._from_disk(again=again)
        back = more.pop("clock", None)
        update_bytes = self.settings.update_bytes or self.layout.nbytes
        if again and self.settings.rule == "average":
            self.weights = buffers.clone(self.weights)  # these may be in a share under way
        self._peer = self._kind()(
            self.name,
            epoch,
            Replica(self.weights, back),
            rng=self._rng,
            config=PeerConfig(
                topology=self.settings.topology,
                outbox_bytes_max=min(
                    WAITING_MAX * update_bytes, max(BUFFER_BYTES, 2 * update_bytes)
                ),
                waiting_max=COMPANY_MAX,
                log_bytes_max=self.settings.update_bytes or max(BUFFER_BYTES, update_bytes),
                store_bytes_max=BUFFER_BYTES // 2,
                coalesce=True,
                leave_behind=True,
                prune_applied=True,
                digest_interval_s=0.25,
                digest_fanout=TOLD_MAX,
                timing=self.settings.timing,
            ),
            synced=founding or back is not None,
            address=self.transport.address,
            **({"history": (Generation(0, (self.name,)),)} if founding else more),
        )
        if self.keeper is not None and isinstance(self._peer, Peer):
            for kept, saved in enumerate(self.keeper.saved, 1):
                self._peer.checkpointed(saved.clock, kept=kept)
            if founding:
                self._peer.checkpointed(Clock())  # a crash leaves nothing of this life so far
        hello = Hello(
            version=PROTOCOL_VERSION,
            run=self.settings.run,
            swarm=self.swarm,
            schema=self.layout.schema,
            name=self.name,
            epoch=epoch,
            address=self.transport.address,
        )
        self._call(self._introduce, hello, dict(place.members))  # on the loop's thread
        self._carry_out(self._peer.join(place.members, time.monotonic()))

    def _new_epoch(self, place: Place) -> int:
        """Larger than in any life before, and durable before it is used, where there is a disk.

        Else milliseconds of the wall clock; if that was set back, the name is taken and another one
        is chosen (see entry.free_name).
        """
        epoch = int(time.time() * 1000)
        if self._peer is not None:
            epoch = max(epoch, self._peer.epoch + 1)
        if self.keeper is None:
            return epoch
        try:
            return self.keeper.begin(place.name, place.swarm, epoch)
        except OSError as error:
            where = self.keeper.folder.path
            raise CheckpointError(f"{where}: cannot be written: {error.strerror}") from None

    def _from_disk(self, *, again: bool) -> dict[str, Any]:
        """What a peer starts with. One that was voted out still has to keep its word."""
        back = None if again else self.resumed
        if self.settings.rule == "average":
            if back is None:
                return {}
            self.weights.copy_(back.weights)
            return {"clock": back.clock.copy()}
        if self.keeper is None or self.keeper.memory is None:
            vow = self._peer.agreement.vow if isinstance(self._peer, Peer) else None
            return {"past": Past(vow=vow)}
        memory = self.keeper.memory
        if back is None:
            return {"past": Past(vow=memory.vow)}
        self.weights.copy_(back.weights)
        past = Past(
            log=back.log, store=back.store, vow=memory.vow, history=memory.history, met=memory.met
        )
        return {"clock": back.clock.copy(), "history": back.history, "past": past}

    def _checkpointed(self, checkpoint: Checkpoint, kept: int) -> None:
        """In the keeper's thread."""
        with self.lock:
            assert self.keeper is not None
            self.keeper.catch_up()
            peer = self._peer
            if isinstance(peer, Peer) and peer.epoch == checkpoint.epoch:
                peer.checkpointed(checkpoint.clock, kept=kept)

    def let_go(self) -> None:
        """Of the checkpoint this node has come back from: it is larger than the model."""
        self.resumed = None
        if self.keeper is not None:
            self.keeper.restored = None

    def account(self) -> dict[str, Any]:
        """The part of a `Checkpoint` that is not tensors, of this instant; for the training
        thread: weights and clock change in no other."""
        with self.lock:
            peer = self.peer
            out: dict[str, Any] = {
                "run": self.settings.run,
                "rule": self.settings.rule,
                "swarm": self.swarm,
                "name": self.name,
                "epoch": peer.epoch,
                "seq": peer.seq,
                "samples": self.tally.samples,
                "clock": peer.context(),
                "members": {
                    name: at
                    for name in peer.membership.live()
                    if name != self.name and (at := peer.membership.address(name))
                },
            }
            if isinstance(peer, Peer):
                out["history"] = peer.baseline.history
                others = [name for name in peer.membership.live() if name != self.name]
                if others or peer.standing.awaited(time.monotonic()):
                    out["log"], out["store"] = tuple(peer.log), tuple(peer.store)
            return out

    def _introduce(self, hello: Hello, members: dict[str, str]) -> None:
        self._giving.forget()
        self.transport.hello(hello)
        with self.lock:
            for name, address in members.items():
                self._meet(name, address)
        self._pump()

    def _kind(self) -> type[Gossip]:
        if self.settings.rule != "average":
            return Peer
        from murmurate.core.mixing import MixingPeer

        return MixingPeer

    async def _tick_for_ever(self) -> None:
        while True:
            self._tick()
            await asyncio.sleep(TICK_S)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _tick(self) -> None:
        now = time.monotonic()
        if self.pace.due(now):
            self.pace.look(
                now,
                time.thread_time(),
                time.process_time(),
                peers=len(self._met),
                idle=self._demand.idle(now),
            )
        with self.lock:
            if self._peer is None:
                return
            self._carry_out(self._peer.tick(now))
            self._tell(now)
            self._forget_links(now)
            self.news.notify_all()
            live = self._peer.membership.live()
        self._giving.sweep(live)
        if self._outgoing or self._consumed or self._next_pump is None:
            self._pump()

    def _tell(self, now: float) -> None:
        others = [name for name in self.peer.membership.live() if name != self.name]
        news = self.peer.membership.version != self._told_version and len(others) <= TOLD_MAX
        if now < self._tell_at and not news:
            return
        self._tell_at, self._told_version = now + TELL_S, self.peer.membership.version
        self._look(now, others)
        mine = self._progress()
        entries = [mine]
        if len(others) > TOLD_MAX or self.settings.topology != "full":
            rest = [entry for entry in self.board if entry.name != self.name]
            entries += self._rng.sample(rest, min(TOLD_MAX, len(rest)))
            if not self.done:
                others = self._rng.sample(others, min(TOLD_MAX, len(others)))
        self._outgoing.extend(Send(to, entry) for to in others for entry in entries)

    def _progress(self) -> Progress:
        mine = self.tally.progress(
            self.name,
            self.peer.epoch,
            time.monotonic(),
            traffic=(self.transport.bytes_sent, self.transport.bytes_received),
            last=self.peer.seq,
            done=self.done,
            settled=self.settled,
        )
        mine = replace(mine, **self._view(time.monotonic()))
        self.board.merge(mine)
        return mine

    def _look(self, now: float, others: list[str]) -> None:
        """What needs two readings: rates, sliding means, the distance between replicas."""
        tally = self.tally
        seen = tally.staleness
        self.outlook.count(now, tally.published, tally.computed_s, seen.count, seen.total)
        self.outlook.keep(others)
        self.sketches.keep(others)
        if self.pages is not None:
            self.curves.note(now, self.board)
        if self.peer.synced and self.sketches.due(wall := time.time()):
            self.sketches.take(self.weights, wall)

    def _view(self, now: float) -> dict[str, Any]:
        """The part of my progress that is not counted but seen."""
        average = self.settings.rule == "average"
        return {
            "at": time.time(),
            "delay_s": self.outlook.delay_s(now),
            "fastest_delay_s": self.outlook.fastest_s(now),
            "later_updates": self.outlook.later_updates(now),
            "staleness_now": self.outlook.staleness(),
            "staleness_predicted": math.nan if average else self.outlook.predicted(),
            "lag": self.lag(),
            "sketch": self.sketches.newest,
            "sketch_at": self.sketches.at,
            "neighbours": self.tally.neighbours(),
            "made_at": self.outlook.made_at,
        }

    def lag(self) -> int:
        """Updates of live members I have heard of that are not in these weights; lock held."""
        clock, live = self.peer.clock, self.peer.membership.live()
        return sum(
            max(0, told.last - clock.last(told.name, told.epoch))
            for told in self.board
            if told.name != self.name and told.name in live
        )

    def _forget_links(self, now: float) -> None:
        """Links to those of whom there is no record any more."""
        if now < self._forget_at:
            return
        self._forget_at = now + FORGET_LINKS_S
        for name in list(self._met):
            if self.peer.membership.state(name) is None:
                del self._met[name]
                self.transport.drop(name)

    # -- effects ---------------------------------------------------------------------------------

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """In order, with the lock held. What is to be sent goes out by `_pump`.

        `Save` without a disk: this node never comes back as who it was. `Prune` is for drivers that
        log each update; here the log is in the checkpoints.
        """
        for effect in effects:
            match effect:
                case Send(to, message) if to == self.name:
                    self._carry_out(self.peer.receive(to, message, time.monotonic()))
                case Send():
                    self._outgoing.append(effect)
                case Deliver(sender, message):
                    self._deliver(sender, message)
                case Applied():
                    self.tally.apply(effect)
                case Drop():
                    self.tally.drop(effect)
                case Adopted(giver, _, kept, _, given_up):
                    self.adopted = True
                    self.weights = self.peer.replica.weights
                    if given_up:
                        self.tally.rejected["given_up"] += len(given_up)
                    log.info("%s took a snapshot of %s (%d kept)", self.name, giver, len(kept))
                case Verdict(name, epoch, state, reason):
                    log.info("%s: %s/%d is %s: %s", self.name, name, epoch, state, reason)
                case Rejoin(reason):
                    log.warning("%s: %s; joining again", self.name, reason)
                    self._rejoin()
                    return
                case Save(key, value) if self.keeper is not None:
                    if not self.keeper.note(key, value):
                        return  # what comes next must not leave the machine
                case _:
                    pass

    _done: Callable[[], None] | None = None

    def _deliver(self, sender: str, message: Any) -> None:
        if isinstance(message, Decided):  # small, so that no window of a link bounds it
            waiting = sum(isinstance(item.message, Decided) for item in self._inbox)
            if waiting >= DECIDED_MAX:
                return  # it is told again
        done, self._done = self._done, None
        self._inbox.append(_Delivery(sender, message, done or _nothing))
        self.news.notify_all()

    def _rejoin(self) -> None:
        peer = self.peer
        members = {name: peer.membership.address(name) for name in peer.membership.live()}
        members.pop(self.name, None)
        self._consumed.extend(item.done for item in self._inbox)
        self._inbox.clear()
        self._outgoing.clear()
        members = members or {name: at for name, at in self._met.items() if name != self.name}
        self._begin_life(Place(self.swarm, self.name, members), founding=False)

    def _kick(self) -> None:
        """Let the loop's thread send what waits; once, however often it is called."""
        if not self._kicked:
            self._kicked = True
            self._call(self._pump)

    def _call(self, act: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act, *args)

    def _pump(self) -> None:
        """Hand over what waits: small messages first, then what each free link takes."""
        self._kicked = False
        transport = self.transport
        while self._consumed:
            self._consumed.popleft()()
        try:
            with self.lock:
                if self._peer is None or self._stopping:
                    return
                now = time.monotonic()
                paced = isinstance(self._peer, Peer) and self.pace.message_s > 0.0
                if isinstance(self._peer, Peer):
                    self._peer.pace_s = self.pace.message_s
                sends = list(self._outgoing)
                self._outgoing.clear()
                for send in sends:
                    self._meet(send.to, self._address(send.to))
                ready = self._peer.ready(now)
            for send in sends:
                self._hand_over(send)
            for to in ready:
                while transport.free(to):
                    with self.lock:
                        self._meet(to, self._peer.membership.address(to))
                        taken = self._peer.take(to, now)
                    if taken is None:
                        break
                    if isinstance(taken, Push) and not push_fits(taken):
                        with self.lock:  # a sum of too many for one header: a snapshot will do
                            self._peer.landed(to, taken)
                            self.tally.dropped["header"] += 1
                        continue
                    transport.carry(to, taken)
                    self.tally.send(to, taken)
                    if not isinstance(taken, Push):
                        break  # of shares a link has one at a time
            self._look_again(paced, taken=bool(ready))
        except BaseException as error:
            self._fail(error)
            raise

    def _look_again(self, paced: bool, *, taken: bool) -> None:
        """After the pause between two messages, if one has left or something waits."""
        assert self._loop is not None
        if self._next_pump is not None and (taken or not paced):
            self._next_pump.cancel()
            self._next_pump = None
        if paced and self._next_pump is None:
            with self.lock:
                paced = taken or self._has_waiting()
            if paced:
                self._next_pump = self._loop.call_later(self.pace.message_s, self._pump_due)

    def _pump_due(self) -> None:
        self._next_pump = None
        self._pump()

    def _hand_over(self, send: Send) -> None:
        try:
            self.transport.post(send.to, send.message)
        except LocalProtocolError as error:  # what others told me is too large for one message
            self.rejected("too_large", self.name, str(error))

    def _make_snapshot(self) -> Snapshot | None:
        with self.lock:
            return self.peer.snapshot() if self.peer.gives() else None

    def _carry_snapshot(self, to: str, snapshot: Snapshot) -> None:
        with self.lock:
            self._meet(to, self.peer.membership.address(to))
        try:
            self.transport.carry(to, snapshot)
            self.tally.send(to, snapshot)
        except LocalProtocolError as error:
            self.rejected("too_large", self.name, str(error))
            self._giving.landed(to)

    def _address(self, name: str) -> str:
        return self.peer.membership.address(name) or self._callers.get(name, "")

    def _meet(self, name: str, address: str) -> None:
        if address and self._met.get(name) != address:
            self._met[name] = address
            self.transport.meet(name, address)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        with self.lock:
            self.news.notify_all()

    # -- Ears: what the transport hears ----------------------------------------------------------

    def greet(self, hello: Hello) -> Welcome:
        if self._peer is None:
            raise PeerTimeout(f"{self.settings.name} is itself still joining")  # soon again
        for what, theirs, mine in (
            ("run", hello.run, self.settings.run),
            ("swarm", hello.swarm, self.swarm),
            ("model schema", hello.schema, self.layout.schema),
        ):
            if theirs != mine:
                raise SchemaMismatch(f"{what} {theirs!r}, this node has {mine!r}")
        if hello.name == self.name:
            raise PeerExists(f"name {hello.name!r} is mine: two peers cannot share it")
        with self.lock:
            membership = self._peer.membership
            known = membership.address(hello.name)
            same_life = membership.epoch(hello.name) == hello.epoch
            if not same_life and membership.state(hello.name) in (ALIVE, SUSPECT):
                newer = hello.epoch > (membership.epoch(hello.name) or 0)
                if not newer or (known and known != hello.address):
                    raise PeerExists(f"name {hello.name!r} is taken by a live peer at {known}")
            self._callers.pop(hello.name, None)
            self._callers[hello.name] = hello.address
            if len(self._callers) > CALLERS_MAX:
                del self._callers[next(iter(self._callers))]
            self._meet(hello.name, hello.address)
        return Welcome(
            version=PROTOCOL_VERSION,
            run=self.settings.run,
            swarm=self.swarm,
            schema=self.layout.schema,
            name=self.name,
            epoch=self._peer.epoch,
            address=self.transport.address,
        )

    def describe(self) -> Description:
        with self.lock:
            peer = self._peer
            members: list[DescribedMember] = []
            if peer is not None:
                self._progress()
                for rumour in peer.membership.rumours():
                    reason = peer.membership.reason(rumour.name)
                    members.append(
                        DescribedMember(
                            rumour.name, rumour.epoch, rumour.state, rumour.address, reason
                        )
                    )
            return Description(
                version=PROTOCOL_VERSION,
                instance=self._instance,
                run=self.settings.run,
                rule=self.settings.rule,
                swarm=self.swarm,
                name=self.name,
                epoch=peer.epoch if peer is not None else 0,
                address=self.transport.address,
                synced=peer is not None and peer.synced,
                schema=self.layout.schema,
                tensors=tuple(
                    DescribedTensor(t.name, t.dtype, t.shape) for t in self.layout.tensors
                ),
                members=tuple(members),
                clock=peer.context() if peer is not None else Clock(),
                progress=tuple(self.board),
                folds=_folds(peer) if isinstance(peer, Peer) else (),
                arrived=peer.transit.with_arrived(peer.clock) if isinstance(peer, Peer) else None,
            )

    def expected_bytes(self, head: BulkHead) -> int:
        if isinstance(head, ShareHead) and self.settings.rule != "average":
            raise RemoteProtocolError("share", f"this run's rule is {self.settings.rule!r}")
        dtype = {torch.float32: "f4", torch.float64: "f8"}[self.layout.dtype]
        if head.dtype != dtype:
            raise RemoteProtocolError("bulk.dtype", f"{head.dtype}, the model has {dtype}")
        if isinstance(head, PushHead) and head.parts:
            return parts_bytes(head, self.layout.size)
        return self.layout.nbytes

    def wants(self, sender: str, head: BulkHead) -> bool:
        with self.lock:
            peer = self.peer
            if isinstance(head, PushHead):
                # Before the first snapshot it could not be folded in; afterwards I ask for it.
                return peer.synced and not all(stamp.dot in peer.clock for stamp in head.stamps)
            if isinstance(head, ShareHead) and not isinstance(peer, Peer):
                return peer.wants(sender, head.seq, head.epoch, head.to_epoch)
            if isinstance(head, SnapshotHead):
                return peer.wants_snapshot(sender, head.clock)
            return True

    def heard(self, sender: str, head: BulkHead | None = None) -> None:
        snapshot = isinstance(head, SnapshotHead)
        # A piece of many is not worth waiting for a fold: nothing is sent or read meanwhile.
        if not self.lock.acquire(blocking=head is None or snapshot):
            return
        try:
            self._carry_out(self.peer.heard(sender, time.monotonic(), snapshot=snapshot))
        finally:
            self.lock.release()

    def broke(self, sender: str, head: BulkHead, again: bool) -> None:
        if isinstance(head, SnapshotHead):
            with self.lock:
                self.peer.broke(sender, again=again)

    def received(self, sender: str, message: Any, done: Callable[[], None]) -> None:
        if isinstance(message, Progress):
            with self.lock:
                if self.board.merge(message) and message.name != self.name:
                    self.outlook.hear(message, time.monotonic())
                self.news.notify_all()
            return
        now = time.monotonic()
        if isinstance(message, SnapshotRequest):
            self.heard(sender)
            self._hand_over(Send(sender, self.progress()))  # my link to it opens while I copy
            self._giving.asked(sender)
            return
        try:
            with self.lock:
                self._done = done
                self._carry_out(self.peer.receive(sender, message, now))
                if isinstance(message, Push):
                    wall = time.time()
                    for origin, epoch, seq in message.dots:
                        self.outlook.arrive(origin, epoch, seq, wall)
                undelivered, self._done = self._done, None
                # Asked here: the training thread has the lock next, for as long as a fold takes.
                waiting = bool(self._outgoing) or self._has_waiting()
        except RemoteProtocolError:
            raise
        except BaseException as error:
            self._fail(error)
            raise
        if undelivered is not None:
            undelivered()
        if waiting and self._next_pump is None:
            self._kick()

    def _has_waiting(self) -> bool:
        """Lock held."""
        if isinstance(self.peer, Peer):
            return bool(self.peer.outbox.waiting())
        return bool(self.peer.ready(time.monotonic()))

    def landed(self, to: str, message: Any) -> None:
        if isinstance(message, Snapshot):
            self._giving.landed(to)
        else:
            with self.lock:
                self.peer.landed(to, message)
        if self._next_pump is None:
            self._kick()

    def lost(self, to: str, message: Any) -> None:
        if isinstance(message, Snapshot):
            self._giving.lost(to)
        else:
            with self.lock:
                self.peer.lost(to, message)
        if self._next_pump is None:
            self._kick()

    def refused(self, to: str, error: MurmurateError) -> None:
        if self._refusals.get(to) != str(error):
            self._refusals[to] = str(error)
            log.warning("%s refuses this node: %s", to, error)

    def fault(self, bug: BaseException) -> None:
        self._fail(bug)

    def rejected(self, reason: str, sender: str, detail: str) -> None:
        if self._peer is None:
            return  # others may be quicker than I am, above all when I come back
        now = time.monotonic()
        with self.lock:
            self.tally.rejected[reason] += 1
            quiet = now < self._warned.get(reason, -math.inf) + WARN_S
            if not quiet:
                self._warned[reason] = now
        if not quiet:
            log.warning("rejected (%s) from %s: %s", reason, sender, detail)


def _folds(peer: Peer) -> tuple[tuple[Key, Runs], ...]:
    return tuple(fold for generation in peer.baseline.history for fold in generation.folds)


def _nothing() -> None:
    """Nobody waits for this one."""
