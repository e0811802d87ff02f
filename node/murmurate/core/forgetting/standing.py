"""Where the others stand, and what I may say of myself: the peer's side of the agreement.

Who is gone, which epochs are over, what I hold of them. All of it is judged by my own eyes and my
own monotonic clock; the vote is what makes it common.
"""

from __future__ import annotations

from collections.abc import Iterable

from murmurate.core.clock import Dot, Key
from murmurate.core.effect import Verdict
from murmurate.core.forgetting.baseline import Baseline
from murmurate.core.forgetting.durable import Durable
from murmurate.core.gossip.known_clocks import Knowledge
from murmurate.core.intervals import Runs
from murmurate.core.membership.swim import Membership
from murmurate.core.message import DEAD, LEFT, Generation
from murmurate.core.replica import Replica


class Standing:
    """One peer's view of members and epochs (`view.View`)."""

    def __init__(
        self,
        membership: Membership,
        epoch: int,
        replica: Replica,
        baseline: Baseline,
        knowledge: Knowledge,
        durable: Durable,
        *,
        forget_after_s: float,
        met: Iterable[str] = (),
    ) -> None:
        self.name = membership.name
        self.epoch = epoch
        self._membership = membership
        self._replica = replica
        self._baseline = baseline
        self._knowledge = knowledge
        self._durable = durable
        self._forget_after_s = forget_after_s
        self._strangers: dict[str, float] = {}
        self._last_words: dict[Key, int] = {}
        self._memories: dict[str, int] = {}
        """Since which life each member said that it remembers its votes."""
        self._met = dict.fromkeys(met)

    # -- members ---------------------------------------------------------------------------------

    def live(self) -> tuple[str, ...]:
        return self._membership.live()

    def leaving(self, name: str) -> bool:
        return self._membership.state(name) == LEFT

    def memory(self, name: str) -> int | None:
        """The life since which a member remembers its votes; None: it did not say."""
        return self._memories.get(name)

    def told_memory(self, name: str, memory: int) -> None:
        """A member said since when it remembers its votes."""
        if self._membership.state(name) is not None:
            self._memories[name] = memory

    def evictable(self, name: str, now: float) -> bool:
        """Dead, left or not heard of, for long."""
        if name == self.name:
            return False
        state = self._membership.state(name)
        if state is None:
            since = self._strangers.setdefault(name, now)
        elif state in (DEAD, LEFT):
            since = self._membership.since(name)
        else:
            return False
        return now - since >= self._forget_after_s

    def not_gone(self, name: str, now: float) -> bool:
        """Whether I object to voting a member out: it is there, or was not long ago."""
        state = self._membership.state(name)
        if state is None:
            return False
        return state not in (DEAD, LEFT) or (
            now - self._membership.since(name) < self._forget_after_s / 2
        )

    def awaited(self, now: float) -> list[str]:
        """Who is not there and may come back: with updates that I lack, and lacking mine.

        Also one who was not on the roster yet: it was sent what I made, and a crash may have taken
        that from me and not from it.
        """
        live = self.live()
        away = [name for name in self._baseline.roster if name not in live and name != self.name]
        dead = [name for name in self._membership.dead() if self._counts(name)]
        return away + [n for n in dead if n not in away and not self.evictable(n, now)]

    def _counts(self, name: str) -> bool:
        """Not one of whom I know from an old roster only: the vote has let it go."""
        known = self._membership.epoch(name) or name in self._met
        return bool(known) or name in self._baseline.roster

    def _all_can_say(self, now: float) -> bool:
        """Whether nobody is away, or not met yet in this life, who may have more of an epoch."""
        met = (self._membership.epoch(name) or not self._counts(name) for name in self.live())
        return all(met) and not any(
            not self.leaving(name) and not self.evictable(name, now) for name in self.awaited(now)
        )

    def note(self, verdict: Verdict) -> bool:
        """Take in what became of a member; whether `met` names others now than before.

        Of one who leaves, how many updates it says it has made; of one who is here, that it was, if
        it is not on the roster.
        """
        name = verdict.name
        was_met = name in self._met
        if verdict.state == LEFT:
            self._last_words[name, verdict.epoch] = self._membership.last(name)
            self._met.pop(name, None)
            return was_met
        if was_met or name in self._baseline.roster or name == self.name:
            return False
        if not verdict.epoch:  # a seed peer that was not met yet
            return False
        self._met[name] = None
        return True

    def met(self) -> tuple[str, ...]:
        """Who was here and is not on the roster: a crash must not make me forget that it was."""
        return tuple(self._met)

    def remember(self, voted: Iterable[Generation], now: float) -> bool:
        """Keep in `met` only those of whom no roster tells and who may come back.

        Whether `met` names others now than before.
        """
        told = {name for generation in voted for name in generation.roster}
        told |= {name for name in self._met if self.evictable(name, now)}
        before = len(self._met)
        self._met = {name: None for name in self._met if name not in told}
        return len(self._met) != before

    def forget_departed(self, now: float) -> list[str]:
        """Members that are gone and will have nothing in my clock: they need no record any more."""
        keys = self._replica.clock.keys()
        self._last_words = {
            key: last
            for key, last in self._last_words.items()
            if key in keys or (last and self._may_still_come(key, now))
        }
        needed = {key[0] for key in (*keys, *self._last_words)}
        needed |= {*self._baseline.roster, self.name}
        self._strangers = {n: at for n, at in self._strangers.items() if n in needed}
        live = self.live()
        self._memories = {n: life for n, life in self._memories.items() if n in live}
        return [
            rumour.name
            for rumour in self._membership.rumours()
            if rumour.state in (DEAD, LEFT) and rumour.name not in needed
        ]

    def _may_still_come(self, key: Key, now: float) -> bool:
        """Whether updates of one who has left, which I do not have, may still be under way."""
        folded = self._baseline.folded(Dot(*key, 1)) is not None
        return not folded and not self.evictable(key[0], now)

    # -- epochs ----------------------------------------------------------------------------------

    def finished(self, now: float) -> tuple[Key, ...]:
        """Epochs to which nobody will add: their origin left, restarted, or is dead for long."""
        clock = self._replica.clock
        over = tuple(key for key in clock.keys() if self._is_over(key, now))
        if self._all_can_say(now):
            return over
        # Of what its origin counted when it left, and I have, nobody can have more.
        return tuple(key for key in over if self.complete(key, clock.runs(key)))

    def _is_over(self, key: Key, now: float) -> bool:
        origin, epoch = key
        current = self.epoch if origin == self.name else self._membership.epoch(origin)
        return (
            (current is not None and current > epoch)
            or self.leaving(origin)
            or self.evictable(origin, now)
        )

    def ripe(self, now: float) -> tuple[Key, ...]:
        """Finished epochs of which, as far as I know, all have the same."""
        clocks = [self._knowledge.durable(name) for name in self.live()]
        return tuple(
            key
            for key in self.finished(now)
            if (runs := self.held(key))
            and all(clock is None or clock.runs(key) == runs for clock in clocks)
        )

    def held(self, key: Key) -> Runs:
        """What I have of an epoch, once that is the same as what a crash would leave me."""
        runs = self._replica.clock.runs(key)
        return runs if self._durable.clock().runs(key) == runs else ()

    def complete(self, key: Key, runs: Runs) -> bool:
        """Whether these are all updates its origin made, by its own word when it left."""
        return runs == (1, self._last_words.get(key, 0))

    def history(self) -> tuple[Generation, ...]:
        return self._baseline.history
