"""The lives of one node: each has an epoch of its own, and may go on from what is on the disk.

A life begins when the node starts, and whenever the others have closed the one before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from murmurate.core.batches.held import NO_BATCHES, HeldBatches
from murmurate.core.clock import Clock
from murmurate.core.driver import Life
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.gossip.past import Past
from murmurate.core.gossip.protocol import GossipPeer
from murmurate.core.membership.epochs import epoch_after
from murmurate.core.message import Generation
from murmurate.core.replica import Replica
from murmurate.edge.net.wire import PROTOCOL_VERSION, Hello
from murmurate.edge.runtime.discovery import Memory, Place
from murmurate.errors import CheckpointError

if TYPE_CHECKING:
    from murmurate.edge.disk.checkpoint import Checkpoint
    from murmurate.edge.runtime.links import Links
    from murmurate.edge.runtime.node_state import NodeState

log = logging.getLogger("murmurate")

CATCH_UP_S = 60.0
"""After so long nobody counts as catching up any more: it is as slow as that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a life begins with."""

    synced: bool
    """Whether its weights are the swarm's; if not, a snapshot will bring them."""
    clock: Clock | None = None
    """Of the weights it goes on from."""
    batches: HeldBatches = NO_BATCHES
    """In these weights."""
    history: tuple[Generation, ...] = ()
    past: Past | None = None


class NodeLives:
    """Begins the lives of one node; the driver asks it for the next one.

    `begin` and `begin_again` are called with the lock held.
    """

    def __init__(
        self, state: NodeState, links: Links, introduce: Callable[[Hello, dict[str, str]], None]
    ) -> None:
        """`introduce` is called with what a life says first on each link, and to whom."""
        self._state = state
        self._links = links
        self._introduce = introduce
        self._memory = 0
        """The life since which this node remembers its votes."""
        self.resumed: Checkpoint | None = None
        """What this node goes on from; the flat weights have it, the model has not yet."""

    # -- coming ----------------------------------------------------------------------------------

    def memory(self) -> Memory | None:
        """What I know of an earlier life, from the disk."""
        state, keeper = self._state, self._state.keeper
        if keeper is None or not keeper.swarm:
            return None
        state.swarm = keeper.swarm  # told to those who ask, so that they do not found another
        return Memory(
            swarm=keeper.swarm,
            name=keeper.name,
            peers=tuple(keeper.addresses.values()),
            weights=keeper.restored is not None,
        )

    def look_back(self, place: Place) -> None:
        """Decide what of an earlier life goes on here (`Way.resumes_among_others`)."""
        state, keeper = self._state, self._state.keeper
        state.company = bool(place.members)
        if keeper is None:
            return
        if keeper.swarm and keeper.swarm != place.swarm:
            keeper.set_aside()
        elif state.way.resumes_among_others or not place.members:
            self.resumed = keeper.restored
        keeper.on_saved = self._checkpointed
        keeper.on_failure = state.fail

    def begin(self, place: Place) -> Life[GossipPeer]:
        """The first life of this process."""
        self._state.name, self._state.swarm = place.name, place.swarm
        return self._begin(place, founding=not place.members and self.resumed is None)

    def begin_again(self, reason: str, now: float) -> Life[GossipPeer]:
        """The next life, after the others have closed the one before."""
        state = self._state
        log.warning("%s: %s; joining again", state.name, reason)
        membership = state.peer.membership
        known = {name: membership.address(name) for name in membership.live()}
        others = {name: at for name, at in known.items() if name != state.name}
        if not others:
            others = {name: at for name, at in self._links.met.items() if name != state.name}
        return self._begin(Place(state.swarm, state.name, others), founding=False)

    def _begin(self, place: Place, *, founding: bool) -> Life[GossipPeer]:
        state, settings = self._state, self._state.settings
        epoch = self._new_epoch(place)
        # Who begins with a snapshot is as far as its giver.
        state.tally.level = self.resumed is None or not place.members
        state.level_by = time.monotonic() + CATCH_UP_S
        self._remember(epoch)
        beginning = self._beginning(founding=founding)
        if state.joined:
            state.weights = state.peer.weights_for_next_life()
        update_bytes = settings.update_bytes or state.layout.nbytes
        peer = state.way.kind()(
            state.name,
            epoch,
            Replica(state.weights, beginning.clock, beginning.batches),
            rng=state.rng,
            config=PeerConfig(
                topology=settings.topology,
                strength=settings.strength,
                timing=settings.timing,
            ).for_updates(update_bytes, one=settings.update_bytes > 0),
            history=beginning.history,
            past=beginning.past,
            synced=beginning.synced,
            address=state.transport.address,
        )
        if state.keeper is not None:
            for kept, saved in enumerate(state.keeper.saved, 1):
                peer.checkpointed(saved.clock, kept=kept)
            if founding:
                peer.checkpointed(Clock())  # a crash leaves nothing of this life so far
        hello = Hello(
            version=PROTOCOL_VERSION,
            run=settings.run,
            swarm=state.swarm,
            schema=state.layout.schema,
            name=state.name,
            epoch=epoch,
            address=state.transport.address,
        )
        self._introduce(hello, dict(place.members))
        return Life(peer, place.members)

    def _new_epoch(self, place: Place) -> int:
        """Larger than in any life before, and durable before it is used, where there is a disk.

        Without one: as the wall clock has it in milliseconds, and those who were asked.
        """
        state = self._state
        epoch = epoch_after(int(time.time() * 1000), place.last_life)
        if state.joined:
            epoch = max(epoch, state.peer.epoch + 1)
        if state.keeper is None:
            return epoch
        try:
            return state.keeper.begin(place.name, place.swarm, epoch)
        except OSError as error:
            where = state.keeper.folder.path
            raise CheckpointError(f"{where}: cannot be written: {error.strerror}") from None

    def _remember(self, epoch: int) -> None:
        """Votes are remembered since this life, or since one before it in this process or on this
        disk."""
        keeper = self._state.keeper
        if keeper is not None and keeper.memory is not None:
            self._memory = keeper.memory.since
        elif not self._state.joined:
            self._memory = epoch

    def _beginning(self, *, founding: bool) -> Beginning:
        """What there is to begin with. One that was voted out still has to keep its word."""
        state, keeper, since = self._state, self._state.keeper, self._memory
        if founding:
            alone = Generation(0, (state.name,), memories=(since,))
            return Beginning(synced=True, history=(alone,), past=Past(memory=since))
        if keeper is None or keeper.memory is None:
            past = state.peer.past() if state.joined else Past(memory=since)
            return Beginning(synced=False, past=past)
        memory, back = keeper.memory, self.resumed
        if back is None or state.joined:
            return Beginning(synced=False, past=Past(memory=since, vow=memory.vow))
        state.weights.copy_(back.weights)
        return Beginning(
            synced=True,
            clock=back.clock.copy(),
            batches=back.batches,
            history=back.history,
            past=Past(
                memory=since,
                log=back.log,
                store=back.store,
                vow=memory.vow,
                history=memory.history,
                met=memory.met,
            ),
        )

    # -- the disk --------------------------------------------------------------------------------

    def _checkpointed(self, checkpoint: Checkpoint, kept: int) -> None:
        """In the keeper's thread."""
        state = self._state
        with state.lock:
            assert state.keeper is not None
            state.keeper.catch_up()
            if state.joined and state.peer.epoch == checkpoint.epoch:
                state.peer.checkpointed(checkpoint.clock, kept=kept)

    def let_go(self) -> None:
        """Of the checkpoint this node has come back from: it is larger than the model."""
        self.resumed = None
        if self._state.keeper is not None:
            self._state.keeper.restored = None

    def account(self) -> dict[str, Any]:
        """The part of a `Checkpoint` that is not tensors, of this instant; for the training
        thread: weights and clock change in no other."""
        state = self._state
        with state.lock:
            mine = state.peer.account(time.monotonic())
            return {
                "run": state.settings.run,
                "rule": state.settings.rule,
                "swarm": state.swarm,
                "name": state.name,
                "epoch": mine.epoch,
                "seq": mine.seq,
                "samples": state.tally.samples,
                "clock": mine.clock,
                "batches": mine.batches,
                "members": dict(mine.members),
                "history": mine.history,
                "log": mine.log,
                "store": mine.store,
            }


class NodeDisk:
    """The driver's disk, over a keeper."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    def save(self, key: str, value: Any) -> bool:
        """Without a disk nothing is durable and nothing need be: this node comes back as one that
        remembers nothing."""
        keeper = self._state.keeper
        return keeper is None or keeper.note(key, value)
