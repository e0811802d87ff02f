"""What this node hears from its transport, and how it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from murmurate.core.clock import Clock
from murmurate.core.figures.progress import Progress
from murmurate.core.message import ALIVE, SUSPECT, Push, Snapshot, SnapshotRequest
from murmurate.edge.net.wire import (
    PROTOCOL_VERSION,
    BulkHead,
    DescribedMember,
    DescribedTensor,
    Description,
    Hello,
    PushHead,
    ShareHead,
    SnapshotHead,
    parts_bytes,
)
from murmurate.edge.runtime.other_swarms import sentence
from murmurate.errors import (
    MurmurateError,
    PeerExists,
    PeerTimeout,
    RemoteProtocolError,
    SchemaMismatch,
)

if TYPE_CHECKING:
    from murmurate.edge.runtime.counting import Counting
    from murmurate.edge.runtime.links import Links
    from murmurate.edge.runtime.node_state import NodeState
    from murmurate.edge.runtime.pump import Pump
    from murmurate.edge.runtime.snapshot_giver import Giving
    from murmurate.edge.runtime.telling import Telling


class NodeEars:
    """The `Ears` of one node (`edge.net.transport`). On the thread of the event loop."""

    def __init__(
        self,
        state: NodeState,
        links: Links,
        pump: Pump,
        telling: Telling,
        giving: Giving,
        counting: Counting,
    ) -> None:
        self.state = state
        self._links = links
        self._pump = pump
        self._telling = telling
        self._giving = giving
        self._counting = counting

    # -- who is there ----------------------------------------------------------------------------

    def greet(self, hello: Hello) -> Hello:
        state = self.state
        with state.lock:
            if not state.joined:  # soon again
                self._note_caller(hello)
                raise PeerTimeout(f"{state.settings.name} is itself still joining")
            self._check(hello)
            self._links.called(hello.name, hello.address)
            return Hello(
                version=PROTOCOL_VERSION,
                run=state.settings.run,
                swarm=state.swarm,
                schema=state.layout.schema,
                name=state.name,
                epoch=state.peer.epoch,
                address=state.transport.address,
            )

    def answered(self, hello: Hello) -> None:
        with self.state.lock:
            self._check(hello)

    def _note_caller(self, hello: Hello) -> None:
        """Somebody who is in a swarm of my run calls me before I am in one; lock held."""
        state = self.state
        mine = (state.settings.run, state.layout.schema)
        if (hello.run, hello.schema) == mine and hello.swarm and hello.address:
            state.other_swarms.callers = {hello.address: hello.name}

    def _check(self, hello: Hello) -> None:
        """Whether this is a peer of this run, by a name that is its own; lock held."""
        state = self.state
        ours = (hello.run, hello.schema) == (state.settings.run, state.layout.schema)
        if ours and hello.swarm != state.swarm:
            text = sentence(hello.run, hello.name, hello.address or "an unknown address")
            state.other_swarms.note(text, time.monotonic())
            raise SchemaMismatch(text)
        for what, theirs, mine in (
            ("run", hello.run, state.settings.run),
            ("swarm", hello.swarm, state.swarm),
            ("model schema", hello.schema, state.layout.schema),
        ):
            if theirs != mine:
                raise SchemaMismatch(f"{what} {theirs!r}, this node has {mine!r}")
        if hello.name == state.name:
            raise PeerExists(f"name {hello.name!r} is mine: two peers cannot share it")
        self._check_name(hello)

    def _check_name(self, hello: Hello) -> None:
        """Whether it is free, or that of the one who greets; lock held."""
        membership = self.state.peer.membership
        known = membership.address(hello.name)
        same_life = membership.epoch(hello.name) == hello.epoch
        if not same_life and membership.state(hello.name) in (ALIVE, SUSPECT):
            newer = hello.epoch > (membership.epoch(hello.name) or 0)
            if not newer or (known and known != hello.address):
                raise PeerExists(f"name {hello.name!r} is taken by a live peer at {known}")

    def describe(self) -> Description:
        state = self.state
        with state.lock:
            peer = state.peer if state.joined else None
            members: list[DescribedMember] = []
            if peer is not None:
                self._telling.progress()
                for rumour in peer.membership.rumours():
                    reason = peer.membership.reason(rumour.name)
                    members.append(
                        DescribedMember(
                            rumour.name, rumour.epoch, rumour.state, rumour.address, reason
                        )
                    )
            return Description(
                version=PROTOCOL_VERSION,
                instance=state.instance,
                run=state.settings.run,
                rule=state.settings.rule,
                swarm=state.swarm,
                name=state.name,
                epoch=peer.epoch if peer is not None else 0,
                address=state.transport.address,
                synced=peer is not None and peer.synced,
                schema=state.layout.schema,
                tensors=tuple(
                    DescribedTensor(t.name, t.dtype, t.shape) for t in state.layout.tensors
                ),
                members=tuple(members),
                clock=peer.context() if peer is not None else Clock(),
                progress=tuple(state.board),
                folds=peer.folds() if peer is not None else (),
                arrived=peer.arrived() if peer is not None else None,
            )

    # -- a message, piece by piece ---------------------------------------------------------------

    def expected_bytes(self, head: BulkHead) -> int:
        state = self.state
        if isinstance(head, ShareHead) and state.way.sends_updates:
            raise RemoteProtocolError("share", f"this run's rule is {state.settings.rule!r}")
        dtype = {torch.float32: "f4", torch.float64: "f8"}[state.layout.dtype]
        if head.dtype != dtype:
            raise RemoteProtocolError("bulk.dtype", f"{head.dtype}, the model has {dtype}")
        if isinstance(head, PushHead) and head.parts:
            return parts_bytes(head, state.layout.size)
        return state.layout.nbytes

    def wants(self, sender: str, head: BulkHead) -> bool:
        with self.state.lock:
            peer = self.state.peer
            if isinstance(head, PushHead):
                return peer.wants_push(stamp.dot for stamp in head.stamps)
            if isinstance(head, ShareHead):
                return peer.wants_share(sender, head.seq, head.epoch, head.to_epoch)
            return peer.wants_snapshot(sender, head.clock)

    def heard(self, sender: str, head: BulkHead | None = None) -> None:
        snapshot = isinstance(head, SnapshotHead)
        lock = self.state.lock
        # A piece of many is not worth waiting for a fold: nothing is sent or read meanwhile.
        if not lock.acquire(blocking=head is None or snapshot):
            return
        try:
            self.state.driver.heard(sender, time.monotonic(), snapshot=snapshot)
        finally:
            lock.release()

    def broke(self, sender: str, head: BulkHead, again: bool) -> None:
        if isinstance(head, SnapshotHead):
            with self.state.lock:
                self.state.peer.broke(sender, again=again)

    # -- a whole message -------------------------------------------------------------------------

    def received(self, sender: str, message: Any, done: Callable[[], None]) -> None:
        if isinstance(message, Progress):
            self._hear_progress(message)
        elif isinstance(message, SnapshotRequest):
            self._hear_request(sender)
        else:
            self._hear(sender, message, done)

    def _hear(self, sender: str, message: Any, done: Callable[[], None]) -> None:
        state, driver = self.state, self.state.driver
        try:
            with state.lock:
                now = time.monotonic()
                driver.receive(sender, message, now, done)
                if isinstance(message, Push):
                    wall = time.time()
                    for origin, epoch, seq in message.dots:
                        state.outlook.arrive(origin, epoch, seq, wall)
                if driver.inbox:
                    state.news.notify_all()
                # Asked here: the training thread has the lock next, for as long as a fold takes.
                waiting = bool(driver.outgoing) or state.peer.links.has_waiting(now)
        except RemoteProtocolError:
            raise
        except BaseException as error:
            state.fail(error)
            raise
        driver.give_back()
        if waiting:
            self._pump.kick_unless_paused()

    def _hear_progress(self, told: Progress) -> None:
        state = self.state
        with state.lock:
            if state.board.merge(told) and told.name != state.name:
                state.outlook.hear(told, time.monotonic())
            state.news.notify_all()

    def _hear_request(self, sender: str) -> None:
        self.heard(sender)
        with self.state.lock:
            mine = self._telling.progress()
        self._links.post(sender, mine)  # my link to it opens while I copy
        self._giving.asked(sender)

    # -- what I sent -----------------------------------------------------------------------------

    def landed(self, to: str, message: Any) -> None:
        if isinstance(message, Snapshot):
            self._giving.landed(to)
        else:
            with self.state.lock:
                self.state.peer.landed(to, message)
        self._pump.kick_unless_paused()

    def lost(self, to: str, message: Any) -> None:
        if isinstance(message, Snapshot):
            self._giving.lost(to)
        else:
            with self.state.lock:
                self.state.peer.lost(to, message)
        self._pump.kick_unless_paused()

    # -- trouble ---------------------------------------------------------------------------------

    def refused(self, to: str, error: MurmurateError) -> None:
        self._counting.refused(to, error)

    def rejected(self, reason: str, sender: str, detail: str) -> None:
        self._counting.rejected(reason, sender, detail)

    def fault(self, bug: BaseException) -> None:
        self.state.fail(bug)
