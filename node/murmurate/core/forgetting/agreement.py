"""All members agree, one numbered generation after another, on what leaves the clocks.

Why: a clock that remembers every peer that ever was grows with history. An epoch that is over (its
origin left, restarted, or was dead for long) may be folded into a baseline once every member holds
exactly the same of it. If members did not agree on what was folded, distances would be wrong, so
this is a vote: single-decree Paxos for each generation number.

- Both phases need a majority of the roster of the generation before; a value that may have been
  decided must be proposed again. That is plain Paxos, and all that exactness needs.
- So that nothing gets lost, an epoch is folded only when *every* member of the new roster has
  promised: that it, too, takes it for finished, that it holds exactly this of it for good (a crash
  cannot take it), and that it will take no more of it for as long as a vote takes. (A vote that
  takes longer can go against a member that took more meanwhile; that is void then, and counted.)
  Nobody is evicted whom another member takes for alive.
- The origin of an epoch must be among them, unless it has left and said how many updates it made,
  or has been dead for long.
- A member is evicted (leaves the roster without its vote) only when it has been dead for long and
  a majority of the old roster remains: in a cut, at most one side can do it.

Training never waits for this. Without a majority nothing is folded, and clocks grow until it is
back.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from murmurate.core.clock import Key
from murmurate.core.effect import Effect, Save, Send
from murmurate.core.intervals import Runs
from murmurate.core.message import (
    CANDIDATES_MAX,
    Accept,
    Accepted,
    Ballot,
    Decided,
    Generation,
    Prepare,
    Promise,
)

VOTE_INTERVALS = 4
"""How long a promise closes epochs: a proposer gives up after one interval."""


class View(Protocol):
    """What the agreement asks about the peer it works for."""

    def live(self) -> tuple[str, ...]: ...
    def leaving(self, name: str) -> bool: ...
    def evictable(self, name: str, now: float) -> bool: ...
    def not_gone(self, name: str, now: float) -> bool: ...
    def finished(self, now: float) -> tuple[Key, ...]: ...
    def ripe(self, now: float) -> tuple[Key, ...]: ...
    def held(self, key: Key) -> Runs: ...
    def complete(self, key: Key, runs: Runs) -> bool: ...
    def history(self) -> tuple[Generation, ...]: ...


def is_majority(votes: Container[str], roster: Sequence[str]) -> bool:
    """Whether more than half of a roster are among those who voted."""
    return 2 * sum(name in votes for name in roster) > len(roster)


def is_unanimous(votes: Container[str], roster: Iterable[str]) -> bool:
    """Whether everyone on a roster is among those who voted."""
    return all(name in votes for name in roster)


@dataclass(frozen=True, slots=True)
class Vow:
    """What an acceptor must remember over a crash: saved before each answer."""

    number: int
    promised: Ballot
    history: tuple[Generation, ...] = ()
    """The generations before `number`: who votes on it must not forget that they were decided."""
    accepted_ballot: Ballot | None = None
    accepted: Generation | None = None


@dataclass(slots=True)
class _Attempt:
    """One try of mine to make the next generation."""

    number: int
    ballot: Ballot
    candidates: tuple[Key, ...]
    evict: tuple[str, ...]
    roster: tuple[str, ...]
    promises: dict[str, Promise] = field(default_factory=dict)
    accepted: dict[str, None] = field(default_factory=dict)
    value: Generation | None = None


class Agreement:
    """Proposer and acceptor of one peer. What it says to itself goes through the driver as well:
    a vote of mine counts when it is durable, like any other.
    """

    def __init__(
        self,
        name: str,
        founding: Generation | None,
        *,
        interval_s: float,
        vow: Vow | None = None,
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self.current = founding
        self.vow = vow
        self.due = 0.0
        self._attempt: _Attempt | None = None
        self._failed_rounds = 0
        self._closing: tuple[Key, ...] = ()
        self._closing_until = 0.0

    def frozen(self, key: Key, now: float) -> bool:
        """Whether I gave my word to take no more updates of that epoch for now.

        A promise ends by itself after the time a vote can take, so that a proposer that died holds
        nobody up; what I accepted ends with the vote.
        """
        if key in self._closing and now < self._closing_until:
            return True
        vow = self.vow
        if vow is None or vow.accepted is None or self.current is None:
            return False
        return vow.number > self.current.number and any(
            key == folded for folded, _ in vow.accepted.folds
        )

    def advance(self, generation: Generation, now: float) -> None:
        """The peer has moved to a decided generation."""
        self.current = generation
        self._attempt = None
        self._failed_rounds = 0
        self._closing = ()
        self.due = now + self.interval_s

    # -- proposing -------------------------------------------------------------------------------

    def tick(self, now: float, view: View) -> list[Effect]:
        """Start an attempt when there is something to agree on and it is my turn."""
        if now < self.due or self.current is None:
            return []
        released: list[Effect] = []
        if self._attempt is not None and self._attempt.value is None:
            self.due = now + self.interval_s
            released = self._propose(self._attempt, now, view)
            if self._attempt is not None:
                return released
        self._attempt = None
        return released + self._start(self.current, now, view)

    def _start(self, old: Generation, now: float, view: View) -> list[Effect]:
        live = view.live()
        voters = [name for name in old.roster if name in live]
        self.due = now + self.interval_s
        if self.name not in voters:
            return []
        # Everyone could propose; taking turns by rank keeps proposals from colliding.
        rank = voters.index(self.name)
        self.due = now + self.interval_s * (1 + rank + min(self._failed_rounds, 8))
        if rank and self._failed_rounds == 0:
            self._failed_rounds = 1
            return []
        vow = self._vow(old.number + 1)
        if vow is None and self.vow is not None and self.vow.number > old.number:
            return []  # I have voted on a later one: the others will tell me of this one
        evict = tuple(name for name in old.roster if view.evictable(name, now))
        roster = tuple(
            sorted(n for n in {*old.roster, *live} if n not in evict and not view.leaving(n))
        )
        candidates = view.ripe(now)[:CANDIDATES_MAX]
        idle = not candidates and roster == old.roster
        blocked = any(name not in live for name in roster)
        if (idle or blocked) and (vow is None or vow.accepted is None):
            return []
        self._failed_rounds += 1
        ballot = ((vow.promised[0] if vow else 0) + 1, self.name)
        self._attempt = _Attempt(old.number + 1, ballot, candidates, evict, roster)
        self.due = now + self.interval_s
        ask = Prepare(old.number + 1, ballot, candidates, evict)
        # My own promise first: a ballot that a crash could make me forget must not be heard of.
        mine = self._on_prepare(self.name, ask, now, view)
        others = sorted({*roster, *old.roster} - {self.name})
        return mine + [Send(name, ask) for name in others]

    def receive(
        self,
        sender: str,
        message: Prepare | Promise | Accept | Accepted,
        now: float,
        view: View,
    ) -> list[Effect]:
        """Everything but `Decided`, which changes the peer and is handled there."""
        if self.current is None:
            return []
        if isinstance(message, Prepare):
            return self._on_prepare(sender, message, now, view)
        if isinstance(message, Promise):
            return self._on_promise(sender, message, now, view)
        if isinstance(message, Accept):
            return self._on_accept(sender, message, view)
        return self._on_accepted(sender, message)

    def _on_promise(self, sender: str, message: Promise, now: float, view: View) -> list[Effect]:
        attempt = self._attempt
        if attempt is None or attempt.value is not None:
            return []
        if (attempt.number, attempt.ballot) != (message.number, message.ballot):
            return []
        attempt.promises[sender] = message
        # Where most leave at once, those who stay are no majority: the votes of who leaves count.
        if self._majority(attempt) and is_unanimous(attempt.promises, attempt.roster):
            return self._propose(attempt, now, view)
        return []

    def _majority(self, attempt: _Attempt) -> bool:
        """Whether enough of the old roster have promised."""
        old = self.current.roster if self.current is not None else ()
        return is_majority(attempt.promises, old)

    def _propose(self, attempt: _Attempt, now: float, view: View) -> list[Effect]:
        """Phase 2, when the promises allow a value."""
        assert self.current is not None
        old = self.current
        value = None
        if self._majority(attempt):
            value = self._bound(attempt, old) or self._choose(attempt, old, now, view)
        if value is None:
            return self._release(attempt)
        attempt.value = value
        accept = Accept(attempt.ballot, value)
        return [Send(name, accept) for name in sorted({*value.roster, *old.roster})]

    def _release(self, attempt: _Attempt) -> list[Effect]:
        """I will not choose a value under this ballot: nobody has to keep its word for it."""
        self._attempt = None
        nothing = Prepare(attempt.number, attempt.ballot, ())
        return [Send(name, nothing) for name in sorted(attempt.promises)]

    def _bound(self, attempt: _Attempt, old: Generation) -> Generation | None:
        """The value I must propose again: the newest accepted one, if it may have been decided."""
        newest: Promise | None = None
        for name in sorted(attempt.promises):
            promise = attempt.promises[name]
            if promise.accepted_ballot is not None and (
                newest is None
                or newest.accepted_ballot is None
                or promise.accepted_ballot > newest.accepted_ballot
            ):
                newest = promise
        if newest is None or newest.accepted is None:
            return None
        value = newest.accepted
        # Whoever of a deciding majority answers now reports this very value.
        could = [
            name
            for name in old.roster
            if name not in attempt.promises or attempt.promises[name].accepted == value
        ]
        return value if 2 * len(could) > len(old.roster) else None

    def _choose(
        self, attempt: _Attempt, old: Generation, now: float, view: View
    ) -> Generation | None:
        """Fold the candidates of which all hold exactly the same."""
        promises = attempt.promises
        there = {name for promise in promises.values() for name in promise.not_gone}
        evict = tuple(name for name in attempt.evict if name not in there)
        wanted = sorted({*attempt.roster, *there})
        if not is_unanimous(promises, [name for name in wanted if name in old.roster]):
            return None
        # A newcomer that has no snapshot yet does not answer; it gets on the roster another time.
        roster = tuple(name for name in wanted if name in promises)
        held = {name: dict(promises[name].held) for name in sorted(promises)}

        def agreed(key: Key) -> bool:
            runs = held[roster[0]].get(key)
            return (
                bool(runs)
                and all(held[name].get(key) == runs for name in (*roster, key[0]) if name in held)
                and (
                    key[0] in held or view.evictable(key[0], now) or view.complete(key, runs or ())
                )
            )

        if not roster:
            return None
        folds = tuple((key, held[roster[0]][key]) for key in attempt.candidates if agreed(key))
        # Somebody who accepted a value that cannot have been decided keeps its word, and takes no
        # more of what it folds, until this number is decided: then a generation without a change.
        bound = any(promise.accepted is not None for promise in promises.values())
        if not folds and roster == old.roster and not bound:
            return None
        return Generation(attempt.number, roster, folds, evict)

    def _on_accepted(self, sender: str, message: Accepted) -> list[Effect]:
        attempt = self._attempt
        if attempt is None or attempt.value is None:
            return []
        if (attempt.number, attempt.ballot) != (message.number, message.ballot):
            return []
        attempt.accepted[sender] = None
        assert self.current is not None
        old = self.current.roster
        if not is_majority(attempt.accepted, old):
            return []
        self._attempt = None
        decided = Decided((attempt.value,))
        return [Send(name, decided) for name in sorted({*attempt.value.roster, *old})]

    # -- accepting -------------------------------------------------------------------------------

    def _vow(self, number: int) -> Vow | None:
        return self.vow if self.vow is not None and self.vow.number == number else None

    def _may_vote(self, number: int, ballot: Ballot) -> bool:
        """Whether I may still answer: on the next generation, and not below my word."""
        if self.current is None or number != self.current.number + 1:
            return False
        if self.vow is not None and self.vow.number > number:
            return False
        vow = self._vow(number)
        return vow is None or ballot >= vow.promised

    def _on_prepare(self, sender: str, message: Prepare, now: float, view: View) -> list[Effect]:
        if not self._may_vote(message.number, message.ballot):
            return []
        if sender != self.name:
            # Let it finish: two that outbid each other decide nothing.
            self._attempt = None
            self.due = max(self.due, now + 2 * self.interval_s)
        vow = self._vow(message.number)
        self.vow = Vow(
            message.number,
            message.ballot,
            view.history(),
            vow.accepted_ballot if vow else None,
            vow.accepted if vow else None,
        )
        finished = view.finished(now)
        held = tuple(
            (key, runs)
            for key in message.candidates
            if (runs := view.held(key)) and key in finished
        )
        self._closing = tuple(key for key, _ in held)
        self._closing_until = now + VOTE_INTERVALS * self.interval_s
        promise = Promise(
            message.number,
            message.ballot,
            held,
            tuple(name for name in message.evict if view.not_gone(name, now)),
            self.vow.accepted_ballot,
            self.vow.accepted,
        )
        return [Save("vow", self.vow), Send(sender, promise)]

    def _on_accept(self, sender: str, message: Accept, view: View) -> list[Effect]:
        value = message.value
        if not self._may_vote(value.number, message.ballot):
            return []
        vow = self._vow(value.number)
        again = vow is not None and vow.accepted == value
        differs = any(view.held(key) != runs for key, runs in value.folds)
        if self.name in value.roster and differs and not again:
            return []  # always allowed; so whatever is decided, a majority holds its folds
        self.vow = Vow(value.number, message.ballot, view.history(), message.ballot, value)
        return [Save("vow", self.vow), Send(sender, Accepted(value.number, message.ballot))]
