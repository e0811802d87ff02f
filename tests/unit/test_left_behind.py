"""Who cannot be given what it lacks update by update takes a snapshot, whatever happened before:
after a cut of which both sides let go of updates, or summed them up, and while all train on."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.unit.test_peer import (
    A1,
    A2,
    B1,
    NOW,
    PUSH_BYTES,
    X1,
    Swarm,
    dropped,
    peer,
    publish,
    push,
    sent,
    state,
    tell,
    weights,
)

from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.effect import Adopted, Drop
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.gossip.delivery import LAGS_S
from murmurate.core.gossip.folding import APART_MAX, SUMS_MAX
from murmurate.core.gossip.peer import Peer
from murmurate.core.message import (
    ALIVE,
    DEAD,
    STAMPS_MAX,
    Digest,
    Lack,
    Push,
    Rumour,
    Snapshot,
    SnapshotRequest,
    Want,
)
from murmurate.core.replica import Replica

STEP_S = 0.2


def as_nodes(log: int, store: int) -> PeerConfig:
    """What `join` chooses, with room for so many updates."""
    return PeerConfig(
        log_bytes_max=log * PUSH_BYTES,
        store_bytes_max=store * PUSH_BYTES,
        digest_interval_s=0.25,
    )


class Slow(Swarm):
    """Links that hold what they took while they are cut, and give it back when that is over.
    Snapshots take `snapshot_s`."""

    def __init__(self, names: str, config: PeerConfig, *, seed: int, snapshot_s: float = 0) -> None:
        self.held: dict[tuple[str, str], Push] = {}
        self.coming: list[tuple[float, str, str, Snapshot]] = []
        self.snapshot_s = snapshot_s
        super().__init__(names, config)
        for name in names:
            self[name].state.rng = random.Random(f"{seed}/{name}")

    def free(self, name: str, to: str) -> bool:
        return (name, to) not in self.held

    def carry(self, name: str, to: str, message: Any) -> bool:
        if self.lost(name, to, message):
            self.held[name, to] = message
            return True
        return super().carry(name, to, message)

    def heal(self) -> None:
        super().heal()
        held, self.held = self.held, {}
        for (name, to), message in held.items():
            self[name].lost(to, message)

    def post(self, name: str, to: str, message: Any) -> None:
        if self.snapshot_s and isinstance(message, Snapshot):
            self.coming.append((self.now + self.snapshot_s, name, to, message))
        else:
            super().post(name, to, message)

    def flush(self) -> None:
        super().flush()
        coming, self.coming = self.coming, []
        for due, sender, to, message in coming:
            if due > self.now:
                self[to].heard(sender, self.now, snapshot=True)
                self.coming.append((due, sender, to, message))
            else:
                self.receive(to, sender, message)
        super().flush()

    def train(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            for name in self.names:
                if self[name].room(PUSH_BYTES):
                    self.publish(name)
            self.run(STEP_S, STEP_S / 2)


# -- being left behind ---------------------------------------------------------------------------


def take_all(by: Peer, to: str, now: float) -> None:
    while (taken := by.take(to, now)) is not None:
        by.landed(to, taken)


def test_who_was_away_is_not_late_because_of_that() -> None:
    """It took the last update before it went; what was kept for it is not let go of as it returns.

    (A cut of 60 s: all three others let go of their sums within half a second after it.)
    """
    a = peer("a", config=as_nodes(1, 1))
    first = publish(a)
    for name in "bc":
        assert a.take(name, NOW) is first
        a.landed(name, first)
        a.receive(name, Digest(1, Clock((A1,)), Clock()), NOW)
    a.tick(NOW)
    assert len(a.log) == 0
    tell(a, Rumour("c", 1, 0, DEAD), sender="b", now=NOW)
    publish(a)
    take_all(a, "b", NOW + 60)
    a.receive("b", Digest(1, Clock((A1, A2)), Clock()), NOW + 60)
    a.tick(NOW + 60)
    tell(a, Rumour("c", 1, 1, ALIVE), now=NOW + 60)
    publish(a)  # waits for c, whose link is not there yet
    take_all(a, "b", NOW + 61)
    have = Clock(Dot("a", 1, seq) for seq in (1, 2, 3))
    a.receive("b", Digest(1, have, Clock()), NOW + 61)
    a.receive("c", Digest(1, Clock((A1,)), Clock()), NOW + 61)
    a.tick(NOW + 61)
    assert a.outbox.updates("c") > 0
    assert A2 in a.log
    a.tick(NOW + 61 + LAGS_S + 0.1)
    assert A2 not in a.log, "now it had its time"


def test_a_minority_leaves_nobody_behind() -> None:
    """From its side of a cut the others seem to lag: what it made nobody else has."""
    a = peer("a", "abcd", config=as_nodes(1, 1))
    publish(a)
    for name in "bcd":
        assert a.take(name, NOW) is not None
        a.receive(name, Digest(1, Clock(), Clock()), NOW)
    a.tick(NOW + LAGS_S + 1)
    assert A1 in a.log
    a.receive("b", Digest(1, Clock((A1,)), Clock()), NOW)
    a.tick(NOW + LAGS_S + 2)
    assert A1 in a.log, "two of four"
    for name in "bc":
        a.landed(name, push(A1))
        a.receive(name, Digest(1, Clock((A1,)), Clock()), NOW)
    a.tick(NOW + LAGS_S + 3)
    assert A1 not in a.log, "three of four"


# -- sums that overlap ---------------------------------------------------------------------------


def test_of_a_life_that_goes_on_the_store_gives_all_that_is_wanted_or_nothing() -> None:
    """Its origin may have what I let go of in a sum, of which the asker must not have a part."""
    b = peer("b", config=PeerConfig(store_bytes_max=2 * PUSH_BYTES))
    for dot in (A1, A2, X1):
        b.fold(dot.origin, push(dot), NOW)
    wanted = Want((Range("a", 1, 1, 2), Range("x", 1, 1, 1)))
    assert sent(b.receive("c", wanted, NOW)) == [("c", Lack((Range("a", 1, 1, 2),)))]
    assert [p.dots for _ in range(2) if (p := b.take("c", NOW)) is not None] == [(X1,)]
    assert sent(b.receive("c", Want((Range("a", 1, 2, 2),)), NOW)) == []
    assert [p.dots for _ in range(2) if (p := b.take("c", NOW)) is not None] == [(A2,)]


@pytest.mark.parametrize("trains_on_s", [0.0, 4.0])
@pytest.mark.parametrize("cut_s", [3.0, 12.0])
@pytest.mark.parametrize("sides", [("ab", "c"), ("abc", "d"), ("ab", "cd")])
def test_the_sides_of_a_cut_meet_again_without_loss(
    sides: tuple[str, str], cut_s: float, trains_on_s: float
) -> None:
    """However long it was, and whatever they summed up meanwhile."""
    for seed in range(2):
        s = Slow("".join(sides), as_nodes(log=8, store=4), seed=seed)
        s.train(2.0)
        s.cut(*sides)
        s.train(cut_s)
        s.heal()
        s.train(trains_on_s)
        s.run(15.0)
        s.assert_converged()
        assert not [effect for effect in s.effects(Adopted) if effect.given_up]


# -- a snapshot on its way -----------------------------------------------------------------------


@pytest.mark.parametrize(("log", "store"), [(8, 4), (1, 0)])
@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_a_snapshot_that_takes_long_is_taken_while_all_train_on(
    names: str, log: int, store: int
) -> None:
    """Each used to lack what came while it was on its way, which was then only in the weights."""
    s = Slow(names, as_nodes(log, store), seed=0, snapshot_s=1.0)
    s.made.append(X1)
    for name in names[:-1]:  # the last one cannot get it by itself
        s[name].fold("x", push(X1), s.now)
        s[name].store.prune(Clock((X1,)))
    s.train(6.0)
    assert X1 in s[names[-1]].clock
    s.run(10.0)
    s.assert_converged()


def test_what_a_snapshot_on_its_way_may_lack_can_be_folded_in_again() -> None:
    """So it is kept, though all have it; what cannot be kept is not folded in before."""
    a, b = peer("a"), peer("b", config=as_nodes(2, 1))
    a.fold("x", push(X1), NOW)
    b.receive("a", Digest(1, Clock((X1,)), Clock((X1,))), NOW)
    lack = Lack((Range("x", 1, 1, 1),))
    assert sent(b.receive("a", lack, NOW)) == [("a", SnapshotRequest())]
    snapshot = a.snapshot()
    publish(b)
    publish(b)
    c1, c2 = Dot("c", 1, 1), Dot("c", 1, 2)
    b.fold("c", push(c1), NOW)
    assert dropped(b.fold("c", push(c2), NOW)) == "awaiting"
    have = Clock((X1, B1, Dot("b", 1, 2), c1))
    for name in "ac":
        b.receive(name, Digest(1, have, have), NOW)
    b.tick(NOW + 1)
    assert (B1 in b.log, c1 in b.store) == (True, True)
    (adopted,) = b.fold("a", snapshot, NOW + 1)
    assert isinstance(adopted, Adopted)
    assert adopted.given_up == ()
    assert state(b)[0] == weights(X1, B1, Dot("b", 1, 2), c1)
    b.tick(NOW + 2)
    assert (B1 in b.log, c1 in b.store) == (False, False)
    assert dropped(b.fold("c", push(c2), NOW + 2)) == ""


# -- what nobody can pass on ---------------------------------------------------------------------


def weights_only(name: str, *dots: Dot) -> Peer:
    """One that let go of all it has."""
    replica = Replica(torch.tensor(weights(*dots)), Clock(dots))
    made = peer(name, "ab", replica=replica, config=as_nodes(4, 4))
    made.state.seq = max((dot.seq for dot in dots if dot.origin == name), default=0)
    return made


def exchange(a: Peer, b: Peer, at: float) -> list[Any]:
    """Clocks, and a snapshot each way."""
    for to, other in ((a, b), (b, a)):
        to.receive(other.name, Digest(1, other.context(), other.context()), at)
    to_a, to_b = b.snapshot(), a.snapshot()
    return a.fold("b", to_a, at) + b.fold("a", to_b, at)


def test_two_who_live_and_let_go_of_what_the_other_lacks_agree_again() -> None:
    """Neither could ever take the other's snapshot. The larger set stays, the loss is counted."""
    b2, b3 = Dot("b", 1, 2), Dot("b", 1, 3)
    a, b = weights_only("a", A1), weights_only("b", B1, b2, b3)
    own = publish(a)  # this one it has in its log
    assert dropped(exchange(a, b, NOW)) == "snapshot, snapshot"
    assert dropped(exchange(a, b, NOW + 1.0)) == "snapshot, snapshot", "time to pass it on"
    effects = exchange(a, b, NOW + 2.0)
    (adopted,) = (effect for effect in effects if isinstance(effect, Adopted))
    assert adopted.given_up == (A1,)
    assert state(a) == (weights(A2, B1, b2, b3), Clock((A2, B1, b2, b3)))
    b.fold("a", own, NOW + 2.0)
    assert state(b) == state(a)


def test_what_the_giver_has_by_now_is_not_given_up() -> None:
    """Its snapshot was only made too early."""
    a, b = weights_only("a", A1), weights_only("b", *(Dot("b", 1, seq) for seq in (1, 2, 3)))
    old = b.snapshot()
    b.fold("a", push(A1), NOW)
    a.receive("b", Digest(1, b.context(), Clock()), NOW)
    for at in (NOW, NOW + 10.0, NOW + 20.0):
        assert dropped(a.fold("b", old, at)) == "snapshot"
    (effect,) = a.fold("b", b.snapshot(), NOW + 30.0)
    assert isinstance(effect, Adopted)
    assert effect.given_up == ()


def test_a_sum_that_is_given_up_leaves_the_log() -> None:
    """Else each snapshot after that would lack it too."""
    a, b = weights_only("a"), weights_only("b", *(Dot("b", 1, seq) for seq in (1, 2, 3)))
    a.log.add(push(A1, A2))
    a.replica.weights += torch.tensor(weights(A1, A2))
    for dot in (A1, A2):
        a.clock.add(dot)
    a.state.seq = 2
    b.fold("a", push(A1), NOW)
    for at in (NOW, NOW + 2.0):
        effects = exchange(a, b, at)
    adopted = next(effect for effect in effects if isinstance(effect, Adopted))
    assert adopted.given_up == (A2,)
    assert len(a.log) == 0
    assert state(a) == state(b)
    publish(b)
    (effect,) = a.fold("b", b.snapshot(), NOW + 3.0)
    assert isinstance(effect, Adopted)
    assert effect.given_up == ()


def test_of_one_who_is_away_nothing_is_given_up() -> None:
    """It may have it by itself."""
    a, b = weights_only("a", X1), weights_only("b", B1, Dot("b", 1, 2))
    tell(a, Rumour("x", 1, 0, ALIVE))
    tell(a, Rumour("x", 1, 0, DEAD), sender="b")
    for at in (NOW, NOW + 10.0, NOW + 20.0):
        (effect,) = [e for e in exchange(a, b, at) if isinstance(e, Drop) and e.sender == "b"]
        assert "1 that only my weights have" in effect.detail


def test_more_than_a_path_takes_is_asked_for_again_and_again() -> None:
    """A cut in which each makes more than a message has place for: update by update, since no
    snapshot of one side can be taken by the other, whose store has let go of what it lacks."""
    s = Slow("abcd", as_nodes(log=1400, store=700), seed=0)
    s.cut("ab", "cd")
    for _ in range(STAMPS_MAX + 50):
        for name in s.names:
            s.publish(name)
        s.flush()
    s.run(5.0)
    s.heal()
    s.run(4.0)
    s.assert_converged()
    assert not s.effects(Adopted)


def test_what_an_earlier_life_gave_up_is_not_called_durable() -> None:
    """An older checkpoint still has it. Found by rng seed 1610: the first digest of the new life
    said that a crash cannot take what its clock does not have, and that was the end of the node."""
    back = peer("b", epoch=2, replica=Replica(torch.tensor(weights(B1)), Clock([B1])))
    back.checkpointed(Clock([A1, B1]), kept=1)
    back.checkpointed(Clock([B1]), kept=2)
    digests = sent(back.leave(NOW), Digest)
    assert digests
    assert all(digest.durable == Clock([B1]) for _, digest in digests)


# -- who folds rarely ------------------------------------------------------------------------------


def test_pushes_that_wait_are_one_where_nothing_of_them_can_be_taken_by_itself() -> None:
    b = peer("b")
    many = [push(Dot("a", 1, seq)) for seq in range(1, APART_MAX + 3)]
    for each in many:
        b.receive("a", each, NOW)
    apart, (first, second) = many[:APART_MAX], many[APART_MAX:]
    assert b.beside(apart[:-1], apart[-1]) is apart[-1]
    total = b.beside([*apart[:-1], first], second)
    assert total is not None
    assert total.dots == (*first.dots, *second.dots)
    twice = push(*second.dots, context=Clock(first.dots))
    b.receive("c", twice, NOW)  # now a second message has it, too
    assert b.beside([*apart[:-1], first], second) is None
    b.fold("a", total, NOW)
    assert state(b) == (weights(*total.dots), Clock(total.dots))
    assert dropped(b.fold("c", twice, NOW)) == "duplicate"
    later = push(Dot("a", 1, APART_MAX + 3))
    b.receive("a", later, NOW)
    assert b.beside([*apart[:-1], first], later) is None  # the first is in already
    assert b.beside([*apart, *[later] * (SUMS_MAX + 1)], later) is None  # the sender keeps it


def test_who_takes_all_and_folds_nothing_in_is_slow() -> None:
    """What waits there in sums gives its places on the link back, so that more is taken."""
    a = peer("a", config=as_nodes(log=4, store=4))
    publish(a)
    a.receive("b", Digest(1, Clock((A1,)), Clock()), NOW)
    publish(a)
    delivery = a.links
    for now in (NOW, NOW + LAGS_S / 2, NOW + 2 * LAGS_S):
        delivery.note_waiting(["b"], now)
        delivery._taken_at["b"] = now
        assert delivery.lags("b", now) == (now > NOW + LAGS_S)
    a.receive("b", Digest(1, Clock((A1, A2)), Clock()), NOW)
    delivery.note_waiting(["b"], now)
    assert not delivery.lags("b", now + LAGS_S / 2)
