"""What of a clock a crash cannot take: what the oldest checkpoint one would go back to has."""

from __future__ import annotations

from murmurate.core.clock import Clock
from murmurate.core.forgetting.baseline import Baseline
from murmurate.core.replica import Replica


class Durable:
    """The clocks of one peer's checkpoints, seen from its newest generation."""

    def __init__(self, replica: Replica, baseline: Baseline) -> None:
        self.gave_up = False
        """Whether I ever gave updates up that an older checkpoint may still have."""
        self._replica = replica
        self._baseline = baseline
        self._kept: list[Clock | None] = []
        """Oldest first; None: too old to be told."""
        self._begun: Clock | None = None
        """What one has that is being written: it may be there after a crash, though nobody knew."""

    def clock(self) -> Clock:
        """What a crash cannot take. Who keeps no checkpoint comes back with a snapshot of all."""
        clock = self._replica.clock
        if not self._kept:
            return clock
        oldest = self._kept[0]
        if oldest is None:
            return Clock(generation=clock.generation, base=clock.base)
        return oldest.intersection(clock) if self.gave_up else oldest

    def later(self) -> list[Clock]:
        """What each one after the oldest lacks of my clock, as far as that can be told."""
        clock = self._replica.clock
        out: list[Clock] = []
        for kept in [*self._kept[1:], self._begun]:
            if kept is not None:
                lacking = Clock(generation=clock.generation, base=clock.base)
                for span in clock.missing(kept):
                    lacking.add_range(span)
                out.append(lacking)
        return out

    def cuts(self) -> list[Clock]:
        """Sets whose ends are those of all my checkpoints."""
        return [self.clock(), *self.later()]

    def begun(self, clock: Clock) -> None:
        """One with this clock is being written."""
        self._begun = clock.copy()

    def checkpointed(self, clock: Clock, kept: int) -> None:
        """One more checkpoint is durable; `kept` of them are kept now."""
        lifted, mine = self._lifted(clock), self._replica.clock
        if lifted is not None and lifted.generation == mine.generation and not mine.covers(lifted):
            self.gave_up = True  # an earlier life did, and left an older checkpoint that has it
        self._kept = [*self._kept, lifted][-kept:]

    def move(self) -> None:
        """See the checkpoints from the newest generation."""
        self._kept = [self._lifted(clock) for clock in self._kept]
        self._begun = self._lifted(self._begun)

    def _lifted(self, clock: Clock | None) -> Clock | None:
        lifted = None if clock is None else self._baseline.lift(clock)
        return None if lifted is None or lifted.apart else lifted
