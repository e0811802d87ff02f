"""What an earlier life of a peer left on its disk, and how the next life takes it up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from murmurate.core.forgetting.baseline import Baseline
from murmurate.core.forgetting.vow import Vow
from murmurate.core.message import Generation, Push
from murmurate.core.replica import Replica

if TYPE_CHECKING:
    from murmurate.core.gossip.state import PeerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a peer finds on its disk when it starts again."""

    log: tuple[Push, ...] = ()
    """Updates of its earlier lives, all of them in the checkpoint's weights."""
    store: tuple[Push, ...] = ()
    """Updates of others, likewise."""
    memory: int = 0
    """The life since which votes are remembered: this one, if nothing was found."""
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


def take_up(state: PeerState, past: Past) -> None:
    """Keep again what an earlier life kept: what is in the checkpoint's weights, and not folded.

    All of it was when the checkpoint was written: log, store, weights and clock are of one instant.
    """
    if not state.synced:
        return
    for kept, pushes in ((state.log, past.log), (state.store, past.store)):
        for push in pushes:
            now_push = None if state.baseline.is_ahead(push) else state.as_of_now(push)
            if now_push is not None and all(dot in state.clock for dot in now_push.dots):
                kept.add(now_push)
