"""The dealer of batches: by rule, and through random worlds beside a twin that keeps plain sets."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from murmurate.core.batches import dealer as dealers
from murmurate.core.batches.dealer import (
    AHEAD_MAX,
    LEASE_S,
    MARGIN_S,
    NOBODY,
    SETTLE_S,
    Dealer,
    Take,
    Totals,
)
from murmurate.core.batches.held import NO_BATCHES, HeldBatches, runs_of
from murmurate.core.intervals import Runs, runs_has
from murmurate.errors import LocalProtocolError, RemoteProtocolError

OVER_S = LEASE_S + MARGIN_S + SETTLE_S


def numbers(runs: Runs) -> set[int]:
    return {n for i in range(0, len(runs), 2) for n in range(runs[i], runs[i + 1] + 1)}


def table(total: int | None = None, *names: str) -> Dealer:
    dealer = Dealer(total)
    for name in names:
        dealer.join(name)
        dealer.take(name, Take(), 0.0)
    return dealer


def says(dealer: Dealer, now: float, **here: tuple[int, ...]) -> None:
    """All of these are heard, and what that means is settled."""
    for name, held in here.items():
        dealer.take(name, Take(here=runs_of(held)), now)
    dealer.settle(now)


# -- by rule ---------------------------------------------------------------------------------------


def test_one_to_each_in_turn_and_no_more_than_there_are() -> None:
    dealer = table(5, "a", "b")
    dealer.take("a", Take(more=4), 0.0)
    dealer.take("b", Take(more=4), 0.0)
    assert dealer.deal() == {"a": [1, 3, 5], "b": [2, 4]}
    assert dealer.deal() == {}
    assert dealer.lease("a") == (1, 1, 3, 3, 5, 5)
    assert dealer.totals == Totals(batches=5)


def test_done_when_all_hold_it_and_not_before() -> None:
    dealer = table(2, "a", "b")
    dealer.take("a", Take(more=2), 0.0)
    dealer.deal()
    says(dealer, 1.0, a=(1, 2), b=(1,))
    assert dealer.totals.consumed == 1
    assert dealer.needs(2)
    dealer.join("c")
    says(dealer, 2.0, a=(1, 2), b=(1, 2))
    assert dealer.needs(2), "c was not heard: it may lack it"
    says(dealer, 3.0, c=(1, 2))
    assert dealer.over


def test_what_a_dead_one_had_is_dealt_again_when_its_lease_is_over() -> None:
    dealer = table(2, "a", "b")
    dealer.take("a", Take(more=2), 10.0)
    dealer.deal()
    dealer.leave("a")
    early = 10.0 + OVER_S - 0.1
    says(dealer, early, b=())
    dealer.take("b", Take(more=2), early)
    assert dealer.deal() == {}, "it may have been published, and be on its way"
    dealer.settle(early + 0.2)
    assert dealer.deal() == {}, "b was not heard since"
    says(dealer, early + 0.3, b=(2,))
    assert dealer.deal() == {"b": [1]}, "the update with 2 got through"
    assert dealer.totals == Totals(batches=2, consumed=1, dealt_again=1)


def test_one_that_is_heard_keeps_what_it_has_however_long_it_takes() -> None:
    dealer = table(1, "a", "b")
    dealer.take("a", Take(more=1), 0.0)
    dealer.deal()
    for now in range(1, 100):
        says(dealer, float(now), a=(), b=())
    assert dealer.lease("a") == (1, 1)


def test_one_that_was_frozen_finds_that_its_batches_are_with_others() -> None:
    dealer = table(1, "a", "b")
    dealer.take("a", Take(more=1), 0.0)
    dealer.deal()
    dealer.take("b", Take(more=1), OVER_S + 1)
    dealer.settle(OVER_S + 1)
    assert dealer.deal() == {"b": [1]}
    dealer.take("a", Take(), OVER_S + 2)
    assert dealer.lease("a") == ()


def test_what_comes_to_light_after_all_is_not_dealt_again() -> None:
    dealer = table(1, "a", "b")
    dealer.take("a", Take(more=1), 0.0)
    dealer.deal()
    dealer.leave("a")
    says(dealer, OVER_S + 1, b=())
    says(dealer, OVER_S + 2, b=(1,))
    assert dealer.totals == Totals(batches=1, consumed=1)


def test_given_back_and_spent() -> None:
    dealer = table(3, "a", "b")
    dealer.take("a", Take(more=3), 0.0)
    dealer.deal()
    dealer.take("b", Take(more=1, back=(1, 1), spent=(2, 2)), 1.0)
    assert dealer.deal() == {}, "they are not its own"
    dealer.take("a", Take(back=(1, 1), spent=(2, 2)), 1.0)
    assert dealer.deal() == {"b": [1]}
    assert dealer.totals == Totals(batches=3, consumed=1, spent=1, dealt_again=1)


def test_what_did_not_arrive_before_the_stream_broke_is_for_others() -> None:
    dealer = table(4, "a", "b")
    dealer.take("a", Take(more=4), 0.0)
    dealer.deal()
    dealer.again("a")
    dealer.take("a", Take(keeps=(2, 2), here=(1, 1)), 1.0)
    assert dealer.lease("a") == (1, 2)
    dealer.take("b", Take(more=4), 1.0)
    assert dealer.deal() == {"b": [3, 4]}
    dealer.take("a", Take(), 2.0)
    assert dealer.lease("a") == (1, 2), "only its first word on a stream says so"


def test_twice_is_counted_once_whoever_says_it() -> None:
    dealer = table(9, "a", "b")
    dealer.take("a", Take(more=9), 0.0)
    dealer.deal()
    dealer.take("a", Take(here=(1, 9), twice=(3, 4)), 1.0)
    dealer.take("b", Take(here=(1, 9), twice=(4, 5)), 1.0)
    assert dealer.totals.repeated == 3


@pytest.mark.parametrize(
    ("take", "sentence"),
    [
        (Take(keeps=(5, 5)), r"take\.keeps: batch 5"),
        (Take(back=(3, 3)), r"take\.back: batch 3"),
        (Take(spent=(3, 4)), r"take\.spent: batch 4"),
        (Take(more=AHEAD_MAX + 1), r"take\.more"),
    ],
)
def test_what_was_never_dealt_is_refused_and_changes_nothing(take: Take, sentence: str) -> None:
    dealer = table(None, "a")
    dealer.take("a", Take(more=2), 0.0)
    dealer.deal()
    before = json.dumps(dealer.memory())
    with pytest.raises(RemoteProtocolError, match=sentence):
        dealer.take("a", take, 1.0)
    assert json.dumps(dealer.memory()) == before
    with pytest.raises(LocalProtocolError):
        Dealer(0)


def test_a_batch_that_another_invented_costs_nobody_its_place() -> None:
    """An update that lies about its batches is in everybody's weights: all would be refused."""
    dealer = table(4, "a", "b")
    dealer.take("a", Take(more=2), 0.0)
    assert dealer.deal() == {"a": [1, 2]}
    for name in ("a", "b"):
        dealer.take(name, Take(here=(1, 2, 9, 1 << 40), twice=(2, 2, 9, 9)), 1.0)
    dealer.settle(1.0)
    told = dealer.totals
    assert (told.consumed, told.repeated, told.undealt) == (2, 1, (1 << 40) - 8)
    assert not dealer.over
    dealer.take("b", Take(here=(1, 2), more=2), 2.0)
    assert dealer.deal() == {"b": [3, 4]}


def test_closed_it_deals_no_more_than_is_out() -> None:
    dealer = table(None, "a", "b")
    dealer.take("a", Take(more=3), 0.0)
    dealer.deal()
    dealer.close()
    dealer.take("b", Take(more=3), 0.0)
    assert dealer.deal() == {}
    dealer.take("a", Take(back=(3, 3)), 1.0)
    says(dealer, 1.0, a=(1, 2), b=(1, 2))
    assert dealer.over, "the last came back, and need not be made"
    assert dealer.totals == Totals(batches=2, consumed=2)


def test_numbers_beyond_what_is_durable_are_not_dealt() -> None:
    dealer = table(None, "a")
    dealer.reserved = 2
    dealer.take("a", Take(more=5), 0.0)
    assert dealer.deal() == {"a": [1, 2]}
    dealer.reserved = dealer.memory()["reserved"]
    assert dealer.deal() == {"a": [3, 4, 5]}


def test_a_restart_deals_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealers, "RESERVE", 4)
    first = table(20, "a", "b")
    memory = json.loads(json.dumps(first.memory()))
    first.reserved = 4
    first.take("a", Take(more=4), 0.0)
    assert first.deal() == {"a": [1, 2, 3, 4]}
    again = Dealer(20)  # killed, with a checkpoint of before all this
    again.remember(memory)
    for name in ("a", "b"):
        again.join(name)
    again.take("a", Take(keeps=(3, 4), here=(1, 1), more=1), 100.0)
    again.take("b", Take(here=(1, 1), more=1), 100.0)
    assert again.lease("a") == (3, 4), "what it says it has is its own"
    assert again.deal() == {}, "nothing new before the next checkpoint"
    again.settle(100.0)
    again.reserved = again.memory()["reserved"]
    assert again.deal() == {"a": [5], "b": [6]}
    again.take("b", Take(here=(1, 1), more=1), 101.0)
    assert again.deal() == {"b": [7]}, "2 may be in an update that is on its way"
    later = 100.0 + OVER_S + 0.1
    for name, here in (("a", (1, 1)), ("b", (1, 1))):
        again.take(name, Take(here=here, more=1), later)
    again.settle(later)
    assert again.deal() == {"a": [2], "b": [8]}, "it did not arrive, and nobody published it"
    assert again.totals.consumed == 1


# -- random worlds ---------------------------------------------------------------------------------

GRACE_S, DELAY_S, STEP_S = 5.0, 1.5, 0.1
"""How long sessions keep a seat, how long an update is on its way, and a turn of the world."""
Update = tuple[int, Runs]


@dataclass
class Peer:
    """One life: what it holds, and what a node does with batches."""

    name: str
    updates: dict[int, Runs] = field(default_factory=dict)
    ready: list[int] = field(default_factory=list)
    coming: int = 0
    until: float = 0.0
    first: bool = True
    linked: bool = True
    away_s: float = 0.0
    frozen_s: float = 0.0

    @property
    def held(self) -> HeldBatches:
        held = NO_BATCHES
        for one in self.updates.values():
            held = held.add(one)
        return held


class World:
    """Peers that publish to each other, and a dealer; deaths, frozen ones, cut streams, restarts.

    Every time is drawn; updates arrive within `DELAY_S`, as gossip's do."""

    def __init__(self, seed: int, *, kills: bool, restarts: bool) -> None:
        self.rng = random.Random(seed)
        self.kills, self.restarts = kills, restarts
        self.total = self.rng.randrange(20, 120)
        self.now, self.lives, self.ids = 0.0, 0, 0
        self.peers: dict[str, Peer] = {}
        self.seats: dict[str, float | None] = {}
        """By name of a life: since when it is away; None: it is here."""
        self.flying: list[tuple[float, str, Update]] = []
        self.spent: set[int] = set()
        self.dealer = Dealer(self.total)
        self.memory, self.known = self.dealer.memory(), set[str]()
        self.dealer.reserved = self.memory["reserved"]
        self.killed_s = -100.0
        for _ in range(self.rng.randrange(2, 5)):
            self.come()

    def come(self) -> None:
        """A newcomer with a snapshot of somebody's."""
        self.lives += 1
        peer = Peer(f"p{self.lives}")
        if self.peers:
            peer.updates = dict(self.rng.choice(list(self.peers.values())).updates)
        self.peers[peer.name] = peer
        self.link(peer)

    def link(self, peer: Peer) -> None:
        peer.linked, peer.first, peer.coming = True, True, 0
        if peer.name in self.seats:
            self.dealer.again(peer.name)
        else:
            self.dealer.join(peer.name)
        self.seats[peer.name] = None

    def run(self) -> None:
        while not self.dealer.over:
            self.now += STEP_S
            assert self.now < 2000, "it never ends"
            self.faults()
            for due, to, (one, batches) in [each for each in self.flying if each[0] <= self.now]:
                self.flying.remove((due, to, (one, batches)))
                if to in self.peers:
                    self.peers[to].updates[one] = batches
            for peer in list(self.peers.values()):
                if self.now >= peer.frozen_s:
                    self.turn(peer)
            self.dealer.settle(self.now)
            for name, dealt in self.dealer.deal().items():
                there = self.peers.get(name)
                if there is not None and there.linked and self.rng.random() < 0.98:
                    there.ready += dealt
                    there.coming -= len(dealt)
                elif there is not None and there.linked:
                    self.cut(there)  # they were lost with the stream

    def faults(self) -> None:
        rng = self.rng
        quiet = self.now - self.killed_s > 12.0
        if self.kills and quiet and len(self.peers) > 2 and rng.random() < 0.01:
            self.killed_s = self.now
            name = rng.choice(list(self.peers))
            del self.peers[name]
            self.seats[name] = self.now
            if rng.random() < 0.5:
                self.come()
        for peer in self.peers.values():
            if rng.random() < 0.003:
                peer.frozen_s = self.now + rng.uniform(0, 12)
            if peer.linked and rng.random() < 0.005:
                self.cut(peer)
            if not peer.linked and self.now > peer.away_s:
                self.link(peer)
        for name, since in list(self.seats.items()):
            if since is not None and self.now > since + GRACE_S:
                self.dealer.leave(name)
                del self.seats[name]
        if rng.random() < 0.1:
            self.memory, self.known = self.dealer.memory(), set(self.seats)
            self.dealer.reserved = self.memory["reserved"]
        if self.restarts and rng.random() < 0.005:
            self.dealer = Dealer()
            self.dealer.remember(json.loads(json.dumps(self.memory)))
            self.seats = dict.fromkeys(self.known, self.now + 15.0)
            for name in self.known:
                self.dealer.join(name)
            for peer in self.peers.values():
                peer.linked, peer.away_s = False, self.now + rng.uniform(0.1, 2.0)

    def cut(self, peer: Peer) -> None:
        peer.linked, peer.away_s = False, self.now + self.rng.uniform(0.1, 8.0)
        self.seats[peer.name] = self.now

    def turn(self, peer: Peer) -> None:
        """A node's turn: it repairs what it lacks, trains, publishes, and says a word."""
        rng = self.rng
        for one, batches in rng.choice(list(self.peers.values())).updates.items():
            if one not in peer.updates:
                self.flying.append((self.now + 0.5, peer.name, (one, batches)))
        if peer.ready and self.now < peer.until and rng.random() < 0.5:
            count = rng.randrange(1, len(peer.ready) + 1)
            numbers, peer.ready = peer.ready[:count], peer.ready[count:]
            self.ids += 1
            update = (self.ids, runs_of(numbers))
            peer.updates[self.ids] = update[1]
            for other in self.peers:
                self.flying.append((self.now + rng.uniform(0.1, DELAY_S), other, update))
        if peer.linked and rng.random() < 0.5:
            back = runs_of(rng.sample(peer.ready, 1)) if peer.ready and rng.random() < 0.1 else ()
            peer.ready = [n for n in peer.ready if not runs_has(back, n)]
            held = peer.held
            more = max(0, 8 - len(peer.ready) - peer.coming) if rng.random() < 0.5 else 0
            take = Take(
                more=more,
                here=held.numbers,
                twice=held.repeated,
                keeps=runs_of(peer.ready) if peer.first else (),
                back=back,
            )
            self.dealer.take(peer.name, take, self.now)
            peer.first = False
            peer.coming += more
            lease = self.dealer.lease(peer.name)
            peer.ready = [n for n in peer.ready if runs_has(lease, n)]
            peer.until = self.now + LEASE_S

    def check(self) -> None:
        ends = {one: runs for peer in self.peers.values() for one, runs in peer.updates.items()}
        for peer in self.peers.values():
            peer.updates |= ends  # what is on its way arrives, and gossip repairs what got lost
            counts = Counter(n for runs in peer.updates.values() for n in numbers(runs))
            assert counts == Counter(range(1, self.total + 1)), peer.name
        assert self.dealer.totals.repeated == 0
        assert self.dealer.totals.consumed == self.dealer.totals.batches == self.total


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_each_batch_is_in_exactly_one_update(kills: bool, restarts: bool) -> None:
    for seed in range(60):
        world = World(seed, kills=kills, restarts=restarts)
        world.run()
        try:
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_worlds_find_a_dealer_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way is in nobody's weights: without the pause it would be dealt again."""
    monkeypatch.setattr(dealers, "SETTLE_S", -LEASE_S)
    with pytest.raises(AssertionError, match="seed"):
        test_each_batch_is_in_exactly_one_update(True, False)


def test_one_cut_off_longer_than_all_waited_is_counted() -> None:
    """It published what nobody had, and nobody can know that: the batch is in two updates."""
    dealer = table(1, "a", "b")
    dealer.take("a", Take(more=1), 0.0)
    dealer.deal()
    dealer.leave("a")  # it has published, and its update is not on its way
    says(dealer, OVER_S + 1, b=())
    dealer.take("b", Take(more=1), OVER_S + 1)
    assert dealer.deal() == {"b": [1]}
    held = NO_BATCHES.add((1, 1)).add((1, 1))
    dealer.join("a")
    for name in ("a", "b"):
        take = Take(here=held.numbers, twice=held.repeated)
        dealer.take(name, take, OVER_S + 3)
    dealer.settle(OVER_S + 3)
    assert dealer.totals == Totals(batches=1, consumed=1, dealt_again=1, repeated=1)
    assert NOBODY == ""
