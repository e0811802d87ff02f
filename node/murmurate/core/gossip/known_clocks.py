"""What a peer knows of the others' clocks: who lacks what, and what everyone has.

What someone was heard to have is asked for only after one more interval: until then it is most
likely still on its way, and asking would send it twice.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.forgetting.baseline import Baseline


class Knowledge:
    """The newest clock heard from each member, and the union of all that was heard."""

    __slots__ = ("_clocks", "_cuts", "_durable", "_heard", "_heard_before", "_told")

    def __init__(self, start: Clock) -> None:
        self._clocks: dict[str, Clock] = {}
        self._durable: dict[str, Clock] = {}
        self._cuts: dict[str, tuple[Clock, ...]] = {}
        self._told: dict[str, Clock] = {}
        """What each had when it told of its cuts: a checkpoint that it did not tell of has that."""
        self._heard = self._heard_before = Clock()
        self.start(start)

    def start(self, mine: Clock) -> None:
        """Begin with what I have myself."""
        self._clocks.clear()
        self._durable.clear()
        self._cuts.clear()
        self._told.clear()
        self._heard = mine.copy()
        self._heard_before = mine.copy()

    def note(
        self,
        name: str,
        clock: Clock,
        durable: Clock,
        *,
        cuts: tuple[Clock, ...] | None = None,
        remember: bool = True,
    ) -> None:
        """A member said what it has, and what it has for good; `cuts`: what its checkpoints after
        the oldest lack, None: it is not known."""
        if remember:
            self._clocks[name] = clock.copy()
            self._durable[name] = durable
            self._cuts.pop(name, None)
            self._told.pop(name, None)
            if cuts is not None:
                self._cuts[name] = cuts
                self._told[name] = clock.copy()
        self._heard.merge(clock)

    def note_push(self, name: str, context: Clock, dot: Dot) -> None:
        """An update of a member's own shows that it has the update's context and the update."""
        known = self._clocks.get(name)
        if known is None or not known.covers(context):
            if known is not None and len(known) > len(context):
                return
            known = self._clocks[name] = context.copy()
        known.add(dot)

    def of(self, name: str) -> Clock | None:
        return self._clocks.get(name)

    def names(self) -> dict[str, None]:
        """Whose clocks are known, in the order they were first heard of."""
        return dict.fromkeys(self._clocks)

    def forget(self, name: str) -> None:
        self._clocks.pop(name, None)
        self._durable.pop(name, None)
        self._cuts.pop(name, None)
        self._told.pop(name, None)

    def keep_only(self, names: Container[str]) -> None:
        for name in [name for name in self._clocks if name not in names]:
            self.forget(name)

    def has(self, name: str, dots: Iterable[Dot]) -> bool:
        known = self._clocks.get(name)
        return known is not None and all(dot in known for dot in dots)

    def overdue(self, mine: Clock) -> list[Range]:
        """What others had an interval ago and I still lack; starts the next interval."""
        missing = self._heard_before.missing(mine)
        self._heard_before = self._heard.copy()
        return missing

    def nothing_new(self, mine: Clock) -> bool:
        """Whether I have all that anybody was heard to have."""
        return not self._heard.missing(mine)

    def everywhere(self, mine: Clock, names: Iterable[str]) -> Clock | None:
        """What I and all of these have for good; None: one has not been heard of.

        Not what they have: a crash takes a peer back to its last checkpoint, and then nobody might
        be able to give it what it had.
        """
        stable = mine
        for name in names:
            durable = self._durable.get(name)
            if durable is None:
                return None
            stable = stable.intersection(durable)
        return stable

    def applied_everywhere(self, mine: Clock, names: Iterable[str]) -> Clock | None:
        """What I and all of these have; None: one has not been heard of."""
        common = mine
        for name in names:
            known = self._clocks.get(name)
            if known is None:
                return None
            common = common.intersection(known)
        return common

    def told_everywhere(self, mine: Clock, names: Iterable[str]) -> Clock | None:
        """What I have, and all of these had when they told of their checkpoints; None: one did not.

        Not what they were seen to have since: a checkpoint may have been written in between.
        """
        common = mine
        for name in names:
            told = self._told.get(name)
            if told is None:
                return None
            common = common.intersection(told)
        return common

    def cuts(self, names: Iterable[str]) -> list[Clock] | None:
        """Sets whose ends are those of all checkpoints that these have; None: of one it is not
        known."""
        out: list[Clock] = []
        for name in names:
            durable, later = self._durable.get(name), self._cuts.get(name)
            if durable is None or later is None:
                return None
            out += (durable, *later)
        return out

    def durable(self, name: str) -> Clock | None:
        return self._durable.get(name)

    def move(self, baseline: Baseline, start: Clock) -> None:
        """Everything as seen from the newest generation."""
        for clocks in (self._clocks, self._durable):
            for name, old in list(clocks.items()):
                lifted = baseline.lift(old)
                if lifted is None or lifted.apart:
                    del clocks[name]
                else:
                    clocks[name] = lifted
        self._cuts.clear()  # each will say them again
        self._told.clear()
        heard, before = baseline.lift(self._heard), baseline.lift(self._heard_before)
        self._heard = start.copy() if heard is None else _whole(heard)
        self._heard_before = start.copy() if before is None else _whole(before)


def _whole(clock: Clock) -> Clock:
    """Hearsay has no exact baseline of its own: what it lacked there is not of interest."""
    clock.apart = 0
    return clock
