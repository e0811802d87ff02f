"""What an earlier life of a peer left on its disk, and how the next life takes it up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from murmurate.core.clock import Dot
from murmurate.core.forgetting.agreement import Vow
from murmurate.core.forgetting.baseline import Baseline
from murmurate.core.message import Generation, Push
from murmurate.core.replica import Replica

if TYPE_CHECKING:
    from murmurate.core.gossip.state import PeerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a peer finds on its disk when it starts again."""

    log: tuple[Push, ...] = ()
    store: tuple[Push, ...] = ()
    """Updates of others, all of them in the checkpoint's weights."""
    vow: Vow | None = None
    history: tuple[Generation, ...] = ()
    met: tuple[str, ...] = ()
    """Members that were there and not on the roster yet: they may have what a crash took."""

    @property
    def voted_after(self) -> tuple[Generation, ...]:
        """The generations that were decided when this peer last gave its vote."""
        return self.vow.history if self.vow is not None else ()


def caught_up(
    replica: Replica, baseline: Baseline, histories: Iterable[Iterable[Generation]]
) -> bool:
    """Move a checkpoint on to the newest of these generations; False: a snapshot must do it.

    What comes after the first history that cannot be followed is not tried.
    """
    for history in histories:
        newest = 0
        for generation in history:
            newest = generation.number
            if newest == baseline.number + 1:
                lifted = replica.clock.lifted(newest, dict(generation.folds))
                if lifted.apart:
                    return False
                replica.clock = lifted
                baseline.extend((generation,))
        if baseline.number < newest:
            return False
    return True


def replay_log(state: PeerState, log: Iterable[Push]) -> tuple[Dot, ...]:
    """Put what an earlier life logged into the log, and into the weights where it is not in them.

    It may have been sent, and what was logged after the checkpoint is not in its weights. Returns
    what is void: its epoch is closed, or it is so old that its age cannot be told.
    """
    void: list[Dot] = []
    for logged in log:
        if not state.synced:
            state.log.add(logged)
            continue
        if state.baseline.is_ahead(logged):
            # The checkpoint is older than the log: a snapshot will bring the generation.
            state.behind = True
            state.log.add(logged)
            continue
        push = state.baseline.lift_push(logged)
        if push is None or any(state.baseline.folded(dot) is not None for dot in push.dots):
            void += logged.dots
            continue
        state.log.add(push)
        if not any(dot in state.clock for dot in push.dots):
            push.add_to(state.replica.weights)
            for stamp in push.stamps:
                state.clock.add(stamp.dot)
                state.replica.batches = state.replica.batches.add(stamp.batches)
    return tuple(void)


def restore_store(state: PeerState, store: Iterable[Push]) -> None:
    """Keep again what an earlier life kept of others: what is in the weights, and not folded."""
    if not state.synced:
        return
    for push in store:
        now_push = None if state.baseline.is_ahead(push) else state.as_of_now(push)
        if now_push is not None and all(dot in state.clock for dot in now_push.dots):
            state.store.add(now_push)
