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
- Who came back without its memory is there under its name, and has no vote until a generation was
  decided that knows of it.

Training never waits for this. Without a majority nothing is folded, and clocks grow until it is
back. What counts is in `attempt`, what binds in `vow`; here is who proposes, and when.
"""

from __future__ import annotations

from murmurate.core.clock import Key
from murmurate.core.effect import Effect, Send
from murmurate.core.forgetting.attempt import Attempt
from murmurate.core.forgetting.view import View
from murmurate.core.forgetting.vow import Acceptor, Vow
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

FAILED_MAX = 8
"""No attempt waits for more failures of before than this."""


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
        memory: int = 0,
    ) -> None:
        """`memory`: the life since which I remember my votes."""
        self.name = name
        self.interval_s = interval_s
        self.current = founding
        self.due = 0.0
        self.acceptor = Acceptor(name, memory, interval_s, vow)
        self._attempt: Attempt | None = None
        self._failed_rounds = 0

    @property
    def vow(self) -> Vow | None:
        """The word I gave last."""
        return self.acceptor.vow

    def frozen(self, key: Key, now: float) -> bool:
        """Whether I gave my word to take no more updates of that epoch for now."""
        number = self.current.number if self.current is not None else 0
        return self.acceptor.frozen(key, number, now)

    def lacks_my_promise(self, generation: Generation) -> bool:
        """Whether I am on a roster that I cannot be on: all on it have promised, as what they
        remember says. (A memory of before these were numbered says nothing.)"""
        memory, vow = self.acceptor.memory, self.vow
        if not memory or self.name not in generation.roster:
            return False
        voted = self.current is not None and self.current.has_vote(self.name, memory)
        promised = vow is not None and vow.number >= generation.number
        return (voted or generation.has_vote(self.name, memory)) and not promised

    def advance(self, generation: Generation, now: float) -> None:
        """The peer has moved to a decided generation."""
        self.current = generation
        self._attempt = None
        self._failed_rounds = 0
        self.acceptor.release()
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
        if not self._my_turn(old, now, view):
            return []
        vow = self.acceptor.on(old.number + 1)
        if vow is None and self.vow is not None and self.vow.number > old.number:
            return []  # I have voted on a later one: the others will tell me of this one
        live = view.live()
        evict = tuple(name for name in old.roster if view.evictable(name, now))
        roster = tuple(
            sorted(n for n in {*old.roster, *live} if n not in evict and not view.leaving(n))
        )
        candidates = view.ripe(now)[:CANDIDATES_MAX]
        same = roster == old.roster and not any(self._forgot(n, old, view) for n in roster)
        blocked = any(name not in live for name in roster)
        if ((same and not candidates) or blocked) and (vow is None or vow.accepted is None):
            return []
        self._failed_rounds += 1
        ballot = ((vow.promised[0] if vow else 0) + 1, self.name)
        self._attempt = Attempt(old, ballot, candidates, evict, roster)
        self.due = now + self.interval_s
        ask = Prepare(old.number + 1, ballot, candidates, evict)
        # My own promise first: a ballot that a crash could make me forget must not be heard of.
        mine = self._on_prepare(self.name, ask, now, view)
        others = sorted({*roster, *old.roster} - {self.name})
        return mine + [Send(name, ask) for name in others]

    def _my_turn(self, old: Generation, now: float, view: View) -> bool:
        """Everyone with a vote could propose; taking turns by rank keeps proposals from colliding.

        Who has none does not: it may have used the ballot.
        """
        self.due = now + self.interval_s
        if not old.has_vote(self.name, self.acceptor.memory):
            return False
        live = view.live()
        voters = [n for n in old.roster if n in live and not self._forgot(n, old, view)]
        if self.name not in voters:
            return False
        rank = voters.index(self.name)
        self.due = now + self.interval_s * (1 + rank + min(self._failed_rounds, FAILED_MAX))
        if rank and self._failed_rounds == 0:
            self._failed_rounds = 1
            return False
        return True

    def _forgot(self, name: str, old: Generation, view: View) -> bool:
        """Whether one on the roster told me of a memory that began after the one that votes."""
        told = None if name == self.name else view.memory(name)
        known = old.memory(name)
        return told is not None and known is not None and told > known

    def _propose(self, attempt: Attempt, now: float, view: View) -> list[Effect]:
        """Phase 2, when the promises allow a value."""
        if attempt.has_majority():
            attempt.value = attempt.bound() or attempt.choose(now, view)
        if attempt.value is None:
            return self._release(attempt)
        accept = Accept(attempt.ballot, attempt.value)
        return [Send(n, accept) for n in sorted({*attempt.value.roster, *attempt.old.roster})]

    def _release(self, attempt: Attempt) -> list[Effect]:
        """I will not choose a value under this ballot: nobody has to keep its word for it."""
        self._attempt = None
        nothing = Prepare(attempt.number, attempt.ballot, ())
        return [Send(name, nothing) for name in sorted(attempt.promises)]

    # -- messages --------------------------------------------------------------------------------

    def receive(
        self,
        sender: str,
        message: Prepare | Promise | Accept | Accepted,
        now: float,
        view: View,
    ) -> list[Effect]:
        """Everything but `Decided`, which changes the peer and is handled there."""
        if isinstance(message, Prepare):
            return self._on_prepare(sender, message, now, view)
        if isinstance(message, Accept):
            if not self._may_vote(message.value.number, message.ballot):
                return []
            return self.acceptor.accept(sender, message, view)
        attempt = self._attempt
        if attempt is None or not attempt.is_mine(message):
            return []
        if isinstance(message, Promise):
            return self._on_promise(attempt, sender, message, now, view)
        return self._on_accepted(attempt, sender, message)

    def _may_vote(self, number: int, ballot: Ballot) -> bool:
        """Whether I may still answer: on the next generation, and not below my word."""
        next_one = self.current is not None and number == self.current.number + 1
        return next_one and self.acceptor.may_vote(number, ballot)

    def _on_prepare(self, sender: str, message: Prepare, now: float, view: View) -> list[Effect]:
        if not self._may_vote(message.number, message.ballot):
            return []
        if sender != self.name:
            # Let it finish: two that outbid each other decide nothing.
            self._attempt = None
            self.due = max(self.due, now + 2 * self.interval_s)
        return self.acceptor.promise(sender, message, now, view)

    def _on_promise(
        self, attempt: Attempt, sender: str, message: Promise, now: float, view: View
    ) -> list[Effect]:
        if attempt.value is not None:
            return []
        attempt.promises[sender] = message
        return self._propose(attempt, now, view) if attempt.has_all() else []

    def _on_accepted(self, attempt: Attempt, sender: str, message: Accepted) -> list[Effect]:
        if attempt.value is None or not attempt.is_decided(sender, message):
            return []
        self._attempt = None
        decided = Decided((attempt.value,))
        return [Send(n, decided) for n in sorted({*attempt.value.roster, *attempt.old.roster})]
