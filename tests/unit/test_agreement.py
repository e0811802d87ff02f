"""`core/forgetting/agreement.py`: one decree at a time, by hand and by seeded torture, against
a stub view.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from murmurate.core.clock import Key
from murmurate.core.effect import Effect, Save, Send
from murmurate.core.forgetting.agreement import Agreement
from murmurate.core.forgetting.vow import VOTE_INTERVALS, Vow
from murmurate.core.intervals import Runs
from murmurate.core.message import (
    Accept,
    Accepted,
    Decided,
    Generation,
    Prepare,
    Promise,
)

X, Y = ("x", 1), ("y", 1)
"""Epochs whose origins are not there to vote."""
INTERVAL_S = 2.0
Wire = tuple[str, str, Any]
"""Sender, receiver, message."""


@dataclass
class Facts:
    """What one member takes for true: a `View` that is filled in by hand."""

    present: tuple[str, ...]
    past: tuple[Generation, ...]
    holds: dict[Key, Runs] = field(default_factory=dict)
    over: tuple[Key, ...] = ()
    not_ripe: tuple[Key, ...] = ()
    left: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    defended: tuple[str, ...] = ()
    last_words: dict[Key, int] = field(default_factory=dict)
    memories: dict[str, int] = field(default_factory=dict)

    def memory(self, name: str) -> int | None:
        return self.memories.get(name)

    def live(self) -> tuple[str, ...]:
        return self.present

    def leaving(self, name: str) -> bool:
        return name in self.left

    def evictable(self, name: str, now: float) -> bool:
        return name in self.gone

    def not_gone(self, name: str, now: float) -> bool:
        return name in self.defended

    def finished(self, now: float) -> tuple[Key, ...]:
        return self.over

    def ripe(self, now: float) -> tuple[Key, ...]:
        return tuple(key for key in self.over if self.holds.get(key) and key not in self.not_ripe)

    def held(self, key: Key) -> Runs:
        return self.holds.get(key, ())

    def complete(self, key: Key, runs: Runs) -> bool:
        return runs == (1, self.last_words.get(key, 0))

    def history(self) -> tuple[Generation, ...]:
        return self.past


class Member:
    """One acceptor and proposer, the disk under it, and what it takes for true."""

    def __init__(self, name: str, facts: Facts) -> None:
        self.name = name
        self.facts = facts
        self.disk: dict[str, Any] = {}
        self.disk_full = False
        self.memory = 0
        self.moved: list[Generation] = []
        self.agreement = self._started()

    def _started(self) -> Agreement:
        return Agreement(
            self.name,
            self.facts.past[-1],
            interval_s=INTERVAL_S,
            vow=self.disk.get("vow"),
            memory=self.memory,
        )

    @property
    def number(self) -> int:
        assert self.agreement.current is not None
        return self.agreement.current.number

    @property
    def vow(self) -> Vow:
        assert self.agreement.vow is not None
        return self.agreement.vow

    def restart(self, past: tuple[Generation, ...] | None = None) -> None:
        """A crash: only the disk is left; a checkpoint brings back `past` (default: the newest)."""
        self.facts.past = past or self.facts.past
        vow = self.disk.get("vow")
        if vow is not None and vow.history[-1].number > self.facts.past[-1].number:
            self.facts.past = vow.history  # what `Peer` does before it starts its agreement
        self.agreement = self._started()

    def forget(self, giver: Member, memory: int) -> None:
        """It comes back without its disk, under its name, and takes the snapshot of another."""
        self.disk, self.disk_full, self.memory = {}, False, memory
        self.facts.past = giver.facts.past
        self.facts.holds, self.facts.over = dict(giver.facts.holds), giver.facts.over
        self.agreement = self._started()

    def move(self, generation: Generation, now: float) -> None:
        if generation.number == self.number + 1:
            self.moved.append(generation)
            self.facts.past = (*self.facts.past, generation)
            for key, _ in generation.folds:
                self.facts.holds.pop(key, None)
            self.facts.over = tuple(k for k in self.facts.over if k in self.facts.holds)
            self.agreement.advance(generation, now)


class Council:
    """Members, and the messages between them, which are delivered, dropped or kept by hand."""

    def __init__(self, names: str, *, roster: str = "", **facts: Any) -> None:
        self.now = 100.0
        self.wire: list[Wire] = []
        founding = (Generation(0, tuple(roster or names)),)
        self.members = {n: Member(n, Facts(tuple(names), founding)) for n in names}
        self.every(**facts)
        self.votes: dict[int, dict[tuple[Any, Generation], set[tuple[str, int]]]] = {}
        """For each number, who has durably accepted what under which ballot."""
        self.decided: dict[int, set[Generation]] = {}
        self.forgotten = 0
        self.ballots: dict[tuple[int, Any], set[Generation]] = {}
        """For each number and ballot, the values that were proposed under it."""

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def every(self, **facts: Any) -> None:
        """Let all members take this for true."""
        for member in self.members.values():
            for what, value in facts.items():
                setattr(member.facts, what, value.copy() if isinstance(value, dict) else value)

    def carry_out(self, name: str, effects: list[Effect]) -> None:
        """In order; when one fails, the rest is dropped."""
        member = self[name]
        for effect in effects:
            if isinstance(effect, Save):
                if member.disk_full:
                    return
                member.disk[effect.key] = effect.value
                self._count(name, effect.value)
            elif isinstance(effect, Send):
                self._watch(effect.message)
                if effect.to == name:
                    self.receive(name, name, effect.message)
                elif effect.to in self.members:
                    self.wire.append((name, effect.to, effect.message))

    def receive(self, sender: str, to: str, message: Any) -> None:
        member = self[to]
        if isinstance(message, Decided):
            for generation in message.generations:
                member.move(generation, self.now)
            return
        agreement, facts = member.agreement, member.facts
        self.carry_out(to, agreement.receive(sender, message, self.now, facts))

    def tick(self, name: str, at: float | None = None) -> None:
        """The member's turn; its rank makes it wait, so it is asked until it is due."""
        self.now = max(self.now, self[name].agreement.due) if at is None else at
        self.carry_out(name, self[name].agreement.tick(self.now, self[name].facts))

    def propose(self, name: str) -> Prepare:
        """Let a member start an attempt; nothing of it is delivered yet."""
        for _ in range(4):
            before = len(self.wire)
            self.tick(name)
            for _, _, message in self.wire[before:]:
                if isinstance(message, Prepare) and message.ballot[1] == name:
                    return message
        raise AssertionError(f"{name} proposes nothing")

    def deliver(self, keep: Callable[[str, str, Any], bool] = lambda s, to, m: True) -> list[Wire]:
        """Deliver everything, and what follows from it; what is not kept is lost and returned."""
        lost = []
        while self.wire:
            sender, to, message = self.wire.pop(0)
            if keep(sender, to, message):
                self.receive(sender, to, message)
            else:
                lost.append((sender, to, message))
        return lost

    def numbers(self) -> list[int]:
        return [member.number for member in self.members.values()]

    def _count(self, name: str, vow: Vow) -> None:
        if vow.accepted is not None:
            number = self.votes.setdefault(vow.number, {})
            vote = name, self[name].memory
            number.setdefault((vow.accepted_ballot, vow.accepted), set()).add(vote)

    def _watch(self, message: Any) -> None:
        if isinstance(message, Decided):
            for generation in message.generations:
                self.decided.setdefault(generation.number, set()).add(generation)
        elif isinstance(message, Accept):
            key = (message.value.number, message.ballot)
            self.ballots.setdefault(key, set()).add(message.value)


def only(*kinds: type) -> Callable[[str, str, Any], bool]:
    return lambda sender, to, message: isinstance(message, kinds)


def but(*kinds: type) -> Callable[[str, str, Any], bool]:
    return lambda sender, to, message: not isinstance(message, kinds)


def among(names: str) -> Callable[[str, str, Any], bool]:
    return lambda sender, to, message: sender in names and to in names


def council(names: str = "abc", **facts: Any) -> Council:
    """All take the life of x for finished and hold its updates 1 to 3; x is gone for long."""
    return Council(names, **{"holds": {X: (1, 3)}, "over": (X,), "gone": ("x",), **facts})


# -- one value per number ------------------------------------------------------------------------


def test_what_all_hold_is_folded_by_all() -> None:
    """Without faults one attempt is enough."""
    c = council()
    c.propose("a")
    c.deliver()
    value = Generation(1, ("a", "b", "c"), ((X, (1, 3)),))
    assert [member.moved for member in c.members.values()] == [[value]] * 3


def test_two_proposers_that_outbid_each_other_decide_one_value() -> None:
    """The later one must take over what the earlier one may have brought through."""
    c = council("abc", holds={X: (1, 3), Y: (1, 1)}, over=(X, Y), gone=("x", "y"))
    c["a"].facts.not_ripe = (Y,)
    c["b"].facts.not_ripe = (X,)
    first = c.propose("a")
    late = c.deliver(but(Accept))  # a has accepted its own value; the others have not heard of it
    second = c.propose("b")
    assert second.ballot > first.ballot
    c.wire += late
    c.deliver(but(Decided))
    for name in "ac":  # who has not heard of a decision tries again
        c.propose(name)
        c.deliver(but(Decided))
    (value,) = c.decided[1]
    c.receive("b", "a", Decided((value,)))
    assert c["a"].moved == [value]


def test_who_is_outbid_gives_way() -> None:
    """A proposer that hears a higher ballot stops counting answers to its own."""
    c = council()
    c.propose("a")
    answers = c.deliver(but(Promise))
    c.propose("b")
    c.deliver(lambda sender, to, message: to == "a" and isinstance(message, Prepare))
    c.wire += answers
    c.deliver(but(Accepted))
    assert c.ballots == {}


def test_a_lower_ballot_is_not_followed() -> None:
    """Neither promised nor accepted, once a higher one was promised."""
    c = council()
    c.receive("c", "b", Prepare(1, (5, "c"), ()))
    c.wire.clear()
    value = Generation(1, ("a", "b", "c"), ((X, (1, 3)),))
    c.receive("a", "b", Prepare(1, (4, "z"), (X,)))
    c.receive("a", "b", Accept((5, "a"), value))
    assert c.wire == []
    assert c["b"].vow.accepted is None
    c.receive("c", "b", Accept((5, "c"), value))
    assert c["b"].vow.accepted == value


def test_stale_answers_of_one_generation_do_not_count_in_the_next() -> None:
    """Ballots start again with every number: an answer names both."""
    c = council("abc", holds={X: (1, 3), Y: (1, 1)}, over=(X, Y), gone=("x", "y"))
    c.every(not_ripe=(Y,))
    c.propose("a")
    stale: list[Wire] = []
    while c.wire:
        sender, to, message = c.wire.pop(0)
        if to == "a" and isinstance(message, Promise | Accepted):
            stale.append((sender, to, message))
        c.receive(sender, to, message)
    assert {type(message) for _, _, message in stale} == {Promise, Accepted}
    c.every(not_ripe=())
    c.propose("a")
    assert c["a"].vow.promised == stale[0][2].ballot
    for sender, to, message in stale:
        c.receive(sender, to, message)
    assert 2 not in c.decided
    assert not any(isinstance(message, Accept) for _, _, message in c.wire)
    c.deliver(lambda sender, to, message: to == "a" or isinstance(message, Prepare))
    for sender, to, message in stale:
        c.receive(sender, to, message)
    assert 2 not in c.decided
    assert c["a"].vow.accepted == Generation(2, ("a", "b", "c"), ((Y, (1, 1)),))


# -- a member's word -----------------------------------------------------------------------------


def test_a_vow_for_a_later_generation_is_not_overwritten() -> None:
    """Who fell back behind its own vote neither answers nor asks about earlier numbers."""
    c = council()
    value = Generation(2, ("a", "b", "c"), ((X, (1, 3)),))
    first = Generation(1, ("a", "b", "c"))
    vow = Vow(2, (1, "b"), (), (1, "b"), value)  # its history is lost
    c["a"].agreement.acceptor.vow = vow
    c.tick("a")
    c.receive("c", "a", Prepare(1, (9, "c"), (X,)))
    c.receive("c", "a", Accept((9, "c"), first))
    assert c.wire == []
    assert c["a"].vow == vow
    c["a"].move(first, c.now)
    c.receive("c", "a", Prepare(2, (2, "c"), (X,)))
    ((_, _, promise),) = c.wire
    assert promise.accepted == value


def test_who_restarts_from_its_vow_keeps_its_word() -> None:
    """It promises nothing lower, and says what it has accepted."""
    c = council()
    c.propose("a")
    c.deliver(but(Accepted, Decided))
    value = c["b"].vow.accepted
    assert value is not None
    c["b"].restart()
    assert c["b"].agreement.frozen(X, c.now + 1000.0)
    c.receive("c", "b", Prepare(1, (0, "z"), (X,)))
    assert c.wire == []
    c.receive("c", "b", Prepare(1, (7, "c"), (X,)))
    ((_, _, promise),) = c.wire
    assert (promise.accepted, promise.accepted_ballot) == (value, (1, "a"))


def test_a_vow_remembers_the_generations_before_it() -> None:
    """Or a member that voted on the second could, after a crash, vote on the first again."""
    c = council()
    c.propose("a")
    c.deliver()
    c.every(present=("a", "b", "c", "d"))
    c.propose("a")
    c.deliver(only(Prepare))
    b = c["b"]
    assert b.vow.number == 2
    b.restart(past=b.facts.past[:1])
    assert b.number == 1


def test_a_vote_of_mine_does_not_count_before_it_is_durable() -> None:
    """Disk full: the vow is not saved, so nobody hears of my ballot, not even I."""
    c = council("ab", roster="ab")
    c["a"].disk_full = True
    for _ in range(4):
        c.tick("a")
        c.deliver()
    assert c["a"].disk == {}
    assert c["b"].disk == {}
    assert c.decided == {}


def test_a_full_disk_at_the_second_vote_decides_nothing() -> None:
    """A promise that was saved does not stand for an acceptance that was not."""
    c = council("ab", roster="ab")
    c.propose("a")
    c.deliver(but(Accept, Accepted))
    for member in c.members.values():
        member.disk_full = True
    for _ in range(4):
        c.tick("a")
        c.deliver()
    assert c.decided == {}
    for member in c.members.values():
        member.disk_full = False
    c.propose("a")
    c.deliver()
    assert c.numbers() == [1, 1]


def test_no_ballot_is_used_for_two_values() -> None:
    """Answers name a ballot, not a value: one ballot, one value, also over a crash."""
    c = council("abcdz", holds={X: (1, 3), Y: (1, 1)}, over=(X, Y), gone=("x", "y"))
    c["a"].facts.not_ripe = (Y,)
    c["z"].facts.not_ripe = (X,)
    c.propose("a")
    c.deliver(lambda sender, to, message: not isinstance(message, Accept) or to == "b")
    c["z"].disk_full = True  # a and b have accepted; z would ask b, c and d, and cannot save that
    for _ in range(4):
        c.tick("z")
    c.deliver(among("bcdz"))
    c.tick("z")
    late = c.deliver(lambda sender, to, message: to == "b")
    c["z"].disk_full = False
    c["z"].restart()
    c.propose("z")  # now all answer, most deny a's value, and z is free to choose another
    c.deliver(lambda sender, to, message: not isinstance(message, Accept))
    c.wire += late
    c.deliver()
    assert all(len(values) == 1 for values in c.ballots.values())
    check(c)


# -- what binds the next proposer ----------------------------------------------------------------


def test_a_value_that_may_have_been_decided_binds() -> None:
    """b and c do not know whether a, which is silent, counted their votes."""
    c = council("abc", holds={X: (1, 3), Y: (1, 1)}, over=(X, Y), gone=("x", "y"))
    c["a"].facts.not_ripe = (Y,)
    c["c"].facts.not_ripe = (X,)
    c.propose("a")
    c.deliver(lambda s, to, m: not isinstance(m, Accepted) and (to, type(m)) != ("c", Accept))
    assert c["b"].vow.accepted is not None
    c.propose("c")  # b reports the value; a may have accepted it as well
    c.deliver(among("bc"))
    c.tick("c")
    c.deliver(among("bc"))
    assert c.decided == {1: {Generation(1, ("a", "b", "c"), ((X, (1, 3)),))}}


def test_a_value_that_most_deny_does_not_bind() -> None:
    """Only a accepted it, and b and c say that they did not: it cannot have been decided."""
    c = council("abc", holds={X: (1, 3), Y: (1, 1)}, over=(X, Y), gone=("x", "y"))
    c["a"].facts.not_ripe = (Y,)
    c["b"].facts.not_ripe = (X,)
    c.propose("a")
    c.deliver(but(Accept))
    assert c["a"].vow.accepted is not None
    c.propose("b")
    c.deliver()
    assert c.decided == {1: {Generation(1, ("a", "b", "c"), ((Y, (1, 1)),))}}
    assert c.numbers() == [1, 1, 1]


def test_an_accepted_value_is_taken_up_again_by_one_who_has_nothing_to_propose() -> None:
    """A vote that got stuck would hold its epochs closed for ever."""
    c = council()
    c.propose("a")
    c.deliver(but(Accepted))
    c.every(over=(), gone=())
    assert c["b"].agreement.frozen(X, c.now + 1000.0)
    c.propose("b")
    c.deliver()
    assert c.numbers() == [1, 1, 1]


def test_who_accepted_what_nobody_else_did_is_freed_by_a_generation_without_a_change() -> None:
    """Only a accepted it, then the origin came back: nothing is to be folded any more, and yet a
    keeps its word until the number is decided."""
    c = council("abc", gone=("x",))
    c.propose("a")
    c.deliver(but(Accept))
    assert c["a"].vow.accepted is not None
    c.every(over=(), gone=())
    assert c["a"].agreement.frozen(X, c.now + 1000.0)
    c.propose("a")
    c.deliver()
    assert c.decided == {1: {Generation(1, ("a", "b", "c"))}}
    assert not c["a"].agreement.frozen(X, c.now)


def test_what_one_no_longer_holds_it_does_not_accept() -> None:
    """Refusing is always allowed, so a decided value leaves a majority that holds its folds."""
    c = council()
    c["b"].facts.holds = {X: (1, 4)}
    c.receive("a", "b", Accept((1, "a"), Generation(1, ("a", "b", "c"), ((X, (1, 3)),))))
    assert c.wire == []
    assert c["b"].agreement.vow is None


# -- what may be folded --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "facts"),
    [
        ("holds less", {"holds": {X: (1, 2)}}),
        ("holds more", {"holds": {X: (1, 4)}}),
        ("has a hole", {"holds": {X: (1, 1, 3, 3)}}),
        ("has nothing for good", {"holds": {}}),
        ("does not take it for finished", {"over": ()}),
    ],
)
def test_an_epoch_is_folded_only_if_all_hold_exactly_the_same(
    what: str, facts: dict[str, Any]
) -> None:
    """One member of which this is not so is enough."""
    c = council()
    for name, value in facts.items():
        setattr(c["c"].facts, name, value)
    c.propose("a")
    c.deliver()
    assert c.decided == {}, what


def test_an_epoch_is_not_folded_while_one_member_is_silent() -> None:
    """A majority is enough to decide, but not to say what everyone holds."""
    c = council()
    c.propose("a")
    c.deliver(among("ab"))
    c.tick("a")
    c.deliver(among("ab"))
    assert c.decided == {}
    assert c.ballots == {}


@pytest.mark.parametrize(("last", "folded"), [(3, True), (2, False), (4, False), (None, False)])
def test_the_epoch_of_one_who_left_is_folded_by_its_last_word(
    last: int | None, folded: bool
) -> None:
    """It said how many updates it made: not before all have exactly these."""
    words = {} if last is None else {X: last}
    c = council(gone=(), last_words=words)
    c.propose("a")
    c.deliver()
    assert (1 in c.decided) == folded


def test_an_origin_that_is_there_has_a_say_in_its_own_epoch() -> None:
    """A restarted origin may find more in its log than the others ever got."""
    c = council("abc", holds={("c", 1): (1, 2)}, over=(("c", 1),))
    c["c"].facts.holds = {("c", 1): (1, 3)}
    c.propose("a")
    c.deliver()
    assert c.decided == {}
    c["c"].facts.holds = {("c", 1): (1, 2)}
    c.propose("a")
    c.deliver()
    assert c.numbers() == [1, 1, 1]


def test_an_origin_off_the_roster_has_a_say_as_well() -> None:
    """A newcomer that restarted before it got on the roster."""
    mine = ("d", 1)
    c = Council("abcd", roster="abc", holds={mine: (1, 2)}, over=(mine,))
    c["d"].facts.holds = {mine: (1, 3)}
    c.propose("a")
    c.deliver()
    assert c.decided == {1: {Generation(1, ("a", "b", "c", "d"))}}


def test_an_origin_that_leaves_is_heard_on_its_earlier_lives() -> None:
    """It is on no roster any more, but nobody knows better what it made."""
    mine = ("c", 1)
    c = Council("abc", left=("c",), holds={mine: (1, 2)}, over=(mine,))
    c["c"].facts.holds = {mine: (1, 3)}
    ask = c.propose("a")
    c.receive("a", "c", ask)
    c.wire.reverse()  # what c says comes first
    c.deliver()
    assert c.decided == {1: {Generation(1, ("a", "b"))}}


# -- the roster ----------------------------------------------------------------------------------


def test_a_newcomer_gets_on_the_roster_by_a_vote_and_only_if_it_answers() -> None:
    """One that has no snapshot yet is left for another time."""
    c = Council("abcd", roster="abc")
    c.propose("a")
    c.deliver(among("abc"))
    c.tick("a")
    c.deliver(among("abc"))
    assert c.decided == {}
    c.propose("a")
    c.deliver()
    assert c.decided == {1: {Generation(1, ("a", "b", "c", "d"))}}


def test_one_who_leaves_gets_off_the_roster() -> None:
    """With its own vote, as it is still there."""
    c = Council("abc", left=("c",))
    c.propose("a")
    c.deliver()
    assert c.decided == {1: {Generation(1, ("a", "b"))}}


def test_a_member_is_evicted_by_a_majority() -> None:
    """The vote needs no answer of one who has been dead for long."""
    c = Council("abc", gone=("c",), present=("a", "b"))
    c.propose("a")
    c.deliver(among("ab"))
    assert c.decided == {1: {Generation(1, ("a", "b"), (), ("c",))}}


@pytest.mark.parametrize("who", ["b", "c"])
def test_a_member_is_not_evicted_against_an_objection(who: str) -> None:
    """Whether another member has seen it, or it is there itself to say so."""
    c = Council("abc", gone=("c",), present=("a", "b"))
    c[who].facts.defended = ("c",)
    ask = c.propose("a")
    if who == "c":
        c.receive("a", "c", ask)
        c.wire.reverse()  # what c says comes first
    c.deliver()
    c.tick("a")
    assert [type(message) for _, _, message in c.wire] == [Prepare] * len(c.wire)
    assert c.decided == {}


@pytest.mark.parametrize(("names", "here"), [("abc", "a"), ("abcd", "ab"), ("abcde", "de")])
def test_the_smaller_side_of_a_cut_decides_nothing(names: str, here: str) -> None:
    """Half is not a majority: in a cut at most one side can evict the other."""
    there = tuple(name for name in names if name not in here)
    c = council(names, gone=("x", *there), present=tuple(here))
    for _ in range(3):
        for name in here:
            c.tick(name)
            c.deliver(among(here))
    assert c.decided == {}
    assert c.ballots == {}


def test_the_larger_side_of_a_cut_decides() -> None:
    """The same cut, from the other side."""
    c = council("abcde", gone=("x", "d", "e"), present=("a", "b", "c"))
    c.propose("a")
    c.deliver(among("abc"))
    assert c.decided == {1: {Generation(1, ("a", "b", "c"), ((X, (1, 3)),), ("d", "e"))}}


# -- how long a word binds -----------------------------------------------------------------------


def test_a_promise_closes_an_epoch_only_for_the_time_of_a_vote() -> None:
    """A proposer that died holds nobody up."""
    c = council()
    c.propose("a")
    c.deliver(only(Prepare))
    b, start = c["b"].agreement, c.now
    assert b.frozen(X, start)
    assert not b.frozen(Y, start)
    assert b.frozen(X, start + VOTE_INTERVALS * INTERVAL_S - 0.01)
    assert not b.frozen(X, start + VOTE_INTERVALS * INTERVAL_S)


def test_what_was_accepted_stays_closed_until_the_vote_is_over() -> None:
    """However long that takes; the decision opens everything else again."""
    c = council()
    c.propose("a")
    last = c.deliver(but(Decided))
    b = c["b"].agreement
    assert b.frozen(X, c.now + 1e6)
    c.wire += last
    c.deliver()
    assert not b.frozen(X, c.now)


def test_who_gives_up_releases_what_was_closed_for_it() -> None:
    """An attempt that finds nothing to agree on opens the epochs again at once."""
    c = council()
    c["c"].facts.holds = {X: (1, 2)}
    c.propose("a")
    c.deliver(only(Prepare, Promise))
    assert [m.agreement.frozen(X, c.now) for m in c.members.values()] == [False] * 3
    assert c.ballots == {}


def test_an_attempt_that_gets_no_majority_is_released() -> None:
    """One interval after it was started, also where only some have answered."""
    c = council("abcde")
    c.propose("a")
    c.deliver(among("ab"))
    assert c["b"].agreement.frozen(X, c.now)
    c["a"].facts.present = ("a", "b")
    c.tick("a")
    c.deliver(among("ab"))
    assert not c["b"].agreement.frozen(X, c.now)


def test_nobody_asks_when_there_is_nothing_to_agree_on() -> None:
    """Nor when it could not succeed: a member that must vote is not there."""
    c = Council("abc")
    for _ in range(5):
        for name in "abc":
            c.tick(name)
    assert c.wire == []
    c.every(holds={X: (1, 3)}, over=(X,), gone=("x",), present=("a", "b"))
    for _ in range(5):
        for name in "ab":
            c.tick(name)
    assert c.wire == []


def test_a_stranger_to_the_generations_says_nothing() -> None:
    """Before the first snapshot there is no roster to vote in."""
    newcomer = Agreement("n", None, interval_s=INTERVAL_S)
    facts = Facts(("a", "n"), ())
    assert newcomer.tick(100.0, facts) == []
    assert newcomer.receive("a", Prepare(1, (1, "a"), ()), 100.0, facts) == []
    assert not newcomer.frozen(X, 100.0)


# -- torture -------------------------------------------------------------------------------------


def torture(seed: int, *, steps: int, full_disks: bool, forgets: float = 0.0) -> Council:
    """Lose, repeat, reorder, crash; let everybody want something else; count the votes."""
    rng = random.Random(seed)
    names = "abcde"[: rng.choice((2, 3, 4, 5) if forgets else (3, 4, 5))]
    keys = [(f"x{i}", 1) for i in range(4)]
    c = Council(
        names,
        roster=names[: rng.choice((min(3, len(names)), len(names)))],
        holds=dict.fromkeys(keys, (1, 3)),
        over=tuple(keys),
        gone=tuple(key[0] for key in keys),
    )
    loss, again = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.1))
    for _ in range(steps):
        name = rng.choice(names)
        member = c[name]
        act = rng.random()
        if c.wire and act < 0.8:
            wire = c.wire.pop(rng.randrange(min(len(c.wire), rng.choice((1, 4, 40)))))
            if rng.random() < again:
                c.wire.append(wire)
            if rng.random() >= loss:
                c.now += 0.01
                c.receive(*wire)
        elif act < 0.94:
            member.facts.not_ripe = tuple(key for key in keys if rng.random() < 0.5)
            member.facts.gone = tuple(key[0] for key in keys) + tuple(
                n for n in names if n != name and rng.random() < 0.15
            )
            member.facts.present = tuple(n for n in names if n not in member.facts.gone)
            c.tick(name)
        elif act < 0.96 and full_disks:
            member.disk_full = not member.disk_full
        elif forgets and rng.random() < forgets:
            member.forget(c[rng.choice([n for n in names if n != name])], 1 + c.forgotten)
            c.forgotten += 1
        else:
            past = member.facts.past
            member.restart(past[: rng.randrange(len(past)) + 1])
        if forgets and rng.random() < 0.1:  # who came back says so, sooner or later
            teller = c[rng.choice(names)]
            c[rng.choice(names)].facts.memories[teller.name] = teller.memory
        if rng.random() < 0.02:  # who is behind is told what was decided
            ahead = max(c.members.values(), key=lambda m: m.number)
            for generation in ahead.facts.past:
                member.move(generation, c.now)
    return c


def seats(generation: Generation) -> set[tuple[str, int]]:
    """Who votes on the next one, and in which memory."""
    return {(name, generation.memory(name) or 0) for name in generation.roster}


def check(c: Council) -> int:
    """At most one value for each number, however one looks at it; how many were decided."""
    rosters = {0: seats(c["a"].facts.past[0])}
    for number, values in sorted(c.decided.items()):
        assert len(values) == 1, f"generation {number} decided as {values}"
        (value,) = values
        rosters[number] = seats(value)
    for number, votes in c.votes.items():
        if number - 1 not in rosters:
            continue  # whoever knew what was decided before has forgotten it before it was told
        roster = rosters[number - 1]
        share = {value: 0 for _, value in votes}
        for (_, value), who in votes.items():
            share[value] = max(share[value], 2 * len(who & roster))
        chosen = {value for value, twice in share.items() if twice > len(roster)}
        decided = c.decided.get(number, set())
        assert len(chosen | decided) <= 1, f"generation {number} accepted as {chosen}"
        for value in decided:
            half = share.get(value) == len(roster) and all(
                c[name].memory > memory
                for name, memory in roster
                if not any((name, memory) in who for (_, v), who in votes.items() if v == value)
            )
            assert value in chosen or half, f"generation {number} was not accepted"
    return len(c.decided)


def test_no_number_gets_two_values_whatever_happens() -> None:
    """300 seeds of loss, duplication, reordering and crashes back to the saved vow."""
    decided = [check(torture(seed, steps=250, full_disks=False)) for seed in range(300)]
    assert sum(decided) > 150, "nothing was put to the test"


def test_no_number_gets_two_values_on_disks_that_fill_up() -> None:
    """The same, where a vow cannot always be saved."""
    decided = [check(torture(seed, steps=250, full_disks=True)) for seed in range(300)]
    assert sum(decided) > 100, "nothing was put to the test"


def test_no_number_gets_two_values_where_members_forget_what_they_promised() -> None:
    """The same in which every other crash takes the disk, also of rosters of two."""
    ran = [torture(seed, steps=250, full_disks=False, forgets=0.5) for seed in range(400)]
    assert sum(map(check, ran)) > 150, "nothing was put to the test"
    assert sum(c.forgotten for c in ran) > 400
