"""What is on its way: nobody asks for it, and nobody sends it twice.

A large update may take longer than the interval in which clocks are compared. Until it has landed
it is in no clock, so comparing clocks alone would fetch it a second time.
"""

from __future__ import annotations

from collections.abc import Iterable

from murmurate.core.clock import Clock, Dot


class Transit:
    """Updates handed to a link and not known to have landed; updates here that wait to be folded.

    A link that broke gives back what it carried (`land`): only then may it be sent again.
    """

    __slots__ = ("_arrived", "_flying")

    def __init__(self) -> None:
        self._flying: dict[str, dict[Dot, None]] = {}
        self._arrived: dict[Dot, int] = {}
        """Updates here that wait to be folded, and in how many messages each of them is."""

    def take_off(self, to: str, dots: Iterable[Dot]) -> None:
        self._flying.setdefault(to, {}).update(dict.fromkeys(dots))

    def land(self, to: str, dots: Iterable[Dot]) -> None:
        flying = self._flying.get(to)
        if flying is not None:
            for dot in dots:
                flying.pop(dot, None)
            if not flying:
                del self._flying[to]

    def forget(self, to: str) -> None:
        """The peer is gone, or began a new life: nothing is on its way to that one."""
        self._flying.pop(to, None)

    def flies(self, to: str, dots: Iterable[Dot]) -> bool:
        """Whether any of these is on its way to that peer."""
        flying = self._flying.get(to)
        return flying is not None and any(dot in flying for dot in dots)

    def busy(self, to: str) -> bool:
        """Whether anything is on its way to that peer."""
        return to in self._flying

    def arrive(self, dots: Iterable[Dot]) -> None:
        for dot in dots:
            self._arrived[dot] = self._arrived.get(dot, 0) + 1

    def fold(self, dots: Iterable[Dot]) -> None:
        for dot in dots:
            left = self._arrived.pop(dot, 0) - 1
            if left > 0:
                self._arrived[dot] = left

    def waits_once(self, dot: Dot) -> bool:
        """Whether it waits to be folded, in one message."""
        return self._arrived.get(dot) == 1

    def with_arrived(self, clock: Clock) -> Clock:
        """The clock there will be when all that is here is folded in."""
        if not self._arrived:
            return clock
        clock = clock.copy()
        for dot in self._arrived:
            clock.add(dot)
        return clock
