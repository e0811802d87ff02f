"""A member's word in votes: what it must remember, and what it answers a proposer.

A vote counts only from a memory that goes on. Where the word is lost with a disk, or there was no
disk, the member has another memory (`Generation.memories`): it answers like a newcomer, and its
answers are not counted until a generation was decided that names the new memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from murmurate.core.clock import Key
from murmurate.core.effect import Effect, Save, Send
from murmurate.core.forgetting.view import View
from murmurate.core.message import Accept, Accepted, Ballot, Generation, Prepare, Promise

VOTE_INTERVALS = 4
"""How long a promise closes epochs: a proposer gives up after one interval."""


@dataclass(frozen=True, slots=True)
class Vow:
    """What an acceptor must remember over a crash: saved before each answer."""

    number: int
    promised: Ballot
    history: tuple[Generation, ...] = ()
    """The generations before `number`: who votes on it must not forget that they were decided."""
    accepted_ballot: Ballot | None = None
    accepted: Generation | None = None


class Acceptor:
    """One member's answers to proposers, and what they close."""

    def __init__(self, name: str, memory: int, interval_s: float, vow: Vow | None) -> None:
        self.name = name
        self.memory = memory
        self.vow = vow
        self._interval_s = interval_s
        self._closing: tuple[Key, ...] = ()
        self._closing_until = 0.0

    def on(self, number: int) -> Vow | None:
        """My word on that number, if it is the last I gave."""
        return self.vow if self.vow is not None and self.vow.number == number else None

    def may_vote(self, number: int, ballot: Ballot) -> bool:
        """Whether I may still answer: not below my word."""
        if self.vow is None or self.vow.number < number:
            return True
        return self.vow.number == number and ballot >= self.vow.promised

    def frozen(self, key: Key, generation: int, now: float) -> bool:
        """Whether I gave my word to take no more updates of that epoch for now.

        A promise ends by itself after the time a vote can take, so that a proposer that died holds
        nobody up; what I accepted ends with the vote.
        """
        if key in self._closing and now < self._closing_until:
            return True
        vow = self.vow
        if vow is None or vow.accepted is None or vow.number <= generation:
            return False
        return any(key == folded for folded, _ in vow.accepted.folds)

    def release(self) -> None:
        """The vote is over."""
        self._closing = ()

    def promise(self, sender: str, ask: Prepare, now: float, view: View) -> list[Effect]:
        """Follow no lower ballot, and say what I hold of the candidates: I take no more of it."""
        before = self.on(ask.number)
        accepted_ballot = before.accepted_ballot if before else None
        accepted = before.accepted if before else None
        self.vow = Vow(ask.number, ask.ballot, view.history(), accepted_ballot, accepted)
        finished = view.finished(now)
        held = tuple(
            (key, runs) for key in ask.candidates if (runs := view.held(key)) and key in finished
        )
        self._closing = tuple(key for key, _ in held)
        self._closing_until = now + VOTE_INTERVALS * self._interval_s
        promise = Promise(
            ask.number,
            ask.ballot,
            held,
            tuple(name for name in ask.evict if view.not_gone(name, now)),
            accepted_ballot,
            accepted,
            self.memory,
        )
        return [Save("vow", self.vow), Send(sender, promise)]

    def accept(self, sender: str, message: Accept, view: View) -> list[Effect]:
        """Let it be, unless I am on its roster and do not hold what it folds."""
        value = message.value
        before = self.on(value.number)
        again = before is not None and before.accepted == value
        differs = any(view.held(key) != runs for key, runs in value.folds)
        if self.name in value.roster and differs and not again:
            return []  # always allowed; so whatever is decided, a majority holds its folds
        self.vow = Vow(value.number, message.ballot, view.history(), message.ballot, value)
        answer = Accepted(value.number, message.ballot, self.memory)
        return [Save("vow", self.vow), Send(sender, answer)]
