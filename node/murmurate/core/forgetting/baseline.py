"""The generations a peer knows: how it understands clocks that are older than its own.

Only the last few are kept. A peer that is further behind cannot be compared with exactly, so its
updates are refused ("retired") and it starts again from a snapshot; members on the roster cannot
fall that far behind, because every generation needs their vote.
"""

from __future__ import annotations

from collections.abc import Iterable

from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.intervals import Runs, runs_has
from murmurate.core.message import Generation, Push, Stamp


class Baseline:
    """Decided generations, oldest first, without gaps."""

    __slots__ = ("_folds", "_keep", "history")

    def __init__(self, history: tuple[Generation, ...], *, keep: int) -> None:
        self._keep = keep
        self.history: tuple[Generation, ...] = ()
        self._folds: dict[Key, Runs] = {}
        self.extend(history)

    @property
    def number(self) -> int:
        return self.history[-1].number if self.history else 0

    @property
    def roster(self) -> tuple[str, ...]:
        return self.history[-1].roster if self.history else ()

    def extend(self, generations: Iterable[Generation]) -> None:
        """Add the generations that come next; what is known already, or leaves a gap, is not."""
        history = list(self.history)
        for generation in generations:
            if not history or generation.number == history[-1].number + 1:
                history.append(generation)
        self.history = tuple(history[-self._keep :])
        self._folds = {key: runs for g in self.history for key, runs in g.folds}

    def generation(self, number: int) -> Generation | None:
        """The one of that number, if I know it."""
        return next((each for each in self.history if each.number == number), None)

    def since(self, number: int) -> tuple[Generation, ...]:
        return tuple(g for g in self.history if g.number > number)

    def folded(self, dot: Dot) -> bool | None:
        """True: in the baseline. False: its epoch is, without it. None: its epoch is open."""
        runs = self._folds.get((dot.origin, dot.epoch))
        return None if runs is None else runs_has(runs, dot.seq)

    def lift(self, clock: Clock) -> Clock | None:
        """A clock as seen from the newest generation; None: too old, or newer."""
        if clock.generation == self.number:
            return clock
        for generation in self.history:
            if generation.number == clock.generation + 1:
                clock = clock.lifted(generation.number, dict(generation.folds))
        return clock if clock.generation == self.number else None

    def is_ahead(self, push: Push) -> bool:
        """Whether it was computed in a generation that I do not know yet."""
        return any(stamp.context.generation > self.number for stamp in push.stamps)

    def lift_push(self, push: Push) -> Push | None:
        """The same with all contexts of a push."""
        if all(stamp.context.generation == self.number for stamp in push.stamps):
            return push
        stamps = []
        for stamp in push.stamps:
            context = self.lift(stamp.context)
            if context is None:
                return None
            stamps.append(Stamp(stamp.dot, context, stamp.batches, stamp.written))
        return push.stamped(tuple(stamps))
