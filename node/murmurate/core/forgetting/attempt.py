"""One proposer's attempt to make the next generation: which answers count, and what follows.

Phase 1 gathers promises, phase 2 acceptances; both need a majority of the roster of the generation
before. An answer counts only from the memory that is on the roster: whoever forgot what it promised
there answers with a later one, and all that its old memory may have said is taken for possible.
Where half of a roster has forgotten, the other half decides: it has a member in every majority
there ever was, and none of those who forgot can make another.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from murmurate.core.clock import Key
from murmurate.core.forgetting.view import View
from murmurate.core.intervals import Runs
from murmurate.core.message import Accepted, Ballot, Generation, Promise


def is_majority(votes: Container[str], roster: Sequence[str], forgot: Container[str] = ()) -> bool:
    """Whether more than half of a roster voted, or half of it and all others have forgotten."""
    count = sum(name in votes for name in roster)
    if 2 * count == len(roster):
        return all(name in votes or name in forgot for name in roster)
    return 2 * count > len(roster)


def is_unanimous(votes: Container[str], roster: Iterable[str]) -> bool:
    """Whether everyone on a roster is among those who voted."""
    return all(name in votes for name in roster)


@dataclass(slots=True)
class Attempt:
    """Under one ballot, on top of one generation."""

    old: Generation
    ballot: Ballot
    candidates: tuple[Key, ...]
    evict: tuple[str, ...]
    roster: tuple[str, ...]
    """Who should be on the next one."""
    value: Generation | None = None
    """What I asked all to accept; from then on promises change nothing."""
    promises: dict[str, Promise] = field(default_factory=dict)
    _accepted: set[str] = field(default_factory=set)

    @property
    def number(self) -> int:
        return self.old.number + 1

    def is_mine(self, answer: Promise | Accepted) -> bool:
        """Whether it answers this attempt: ballots start again with every number."""
        return (self.number, self.ballot) == (answer.number, answer.ballot)

    # -- phase 1 ---------------------------------------------------------------------------------

    def _votes(self) -> list[str]:
        """Whose promises count."""
        return [
            name for name, said in self.promises.items() if self.old.has_vote(name, said.memory)
        ]

    def _forgot(self) -> list[str]:
        """Who on the roster said that it remembers nothing of what it promised there."""
        return [
            name
            for name, said in self.promises.items()
            if (memory := self.old.memory(name)) is not None and said.memory > memory
        ]

    def has_majority(self) -> bool:
        """Whether enough of the old roster have promised."""
        return is_majority(self._votes(), self.old.roster, self._forgot())

    def has_all(self) -> bool:
        """Whether nobody is waited for. Where most leave at once, those who stay are no majority:
        the votes of who leaves count."""
        return self.has_majority() and is_unanimous(self.promises, self.roster)

    def bound(self) -> Generation | None:
        """The value I must propose again: the newest accepted one, if it may have been decided."""
        newest: Promise | None = None
        for name in sorted(self.promises):
            promise = self.promises[name]
            if promise.accepted_ballot is not None and (
                newest is None
                or newest.accepted_ballot is None
                or promise.accepted_ballot > newest.accepted_ballot
            ):
                newest = promise
        if newest is None or newest.accepted is None:
            return None
        # Whoever of a deciding majority answers now reports this very value; who forgot cannot.
        votes, value = self._votes(), newest.accepted
        could = [
            name
            for name in self.old.roster
            if name not in votes or self.promises[name].accepted == value
        ]
        return value if 2 * len(could) > len(self.old.roster) else None

    def choose(self, now: float, view: View) -> Generation | None:
        """Fold the candidates of which all hold exactly the same."""
        promises, old = self.promises, self.old
        there = {name for promise in promises.values() for name in promise.not_gone}
        evict = tuple(name for name in self.evict if name not in there)
        wanted = sorted({*self.roster, *there})
        if not is_unanimous(promises, [name for name in wanted if name in old.roster]):
            return None
        # A newcomer that has no snapshot yet does not answer; it gets on the roster another time.
        roster = tuple(name for name in wanted if name in promises)
        if not roster:
            return None
        memories = tuple(promises[name].memory for name in roster)
        folds = self._agreed(roster, now, view)
        # Somebody who accepted a value that cannot have been decided keeps its word, and takes no
        # more of what it folds, until this number is decided: then a generation without a change.
        bound = any(promise.accepted is not None for promise in promises.values())
        same = roster == old.roster and all(map(old.has_vote, roster, memories))
        if same and not folds and not bound:
            return None
        return Generation(self.number, roster, folds, evict, memories if any(memories) else ())

    def _agreed(
        self, roster: tuple[str, ...], now: float, view: View
    ) -> tuple[tuple[Key, Runs], ...]:
        held = {name: dict(promise.held) for name, promise in self.promises.items()}

        def agreed(key: Key) -> bool:
            runs = held[roster[0]].get(key)
            if not runs or any(
                held[name].get(key) != runs for name in (*roster, key[0]) if name in held
            ):
                return False
            return key[0] in held or view.evictable(key[0], now) or view.complete(key, runs)

        return tuple((key, held[roster[0]][key]) for key in self.candidates if agreed(key))

    # -- phase 2 ---------------------------------------------------------------------------------

    def is_decided(self, sender: str, answer: Accepted) -> bool:
        """Count an acceptance; whether there are enough now."""
        if self.old.has_vote(sender, answer.memory):
            self._accepted.add(sender)
        return is_majority(self._accepted, self.old.roster, self._forgot())
