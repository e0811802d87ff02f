"""In which order members are probed."""

from __future__ import annotations

from collections.abc import Iterator

from murmurate.core.effect import Rng, shuffled


class ProbeOrder:
    """A shuffled list: everybody's turn comes, in an order that nobody can foresee."""

    __slots__ = ("_names", "_next", "_rng")

    def __init__(self, rng: Rng) -> None:
        self._names: list[str] = []
        self._next = 0
        self._rng = rng

    def rest(self) -> Iterator[str]:
        """Takes one name after another, as far as the list goes."""
        while self._next < len(self._names):
            self._next += 1
            yield self._names[self._next - 1]

    def shuffle(self, names: list[str]) -> None:
        """Begin anew with these."""
        self._names = shuffled(names, self._rng)
        self._next = 0

    def anywhere(self, name: str, longest: int) -> None:
        """Give it a turn at random among those still to come."""
        self._insert(name, self._rng.randrange(len(self._names) - self._next + 1), longest)

    def next(self, name: str, longest: int) -> None:
        """Give it the next turn."""
        self._insert(name, 0, longest)

    def _insert(self, name: str, place: int, longest: int) -> None:
        if len(self._names) < longest:  # nobody can make it grow
            self._names.insert(self._next + place, name)
