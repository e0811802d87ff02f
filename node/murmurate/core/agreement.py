"""All members agree, one numbered generation after another, on what leaves the clocks.

Why: a clock that remembers every peer that ever was grows with history. An epoch that is over (its
origin left, restarted, or was dead for long) may be folded into a baseline once every member holds
exactly the same of it. If members did not agree on what was folded, distances would be wrong, so
this is a vote: single-decree Paxos for each generation number, with flexible quorums.

- Both phases need a majority of the roster of the generation before; a value accepted before must
  be proposed again. That is plain Paxos, and all that exactness needs.
- So that nothing gets lost, a value is chosen only when *every* member of the new roster has
  promised: that it, too, takes those epochs for finished and those members for gone, that it holds
  exactly this of them for good (a crash cannot take it), and that it will take no more of it until
  the vote is over.
- One who leaves stays on the roster until its epoch is folded as it holds it itself: it waits for
  that, so that nothing of it gets lost.
- A member is evicted (leaves the roster without its vote) only when it has been dead for long and
  a majority of the old roster remains: in a cut, at most one side can do it.

Training never waits for this. Without a majority nothing is folded, and clocks grow until it is back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from murmurate.core.clock import Key, Runs
from murmurate.core.effect import Effect, Save, Send
from murmurate.core.message import (
    CANDIDATES_MAX,
    Accept,
    Accepted,
    Agreeing,
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
    def lingering(self, now: float) -> tuple[str, ...]: ...
    def evictable(self, name: str, now: float) -> bool: ...
    def finished(self, now: float) -> tuple[Key, ...]: ...
    def held(self, key: Key) -> Runs: ...


@dataclass(frozen=True, slots=True)
class Vow:
    """What an acceptor must remember over a crash: saved before each answer."""

    number: int
    promised: Ballot
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
    lingering: tuple[str, ...]
    promises: dict[str, Promise]
    accepted: dict[str, None]
    value: Generation | None = None


class Agreement:
    """Proposer and acceptor of one peer."""

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
        self.due = interval_s
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
            released = self._propose(self._attempt, view)
            if self._attempt is not None:
                return released
        self._attempt = None
        return released + self._start(now, view)

    def _start(self, now: float, view: View) -> list[Effect]:
        assert self.current is not None
        live = view.live()
        voters = [name for name in self.current.roster if name in live]
        if self.name not in voters:
            self.due = now + self.interval_s
            return []
        # Everyone could propose; taking turns by rank keeps proposals from colliding.
        rank = voters.index(self.name)
        self.due = now + self.interval_s * (1 + rank + min(self._failed_rounds, 8))
        if rank and self._failed_rounds == 0:
            self._failed_rounds = 1
            return []
        old = self.current
        vow = self.vow if self.vow and self.vow.number == old.number + 1 else None
        evict = tuple(name for name in old.roster if view.evictable(name, now))
        roster = tuple(sorted(n for n in {*old.roster, *live} if n not in evict))
        lingering = view.lingering(now)
        candidates = view.finished(now)[:CANDIDATES_MAX]
        leaving = any(map(view.leaving, roster))
        idle = not candidates and roster == old.roster and not leaving
        blocked = any(name not in live and not view.leaving(name) for name in roster)
        if (idle or blocked) and (vow is None or vow.accepted is None):
            return []
        self._failed_rounds += 1
        if self._failed_rounds % 3 == 0:
            # Others may not see it as I do. Ask for nothing: it frees who gave me its word, and
            # brings a value that was accepted before to its end.
            evict, candidates, roster = (), (), tuple(sorted({*old.roster, *live}))
        ballot = ((vow.promised[0] if vow else 0) + 1, self.name)
        self._attempt = _Attempt(
            number=old.number + 1,
            ballot=ballot,
            candidates=candidates,
            evict=evict,
            roster=roster,
            lingering=lingering,
            promises={},
            accepted={},
        )
        self.due = now + self.interval_s
        ask = Prepare(old.number + 1, ballot, candidates, evict)
        asked = sorted({*roster, *old.roster, *lingering})
        return [Send(name, ask) for name in asked if name != self.name] + self._on_prepare(
            self.name, ask, now, view
        )

    def receive(self, sender: str, message: Agreeing, now: float, view: View) -> list[Effect]:
        """Everything but `Decided`, which changes the peer and is handled there."""
        if self.current is None:
            return []
        if isinstance(message, Prepare):
            return self._on_prepare(sender, message, now, view)
        if isinstance(message, Promise):
            return self._on_promise(sender, message, view)
        if isinstance(message, Accept):
            return self._on_accept(sender, message)
        if isinstance(message, Accepted):
            return self._on_accepted(sender, message)
        return []

    def _on_promise(self, sender: str, message: Promise, view: View) -> list[Effect]:
        attempt = self._attempt
        if attempt is None or attempt.ballot != message.ballot or attempt.value is not None:
            return []
        attempt.promises[sender] = message
        if all(name in attempt.promises for name in (*attempt.roster, *attempt.lingering)):
            return self._propose(attempt, view)
        return []

    def _release(self, attempt: _Attempt) -> list[Effect]:
        """I will not choose a value under this ballot: nobody has to keep anything closed for it."""
        self._attempt = None
        nothing = Prepare(attempt.number, attempt.ballot, ())
        if self.vow is not None and self.vow.promised == attempt.ballot:
            self._closing = ()
        return [Send(name, nothing) for name in attempt.promises if name != self.name]

    def _propose(self, attempt: _Attempt, view: View) -> list[Effect]:
        """Phase 2, when the promises allow a value."""
        assert self.current is not None
        old = self.current
        voters = [name for name in attempt.promises if name in old.roster]
        if 2 * len(voters) <= len(old.roster):
            return self._release(attempt)
        value = self._bound(attempt) or self._choose(attempt, old, view)
        if value is None:
            return self._release(attempt)
        attempt.value = value
        accept = Accept(attempt.ballot, value)
        asked = sorted(set(value.roster) | set(old.roster))
        mine = self._on_accept(self.name, accept)
        return [Send(name, accept) for name in asked if name != self.name] + mine

    def _bound(self, attempt: _Attempt) -> Generation | None:
        """The value I must propose again: the newest that anyone has accepted."""
        newest: Promise | None = None
        for name in sorted(attempt.promises):
            promise = attempt.promises[name]
            if promise.accepted_ballot is not None and (
                newest is None
                or newest.accepted_ballot is None
                or promise.accepted_ballot > newest.accepted_ballot
            ):
                newest = promise
        return newest.accepted if newest is not None else None

    def _choose(self, attempt: _Attempt, old: Generation, view: View) -> Generation | None:
        """Fold the candidates of which all hold exactly the same; let go who has left in order."""
        if not all(name in attempt.promises for name in attempt.roster):
            return None
        held = {name: dict(promise.held) for name, promise in attempt.promises.items()}

        def agreed(key: Key) -> bool:
            mine = held[self.name].get(key, ())
            asked = [*attempt.roster, *(name for name in attempt.lingering if name == key[0])]
            return bool(mine) and all(name in held and held[name].get(key) == mine for name in asked)

        folds = tuple((key, held[self.name][key]) for key in attempt.candidates if agreed(key))
        folded = {key for key, _ in folds}
        open_origins = {
            key[0] for name in held for key, runs in held[name].items() if runs and key not in folded
        }
        roster = tuple(
            name for name in attempt.roster if not view.leaving(name) or name in open_origins
        )
        if not roster or (not folds and roster == old.roster):
            return None
        return Generation(attempt.number, roster, folds, attempt.evict)

    def _on_accepted(self, sender: str, message: Accepted) -> list[Effect]:
        attempt = self._attempt
        if attempt is None or attempt.value is None or attempt.ballot != message.ballot:
            return []
        attempt.accepted[sender] = None
        value = attempt.value
        assert self.current is not None
        old = self.current.roster
        if 2 * sum(name in attempt.accepted for name in old) <= len(old):
            return []
        self._attempt = None
        told = sorted({*value.roster, *old, *attempt.lingering})
        decided = Decided((value,))
        # To myself as well: the peer moves when it hears it.
        return [Send(name, decided) for name in told]

    # -- accepting -------------------------------------------------------------------------------

    def _on_prepare(
        self, sender: str, message: Prepare, now: float, view: View
    ) -> list[Effect]:
        assert self.current is not None
        if message.number != self.current.number + 1:
            return []
        vow = self.vow if self.vow and self.vow.number == message.number else None
        if vow is not None and message.ballot < vow.promised:
            return []
        finished = view.finished(now)
        live = view.live()
        if any(name in live for name in message.evict) or any(
            view.held(key) and key not in finished for key in message.candidates
        ):
            return []  # I do not see it that way
        self.vow = Vow(
            message.number,
            message.ballot,
            vow.accepted_ballot if vow else None,
            vow.accepted if vow else None,
        )
        self._closing = message.candidates
        self._closing_until = now + VOTE_INTERVALS * self.interval_s
        held = tuple((key, view.held(key)) for key in message.candidates)
        promise = Promise(
            message.number, message.ballot, held, self.vow.accepted_ballot, self.vow.accepted
        )
        if sender == self.name:
            return [Save("vow", self.vow), *self._on_promise(sender, promise, view)]
        return [Save("vow", self.vow), Send(sender, promise)]

    def _on_accept(self, sender: str, message: Accept) -> list[Effect]:
        assert self.current is not None
        value = message.value
        if value.number != self.current.number + 1:
            return []
        vow = self.vow if self.vow and self.vow.number == value.number else None
        if vow is not None and message.ballot < vow.promised:
            return []
        self.vow = Vow(value.number, message.ballot, message.ballot, value)
        reply = Accepted(value.number, message.ballot)
        if sender == self.name:
            return [Save("vow", self.vow), *self._on_accepted(sender, reply)]
        return [Save("vow", self.vow), Send(sender, reply)]
