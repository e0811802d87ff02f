"""Paper 000, section 2: staleness is the size of a symmetric difference of sets.

The production clock (intervals) is compared with literal sets, and so are the two shortcuts a
reader of the paper would take: per origin the highest number, or the number of updates held.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.message import Stamp
from murmurate.core.replica import Duplicate, Fresh, Replica
from murmurate.study.sim.events import Events

NODES = 8
UPDATES = 1600


@dataclass(frozen=True)
class Delivery:
    fifo: bool = True
    loss: float = 0.0
    twice: float = 0.0


@dataclass
class Tally:
    """Counters are judged on remote updates: an own one meets a superset of its context, so counts
    are right for it whatever was lost."""

    applied: int = 0
    remote: int = 0
    duplicates: int = 0
    clock_wrong: int = 0
    highest_wrong: int = 0
    count_wrong: int = 0


@dataclass
class Twin:
    """The deliberately dumb model: a set, and from it the two kinds of counters."""

    held: frozenset[Dot]
    highest: tuple[int, ...]
    count: tuple[int, ...]

    def plus(self, dot: Dot) -> Twin:
        who = int(dot.origin)
        highest, count = list(self.highest), list(self.count)
        highest[who] = max(highest[who], dot.seq)
        count[who] += 1
        return Twin(self.held | {dot}, tuple(highest), tuple(count))


def l1(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


def deliver(how: Delivery, seed: int) -> Tally:
    """1,600 updates by 8 nodes; each message takes Exp(1) compute times, lost ones stay lost."""
    rng = random.Random(seed)
    zero = torch.zeros(1)
    replicas = [Replica(torch.zeros(1)) for _ in range(NODES)]
    twins = [Twin(frozenset(), (0,) * NODES, (0,) * NODES) for _ in range(NODES)]
    started = [(Clock(), twins[0])] * NODES
    seq = [0] * NODES
    link_s = [[0.0] * NODES for _ in range(NODES)]
    tally = Tally()
    events = Events()

    def apply(who: int, stamp: Stamp, basis: Twin) -> None:
        outcome = replicas[who].fold((stamp,), zero)
        mine = twins[who]
        if stamp.dot in mine.held:
            assert outcome == Duplicate(1)
            tally.duplicates += 1
            return
        assert isinstance(outcome, Fresh)
        true = len(basis.held ^ mine.held)
        tally.applied += 1
        tally.clock_wrong += outcome.staleness[0] != true
        if stamp.dot.origin != str(who):
            tally.remote += 1
            tally.highest_wrong += l1(basis.highest, mine.highest) != true
            tally.count_wrong += l1(basis.count, mine.count) != true
        twins[who] = mine.plus(stamp.dot)

    def publish(who: int) -> None:
        if sum(seq) == UPDATES:
            return
        seq[who] += 1
        context, basis = started[who]
        stamp = Stamp(Dot(str(who), 1, seq[who]), context)
        apply(who, stamp, basis)
        for other in range(NODES):
            if other == who:
                continue
            for _ in range(1 + (rng.random() < how.twice)):
                arrival_s = events.time + rng.expovariate(1.0)
                if how.fifo:
                    arrival_s = link_s[who][other] = max(arrival_s, link_s[who][other])
                if rng.random() >= how.loss:
                    events.at(arrival_s, apply, other, stamp, basis)
        started[who] = (replicas[who].context(), twins[who])
        events.after(rng.expovariate(1.0), publish, who)

    for who in range(NODES):
        events.at(rng.random(), publish, who)
    while events:
        events.step()
    for replica, twin in zip(replicas, twins, strict=True):
        assert set(replica.clock) == twin.held
    return tally


CASES = {
    "fifo": Delivery(),
    "fifo, 10 % twice": Delivery(twice=0.1),
    "reorder": Delivery(fifo=False),
    "5 % loss": Delivery(loss=0.05),
    "reorder, 5 % loss, 10 % twice": Delivery(fifo=False, loss=0.05, twice=0.1),
}


@pytest.mark.parametrize("name", CASES)
def test_section_2_the_clock_is_the_set(name: str) -> None:
    """«We define the staleness here as the symmetric difference of both gradient sets», and nothing
    in section 2 asks for an order of delivery: «commutative operations, all the n models would
    eventually get synchronized».

    The clock is never wrong. Counters are right only while nothing is lost or overtaken. (They are
    given the benefit of the doubt: duplicates are recognised for them by the true set.)
    """
    how = CASES[name]
    tally = deliver(how, seed=614310)
    assert tally.remote >= 10_000
    assert tally.clock_wrong == 0
    assert (tally.duplicates > 500) == (how.twice > 0)
    if how.loss:
        assert min(tally.highest_wrong, tally.count_wrong) > 0.9 * tally.remote
    elif not how.fifo:
        assert min(tally.highest_wrong, tally.count_wrong) > 0.05 * tally.remote
    else:
        assert tally.highest_wrong == tally.count_wrong == 0
