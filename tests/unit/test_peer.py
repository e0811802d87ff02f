"""`core/gossip/peer.py`: by hand, message by message, and small swarms of it in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.driver import Driver, Life, Ports, Seen
from murmurate.core.effect import (
    Adopted,
    Applied,
    Deliver,
    Drop,
    Effect,
    Moved,
    Rejoin,
    Save,
    Send,
    Verdict,
)
from murmurate.core.forgetting.vow import VOTE_INTERVALS, Vow
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.gossip.delivery import NARROW_UPDATES
from murmurate.core.gossip.past import Past
from murmurate.core.gossip.peer import Peer
from murmurate.core.message import (
    ALIVE,
    DEAD,
    LEFT,
    Ack,
    Decided,
    Digest,
    Generation,
    Lack,
    Prepare,
    Promise,
    Push,
    Rumour,
    Snapshot,
    SnapshotRequest,
    Stamp,
    Want,
    summed,
)
from murmurate.core.replica import Replica
from murmurate.errors import LocalProtocolError, RemoteProtocolError

ELEMENTS = 2
PUSH_BYTES = 8 * ELEMENTS
NOW = 100.0
A1, A2, A3 = (Dot("a", 1, seq) for seq in (1, 2, 3))
B1 = Dot("b", 1, 1)
X1, X2 = Dot("x", 1, 1), Dot("x", 1, 2)


def value(dot: Dot) -> torch.Tensor:
    """What an update adds: no two different sets of updates have the same sum."""
    rng = random.Random(str(dot))
    return torch.tensor([rng.randrange(2**40) for _ in range(ELEMENTS)])


def weights(*dots: Dot) -> list[int]:
    """What the weights must be with these updates in them, once each."""
    return sum((value(dot) for dot in dots), torch.zeros(ELEMENTS, dtype=torch.int64)).tolist()


def push(*dots: Dot, context: Clock | None = None) -> Push:
    stamps = tuple(Stamp(dot, Clock() if context is None else context) for dot in dots)
    return Push(stamps, sum((value(dot) for dot in dots[1:]), value(dots[0])))


def founding(names: Iterable[str]) -> tuple[Generation, ...]:
    return (Generation(0, tuple(names)),)


def peer(name: str, names: str = "abc", *, epoch: int = 1, **more: Any) -> Peer:
    """One peer that has met the others."""
    more.setdefault("history", founding(names))
    more.setdefault("replica", Replica(torch.zeros(ELEMENTS, dtype=torch.int64)))
    replica = more.pop("replica")
    made = Peer(name, epoch, replica, rng=random.Random(f"{name}/{epoch}"), **more)
    for other in names:
        if other != name:
            tell(made, Rumour(other, 1, 0, ALIVE))
    return made


def tell(to: Peer, *rumours: Rumour, sender: str = "", now: float = 0.0) -> None:
    sender = sender or rumours[0].name
    to.receive(sender, Ack(0, sender, rumours=rumours), now)


def publish(by: Peer, *, context: Clock | None = None) -> Push:
    """One more update of a peer's own, as its log has it."""
    dot = Dot(by.name, by.epoch, by.seq + 1)
    by.publish(value(dot), by.context() if context is None else context)
    return next(push for push in by.log if dot in push.dots)


def decide(by: Peer, *numbers: int, folds: Any = (), now: float = NOW) -> list[Effect]:
    """Let generations be decided, the first of them with these folds."""
    effects: list[Effect] = []
    for number in numbers:
        generation = Generation(number, by.baseline.roster, folds)
        effects += by.fold("b", Decided((generation,)), now)
        folds = ()
    return effects


def sent(effects: Iterable[Effect], kind: type = object) -> list[tuple[str, Any]]:
    return [
        (effect.to, effect.message)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def dropped(effects: list[Effect]) -> str:
    return ", ".join(effect.reason for effect in effects if isinstance(effect, Drop))


def state(of: Peer) -> tuple[list[int], Clock]:
    return of.replica.weights.tolist(), of.clock.copy()


# -- swarms --------------------------------------------------------------------------------------


@dataclass
class Disk:
    """What a crash leaves."""

    epoch: int = 0
    vow: Vow | None = None
    history: tuple[Generation, ...] = ()
    met: tuple[str, ...] = ()
    checkpoint: Snapshot | None = None
    log: tuple[Push, ...] = ()
    """Of the checkpoint."""


@dataclass
class Outside:
    """The ports of one peer's driver: the wire, its disk, and the list of what happened."""

    swarm: Swarm
    name: str

    def meet(self, to: str) -> None:
        pass

    def post(self, to: str, message: Any) -> None:
        self.swarm.post(self.name, to, message)

    def free(self, to: str) -> bool:
        return self.swarm.free(self.name, to)

    def carry(self, to: str, message: Any) -> bool:
        return self.swarm.carry(self.name, to, message)

    def save(self, key: str, value: Any) -> bool:
        self.swarm.done.append((self.name, Save(key, value)))
        setattr(self.swarm.disks[self.name], key, value)
        return True

    def begin_again(self, reason: str, now: float) -> Life[Peer] | None:
        raise AssertionError(f"nobody is voted out here: {self.name}, {reason}")

    def saw(self, effect: Seen) -> None:
        self.swarm.done.append((self.name, effect))


class Swarm:
    """Peers under the driver of nodes, their disks, and links that lose what `lost` says;
    everything else arrives at once, and is folded in at once."""

    def __init__(self, names: str, config: PeerConfig | None = None) -> None:
        self.config = config or PeerConfig()
        self.now = NOW
        self.names = names
        self.peers: dict[str, Peer] = {}
        self.drivers: dict[str, Driver[Peer]] = {}
        self.disks: dict[str, Disk] = {}
        self.made: list[Dot] = []
        self.wire: list[tuple[str, str, Any]] = []
        self.passed: list[tuple[str, str, Any]] = []
        """All that arrived."""
        self.done: list[tuple[str, Effect]] = []
        """All effects but messages, and whose they were."""
        self.lost: Callable[[str, str, Any], bool] = lambda sender, to, message: False
        for name in names:
            self.start(name, founder=True)

    def __getitem__(self, name: str) -> Peer:
        return self.peers[name]

    def start(self, name: str, *, founder: bool = False) -> None:
        """A process starts on what its disk has."""
        disk = self.disks.setdefault(name, Disk())
        disk.epoch += 1
        old = disk.checkpoint
        weights = torch.zeros(ELEMENTS, dtype=torch.int64) if old is None else old.weights.clone()
        history = founding(self.names) if founder else () if old is None else old.history
        made = Peer(
            name,
            disk.epoch,
            Replica(weights, Clock() if old is None else old.clock.copy()),
            rng=random.Random(f"{name}/{disk.epoch}"),
            config=self.config,
            history=history,
            past=Past(log=disk.log, vow=disk.vow),
            synced=founder or old is not None,
        )
        self.begin(name, made, [n for n in self.names if n != name])
        if founder:
            self.checkpoint(name)

    def begin(self, name: str, made: Peer, seeds: Iterable[str]) -> None:
        outside = Outside(self, name)
        ports = Ports(network=outside, disk=outside, lives=outside, watch=outside)
        self.peers[name], self.drivers[name] = made, Driver(ports)
        self.drivers[name].begin(Life(made, seeds), self.now)
        self.pump(name)

    def checkpoint(self, *names: str) -> None:
        for name in names or tuple(self.peers):
            if self[name].synced:
                snapshot = self[name].snapshot()
                self.disks[name].checkpoint = snapshot
                self.disks[name].log = tuple(self[name].log)
                self[name].checkpointed(snapshot.clock)

    def crash(self, name: str) -> None:
        del self.peers[name]

    def publish(self, name: str) -> Dot:
        by = self[name]
        dot = Dot(name, by.epoch, by.seq + 1)
        self.made.append(dot)
        self.drivers[name].publish(value(dot), by.context(), self.now)
        self.pump(name)
        return dot

    def leave(self, name: str) -> None:
        self.drivers[name].leave(self.now)
        self.pump(name)

    def receive(self, name: str, sender: str, message: Any) -> None:
        self.drivers[name].receive(sender, message, self.now)
        self.pump(name)

    def pump(self, name: str) -> None:
        """Fold in what came, and let leave what is to."""
        driver = self.drivers[name]
        while driver.fold(self.now) is not None:
            pass
        driver.pump(self.now)

    def post(self, name: str, to: str, message: Any) -> None:
        self.wire.append((name, to, message))

    def free(self, name: str, to: str) -> bool:
        return True

    def carry(self, name: str, to: str, message: Any) -> bool:
        self.wire.append((name, to, message))
        return False  # this wire never says what it lost

    def flush(self) -> None:
        """Deliver what is on its way, and what follows from it."""
        while self.wire:
            sender, to, message = self.wire.pop(0)
            if to not in self.peers or self.lost(sender, to, message):
                continue
            self.passed.append((sender, to, message))
            self.receive(to, sender, message)

    def run(self, seconds: float, step_s: float = 0.1) -> None:
        """Let time pass; checkpoints every second."""
        for i in range(1, round(seconds / step_s) + 1):
            self.now += step_s
            for name in list(self.peers):
                self.drivers[name].tick(self.now)
                self.pump(name)
            self.flush()
            if i % round(1 / step_s) == 0:
                self.checkpoint()

    def cut(self, *sides: str) -> None:
        self.lost = lambda sender, to, message: (
            not any(sender in side and to in side for side in sides)
        )

    def heal(self) -> None:
        self.lost = lambda sender, to, message: False

    def effects(self, kind: type, name: str = "") -> list[Any]:
        return [e for who, e in self.done if isinstance(e, kind) and name in ("", who)]

    def assert_converged(self) -> None:
        """Everyone has every update that was ever made, once."""
        for name, each in self.peers.items():
            assert each.replica.weights.tolist() == weights(*self.made), name
            assert len(each.clock) == len(self.made), name
        clocks = [each.clock for each in self.peers.values()]
        assert all(clock == clocks[0] for clock in clocks)


# -- the first peer ------------------------------------------------------------------------------


def test_a_founder_is_a_swarm_of_one_and_a_newcomer_begins_with_its_snapshot() -> None:
    a = Peer.found("a", torch.zeros(ELEMENTS, dtype=torch.int64), rng=random.Random(0))
    assert a.synced
    assert a.gives()
    assert a.baseline.roster == ("a",)
    assert a.others.even() is a.others.caught_up() is True
    publish(a)
    b = Peer("b", 1, Replica(value(B1)), rng=random.Random(1), synced=False)
    (adopted,) = b.fold("a", a.snapshot(), NOW)
    assert isinstance(adopted, Adopted)
    assert state(b) == (weights(A1), Clock((A1,)))
    assert b.baseline.roster == ("a",)


# -- my own updates ------------------------------------------------------------------------------


def test_an_update_gets_its_id_goes_into_the_weights_and_waits_for_the_links() -> None:
    a = peer("a")
    assert a.publish(value(A1), a.context()) == [Applied((A1,), (0,))]
    assert state(a) == (weights(A1), Clock((A1,)))
    assert a.ready(NOW) == ["b", "c"]
    assert A1 in a.log
    assert [publish(a).dots for _ in range(2)] == [(A2,), (A3,)]


def test_a_new_life_starts_a_new_epoch() -> None:
    """So it need not know how many ids the last one used."""
    a = peer("a", epoch=2, past=Past(log=(push(A1),)))
    assert publish(a).dots == (Dot("a", 2, 1),)


def test_the_staleness_of_my_update_is_what_came_since_its_context() -> None:
    a = peer("a")
    context = a.context()
    a.fold("b", push(B1), NOW)
    a.fold("x", push(X1), NOW)
    assert a.publish(value(A1), context) == [Applied((A1,), (2,))]


def test_a_context_of_the_generation_before_is_understood() -> None:
    a = peer("a")
    a.fold("x", push(X1), NOW)
    context = a.context()
    decide(a, 1, folds=((("x", 1), (1, 1)),))
    assert a.publish(value(A1), context) == [Applied((A1,), (0,))]
    assert state(a) == (weights(X1, A1), Clock((A1,), generation=1, base=1))
    taken = a.take("b", NOW)
    assert taken is not None
    assert taken.stamps[0].context == Clock(generation=1, base=1)


def test_misuse_is_told_to_the_caller() -> None:
    """And nothing has changed."""
    a = peer("a", config=PeerConfig(history_max=2))
    old = a.context()
    decide(a, 1, 2, 3)
    with pytest.raises(LocalProtocolError, match="too old"):
        a.publish(value(A1), old)
    with pytest.raises(LocalProtocolError, match="generation 4"):
        a.publish(value(A1), Clock(generation=4))
    with pytest.raises(LocalProtocolError, match="3 elements"):
        a.publish(torch.zeros(3, dtype=torch.int64), a.context())
    with pytest.raises(LocalProtocolError, match="float32"):
        a.publish(torch.zeros(ELEMENTS), a.context())
    with pytest.raises(LocalProtocolError, match="no snapshot"):
        peer("n", synced=False).publish(value(A1), Clock())
    with pytest.raises(LocalProtocolError, match="from 1"):
        peer("a", epoch=0)
    assert state(a) == ([0, 0], Clock(generation=3))
    assert publish(a).dots == (A1,)


# -- what becomes of a push ----------------------------------------------------------------------


def test_a_fresh_update_is_applied_with_its_staleness() -> None:
    """The size of the symmetric difference of its context and my clock."""
    b = peer("b")
    b.fold("x", push(X1), NOW)
    before = state(b)
    (effect,) = b.receive("a", push(A1, context=Clock((X1, X2))), NOW)
    assert isinstance(effect, Deliver)
    assert state(b) == before  # until the thread that owns the weights folds it
    assert b.fold(effect.sender, effect.message, NOW) == [Applied((A1,), (1,))]
    assert state(b) == (weights(X1, A1), Clock((X1, A1)))


def test_each_update_in_a_sum_has_its_own_staleness() -> None:
    """As if they had been applied one after another."""
    b = peer("b")
    total = summed([push(A1), push(A2, context=Clock((A1,))), push(X1)])
    assert b.fold("a", total, NOW) == [Applied((A1, A2, X1), (0, 0, 2))]
    assert state(b) == (weights(A1, A2, X1), Clock((A1, A2, X1)))


def test_a_duplicate_changes_nothing() -> None:
    """Whether the update is in the clock or in the baseline."""
    b = peer("b")
    b.fold("x", push(X1), NOW)
    assert dropped(b.fold("a", push(X1), NOW)) == "duplicate"
    decide(b, 1, folds=((("x", 1), (1, 1)),))
    before = state(b)
    assert dropped(b.fold("a", push(X1), NOW)) == "duplicate"
    assert state(b) == before


def test_a_sum_that_overlaps_is_not_applied_and_its_origins_are_asked() -> None:
    """For what I lack of it, one by one."""
    b = peer("b")
    b.fold("a", push(A1), NOW)
    before = state(b)
    effects = b.fold("c", push(A1, A2, A3, Dot("c", 1, 1), X1), NOW)
    assert dropped(effects) == "overlap"
    assert sent(effects) == [
        ("a", Want((Range("a", 1, 2, 3),))),
        ("c", Want((Range("c", 1, 1, 1),))),
    ]  # x is not there to be asked
    assert state(b) == before


def test_a_sum_that_overlaps_the_baseline_is_not_applied() -> None:
    """What is folded is in my weights as much as what is in my clock."""
    b = peer("b")
    b.fold("x", push(X1), NOW)
    decide(b, 1, folds=((("x", 1), (1, 1)),))
    before = state(b)
    effects = b.fold("c", push(X1, A1), NOW)
    assert dropped(effects) == "overlap"
    assert sent(effects) == [("a", Want((Range("a", 1, 1, 1),)))]
    assert state(b) == before


def test_an_update_of_a_later_generation_makes_me_ask() -> None:
    """My digest shows that I am behind; the answer tells me what was decided."""
    b = peer("b")
    effects = b.fold("a", push(A1, context=Clock(generation=1, base=3)), NOW)
    assert dropped(effects) == "ahead"
    ((to, digest),) = sent(effects, Digest)
    assert (to, digest.clock) == ("a", Clock())
    a = peer("a")
    decide(a, 1)
    ((_, told),) = sent(a.receive("b", digest, NOW), Decided)
    b.fold("a", told, NOW)
    assert b.baseline.number == 1


def test_an_update_whose_epoch_was_closed_without_it_is_retired() -> None:
    """All members agreed that there is no such update."""
    b = peer("b")
    b.fold("x", push(X1), NOW)
    decide(b, 1, folds=((("x", 1), (1, 1)),))
    before = state(b)
    assert dropped(b.fold("a", push(X2), NOW)) == "retired"
    assert dropped(b.fold("a", push(A1, X2), NOW)) == "retired"
    assert state(b) == before


def test_an_update_computed_before_my_history_is_retired() -> None:
    """Its staleness could not be told, nor whether its epoch was folded."""
    b = peer("b", config=PeerConfig(history_max=2))
    decide(b, 1, 2)
    assert b.fold("a", push(A1), NOW) == [Applied((A1,), (0,))]
    decide(b, 3)
    before = state(b)
    assert dropped(b.fold("a", push(A2), NOW)) == "retired"
    assert state(b) == before


def test_an_update_of_an_epoch_that_is_being_folded_waits() -> None:
    """I promised to take no more of it until the vote is over."""
    b = peer("b")
    b.fold("x", push(X1), 0.0)
    tell(b, Rumour("x", 2, 0, ALIVE))
    ((to, promise),) = sent(b.receive("a", Prepare(1, (1, "a"), (("x", 1),)), NOW), Promise)
    assert (to, promise.held) == ("a", ((("x", 1), (1, 1)),))
    before = state(b)
    assert dropped(b.fold("x", push(X2), NOW)) == "closing"
    assert state(b) == before
    later = NOW + VOTE_INTERVALS * b.config.agree_interval_s
    assert b.fold("x", push(X2), later) == [Applied((X2,), (1,))]


def test_before_the_first_snapshot_nothing_is_applied() -> None:
    """A newcomer's weights are not the swarm's: there is nothing to add to."""
    n = peer("n", synced=False, history=())
    assert dropped(n.fold("a", push(A1, A2), NOW)) == "unsynced"
    assert n.fold("a", Decided(founding("abc")), NOW) == []
    for question in (Want((Range("a", 1, 1, 1),)), SnapshotRequest(), Prepare(1, (1, "a"), ())):
        assert sent(n.receive("a", question, NOW)) == []
    assert state(n) == ([0, 0], Clock())


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (push(Dot("b", 1, 1)), "push.dot"),
        (push(Dot("b", 9, 1)), "push.dot"),
        (push(A1, context=Clock((Dot("b", 1, 1),))), "push.context"),
        (push(A1, context=Clock((A1,))), "push.context"),
        (Push((Stamp(A1, Clock()),), torch.zeros(3, dtype=torch.int64)), "push.payload"),
        (Digest(1, Clock((Dot("b", 1, 7),)), Clock()), "digest.clock"),
        (Digest(1, Clock((Dot("b", 1, 7),)), Clock((Dot("b", 1, 7),))), "digest.durable"),
        (Snapshot(torch.zeros(3, dtype=torch.int64), Clock(), founding("a")), "snapshot.weights"),
        (Snapshot(value(A1), Clock((Dot("b", 2, 1),)), founding("a")), "snapshot.clock"),
        ("hello", "message"),
    ],
)
def test_what_cannot_be_true_is_refused_by_name(message: Any, field: str) -> None:
    """And nothing has changed."""
    b = peer("b")
    with pytest.raises(RemoteProtocolError) as caught:
        b.receive("a", message, NOW)
    assert field in str(caught.value)
    assert state(b) == ([0, 0], Clock())


# -- passing on ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "waiting"), [("full", []), ("ring", ["c"]), ("star", None), ("tree", None)]
)
def test_updates_are_passed_on_where_their_origin_does_not_reach_all(
    topology: str, waiting: list[str] | None
) -> None:
    """But neither back to where they came from, nor to their origin."""
    swarm = {name: peer(name, "abcde", config=PeerConfig(topology=topology)) for name in "abcde"}
    if waiting is not None:
        swarm["b"].fold("a", push(A1), NOW)
        assert swarm["b"].ready(NOW) == waiting
    publish(swarm["a"])
    for _ in range(8):
        for name, each in swarm.items():
            for to in each.ready(NOW):
                assert to != "a" or name == "a"
                while (message := each.take(to, NOW)) is not None:
                    swarm[to].fold(name, message, NOW)
    assert [state(each) for each in swarm.values()] == [(weights(A1), Clock((A1,)))] * 5


def test_an_update_that_took_the_long_way_is_not_passed_back_to_its_origin() -> None:
    """On a ring it comes round from the other side."""
    b = peer("b", "abcd", config=PeerConfig(topology="ring"))
    b.fold("c", push(A1), NOW)
    assert b.ready(NOW) == []


def test_a_merging_path_carries_all_that_waits_as_one_sum() -> None:
    """So a relay of the tree sends once, however many updates came in."""
    config = PeerConfig(topology="tree")
    b = peer("b", "ab", config=config)
    made = [publish(b), publish(b)]
    total = b.take("a", NOW)
    assert total is not None
    assert total.dots == made[0].dots + made[1].dots
    assert b.take("a", NOW) is None


def test_what_a_peer_is_known_to_have_is_not_sent_to_it() -> None:
    """It said so while the push was waiting."""
    a = peer("a")
    publish(a)
    a.receive("b", Digest(1, Clock((A1,)), Clock()), NOW)
    assert a.take("b", NOW) is None
    assert a.take("c", NOW) is not None


def test_a_path_is_paced() -> None:
    """Updates wait for their turn, and are not lost."""
    a = peer("a", "ab", config=PeerConfig(pace_s=1.0))
    publish(a)
    assert a.ready(NOW) == ["b"]
    assert a.take("b", NOW) is not None
    publish(a)
    assert a.ready(NOW + 0.9) == []
    assert a.ready(NOW + 1.0) == ["b"]


# -- repair --------------------------------------------------------------------------------------


def test_a_lost_push_is_repaired_through_digest_and_want() -> None:
    """One interval after it was heard of, from whoever has it."""
    s = Swarm("abc")
    s.run(1.0)
    s.lost = lambda sender, to, message: isinstance(message, Push) and to == "c"
    dot = s.publish("a")
    s.flush()
    s.heal()
    s.run(3.0)
    s.assert_converged()
    wanted = [(s, to) for s, to, message in s.passed if isinstance(message, Want)]
    assert {who for who, _ in wanted} == {"c"}
    assert [m.dots for s, to, m in s.passed if isinstance(m, Push) and to == "c"] == [(dot,)]


def test_who_has_it_only_in_its_weights_says_so() -> None:
    """From the log and the store, or not at all; what I do not have is no news."""
    b = peer("b", config=PeerConfig(store_bytes_max=PUSH_BYTES))
    tell(b, Rumour("a", 1, 0, DEAD), sender="c")
    mine = publish(b)
    b.fold("a", push(A1), NOW)
    b.fold("a", push(A2), NOW)
    b.outbox.forget("c")
    ((to, lack),) = sent(b.receive("c", Want((Range("a", 1, 1, 3), Range("b", 1, 1, 1))), NOW))
    assert (to, lack) == ("c", Lack((Range("a", 1, 1, 1),)))
    taken = b.take("c", NOW)
    assert taken is not None
    assert taken.dots == (*mine.dots, A2)


def test_a_sum_is_given_whole_or_not_at_all() -> None:
    """Whoever wants only a part of it could not apply it."""
    b = peer("b")
    b.fold("a", push(A1, A2), NOW)
    ((_, lack),) = sent(b.receive("c", Want((Range("a", 1, 2, 2),)), NOW))
    assert lack == Lack((Range("a", 1, 2, 2),))
    assert b.take("c", NOW) is None
    assert sent(b.receive("c", Want((Range("a", 1, 1, 2),)), NOW)) == []
    taken = b.take("c", NOW)
    assert taken is not None
    assert taken.dots == (A1, A2)


def test_what_another_cannot_give_is_asked_of_its_origin_and_then_of_a_snapshot() -> None:
    """The origin has each update by itself until all have it; if even it has not, nobody has."""
    c = peer("c")
    spans = (Range("a", 1, 1, 2),)
    assert sent(c.receive("b", Lack(spans), NOW)) == [("a", Want(spans))]
    assert sent(c.receive("a", Lack(spans), NOW)) == [("a", SnapshotRequest())]
    assert sent(c.receive("a", Lack(spans), NOW)) == []  # one at a time
    later = NOW + c.config.snapshot_wait_s
    gone = (Range("x", 1, 1, 1),)
    assert sent(c.receive("b", Lack(gone), later)) == [("b", SnapshotRequest())]
    c.fold("a", push(A1, A2), NOW)
    assert sent(c.receive("a", Lack(spans), later + 100.0)) == []


def test_what_no_peer_has_by_itself_comes_by_snapshot() -> None:
    """Two who hold overlapping sums of one who is gone: one takes over the other's weights."""
    s = Swarm("abc", PeerConfig(store_bytes_max=PUSH_BYTES))
    s.made += [X1, X2]
    for dot in (X1, X2):
        s["a"].fold("x", push(dot), s.now)
    s["b"].fold("x", push(X1), s.now)
    s.run(8.0)
    s.assert_converged()
    assert s.effects(Adopted)


# -- snapshots -----------------------------------------------------------------------------------


def test_a_snapshot_is_adopted_and_what_it_lacks_of_mine_is_folded_in_again() -> None:
    """My own updates from the log, those of others from the store: nothing is lost."""
    a, b = peer("a"), peer("b")
    publish(a)
    publish(b)
    b.fold("x", push(X1), NOW)
    (effect,) = b.fold("a", a.snapshot(), NOW)
    assert isinstance(effect, Adopted)
    assert (effect.kept, effect.retired, effect.given_up) == ((B1, X1), (), ())
    assert state(b) == (weights(A1, B1, X1), Clock((A1, B1, X1)))
    assert state(a) == (weights(A1), Clock((A1,)))


def test_a_snapshot_must_not_lose_what_only_my_weights_have() -> None:
    """What I cannot fold in again I do not give up for it."""
    a, b = peer("a"), peer("b", config=PeerConfig(store_bytes_max=PUSH_BYTES))
    publish(a)
    b.fold("x", push(X1), NOW)
    b.fold("x", push(X2), NOW)
    before = state(b)
    (effect,) = b.fold("a", a.snapshot(), NOW)
    assert isinstance(effect, Drop)
    assert "1 that only my weights have" in effect.detail
    (effect,) = b.fold("a", a.snapshot(), NOW + 1e4)
    assert isinstance(effect, Drop), "x may still come back"
    assert state(b) == before


def test_a_sum_of_which_a_snapshot_has_a_part_is_not_added_to_it() -> None:
    """It would be applied twice; so the snapshot is refused."""
    a, b = peer("a"), peer("b")
    a.fold("x", push(X1), NOW)
    publish(a)
    b.fold("x", push(X1, X2), NOW)
    before = state(b)
    assert dropped(b.fold("a", a.snapshot(), NOW)) == "snapshot"
    assert state(b) == before


def test_a_snapshot_without_anything_new_is_not_adopted() -> None:
    """Nor is one of an older generation."""
    a, b = peer("a"), peer("b")
    b.fold("a", publish(a), NOW)
    publish(b)
    before = state(b)
    (effect,) = b.fold("a", a.snapshot(), NOW)
    assert effect == Drop("a", "snapshot", "nothing new")
    assert state(b) == before
    decide(b, 1)
    publish(a)
    (effect,) = b.fold("a", a.snapshot(), NOW)
    assert effect == Drop("a", "snapshot", "older than mine")


def test_a_snapshot_brings_me_to_its_generation() -> None:
    """What was folded without me comes with it; what was closed without it is void, and said."""
    a, b = peer("a"), peer("b")
    for each in (a, b):
        each.fold("x", push(X1), NOW)
    b.fold("x", push(X2), NOW)
    publish(b)
    decide(a, 1, folds=((("x", 1), (1, 1)),))
    b.fold("a", Decided(a.baseline.since(0)), NOW)
    assert b.baseline.number == 0
    assert sent(b.receive("c", SnapshotRequest(), NOW)) == []  # it is not what the others have
    adopted, *rest = b.fold("a", a.snapshot(), NOW)
    assert isinstance(adopted, Adopted)
    assert (adopted.kept, adopted.retired) == ((B1,), (X2,))
    assert [effect for effect in rest if isinstance(effect, Moved)] == [
        Moved(a.baseline.history[-1])
    ]
    assert state(b) == (weights(X1, B1), Clock((B1,), generation=1, base=1))


def test_who_is_further_behind_than_any_history_starts_again() -> None:
    """And so does one whose life was closed by the others."""
    config = PeerConfig(history_max=2)
    a, b = peer("a", config=config), peer("b", config=config)
    publish(b)
    decide(a, 1, 2, 3)
    (effect,) = b.fold("a", a.snapshot(), NOW)
    assert isinstance(effect, Rejoin)
    assert state(b) == (weights(B1), Clock((B1,)))
    closed = Generation(1, ("a", "c"), ((("b", 1), (1, 1)),), ("b",))
    for message in (
        Decided((closed,)),
        Snapshot(value(B1), Clock(generation=1, base=1), (*founding("abc"), closed)),
    ):
        (effect,) = b.fold("a", message, NOW)
        assert isinstance(effect, Rejoin)
        assert "generation 1" in effect.reason


# -- coming and going ----------------------------------------------------------------------------


def test_a_newcomer_syncs_and_gets_a_vote() -> None:
    """One snapshot, then what it lacks; then it trains like anyone else."""
    s = Swarm("abc")
    for name in "abc":
        s.publish(name)
    s.run(2.0)
    s.start("n")
    assert s["n"].context() == Clock()
    s.run(6.0)
    s.publish("n")
    s.publish("b")
    s.run(6.0)
    s.assert_converged()
    assert {each.baseline.roster for each in s.peers.values()} == {("a", "b", "c", "n")}


def test_a_restart_brings_back_checkpoint_and_log() -> None:
    """Also what nobody had received before the crash; what came after the checkpoint is lost, and
    its number is of a life that is over."""
    s = Swarm("abc")
    s.publish("a")
    s.publish("b")
    s.run(3.0)
    s.lost = lambda sender, to, message: isinstance(message, Push)
    s.publish("a")
    s.checkpoint("a")
    gone = s.publish("a")
    s.flush()
    s.crash("a")
    s.made.remove(gone)
    s.heal()
    s.publish("b")
    s.start("a")
    assert s["a"].epoch == 2
    assert s["a"].replica.weights.tolist() == weights(*s.made[:-1])
    s.publish("a")
    s.run(8.0)
    s.assert_converged()


def test_an_epoch_that_is_over_leaves_the_clocks_in_time() -> None:
    """A restarted peer's first life is folded; no distance and no weight changes."""
    s = Swarm("abc")
    s.publish("a")
    s.run(2.0)
    s.crash("a")
    s.start("a")
    s.run(15.0)
    assert {each.baseline.number for each in s.peers.values()} == {1}
    assert [each.clock.keys() for each in s.peers.values()] == [[]] * 3
    s.publish("b")
    s.run(2.0)
    s.assert_converged()


def test_most_may_leave_at_once() -> None:
    """Their votes are needed to let them go, whoever answers first."""
    s = Swarm("abcdefgh")
    for name in s.names:
        s.publish(name)
    s.run(3.0)
    for name in "cdefgh":
        s.leave(name)
    s.run(4.0)  # a vote is every 2 s
    assert all(s[name].others.settled() for name in "cdefgh")
    assert s["b"].baseline.roster == ("a", "b")


def test_who_leaves_is_settled_when_all_have_what_it_made() -> None:
    """Not before, and then nobody counts on its vote any more."""
    s = Swarm("abc")
    s.run(2.0)
    s.lost = lambda sender, to, message: isinstance(message, Push)
    s.publish("a")
    s.flush()
    s.leave("a")
    s.run(3.0)
    assert not s["a"].others.settled()
    s.heal()
    for _ in range(20):
        s.run(1.0)
        if s["a"].others.settled():
            break
    assert s["a"].others.settled()
    s.crash("a")
    s.publish("b")
    s.run(10.0)
    s.assert_converged()
    assert s["b"].baseline.roster == ("b", "c")


def test_the_epoch_of_one_who_left_is_folded_by_its_last_word() -> None:
    """At once, not after the time that makes a dead member evictable."""
    s = Swarm("abc")
    s.publish("a")
    s.run(2.0)
    s.leave("a")
    s.run(10.0)
    s.crash("a")
    s.publish("b")
    s.run(10.0)
    s.assert_converged()
    assert s["b"].clock.keys() == [("b", 1)]


def test_a_last_word_is_kept_until_the_epoch_is_folded() -> None:
    """Also when the roster changes before anything the leaver made has arrived."""
    s = Swarm("abc")
    s.run(2.0)
    s.lost = lambda sender, to, message: isinstance(message, Push)
    s.publish("a")
    s.leave("a")
    s.run(5.0)
    assert s["b"].baseline.roster == ("b", "c")
    s.heal()
    s.run(20.0)
    s.assert_converged()
    assert s["b"].clock.keys() == []


def test_settled_needs_my_updates_everywhere_all_others_somewhere_and_no_vote() -> None:
    """Each of the three is missing once."""
    a = peer("a")
    publish(a)
    a.fold("x", push(X1), NOW)
    a.leave(NOW)
    gone = Generation(1, ("b", "c"))

    def say(name: str, *dots: Dot) -> bool:
        clock = Clock(dots, generation=a.baseline.number)
        a.receive(name, Digest(1, clock, clock), NOW)
        return a.others.settled()

    say("b", A1, X1)
    assert not say("c", A1), "on the roster"
    a.fold("b", Decided((gone,)), NOW)
    assert a.others.settled()
    assert not say("c", X1), "c lacks an update of mine"
    say("c", A1)
    assert not say("b", A1), "nobody has what I have of x"
    assert say("c", A1, X1)


def test_the_last_one_has_nothing_to_wait_for() -> None:
    """Nobody is there to take over what it made."""
    a = peer("a", "a")
    publish(a)
    a.leave(NOW)
    assert a.others.settled()


def test_who_leaves_gives_those_that_seem_dead_the_time_there_is() -> None:
    """They may be cut off only, and nobody else has what it made (rng seed 2195)."""
    a = peer("a", "ab")
    publish(a)
    tell(a, Rumour("b", 1, 0, DEAD))
    a.leave(NOW)
    assert not a.others.settled()
    tell(a, Rumour("b", 1, 0, LEFT))
    assert a.others.settled()


def test_an_update_of_an_earlier_life_does_not_show_what_its_origin_has_now() -> None:
    """A crash may have taken the context from it: I am not settled before it says what it has."""
    a = peer("a", "ab")
    publish(a)
    tell(a, Rumour("b", 2, 0, ALIVE))
    a.leave(NOW)
    a.fold("b", Decided((Generation(1, ("b",)),)), NOW)
    assert not a.others.settled()
    a.fold("b", push(B1, context=Clock((A1,))), NOW)  # from the log of its first life
    assert not a.others.settled()


def test_two_halves_of_a_long_cut_meet_again_without_loss() -> None:
    """Each took the other for dead for most of 30 s and kept what the other would need."""
    s = Swarm("abcd")
    s.run(2.0)
    s.cut("ab", "cd")
    for _ in range(30):
        for name in "abcd":
            s.publish(name)
        s.run(1.0)
    verdicts = {(who, e.name) for who, e in s.done if isinstance(e, Verdict) and e.state == DEAD}
    assert verdicts == {(p, q) for p in "abcd" for q in "abcd" if (p in "ab") != (q in "ab")}
    s.heal()
    s.run(20.0)
    s.assert_converged()
    assert not [effect for effect in s.effects(Adopted) if effect.given_up or effect.retired]


# -- letting go ----------------------------------------------------------------------------------


def pruned(by: Peer, now: float) -> list[Dot]:
    before = [dot for push in by.log for dot in push.dots]
    by.tick(now)
    return [dot for dot in before if dot not in by.log]


def test_an_update_is_let_go_of_only_when_it_is_durable_everywhere() -> None:
    """What a peer has and a crash could take from it may have to be sent again."""
    a = peer("a", "abc")
    a.checkpointed(Clock())
    publish(a)
    have, nothing = Clock((A1,)), Clock()
    a.receive("b", Digest(1, have, have), NOW)
    assert pruned(a, NOW) == []  # c was not heard of
    a.receive("c", Digest(1, have, nothing), NOW)
    assert pruned(a, NOW + 1.0) == []  # c could lose it
    a.receive("c", Digest(1, have, have), NOW)
    assert pruned(a, NOW + 2.0) == []  # I could lose it
    a.checkpointed(have)
    assert pruned(a, NOW + 3.0) == [A1]
    assert len(a.log) == 0


def test_an_update_is_kept_for_a_member_that_is_away() -> None:
    """Dead or not: it may come back, and as long as it is on the roster it is waited for."""
    a = peer("a", "abc")
    publish(a)
    have = Clock((A1,))
    tell(a, Rumour("c", 1, 0, DEAD), sender="b")
    a.receive("b", Digest(1, have, have), NOW)
    assert pruned(a, NOW) == []
    assert A1 in a.log
    generation = Generation(1, ("a", "b"), (), ("c",))
    a.fold("b", Decided((generation,)), NOW)
    assert pruned(a, NOW + 1.0) == [A1]


def test_what_a_member_had_in_an_earlier_life_does_not_count() -> None:
    """It restarted: what its disk still has it must say again."""
    a = peer("a", "ab")
    publish(a)
    have = Clock((A1,))
    a.receive("b", Digest(1, have, have), NOW)
    tell(a, Rumour("b", 2, 0, ALIVE))
    a.receive("b", Digest(1, have, have), NOW)  # late, from the life before
    assert pruned(a, NOW) == []
    a.receive("b", Digest(2, have, have), NOW)
    assert pruned(a, NOW + 1.0) == [A1]


def test_the_log_for_one_who_is_away_is_summed_up_beyond_its_bound() -> None:
    """The one who returns has none of it, so it takes the sum."""
    s = Swarm("abc", PeerConfig(outbox_bytes_max=4 * PUSH_BYTES, log_bytes_max=4 * PUSH_BYTES))
    s.publish("a")
    s.run(3.0)
    s.cut("ab", "c")
    s.run(8.0)
    for _ in range(20):
        s.publish("a")
        s.run(0.5)
    s.run(3.0)
    assert s["a"].log.nbytes <= 5 * PUSH_BYTES
    assert s["a"].log.nbytes < 20 * PUSH_BYTES
    s.heal()
    s.run(15.0)
    s.assert_converged()
    sums = [m for _, to, m in s.passed if to == "c" and isinstance(m, Push) and len(m.stamps) > 1]
    assert sums
    assert not s.effects(Adopted), "no snapshot was needed"


def test_what_went_away_before_is_not_summed_up() -> None:
    """The absent may have some of it: it must be able to take the rest one by one."""
    a = peer("a", "abc", config=PeerConfig(log_bytes_max=PUSH_BYTES))
    for _ in range(3):
        publish(a)
    have = Clock((A1, A2, A3))
    tell(a, Rumour("c", 1, 0, DEAD), sender="b")
    a.receive("b", Digest(1, have, have), NOW)
    a.tick(NOW)
    assert [a.log.alone(dot) for dot in (A1, A2, A3)] == [True] * 3
    later = [publish(a).stamps[0].dot for _ in range(3)]
    have = Clock((A1, A2, A3, *later[:2]))
    a.receive("b", Digest(1, have, have), NOW)
    a.tick(NOW + 1.0)
    assert [a.log.alone(dot) for dot in (A1, A2, A3, *later)] == [True] * 3 + [False] * 2 + [True]


# -- never twice, however late -------------------------------------------------------------------


@pytest.mark.parametrize("generations", range(1, 12))
def test_what_waited_through_generations_is_never_applied_twice(generations: int) -> None:
    """Its epoch was folded meanwhile, perhaps before what the receiver remembers of it."""
    for sender_at in range(generations + 1):
        a, c = peer("a"), peer("c")
        folds = ((("x", 1), (1, 1)),)
        for each in (a, c):
            each.fold("x", push(X1), NOW)
        a.receive("c", Want((Range("x", 1, 1, 1),)), NOW)  # it waits on a slow link
        decide(a, *range(1, sender_at + 1), folds=folds)
        late = a.take("c", NOW)
        assert (late is None) == (sender_at > 0)
        decide(c, *range(1, generations + 1), folds=folds)
        before = state(c)
        for message in (late, push(X1), push(X1, A1)):
            if message is not None:
                c.receive("a", message, NOW)
                c.fold("a", message, NOW)
        assert state(c) == before


def test_what_waited_and_is_still_open_is_sent_in_terms_of_today() -> None:
    """However many generations passed: whoever asks for it gets it, with its exact context."""
    a, c = peer("a"), peer("c")
    a.fold("x", push(X1), NOW)
    publish(a)
    for each in (a, c):
        decide(each, *range(1, 12))
    for _ in range(2):
        late = a.take("c", NOW)
        assert late is not None
        assert c.fold("a", late, NOW) == [Applied((A1,), (1,))]
        a.landed("c", late)
        a.receive("c", Want((Range("a", 1, 1, 1),)), NOW)
        c = peer(
            "c", history=a.baseline.history, replica=Replica(value(A1) * 0, Clock(generation=11))
        )


@pytest.mark.parametrize("generations", [1, 7, 8, 9, 12])
def test_a_log_is_not_taken_up_when_its_epoch_is_folded(generations: int) -> None:
    """The checkpoint was written before: a history beside it is newer, and the update is void."""
    a = peer("a")
    logged = publish(a)
    old = a.snapshot()
    a = peer("a", epoch=2, replica=Replica(*a.replica.snapshot()), past=Past(log=(logged,)))
    assert A1 in a.log
    decide(a, *range(1, generations + 1), folds=((("a", 1), (1, 1)),))
    assert len(a.log) == 0
    a = peer(
        "a",
        epoch=3,
        replica=Replica(old.weights.clone(), old.clock.copy()),
        history=old.history,
        past=Past(log=(logged,), history=a.baseline.history),
    )
    assert a.state.behind == (generations > 8), "a snapshot will bring what it cannot follow"
    assert len(a.log) == a.state.behind


# -- the vow -------------------------------------------------------------------------------------


def test_who_voted_after_its_checkpoint_comes_back_to_the_generation_it_voted_in() -> None:
    """Or it would vote again on what was decided; if it lacks what was folded, by snapshot."""
    first = Generation(1, ("a", "b", "c"), ((("x", 1), (1, 1)),))
    vow = Vow(2, (1, "b"), (*founding("abc"), first))
    has = Replica(value(X1), Clock((X1,)))
    a = peer("a", epoch=2, replica=has, past=Past(vow=vow))
    assert a.baseline.number == 1
    assert a.clock == Clock(generation=1, base=1)
    assert sent(a.receive("c", Prepare(1, (9, "c"), ()), NOW)) == []
    assert sent(a.receive("c", Prepare(2, (9, "c"), ()), NOW), Promise)
    a = peer("a", epoch=2, past=Past(vow=vow))
    assert a.clock == Clock()
    assert sent(a.receive("c", Prepare(1, (9, "c"), ()), NOW)) == []
    assert sent(a.receive("c", Prepare(2, (9, "c"), ()), NOW)) == []
    assert sent(a.receive("c", SnapshotRequest(), NOW)) == []
    assert sent(a.tick(NOW), SnapshotRequest)


# -- on its way ----------------------------------------------------------------------------------


def test_what_is_on_its_way_is_not_sent_again() -> None:
    a = peer("a", "abc")
    publish(a)
    taken = a.take("b", NOW)
    assert taken is not None
    want = Want((Range("a", 1, 1, 1),))
    a.receive("b", want, NOW)
    assert a.take("b", NOW) is None
    a.landed("b", taken)
    a.receive("b", want, NOW)
    assert a.take("b", NOW) is not None


def test_what_a_broken_link_carried_is_sent_again() -> None:
    a = peer("a", "abc")
    publish(a)
    taken = a.take("b", NOW)
    assert taken is not None
    a.lost("b", taken)
    again = a.take("b", NOW)
    assert again is not None
    assert again.dots == taken.dots


def test_what_is_here_and_not_folded_yet_is_not_asked_for() -> None:
    """The training thread may take its time until the next step."""
    b = peer("b", "abc")
    digest = Digest(1, Clock((A1,)), Clock((A1,)))
    (delivered,) = [e for e in b.receive("a", push(A1), NOW) if isinstance(e, Deliver)]
    b.receive("a", digest, NOW)
    for later in range(1, 4):
        effects = b.tick(NOW + later)
        assert not [e for e in effects if isinstance(e, Send) and isinstance(e.message, Want)]
    assert b.fold("a", delivered.message, NOW + 4) == [Applied((A1,), (0,))]


def test_steps_are_added_up_while_updates_wait_on_every_path() -> None:
    a = peer("a", "abc")
    for _ in range(8):
        assert a.room(16)
        publish(a)
    assert not a.room(16)
    assert a.take("b", NOW) is not None
    assert a.room(16), "one slow path does not hold the others up"
    patient = peer("a", "abc", config=PeerConfig(waiting_max=9))
    for _ in range(8):
        publish(patient)
    assert patient.room(16)
    publish(patient)
    assert not patient.room(16)


def taken(a: Peer, to: str = "b") -> Push:
    push = a.take(to, NOW)
    assert push is not None
    return push


def test_no_update_is_made_that_would_wait_behind_another() -> None:
    """A link that is only long takes one after another; on a narrow one the second waits, and from
    then on the next is made when the way is free."""
    a = peer("a", "ab")

    def room() -> bool:
        return a.room(16, fresh=True)

    assert room()
    publish(a)
    assert room(), "it waits for a pause, and not for its link"
    first = taken(a)
    assert not room(), "what kind of link this is, is not known yet"
    a.landed("b", first)
    assert room()
    publish(a)
    second = taken(a)
    assert room(), "long, for all that is known: the second has left at once"
    publish(a)
    assert not room(), "it waits behind the second"
    third = taken(a)
    a.landed("b", second)
    assert not room(), "nothing waits, but the next would"
    assert a.room(16)
    a.landed("b", third)
    assert room()
    for _ in range(NARROW_UPDATES + 1):
        publish(a)
        a.landed("b", taken(a))
    publish(a)
    taken(a)
    assert room(), "nothing has waited for long"


def test_most_paths_must_be_free_for_a_fresh_update() -> None:
    a = peer("a", "abcd")
    publish(a)
    flying = {to: taken(a, to) for to in "bcd"}
    assert not a.room(16, fresh=True)
    a.landed("b", flying["b"])
    assert not a.room(16, fresh=True)
    a.landed("c", flying["c"])
    assert a.room(16, fresh=True)


def test_the_log_sets_the_pace_and_not_the_training() -> None:
    """One update always has room; the next waits until all have answered, and takes its sum."""
    a = peer("a", "ab", config=PeerConfig(log_bytes_max=1))
    assert a.room(16)
    publish(a)
    taken = a.take("b", NOW)
    assert taken is not None
    assert not a.room(16)
    a.receive("b", Digest(1, Clock((A1,)), Clock((A1,))), NOW)
    a.tick(NOW + 1)
    assert len(a.log) == 0
    assert not a.room(16), "the link still has it in memory"
    a.landed("b", taken)
    assert a.room(16)


def test_a_node_alone_keeps_nothing_for_others() -> None:
    """Whoever joins later takes a snapshot."""
    a = peer("a", "a", config=PeerConfig(log_bytes_max=1))
    publish(a)
    assert not a.room(16)
    a.tick(NOW + 1)
    assert len(a.log) == 0
    assert a.room(16)


def test_who_takes_nothing_is_left_behind() -> None:
    """It is alive and its training stands still: it will take a snapshot."""
    a = peer("a", "abc", config=PeerConfig(log_bytes_max=1))
    publish(a)
    assert a.take("b", NOW) is not None  # and b never folds it in
    taken = a.take("c", NOW)
    assert taken is not None
    a.landed("c", taken)
    a.receive("b", Digest(1, Clock(), Clock()), NOW)
    a.receive("c", Digest(1, Clock((A1,)), Clock((A1,))), NOW)
    a.tick(NOW + 1.5)
    assert len(a.log) == 1, "two seconds are not over"
    a.receive("b", Digest(1, Clock(), Clock()), NOW + 2)
    a.receive("c", Digest(1, Clock((A1,)), Clock((A1,))), NOW + 2)
    a.tick(NOW + 2.5)
    assert len(a.log) == 0


# -- checkpoints that hold the log ---------------------------------------------------------------


def test_a_log_half_full_lets_go_of_what_all_have_applied() -> None:
    """Below that, durable is waited for: see above."""
    a = peer("a", "ab", config=PeerConfig(log_bytes_max=3 * PUSH_BYTES))
    a.checkpointed(Clock())
    publish(a)
    have = Clock((A1,))
    a.receive("b", Digest(1, have, Clock()), NOW)
    assert pruned(a, NOW) == []
    publish(a)
    assert pruned(a, NOW + 1.0) == [A1]
    assert A2 in a.log


def test_one_large_update_is_let_go_of_when_the_other_says_it_has_it() -> None:
    """Not at the next comparison: the next update waits for this."""
    a = peer("a", "ab", config=PeerConfig(log_bytes_max=PUSH_BYTES))
    publish(a)
    assert not a.room(PUSH_BYTES)
    a.receive("b", Digest(1, Clock(), Clock()), NOW)
    assert len(a.log) == 1
    a.receive("b", Digest(1, Clock((A1,)), Clock()), NOW)
    assert len(a.log) == 0


def test_a_log_of_several_is_let_go_of_at_the_next_comparison() -> None:
    """Who comes back says first what it has: that must not take away what it lacks."""
    a = peer("a", "ab", config=PeerConfig(log_bytes_max=3 * PUSH_BYTES))
    publish(a)
    publish(a)
    a.receive("b", Digest(1, Clock((A1, A2)), Clock()), NOW)
    assert len(a.log) == 2
    assert pruned(a, NOW + 1.0) == [A1, A2]


def test_a_large_update_is_answered_at_once() -> None:
    for log, answers in ((PUSH_BYTES, 1), (4 * PUSH_BYTES, 0)):
        b = peer("b", "ab", config=PeerConfig(log_bytes_max=log))
        effects = b.fold("a", push(A1), NOW)
        digests = [m for to, m in sent(effects) if to == "a" and isinstance(m, Digest)]
        assert len(digests) == answers


def test_log_and_store_of_a_checkpoint_are_given_one_by_one_again() -> None:
    """All of it is in the weights already: nothing is folded in twice."""
    replica = Replica(torch.tensor(weights(A1, B1, X1)), Clock((A1, B1, X1)))
    past = Past(log=(push(A1),), store=(push(B1), push(X1), push(X2)))
    a = peer("a", epoch=2, replica=replica, past=past)
    assert state(a) == (weights(A1, B1, X1), Clock((A1, B1, X1)))
    wanted = Want((Range("a", 1, 1, 1), Range("b", 1, 1, 1), Range("x", 1, 1, 2)))
    assert sent(a.receive("c", wanted, NOW)) == []
    taken = [p.dots for _ in range(2) if (p := a.take("c", NOW)) is not None]
    assert taken == [(A1, B1, X1)], "what is not in the weights is not passed on"


def test_a_summed_up_log_comes_back_as_it_was() -> None:
    replica = Replica(torch.tensor(weights(A1, A2)), Clock((A1, A2)))
    a = peer("a", epoch=2, replica=replica, past=Past(log=(push(A1, A2),)))
    assert state(a) == (weights(A1, A2), Clock((A1, A2)))
    assert A1 in a.log


def test_an_origin_known_to_have_restarted_without_it_is_not_asked() -> None:
    """It would not answer; who has it in its weights gives a snapshot."""
    c = peer("c")
    spans = (Range("a", 1, 1, 1),)
    tell(c, Rumour("a", 2, 0, ALIVE))
    c.receive("a", Digest(2, Clock(), Clock()), NOW)
    assert sent(c.receive("b", Lack(spans), NOW)) == [("b", SnapshotRequest())]


def test_an_origin_that_gave_it_up_is_not_asked() -> None:
    """It has a later update of the same life, so it had this one. One that has none may only have
    said so before it made it."""
    spans = (Range("a", 1, 1, 1),)
    for clock, asks in (
        (Clock((A2,)), ("b", SnapshotRequest())),
        (Clock(), ("a", Want(spans))),
    ):
        c = peer("c")
        c.receive("a", Digest(1, clock, Clock()), NOW)
        assert sent(c.receive("b", Lack(spans), NOW)) == [asks]


def test_what_its_origin_gave_up_is_not_kept_for_it_for_long() -> None:
    """Six intervals as for one who came back without it, not the eighteen of one who may have it:
    peers that one after another waited for it were not the same within 20 s (seed 9823)."""
    for clock, waits_s in ((Clock((A2,)), 3.0), (Clock(), 9.0)):
        mine = Replica(torch.tensor(weights(A1)), Clock((A1,)))
        c = peer("c", replica=mine, config=PeerConfig(digest_interval_s=0.5))
        theirs = peer("b", replica=Replica(torch.tensor(weights(A2, B1)), Clock((A2, B1))))
        c.receive("a", Digest(1, clock, Clock()), NOW)
        for after_s in (0.0, waits_s - 0.1):
            assert dropped(c.fold("b", theirs.snapshot(), NOW + after_s)) == "snapshot"
        adopted = c.fold("b", theirs.snapshot(), NOW + waits_s)[0]
        assert isinstance(adopted, Adopted)
        assert adopted.given_up == (A1,)


def test_two_who_each_lack_what_the_other_has_only_in_its_weights_agree_again() -> None:
    """Both crashed to old checkpoints; all had let go of what they lack. The larger set stays."""
    config = PeerConfig(digest_interval_s=0.5)
    b2 = Dot("b", 1, 2)
    small = Replica(torch.tensor(weights(A1, B1)), Clock((A1, B1)))
    large = Replica(torch.tensor(weights(A1, A2, b2)), Clock((A1, A2, b2)))
    a = peer("a", "ab", epoch=2, replica=small, config=config)
    b = peer("b", "ab", epoch=2, replica=large, config=config)
    tell(a, Rumour("b", 2, 0, ALIVE))
    tell(b, Rumour("a", 2, 0, ALIVE))
    for at in (NOW, NOW + 3.0, NOW + 9.0):
        to_a, to_b = b.snapshot(), a.snapshot()
        a.fold("b", to_a, at)
        b.fold("a", to_b, at)
    assert state(a) == state(b) == (weights(A1, A2, b2), Clock((A1, A2, b2)))


# -- decisions that cannot be ---------------------------------------------------------------------


def test_a_second_value_of_a_decided_number_is_refused() -> None:
    a = peer("a")
    decide(a, 1)
    same = a.baseline.history[-1]
    assert a.receive("b", Decided((same,)), NOW)
    with pytest.raises(RemoteProtocolError, match="1 is another one here"):
        a.receive("b", Decided((replace(same, evicted=("z",)),)), NOW)


def test_a_roster_that_has_me_without_my_promise_is_refused() -> None:
    """Everyone on a roster has promised, and a promise is remembered as long as it binds. What my
    old memory promised may seat that one."""
    names = ("a", "b")
    founded = (Generation(0, names, memories=(3, 1)),)
    a = peer("a", epoch=4, history=founded, past=Past(memory=3))
    forged = Generation(1, names, memories=(3, 1))
    with pytest.raises(RemoteProtocolError, match="1 has me on its roster"):
        a.receive("b", Decided((forged,)), NOW)
    with pytest.raises(RemoteProtocolError, match="1 has me on its roster"):
        a.receive("b", Decided((replace(forged, memories=(2, 1)),)), NOW)
    forgot = peer("a", epoch=5, history=founded, past=Past(memory=5))
    assert forgot.receive("b", Decided((forged,)), NOW)
    promised = Past(memory=3, vow=Vow(1, (1, "b")))
    a = peer("a", epoch=4, history=founded, past=promised)
    assert a.receive("b", Decided((forged,)), NOW)
    without = Generation(1, ("b",), evicted=("a",), memories=(1,))
    assert peer("a", epoch=4, history=founded, past=Past(memory=3)).receive(
        "b", Decided((without,)), NOW
    )
