"""What one member can cost the others where weights are mixed: one that lies, and one of which
there were too many lives."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from murmurate.core.clock import Clock, Dot
from murmurate.core.effect import Applied, Deliver, Drop, Effect, Send
from murmurate.core.gossip.average.mixing import WEIGHT_LIVES, MixingPeer
from murmurate.core.gossip.average.push_sum import Receipt, Share
from murmurate.core.gossip.average.spread import FAR, TIMES, ModelSpread
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.message import ALIVE, DEAD, Ack, Rumour, Snapshot, SnapshotRequest
from murmurate.core.replica import Replica
from murmurate.errors import RemoteProtocolError

NOW = 100.0
NUMBERS = 200


def weights(seed: int) -> torch.Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(seed))


def peer(name: str, others: str, model: torch.Tensor, **config: Any) -> MixingPeer:
    one = MixingPeer(
        name, 1, Replica(model.clone()), rng=random.Random(name), config=PeerConfig(**config)
    )
    for other in others:
        hear(one, other)
    return one


def hear(one: MixingPeer, name: str, epoch: int = 1, state: str = ALIVE, now: float = NOW) -> None:
    sender = name if state == ALIVE else "z"
    one.receive(sender, Ack(0, name, False, (Rumour(name, epoch, 0, state, "", name),)), now)


def give(one: MixingPeer, sender: str, share: Share, now: float = NOW) -> list[Effect]:
    delivered = [e for e in one.receive(sender, share, now) if isinstance(e, Deliver)]
    assert len(delivered) == 1
    return one.fold(sender, share, now)


# -- one that lies -------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [-1.0, 3.0, 1e6])
def test_a_member_that_lies_is_refused_and_the_others_go_on(lie: float) -> None:
    model = weights(0)
    swarm = {name: peer(name, "abcd".replace(name, ""), model) for name in "abc"}
    for turn in range(1, 6):
        for name, one in swarm.items():
            for other in "abc".replace(name, ""):
                near = model + 0.01 * weights(turn)
                effects = give(one, other, Share(turn, 1, 1, 0.25, near, Clock()))
                assert isinstance(effects[0], Applied)
    before = {name: one.replica.weights.clone() for name, one in swarm.items()}
    for name, one in swarm.items():
        effects = give(one, "d", Share(1, 1, 1, 4.0, lie * model, Clock()))
        assert effects == [
            Drop("d", "far", "its model is far away from all others"),
            Send("d", Receipt(1, 1, 1)),  # it is let go of: nothing waits for it
        ]
        assert torch.equal(one.replica.weights, before[name])
        twin = give(one, "d", Share(1, 1, 1, 4.0, lie * model, Clock()))
        assert isinstance(twin[0], Drop)
        assert twin[0].reason == "duplicate"
        honest = give(one, "d", Share(2, 1, 1, 0.25, model.clone(), Clock()))
        assert isinstance(honest[0], Applied)


def test_who_is_as_far_from_me_as_another_is_not_refused() -> None:
    """After a long cut, or at the beginning: then it may be me who is elsewhere."""
    a = peer("a", "bcd", weights(0))
    for name, seed in (("b", 1), ("c", 2), ("d", 3)):
        assert isinstance(give(a, name, Share(1, 1, 1, 0.5, weights(seed), Clock()))[0], Applied)


def test_of_two_members_each_must_trust_the_other() -> None:
    a = peer("a", "b", weights(0))
    assert isinstance(give(a, "b", Share(1, 1, 1, 0.5, 9 * weights(1), Clock()))[0], Applied)


def test_a_spread_by_hand() -> None:
    spread = ModelSpread()
    assert not spread.is_far("b", 2.0)
    assert not spread.is_far("c", 7.0)  # the other was as far, or nearly
    spread.forget("c")
    for _ in range(300):
        assert not spread.is_far("b", 0.1)  # of late it is near
    assert not spread.is_far("c", FAR)
    assert spread.is_far("b", TIMES * FAR + 0.1)
    assert not spread.is_far("b", TIMES * FAR - 0.1)
    spread.forget("b")
    assert not spread.is_far("c", 50.0)  # nobody to compare it with


def test_no_share_weighs_more_than_all_members() -> None:
    a = peer("a", "bcd", weights(0))
    most = WEIGHT_LIVES * 4
    with pytest.raises(RemoteProtocolError) as caught:
        a.receive("b", Share(1, 1, 1, most + 0.5, weights(0), Clock()), NOW)
    assert caught.value.field == "share.weight"
    assert "all together have 8" in str(caught.value)
    give(a, "b", Share(1, 1, 1, float(most), weights(0), Clock()))


# -- lives that are over ---------------------------------------------------------------------------


def test_after_five_thousand_lives_shares_are_still_taken() -> None:
    """Nodes of spot machines: each makes a step and is gone. The wire takes 4,096 lives of a
    clock."""
    a = peer("a", "b", weights(0), forget_after_s=60.0)
    now, most = NOW, 0
    for life in range(1, 5_001):
        now += 1.0
        held = a.clock.copy()
        held.add(Dot("spot", life, 1))
        share = Share(life, 1, 1, 2.0**-9, weights(0), held)
        hear(a, "b", now=now)
        assert isinstance(give(a, "b", share, now)[0], Applied)
        a.tick(now)
        most = max(most, len(a.clock.keys()))
    assert most < 100
    assert len(a.clock.to_bytes()) < 2048
    assert len(a.averager.uncounted) < 300


def test_a_life_that_is_over_leaves_the_clock_without_a_jump_of_staleness() -> None:
    """Others drop it earlier or later, by less than half of the time; nobody counts that."""
    a = peer("a", "bc", weights(0), forget_after_s=20.0)
    both = Clock([Dot("b", 1, seq) for seq in range(1, 101)])
    theirs = both.copy()
    theirs.add(Dot("c", 1, 1))
    assert give(a, "c", Share(1, 1, 1, 0.5, weights(0), theirs))[0] == Applied(
        (Dot("c", 1, 1),), (101,)
    )
    hear(a, "b", state=DEAD)
    a.tick(NOW)
    for later in (1.0, 9.0, 11.0, 19.0, 21.0, 22.0):
        context = a.context()
        hear(a, "c", now=NOW + later)
        a.tick(NOW + later)
        without = a.clock.without({("b", 1)})
        assert (len(a.clock) >= 100) == (later < 20.0)
        if later > 10.0:  # c has dropped it, and I may not have
            assert a.averager._staleness(without) == 0
            assert a.averager._staleness(theirs) == a.seq
        step = a.publish(torch.zeros(NUMBERS), context)
        assert step[0] == Applied((Dot("a", 1, a.seq),), (0,))
    late = theirs.copy()
    late.add(Dot("c", 1, 2))
    share = Share(2, 1, 1, 0.5, weights(0), late)
    assert give(a, "c", share, NOW + 23)[0] == Applied((Dot("c", 1, 2),), (a.seq + 1,))
    assert a.clock.runs(("b", 1)) == ()  # and it does not come back


def test_who_is_there_after_all_is_in_the_clock_again() -> None:
    a = peer("a", "bc", weights(0), forget_after_s=20.0)
    theirs = Clock([Dot("b", 1, 1)])
    give(a, "c", Share(1, 1, 1, 0.5, weights(0), theirs))
    a.state.clock.add(Dot("q", 1, 1))  # nobody that I have met
    a.tick(NOW + 1)
    a.tick(NOW + 30)
    assert [name for name, _ in a.clock.keys()] == ["b"]
    hear(a, "q", now=NOW + 31)
    a.tick(NOW + 32)
    theirs.add(Dot("q", 1, 1))
    give(a, "c", Share(2, 1, 1, 0.5, weights(0), theirs), NOW + 33)
    assert [name for name, _ in a.clock.keys()] == ["b", "q"]


def test_a_newcomer_is_not_told_of_those_who_are_dropped_soon() -> None:
    a = peer("a", "bc", weights(0), forget_after_s=20.0)
    give(a, "c", Share(1, 1, 1, 0.5, weights(0), Clock([Dot("b", 1, 1), Dot("c", 1, 1)])))
    hear(a, "b", state=DEAD)
    a.tick(NOW)
    a.tick(NOW + 11)
    assert len(a.clock) == 2
    (told,) = [
        e.message for e in a.receive("c", SnapshotRequest(), NOW + 12) if isinstance(e, Send)
    ]
    assert isinstance(told, Snapshot)
    assert list(told.clock) == [Dot("c", 1, 1)]
