"""The dumb twin of the agreement: who has durably accepted what, and in which memory."""

from __future__ import annotations

from collections.abc import Callable

from murmurate.core.forgetting.vow import Vow
from murmurate.core.message import Ballot, Generation
from murmurate.errors import PromiseBroken

Seat = tuple[str, int]
"""A name, and the life since which it remembers its votes."""


def seats(generation: Generation) -> set[Seat]:
    """Who votes on the next one."""
    return set(zip(generation.roster, generation.memories, strict=True))


class Votes:
    """Every vote that a disk has had, and every generation that somebody took for decided."""

    def __init__(self, founding: Generation, memory: Callable[[str], int]) -> None:
        """`memory`: since which life a node remembers its votes now."""
        self.decided = {founding.number: founding}
        self._memory = memory
        self._accepted: dict[int, dict[tuple[Ballot, Generation], set[Seat]]] = {}
        """By number: what was accepted under which ballot, and by whom."""

    def saved(self, name: str, vow: Vow) -> None:
        """A disk has it."""
        for generation in vow.history:
            self.taken_for_decided(generation)
        if vow.accepted is not None and vow.accepted_ballot is not None:
            values = self._accepted.setdefault(vow.number, {})
            who = values.setdefault((vow.accepted_ballot, vow.accepted), set())
            who.add((name, self._memory(name)))

    def taken_for_decided(self, generation: Generation) -> None:
        """One value for each number, accepted by a majority that remembers what it promised."""
        number = generation.number
        known = self.decided.get(number)
        if known is generation:
            return
        if known is not None and known != generation:
            raise PromiseBroken("P11", f"generation {number} is {known} and {generation}")
        self.decided[number] = generation
        if known is None and number - 1 in self.decided:
            self._check(generation, seats(self.decided[number - 1]))

    def _check(self, generation: Generation, voters: set[Seat]) -> None:
        forgot = {(name, life) for name, life in voters if self._memory(name) > life}
        for (_, value), who in self._accepted.get(generation.number, {}).items():
            count = len(who & voters)
            half = 2 * count == len(voters) and voters <= who | forgot
            if value == generation and (half or 2 * count > len(voters)):
                return
        raise PromiseBroken("P11", f"{generation} was decided by those who forgot their votes")
