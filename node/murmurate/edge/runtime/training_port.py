"""What the training thread asks of the node beside it, and nothing else.

Each method takes the lock itself, for as long as it needs the peer. The weights are the training
thread's own: no other thread changes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from murmurate.core.batches.held import HeldBatches, runs_union
from murmurate.core.intervals import runs_common, runs_size
from murmurate.core.message import Push, restores
from murmurate.edge.runtime.others_port import LEVEL_UPDATES, OthersPort

if TYPE_CHECKING:
    import torch

    from murmurate.core.clock import Clock
    from murmurate.core.publishing.likeness import Likeness
    from murmurate.core.publishing.own_update import OwnUpdate
    from murmurate.edge.disk.checkpoint import Checkpoint
    from murmurate.edge.runtime.counting import Counting
    from murmurate.edge.runtime.lives import NodeLives
    from murmurate.edge.runtime.loop import LoopThread
    from murmurate.edge.runtime.node_state import NodeState
    from murmurate.edge.runtime.pump import Pump
    from murmurate.edge.runtime.snapshot_giver import Giving
    from murmurate.edge.runtime.telling import Telling


@dataclass(frozen=True, slots=True)
class Folds:
    """What came of folding in what waited."""

    changed: bool
    """The weights are other ones than before."""
    began: bool
    """A life began with the snapshot that was folded in: local steps of before are void."""
    applied: tuple[Any, ...]
    """The messages that changed the weights, in order."""


class LifeNow(NamedTuple):
    """Which life this node is in, and how far it has got."""

    epoch: int
    seq: int
    """The number of its last update."""
    synced: bool


class TrainingPort:
    """The background of one node, as its training thread knows it."""

    def __init__(
        self,
        state: NodeState,
        loop: LoopThread,
        lives: NodeLives,
        pump: Pump,
        telling: Telling,
        giving: Giving,
        counting: Counting,
        tick: Callable[[], None],
    ) -> None:
        self._state = state
        self._lives = lives
        self._pump = pump
        self._giving = giving
        self._counting = counting
        self.others = OthersPort(state, loop, pump, telling, tick)
        self.likeness: Likeness | None = None
        """Who holds own publications against the others', if anybody does."""

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def peers(self) -> tuple[str, ...]:
        """The seed peers, as they were given."""
        return self._state.settings.peers

    # -- the background --------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what went wrong in the background."""
        self._state.check()

    def fail(self, error: BaseException) -> None:
        """Have this raised at the next step; for threads that work for the training."""
        self._state.fail(error)

    def reject(self, reason: str, sender: str, detail: str) -> None:
        """Count something that came in and was not used."""
        self._counting.rejected(reason, sender, detail)

    def wake(self) -> None:
        """Something may have become true for one who waits."""
        with self._state.news:
            self._state.news.notify_all()

    def wait_for_news(self, timeout_s: float) -> None:
        """Until something may have become true, or has been delivered, or so long."""
        with self._state.news:
            if not self._state.driver.inbox:
                self._state.news.wait(timeout_s)

    # -- updates ---------------------------------------------------------------------------------

    @property
    def weights(self) -> torch.Tensor:
        """The flat weights: after `commit` and `fold` maybe another buffer."""
        return self._state.weights

    def context(self) -> Clock:
        """The updates in these weights: a copy."""
        with self._state.lock:
            return self._state.peer.context()

    def batches(self) -> HeldBatches:
        """Those of a generator that are in these weights, or wait to be folded into them."""
        with self._state.lock:
            held = self._state.peer.replica.batches
            for each in self._state.driver.inbox:
                if isinstance(each.message, Push):
                    for stamp in each.message.stamps:
                        if runs_common(held.numbers, stamp.batches) < runs_size(stamp.batches):
                            held = replace(held, numbers=runs_union(held.numbers, stamp.batches))
            return held

    def life(self) -> LifeNow:
        with self._state.lock:
            peer = self._state.peer
            return LifeNow(peer.epoch, peer.seq, peer.synced)

    @property
    def synced(self) -> bool:
        """Whether these weights are the swarm's."""
        return self.life().synced

    @property
    def whole(self) -> bool:
        """Whether weights and clock belong together, and to the swarm."""
        return self.synced and not self._state.driver.torn

    @property
    def interval_s(self) -> float:
        """Least time between two updates."""
        return self._state.pace.interval_s

    def has_room(self, nbytes: int, *, sparing: bool = False, fresh: bool = False) -> bool:
        """Whether an update of that size should be made now, or be added to the next one."""
        with self._state.lock:
            peer = self._state.peer
            return peer.synced and peer.room(nbytes, sparing=sparing, fresh=fresh)

    def under_way(self, number: int) -> bool:
        """Whether this one of my updates is still to get to most of those it is sent to."""
        with self._state.lock:
            return self._state.peer.links.under_way(number)

    def gives_snapshot(self) -> bool:
        """Whether a newcomer is getting a large snapshot right now."""
        return self._giving.busy()

    def commit(self, update: OwnUpdate) -> None:
        """Publish it. `LocalProtocolError`: it cannot be used, nothing has changed."""
        state, likeness = self._state, self.likeness
        if likeness is not None:
            if update.written:
                likeness.forget()
            likeness.arrived(state.weights)
        with state.lock:
            self._see_level()
            state.driver.publish(
                update.delta,
                update.context,
                time.monotonic(),
                update.batches,
                written=update.written,
            )
            state.weights = state.peer.replica.weights  # not always the same buffer
            state.tally.publish(update.compute_s)
            state.outlook.make(time.time())
            if not update.written:
                state.pace.made(update.compute_s / update.worth)
            state.demand.thread = threading.get_native_id()
            self._pump.made()
        if likeness is not None and likeness.published(state.weights):
            with state.lock:
                state.tally.learning.compare(likeness)
                news = state.tally.learning.news()
            self._counting.warn(news)

    def step_taken_back(self) -> None:
        """Count a step whose result could not be used."""
        with self._state.lock:
            self._state.tally.rejected["own_step"] += 1

    def waiting(self) -> list[Any]:
        """The messages that wait to change the weights."""
        if not self._state.driver.inbox:
            return []  # as after most steps: not worth the lock
        with self._state.lock:
            return [each.message for each in self._state.driver.inbox]

    def fold(self, count: int) -> Folds:
        """Let so many of the messages that wait change the weights."""
        state, driver = self._state, self._state.driver
        began = False
        applied: list[Any] = []
        for _ in range(count):
            with state.lock:
                if not driver.inbox:
                    break
                message = driver.inbox[0].message
                self._see_level()
                folded = driver.fold(time.monotonic())
                state.weights = state.peer.replica.weights
            if folded is not None and folded.changed:
                applied.append(message)
                began = began or folded.began
        if self.likeness is not None and (began or restores(applied)):
            self.likeness.forget()
        return Folds(changed=bool(applied), began=began, applied=tuple(applied))

    def _see_level(self) -> None:
        """Whether what is folded in next is old only because this node was away; lock held."""
        state, tally = self._state, self._state.tally
        if not tally.level:
            tally.level = time.monotonic() >= state.level_by
            if state.peer.synced and state.peer.others.is_level(LEVEL_UPDATES):
                tally.came_level(LEVEL_UPDATES)

    def flush(self, *, at_once: bool = False) -> None:
        """Let the loop's thread send what commit and fold have made."""
        self._pump.flush(at_once=at_once)

    # -- how far it is ---------------------------------------------------------------------------

    def members_live(self) -> int:
        """How many members are believed alive, this node included."""
        with self._state.lock:
            return len(self._state.peer.membership.live())

    def trained_s(self) -> float:
        """Since the first batch was begun."""
        with self._state.lock:
            return self._state.tally.training_s(time.monotonic())

    def steps_made(self) -> int:
        """Local steps, those of an earlier life included."""
        with self._state.lock:
            return self._state.tally.steps_made

    def going(self) -> None:
        """This node will leave soon: it is not ready any more."""
        self._state.leaving = True

    # -- an earlier life, and the next -----------------------------------------------------------

    @property
    def resumed(self) -> Checkpoint | None:
        """What this node goes on from; the flat weights have it, the model has not yet."""
        return self._lives.resumed

    def let_go(self) -> None:
        """Of the checkpoint this node has come back from."""
        self._lives.let_go()

    def account(self) -> dict[str, Any]:
        """The part of a `Checkpoint` that is not tensors, of this instant."""
        return self._lives.account()
