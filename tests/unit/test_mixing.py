"""`core/gossip/average/mixing.py`: mass is conserved whatever happens to messages and peers,
the mean is true.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from murmurate.core import topology
from murmurate.core.clock import Clock, Dot, Range
from murmurate.core.effect import Adopted, Applied, Deliver, Drop, Effect, Rejoin, Send, Verdict
from murmurate.core.gossip.average.lives import DEAD_MAX
from murmurate.core.gossip.average.mixing import MixingPeer
from murmurate.core.gossip.average.partners import EVEN
from murmurate.core.gossip.average.push_sum import IsFar, Merged, Receipt, Share, Stale, mass
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.message import (
    ALIVE,
    DEAD,
    LEFT,
    Ack,
    Decided,
    Digest,
    Lack,
    Ping,
    Push,
    Rumour,
    Snapshot,
    SnapshotRequest,
    Stamp,
    Want,
)
from murmurate.core.replica import Replica
from murmurate.core.topology import TOPOLOGIES
from murmurate.errors import LocalProtocolError, RemoteProtocolError
from murmurate.study.sim.events import Events

SIZE = 4
NOW = 100.0
Life = tuple[str, int]
Book = dict[tuple[Life, Life], Any]


def weights_of(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


class Net:
    """Peers on a toy network in virtual time, and a book of what went where, by lives.

    In float64, so that what is conserved shows to the last digits. Models are large beside what
    they differ by, as those of one training are.
    """

    def __init__(self, seed: object, names: str, kind: str = "full", **config: Any) -> None:
        self.rng = random.Random(f"mixing/{seed}")
        self.config = PeerConfig(topology=kind, **config)
        self.events = Events(NOW)
        self.peers: dict[str, MixingPeer] = {}
        self.lives: dict[Life, MixingPeer] = {}
        self.assigned: Book = {}
        self.received: Book = {}
        self.put_in = torch.zeros(SIZE + 1, dtype=torch.float64)
        self.inbox: defaultdict[Life, deque[Deliver]] = defaultdict(deque)
        self.flying: dict[tuple[Life, str], Share] = {}
        self.done: list[tuple[str, Effect]] = []
        self.loss = self.twice = self.delay_s = 0.0
        self.sides: tuple[str, ...] = ()
        for name in names:
            self.start(name, synced=True)
        for name in names:
            self.act(name, self.peers[name].join(names, self.now))
            everyone = tuple(Rumour(other, 1, 0, ALIVE) for other in names if other != name)
            self.act(
                name,
                self.peers[name].receive(
                    names[name == names[0]], Ack(0, "", False, everyone), self.now
                ),
            )

    # -- peers -----------------------------------------------------------------------------------

    def vector(self, scale: float = 1.0) -> torch.Tensor:
        return torch.tensor([self.rng.gauss(0, scale) for _ in range(SIZE)], dtype=torch.float64)

    def start(self, name: str, *, synced: bool, epoch: int = 1) -> MixingPeer:
        peer = MixingPeer(
            name,
            epoch,
            Replica(50.0 + self.vector(10.0)),
            rng=random.Random(f"{name}/{epoch}/{self.rng.random()}"),
            config=self.config,
            synced=synced,
        )
        if synced:
            self.put_in += peer.averager.mass
        self.keep_book(peer)
        self.peers[name] = self.lives[name, epoch] = peer
        return peer

    def join(self, name: str, epoch: int = 1) -> None:
        seed_peers = [other for other in self.peers if other != name]
        self.act(name, self.start(name, synced=False, epoch=epoch).join(seed_peers, self.now))

    def crash(self, name: str) -> None:
        del self.peers[name]

    def leave(self, name: str) -> None:
        self.act(name, self.peers[name].leave(self.now))

    def publish(self, name: str, scale: float = 1.0) -> None:
        peer = self.peers[name]
        delta = self.vector(scale)
        self.put_in[:-1] += delta.double() * peer.averager.weight
        self.act(name, peer.publish(delta, peer.context()))

    # -- messages --------------------------------------------------------------------------------

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        self.events.after(delay_s, what)

    def delays(self) -> list[float]:
        """Of the copies that arrive: none, one or two."""
        if self.rng.random() < self.loss:
            return []
        copies = 2 if self.rng.random() < self.twice else 1
        return [self.rng.random() * self.delay_s for _ in range(copies)]

    def apart(self, a: str, b: str) -> bool:
        return bool(self.sides) and not any(a in side and b in side for side in self.sides)

    def act(self, name: str, effects: list[Effect]) -> None:
        peer = self.peers[name]
        for effect in effects:
            if isinstance(effect, Send):
                self.post(name, effect.to, effect.message)
            elif isinstance(effect, Deliver):
                self.inbox[peer.name, peer.epoch].append(effect)
                self.at(self.rng.random() * self.delay_s, lambda: self.fold(peer))
            else:
                self.done.append((name, effect))
                if isinstance(effect, Adopted):
                    one = torch.ones(1, dtype=torch.float64)
                    self.put_in += torch.cat([effect.snapshot.weights.double(), one])
        for to in peer.ready(self.now):
            share = peer.take(to, self.now)
            if share is not None:
                self.carry(peer, to, share)

    def fold(self, peer: MixingPeer) -> None:
        """The training thread takes the next message in, some time after it came."""
        effect = self.inbox[peer.name, peer.epoch].popleft()
        if self.peers.get(peer.name) is peer:
            self.act(peer.name, peer.fold(effect.sender, effect.message, self.now))

    def post(self, sender: str, to: str, message: Any) -> None:
        for delay_s in self.delays():
            self.at(delay_s, lambda: self.hand_over(sender, to, message))

    def hand_over(self, sender: str, to: str, message: Any) -> None:
        self.deliver(sender, to, message)

    def deliver(self, sender: str, to: str, message: Any) -> bool:
        if to not in self.peers or self.apart(sender, to):
            return False
        self.act(to, self.peers[to].receive(sender, message, self.now))
        return True

    def carry(self, peer: MixingPeer, to: str, share: Share) -> None:
        """One share per link; it lands, or is lost, or both; twins of it come any time."""
        link = ((peer.name, peer.epoch), to)
        before, self.flying[link] = self.flying.get(link), share
        assert before is None or before.seq < share.seq
        delays = self.delays()
        said = bool(delays) and self.rng.random() > self.loss

        def tell(landed: bool) -> None:
            if self.flying.get(link) is share:
                del self.flying[link]
            if self.peers.get(peer.name) is peer:
                (peer.landed if landed else peer.lost)(to, share)
                self.act(peer.name, [])

        for i, delay_s in enumerate(delays):
            last = i == len(delays) - 1

            def arrive(last: bool = last) -> None:
                there = self.deliver(peer.name, to, share)
                if last:
                    self.at(self.rng.random() * self.delay_s, lambda: tell(there and said))

            self.at(delay_s, arrive)
        if not delays:
            self.at(self.rng.random() * self.delay_s, lambda: tell(False))

    # -- the book --------------------------------------------------------------------------------

    def keep_book(self, peer: MixingPeer) -> None:
        """Of what it gives and puts in."""
        averager, me = peer.averager, (peer.name, peer.epoch)
        assign, receive = averager.assign, averager.receive
        given: dict[Life, int] = {}

        def count(book: Book, link: tuple[Life, Life], share: Share, sign: int = 1) -> None:
            book[link] = book.get(link, 0.0) + sign * mass(share.model, share.weight)

        def noted_assign(partner: str, epoch: int, part: float) -> Share | None:
            share = assign(partner, epoch, part)
            if share is not None and share.seq > given.get((partner, share.to_epoch), 0):
                given[partner, share.to_epoch] = share.seq
                count(self.assigned, (me, (partner, share.to_epoch)), share)
            return share

        def noted_receive(sender: str, share: Share, is_far: IsFar | None = None) -> Merged | Stale:
            outcome = receive(sender, share, is_far)
            if isinstance(outcome, Merged):
                count(self.received, ((sender, share.epoch), me), share)
            return outcome

        averager.assign = noted_assign  # type: ignore[method-assign]
        averager.receive = noted_receive  # type: ignore[method-assign]

    def leak(self) -> float:
        """Held by all lives, and on all links, but not put in: the largest coordinate."""
        out = torch.stack([peer.averager.mass for peer in self.lives.values()]).sum(0)
        for total in self.assigned.values():
            out = out + total
        for total in self.received.values():
            out = out - total
        return float((out - self.put_in).abs().max())

    def check(self) -> None:
        assert self.leak() < 1e-9
        for peer in self.peers.values():
            assert peer.replica.clock is peer.averager.clock
            assert peer.seq == peer.clock.last(peer.name, peer.epoch)
            assert peer.averager.model.data_ptr() == peer.replica.weights.data_ptr()
            assert peer.averager.weight > 0.0 or not peer.synced

    # -- time ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.events.time

    def run(self, seconds: float, every: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / 0.05)):
            self.events.run_until(self.now + 0.05)
            for name in list(self.peers):
                self.act(name, self.peers[name].tick(self.now))
            every()
            self.check()

    def turns(self) -> None:
        for name, peer in self.peers.items():
            peer.partners.turn()
            self.act(name, [])

    def train(self) -> None:
        for name, peer in list(self.peers.items()):
            if peer.synced and not peer.state.leaving and self.rng.random() < 0.5:
                self.publish(name)

    def calm(self) -> None:
        self.loss = self.twice = 0.0
        self.sides = ()

    def spread(self) -> float:
        models = torch.stack([peer.averager.model for peer in self.peers.values()])
        return float((models - self.mean()).abs().max())

    def mean(self) -> torch.Tensor:
        """Of what the live have, and what is on its way between them."""
        total = torch.stack([p.averager.mass for p in self.peers.values()]).sum(0)
        alive = {(p.name, p.epoch) for p in self.peers.values()}
        for (a, b), out in self.assigned.items():
            if a in alive and b in alive:
                total = total + out - self.received.get((a, b), torch.zeros(SIZE + 1))
        return total[:-1] / total[-1]

    def agree(self, seconds: float) -> None:
        """Without faults and steps, turn by turn, all tend to the mean."""
        self.calm()
        for _ in range(round(seconds)):
            self.run(1.0, self.turns)
            if self.spread() < 1e-7:
                break
        assert self.spread() < 1e-6
        others = [peer.others for peer in self.peers.values()]
        assert self.comes_true(lambda: all(each.even() and each.caught_up() for each in others))

    def comes_true(self, what: Callable[[], bool], seconds: float = 20.0) -> bool:
        for _ in range(round(seconds / 0.05)):
            if what():
                return True
            self.run(0.05)
        return False

    def effects(self, kind: type, name: str = "") -> list[Any]:
        return [e for who, e in self.done if isinstance(e, kind) and name in ("", who)]

    def drops(self) -> Counter[str]:
        return Counter(drop.reason for drop in self.effects(Drop))


# -- whatever happens ----------------------------------------------------------------------------


def faulty(seed: object, names: str, kind: str, **config: Any) -> Net:
    net = Net(seed, names, kind, **config)
    net.loss, net.twice, net.delay_s = 0.2, 0.3, 0.15
    return net


@pytest.mark.parametrize("kind", TOPOLOGIES)
@pytest.mark.parametrize("seed", range(1))
def test_all_tend_to_the_mean_of_what_was_put_in(seed: int, kind: str) -> None:
    net = faulty(f"{seed}/{kind}", "abcde", kind)
    net.run(6.0, net.train)
    net.agree(60.0)
    assert not [v for v in net.effects(Verdict) if v.state == DEAD]
    assert float((net.mean() - net.put_in[:-1] / net.put_in[-1]).abs().max()) < 1e-9
    assert float(net.put_in[-1]) == 5.0
    clocks = [peer.clock for peer in net.peers.values()]
    assert all(clock == clocks[0] for clock in clocks)
    assert len(clocks[0]) == sum(peer.seq for peer in net.peers.values()) > 100
    assert net.drops()["duplicate"] > 10


@pytest.mark.parametrize("kind", ["full", "ring", "exponential", "tree"])
@pytest.mark.parametrize("seed", range(2))
def test_crash_restart_leave_and_late_join(seed: int, kind: str) -> None:
    net = faulty(f"churn/{seed}/{kind}", "abcde", kind)
    net.run(2.0, net.train)
    net.crash("b")
    net.run(1.0, net.train)
    net.join("f")
    net.run(2.0, net.train)
    net.leave("d")
    net.run(1.0, net.train)
    net.join("b", epoch=2)
    net.run(1.5, net.train)
    gone = net.peers.pop("d")
    net.run(2.0, net.train)
    assert gone.membership.state("d") == LEFT
    net.agree(60.0)
    assert sorted(net.peers) == ["a", "b", "c", "e", "f"]
    for peer in net.peers.values():
        assert peer.membership.live() == ("a", "b", "c", "e", "f")
        # 5 founders, 2 newcomers; of the crashed and of the leaver something may remain
        assert set(peer.averager.ties) <= set("abcdef")
        assert peer.averager.unconfirmed("d") is None
    weight = sum(peer.averager.weight for peer in net.peers.values())
    assert 3.0 < weight < 7.0


@pytest.mark.parametrize("seed", range(2))
def test_after_a_cut_that_heals_nothing_is_missing_and_nothing_counts_twice(seed: int) -> None:
    net = faulty(f"cut/{seed}", "abcd", "full")
    net.run(2.0, net.train)
    net.sides = ("ab", "cd")
    net.run(6.0, net.train)
    assert [v for v in net.effects(Verdict) if v.state == DEAD]
    net.calm()
    net.run(12.0, net.train)
    net.agree(60.0)
    assert float((net.mean() - net.put_in[:-1] / net.put_in[-1]).abs().max()) < 1e-9


def test_who_leaves_takes_what_it_holds_and_what_is_on_its_way_to_it() -> None:
    for seed in range(2):
        net = Net(f"leave/{seed}", "abcd", "full")
        net.delay_s = 0.1
        net.run(3.0, net.train)
        net.leave("c")
        net.run(1.0, net.train)
        leaver = net.peers["c"]
        assert leaver.others.settled()
        net.run(3.0, net.train)
        del net.peers["c"]
        net.agree(60.0)
        to_it = [link for link in net.assigned if link[1] == ("c", 1)]
        rest = net.put_in - leaver.averager.mass
        rest = rest - sum(net.assigned[link] - net.received.get(link, 0.0) for link in to_it)
        assert all(
            torch.equal(net.received[link], net.assigned[link])
            for link in net.assigned
            if link[0] == ("c", 1)
        )
        assert float((net.mean() - rest[:-1] / rest[-1]).abs().max()) < 1e-9
        assert all("c" not in peer.membership.live() for peer in net.peers.values())


@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.0])
def test_who_dies_just_before_the_end_does_not_leave_the_others_apart(after_s: float) -> None:
    """When all say that they are the same, they are, and it takes no longer than the death to be
    seen."""
    took = []
    for seed in range(40):
        net = Net(f"end/{seed}", "abc", "full")
        net.delay_s = 0.02
        net.run(3.0, net.train)
        net.crash("c")
        net.run(after_s, net.train)
        peers = list(net.peers.values())

        def over(peers: list[MixingPeer] = peers) -> bool:
            alone = all("c" not in peer.membership.live() for peer in peers)
            return alone and all(peer.others.even() and peer.others.caught_up() for peer in peers)

        began = net.now
        assert net.comes_true(over)
        took.append(net.now - began)
        size = float(net.mean().norm())
        assert net.spread() <= 2 * EVEN * size, (seed, net.spread() / size)
    assert sorted(took)[len(took) // 2] < 4.0


def test_a_newcomer_counts_as_one_with_the_weights_of_its_giver() -> None:
    net = Net("newcomer", "abc", "full")
    net.delay_s = 0.1
    net.run(3.0, net.train)
    net.agree(30.0)
    before = net.mean()
    net.join("d")
    net.run(5.0, net.turns)
    (adopted,) = net.effects(Adopted, "d")
    assert adopted.giver in "abc"
    net.agree(30.0)
    assert float(net.put_in[-1]) == 4.0
    assert float((net.mean() - before).abs().max()) < 1e-6  # what was on its way
    assert sum(p.averager.weight for p in net.peers.values()) == pytest.approx(4.0)


def test_nothing_grows_without_bound() -> None:
    net = faulty("bounds", "ab", "full", forget_after_s=2.0)
    for i in range(12):
        net.join("c", epoch=i + 1)
        net.run(2.0, net.train)
        net.crash("c")
        net.run(1.0, net.train)
    net.calm()
    net.run(8.0, net.turns)
    for name, peer in net.peers.items():
        other = "b" if name == "a" else "a"
        averager = peer.averager
        assert other in averager.ties
        assert set(averager.ties) <= {other, "c"}
        assert averager.unconfirmed("c") is None
        assert peer.links.names() <= {"b", "a", "c"}
        assert len(peer.clock.keys()) <= 2 + 12


# -- when a share goes to whom -------------------------------------------------------------------


def peer(
    name: str = "a", others: str = "bc", *values: float, synced: bool = True, **config: Any
) -> MixingPeer:
    values = values or (4.0, 8.0)
    out = MixingPeer(
        name,
        1,
        Replica(weights_of(*values)),
        rng=random.Random(name),
        config=PeerConfig(**config),
        synced=synced,
    )
    for other in others:
        meet(out, other)
    return out


def meet(one: MixingPeer, other: str, epoch: int = 1, state: str = ALIVE, inc: int = 0) -> None:
    rumour = Rumour(other, epoch, inc, state, "", other)
    sender = other if state == ALIVE else "z"
    for effect in one.receive(sender, Ack(0, other, False, (rumour,)), NOW):
        if isinstance(effect, Deliver):
            one.fold(effect.sender, effect.message, NOW)


def step(one: MixingPeer, *values: float) -> list[Effect]:
    delta = weights_of(*values) if values else torch.zeros_like(one.replica.weights)
    return one.publish(delta, one.context())


def share(one: MixingPeer, to: str, now: float = NOW) -> Share:
    out = one.take(to, now)
    assert out is not None
    return out


def give(one: MixingPeer, sender: str, message: Share | Snapshot) -> list[Effect]:
    """Receive and fold."""
    delivered = [e for e in one.receive(sender, message, NOW) if isinstance(e, Deliver)]
    assert [(e.sender, e.message) for e in delivered] == [(sender, message)]
    return one.fold(sender, message, NOW)


def sent(effects: list[Effect], kind: type) -> list[tuple[str, Any]]:
    return [
        (e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)
    ]


def test_a_pair_by_hand() -> None:
    a, b = peer("a", "b", 4.0), peer("b", "a", 0.0)
    assert a.ready(NOW) == []
    assert step(a, 2.0) == [Applied((Dot("a", 1, 1),), (0,))]
    assert a.replica.weights.tolist() == [6.0]
    assert a.ready(NOW) == ["b"]
    first = share(a, "b")
    assert (first.weight, first.model.tolist()) == (0.5, [6.0])
    assert first.clock == Clock([Dot("a", 1, 1)])
    assert a.replica.weights.tolist() == [6.0]
    effects = give(b, "a", first)
    assert effects == [Applied((Dot("a", 1, 1),), (1,)), Send("a", Receipt(1, 1, 1))]
    assert b.replica.weights.tolist() == [2.0]
    assert b.clock == first.clock == b.replica.clock
    assert not a.others.settled()
    a.receive("b", Receipt(1, 1, 1), NOW)
    assert a.others.settled()
    a.landed("b", first)  # the link says so later
    assert a.others.settled()
    step(b, 1.0)  # its weight is 1.5
    back = share(b, "a")
    assert (back.weight, back.model.tolist()) == (0.75, [3.0])
    assert give(a, "b", back)[0] == Applied((Dot("b", 1, 1),), (1,))
    assert a.replica.weights.tolist() == pytest.approx([5.25 / 1.25])


def test_a_giver_that_never_stepped_is_named_by_number_0() -> None:
    a, b = peer("a", "b", 4.0), peer("b", "a", 0.0)
    a.partners.turn()
    assert give(b, "a", share(a, "b"))[0] == Applied((Dot("a", 1, 0),), (0,))


def test_own_staleness_counts_what_was_merged_meanwhile() -> None:
    a, b = peer("a", "b", 4.0), peer("b", "a", 0.0)
    context = b.context()
    for _ in range(3):
        step(a, 1.0)
    give(b, "a", share(a, "b"))
    assert b.publish(weights_of(1.0), context) == [Applied((Dot("b", 1, 1),), (3,))]


def test_full_gossips_in_pairs_and_goes_round_busy_links() -> None:
    a = peer("a", "bcd")
    first: list[str] = []
    for _ in range(3):
        step(a)
        (to,) = a.ready(NOW)
        first.append(to)
        assert share(a, to).weight == 0.5 ** len(first)
    assert sorted(first) == ["b", "c", "d"]
    step(a)
    assert a.ready(NOW) == []  # all are on their way
    assert not a.others.settled()


def test_neighbours_get_equal_parts_one_after_another() -> None:
    hub = min("abcd", key=topology._priority)
    a = peer(hub, "abcd".replace(hub, ""), 8.0, topology="star")
    step(a)
    shares = [share(a, to) for to in a.ready(NOW)]
    assert [one.weight for one in shares] == pytest.approx([0.25] * 3)
    assert a.averager.mass.tolist() == pytest.approx([2.0, 0.25])


def test_who_trains_no_more_mixes_until_all_are_even() -> None:
    net = Net("rest", "abcd", "full")
    net.delay_s = 0.02
    net.run(2.0, net.train)
    assert not any(one.others.even() for one in net.peers.values())
    assert net.comes_true(lambda: all(one.others.even() for one in net.peers.values()), 3.0)
    assert net.spread() / float(net.mean().norm()) < 1e-3
    assert net.comes_true(lambda: all(one.others.settled() for one in net.peers.values()), 3.0)
    before = len(net.effects(Applied))
    net.run(10.0)
    assert len(net.effects(Applied)) - before < 100  # now and then
    net.publish("a")
    assert not net.peers["a"].others.even()
    assert len(net.peers["a"].links.due()) + len(net.peers["a"].links.unconfirmed()) <= 1
    assert net.comes_true(
        lambda: all(len(one.clock) == len(net.peers["a"].clock) for one in net.peers.values())
    )


@pytest.mark.parametrize("seed", range(2))
def test_whose_last_updates_changed_next_to_nothing_is_as_soon_even(seed: int) -> None:
    """The others rest, and find it to be the same all the time; after its last update they must
    show it their models all the same."""
    net = Net(f"tiny {seed}", "abcdefgh", "full")
    net.delay_s = 0.02
    net.run(2.0, net.train)
    due = net.now

    def alone() -> None:
        nonlocal due
        if net.now >= due:
            due = net.now + 0.1
            net.publish("a", 1e-9)

    net.run(5.0 + 0.3 * seed, alone)
    assert not net.peers["a"].others.even()
    assert net.comes_true(lambda: all(one.others.even() for one in net.peers.values()), 2.5)


def test_who_rests_and_does_not_fold_keeps_its_weight() -> None:
    """Its driver is busy with something else; it does not pour its weight into the others."""
    net = Net("busy", "abc", "full")
    net.delay_s = 0.02
    net.run(2.0, net.train)
    fold, busy = net.fold, net.peers["a"]

    def not_mine(peer: MixingPeer) -> None:
        if peer is not busy:
            fold(peer)

    net.fold = not_mine  # type: ignore[method-assign]
    net.run(0.5)
    before = busy.averager.weight
    net.run(20.0)
    assert busy.averager.weight > before / 8
    assert busy.state.unfolded > 0


def test_stop_and_wait() -> None:
    a = peer("a", "b", topology="ring")
    step(a)
    first = share(a, "b")
    step(a)
    assert (a.ready(NOW), a.take("b", NOW)) == ([], None)
    a.landed("b", first)
    assert a.ready(NOW) == []  # it is there; is it in?
    a.receive("b", Receipt(1, 1, 1), NOW)
    assert a.ready(NOW) == ["b"]  # the second turn
    second = share(a, "b")
    assert second.seq == 2
    assert a.averager.unconfirmed("b") is second


def test_what_got_lost_goes_again_as_it_was() -> None:
    a = peer("a", "b")
    step(a)
    first = share(a, "b")
    a.lost("b", first)
    step(a)
    assert a.ready(NOW) == []
    assert a.ready(NOW + 0.4) == []
    assert a.ready(NOW + 0.5) == ["b"]
    assert share(a, "b", NOW + 0.5) is first


def test_what_landed_and_is_not_confirmed_goes_again_as_it_was() -> None:
    a = peer("a", "b")
    step(a)
    first = share(a, "b")
    a.landed("b", first)
    step(a)
    assert a.ready(NOW + 0.6) == []
    assert a.ready(NOW + 2.7) == ["b"]
    assert share(a, "b", NOW + 3) is first


def test_a_link_the_graph_does_not_name_any_more_is_served_until_it_is_confirmed() -> None:
    names = "abcdef"
    a = peer("a", names[1:], topology="ring")  # b and f
    step(a)
    a.lost("f", share(a, "f"))
    meet(a, "g")  # now b and g
    assert a.partners.neighbours() == ("b", "g")
    assert a.ready(NOW) == ["b"]
    assert "f" in a.ready(NOW + 1)
    again = share(a, "f", NOW + 1)
    a.receive("f", Receipt(again.seq, 1, 1), NOW)
    a.landed("f", again)
    step(a)
    assert "f" not in a.ready(NOW + 9)


def vectors(one: MixingPeer) -> int:
    """How many vectors of the model's size it keeps."""
    averager = one.averager
    kept = [averager.model, *(k.share.model for k in averager.ties.values() if k.share)]
    return len({vector.data_ptr() for vector in kept})


def test_memory_of_a_link() -> None:
    a, b = peer("a", "b"), peer("b", "a")
    for _ in range(3):
        for one, other in ((a, b), (b, a)):
            step(one)
            given = share(one, other.name)
            assert vectors(one) == 1  # what is on its way is the model as it is
            was = given.model.clone()
            step(one)
            assert vectors(one) == 2
            assert torch.equal(given.model, was)
            assert one.replica.weights is one.averager.model
            give(other, one.name, given)
            one.receive(other.name, other.averager.receipt(one.name, 1), NOW)
            one.landed(other.name, given)
            assert vectors(one) == vectors(other) == 1


def test_whoever_is_fast_keeps_its_weight() -> None:
    """100 steps to one: without a wait for receipts it would have a hundredth of the weight."""
    a, b = peer("a", "b"), peer("b", "a")
    weights = []
    for i in range(3000):
        step(a)
        for to in a.ready(NOW):
            held = share(a, to)
        if i % 100 == 99:
            give(b, "a", held)
            a.landed("b", held)
            a.receive("b", b.averager.receipt("a", 1), NOW)
            step(b)
            back = share(b, "a")
            give(a, "b", back)
            b.landed("a", back)
            b.receive("a", a.averager.receipt("b", 1), NOW)
        weights.append(a.averager.weight)
    assert 0.4 < sum(weights) / len(weights) < 1.2


def test_an_offer_of_what_is_here_is_declined_and_its_receipt_repeated() -> None:
    a, b = peer("a", "b"), peer("b", "a")
    step(a)
    first = share(a, "b")
    offer = (first.seq, first.epoch, first.to_epoch)
    assert b.wants_share("a", *offer)
    give(b, "a", first)
    assert not b.wants_share("a", *offer)
    assert not b.wants_share("a", 2, 1, 9)
    b.tick(NOW + 1)
    for later in range(2, 9):
        b.tick(NOW + later)
    assert not b.wants_share("a", *offer)
    assert sent(b.tick(NOW + 10), Receipt) == [("a", Receipt(1, 1, 1))]


# -- receipts ------------------------------------------------------------------------------------


def test_receipts_are_repeated_a_few_times() -> None:
    a, b = peer("a", "b"), peer("b", "a")
    step(a)
    give(b, "a", share(a, "b"))
    said = [sent(b.tick(NOW + 1 + i), Receipt) for i in range(6)]
    assert said == [[("a", Receipt(1, 1, 1))]] * 3 + [[]] * 3


def test_a_twin_is_dropped_and_answered() -> None:
    a, b = peer("a", "b"), peer("b", "a")
    step(a)
    first = share(a, "b")
    give(b, "a", first)
    before = b.averager.mass
    detail = "it is in already"
    assert give(b, "a", first) == [Drop("a", "duplicate", detail), Send("a", Receipt(1, 1, 1))]
    assert torch.equal(b.averager.mass, before)


def test_a_share_for_an_earlier_life_is_dropped_without_an_answer() -> None:
    a, b = peer("a", "b"), peer("b", "a")
    step(a)
    other = Share(1, 1, 7, 0.5, share(a, "b").model, Clock())
    assert give(b, "a", other) == [Drop("a", "stale", "to or from an earlier life")]


# -- newcomers -----------------------------------------------------------------------------------


def test_a_newcomer_asks_until_it_has_a_snapshot() -> None:
    d = peer("d", "abc", synced=False)
    with pytest.raises(LocalProtocolError, match="no snapshot"):
        step(d)
    assert len(sent(d.tick(NOW), SnapshotRequest)) == 1
    assert sent(d.tick(NOW + 1), SnapshotRequest) == []
    assert len(sent(d.tick(NOW + 3), SnapshotRequest)) == 1
    assert sent(d.receive("a", SnapshotRequest(), NOW), Snapshot) == []
    d.partners.turn()
    assert d.ready(NOW) == []
    a = peer("a", "d", 1.0, 2.0)
    step(a, 1.0, 1.0)
    ((to, snapshot),) = sent(a.receive("d", SnapshotRequest(), NOW), Snapshot)
    assert to == "d"
    assert give(d, "a", snapshot) == [Adopted("a", snapshot, (), (), ())]
    assert (d.synced, d.replica.weights.tolist()) == (True, [2.0, 3.0])
    assert d.averager.mass.tolist() == [2.0, 3.0, 1.0]
    assert d.clock == a.clock
    assert d.clock is d.replica.clock is d.averager.clock
    assert give(d, "a", snapshot)[0] == Drop(
        "a", "unwanted", "a snapshot: I have weights, or leave"
    )


def test_shares_before_the_snapshot_are_not_lost() -> None:
    a, d = peer("a", "d", 6.0), peer("d", "a", 99.0, synced=False)
    step(a)
    first = share(a, "d")
    assert give(d, "a", first)[1] == Send("a", Receipt(1, 1, 1))
    assert (d.replica.weights.tolist(), d.averager.weight, d.synced) == ([6.0], 0.5, False)
    give(d, "a", Snapshot(weights_of(3.0), Clock(), ()))
    assert d.averager.mass.tolist() == [6.0, 1.5]  # 3 and 0.5 by share, 3 and 1 by snapshot
    assert d.replica.weights.tolist() == [4.0]
    assert Dot("a", 1, 1) in d.clock


def test_a_checkpoint_is_begun_with() -> None:
    clock = Clock([Dot("a", 1, 1), Dot("b", 1, 1)])
    a = MixingPeer("a", 2, Replica(weights_of(1.0), clock), rng=random.Random(0))
    assert (a.seq, a.clock) == (0, clock)
    assert step(a, 1.0) == [Applied((Dot("a", 2, 1),), (0,))]
    assert (a.seq, a.replica.weights.tolist(), a.room(1 << 40)) == (1, [2.0], True)


# -- deaths and departures -----------------------------------------------------------------------


def test_what_the_dead_did_not_confirm_is_kept_and_moves_nothing() -> None:
    a = peer("a", "bc")
    step(a)
    (to,) = a.ready(NOW)
    first = share(a, to)
    meet(a, to, state=DEAD)
    assert (a.averager.weight, a.replica.weights.tolist()) == (0.5, [4.0, 8.0])
    assert a.others.settled()  # nobody waits for the dead
    a.lost(to, first)
    step(a)
    assert to not in a.ready(NOW + 9)
    meet(a, to, inc=1)  # it objects
    assert not a.others.settled()
    assert to not in a.ready(NOW + 9)
    assert to in a.ready(NOW + 10)
    assert share(a, to, NOW + 10) is first
    a.receive(to, Receipt(1, 1, 1), NOW)
    assert a.averager.weight == 0.5


def test_the_share_of_a_life_that_is_over_for_long_is_let_go_of() -> None:
    a = peer("a", "b", forget_after_s=5.0)
    step(a)
    share(a, "b")
    meet(a, "b", state=DEAD)
    a.tick(NOW + 4)
    assert a.averager.unconfirmed("b") is not None
    a.tick(NOW + 6)
    assert a.averager.unconfirmed("b") is None
    assert (a.averager.weight, a.others.settled()) == (0.5, True)


def test_a_new_life_begins_with_new_counters() -> None:
    a = peer("a", "b")
    step(a)
    old = share(a, "b")
    meet(a, "b", epoch=2)
    step(a)
    assert a.ready(NOW) == []  # its link still carries what is for the life before
    a.lost("b", old)
    new = share(a, "b")
    assert (new.seq, new.to_epoch, new.weight) == (1, 2, 0.25)
    late = Share(1, 1, 1, 0.5, torch.ones(2), Clock())
    assert give(a, "b", late) == [Drop("b", "stale", "to or from an earlier life")]


def test_two_who_were_too_long_apart_wait_and_then_go_on() -> None:
    a = peer("a", "bcd", forget_after_s=5.0)
    meet(a, "b", state=DEAD)
    a.tick(NOW + 6)
    said = a.receive("b", Ack(0, "b", False, (Rumour("b", 1, 1, ALIVE, "", "b"),)), NOW + 7)
    assert ("b", Receipt(0, 1, 1)) in sent(said, Receipt)
    theirs = Share(3, 1, 1, 0.5, weights_of(1.0, 1.0), Clock())
    assert give(a, "b", theirs)[1:] == [Send("b", Receipt(0, 1, 1))]
    a.links.make_due("b")
    assert a.ready(NOW + 7) == []
    for later in range(8, 20):
        for name in "bcd":
            a.receive(name, Ack(0, name, False, ()), NOW + later)
        a.tick(NOW + later)
    assert "b" in a.ready(NOW + 20)
    a.receive("b", Receipt(0, 1, 1), NOW + 20)  # b waits a moment longer
    assert "b" in a.ready(NOW + 20)
    assert isinstance(give(a, "b", theirs)[0], Applied)


def test_a_leaver_is_given_nothing_more_and_waited_for_by_nobody() -> None:
    a, b = peer("a", "b"), peer("b", "a")
    step(a)
    first = share(a, "b")
    give(b, "a", first)  # its receipt is lost
    b.leave(NOW)
    assert b.others.settled()
    step(a)
    a.receive("b", Ack(0, "b", False, (Rumour("b", 1, 0, LEFT, "", "b"),)), NOW)
    assert a.others.settled()
    assert (a.averager.weight, a.ready(NOW + 9)) == (0.5, [])


def test_a_leaver_gives_what_it_promised_and_takes_nothing_more() -> None:
    a, b = peer("a", "b"), peer("b", "a")
    step(b)
    mine = share(b, "a")
    b.lost("a", mine)
    step(a)
    theirs = share(a, "b")
    b.leave(NOW)
    step(b)
    assert give(b, "a", theirs) == [Drop("a", "leaving")]
    assert not b.others.settled()
    assert b.ready(NOW) == []
    again = share(b, "a", NOW + 1)
    assert again is mine
    give(a, "b", again)
    b.receive("a", Receipt(1, 1, 1), NOW)
    b.landed("a", again)
    assert b.others.settled()


def test_records_of_those_who_left_and_of_too_many_dead_go() -> None:
    a = peer("a", "b", forget_after_s=5.0)
    for i in range(DEAD_MAX + 10):
        meet(a, f"n{i:03}")
        a.receive(
            "z", Ack(0, "z", False, (Rumour(f"n{i:03}", 1, 0, DEAD, "", "z"),)), NOW + i / 1e3
        )
    meet(a, "l")
    meet(a, "l", state=LEFT)
    for later in range(1, 9):
        a.tick(NOW + later)
    assert a.membership.state("l") is None
    assert len(a.membership.dead()) == DEAD_MAX
    assert a.membership.state("n000") is None
    assert a.membership.state(f"n{DEAD_MAX + 9:03}") == DEAD


# -- too long apart ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sides", "again"), [(("ab", "cd"), "cd"), (("a", "bcd"), "a"), (("a", "b"), "b")]
)
def test_the_smaller_side_of_a_long_cut_starts_again(sides: tuple[str, str], again: str) -> None:
    names = "".join(sides)
    net = Net(f"long/{sides}", names, "full", forget_after_s=3.0)
    net.delay_s = 0.05
    net.run(2.0, net.train)
    net.sides = sides
    net.run(12.0, net.train)
    assert not net.effects(Rejoin)
    net.sides = ()
    net.run(14.0, net.train)
    over = {who for who, effect in net.done if isinstance(effect, Rejoin)}
    assert over == set(again)
    for name in again:
        net.crash(name)
        net.join(name, epoch=2)
    net.run(6.0, net.train)
    net.agree(30.0)


def test_whoever_was_frozen_for_too_long_starts_again_and_not_the_others() -> None:
    net = Net("frozen", "abc", "full", forget_after_s=3.0)
    net.delay_s = 0.05
    net.run(2.0, net.train)
    frozen = net.peers.pop("a")
    net.run(12.0, net.train)
    net.peers["a"] = frozen
    net.run(14.0, net.train)
    assert {who for who, effect in net.done if isinstance(effect, Rejoin)} == {"a"}


# -- what no honest peer sends, and misuse -------------------------------------------------------


def bad_share(*values: float, epoch: int = 1, clock: Clock | None = None) -> Share:
    return Share(1, epoch, 1, 1.0, weights_of(*values), Clock() if clock is None else clock)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Push((Stamp(Dot("b", 1, 1), Clock()),), weights_of(1.0, 2.0)), "message"),
        (Digest(1, Clock(), Clock()), "message"),
        (Want((Range("a", 1, 1, 1),)), "message"),
        (Lack((Range("a", 1, 1, 1),)), "message"),
        (Decided(()), "message"),
        ("nonsense", "message"),
        (bad_share(1.0), "share.model"),
        (bad_share(1.0, 1e30), "share.model"),
        (bad_share(1.0, float("nan")), "share.model"),
        (bad_share(1.0, float("inf")), "share.model"),
        (Share(1, 1, 1, 1.0, torch.ones(2, dtype=torch.float64), Clock()), "share.model"),
        (bad_share(1.0, 1.0, epoch=0), "share.epoch"),
        (bad_share(1.0, 1.0, clock=Clock([Dot("a", 1, 9)])), "share.clock"),
        (bad_share(1.0, 1.0, clock=Clock([Dot("a", 2, 1)])), "share.clock"),
        (bad_share(1.0, 1.0, clock=Clock(generation=1)), "share.clock"),
        (Receipt(5, 1, 1), "receipt.seq"),
        (Receipt(-1, 1, 1), "receipt.seq"),
        (Snapshot(weights_of(1.0), Clock(), ()), "snapshot.weights"),
        (Snapshot(weights_of(1.0, float("nan")), Clock(), ()), "snapshot.weights"),
        (Snapshot(weights_of(1.0, 1e30), Clock(), ()), "snapshot.weights"),
        (Snapshot(weights_of(1.0, 1.0), Clock([Dot("a", 1, 9)]), ()), "snapshot.clock"),
        (Snapshot(weights_of(1.0, 1.0), Clock(generation=0, base=4), ()), "snapshot.clock"),
    ],
)
def test_refused_before_anything_changes(message: Any, field: str) -> None:
    a = peer("a", "b")
    step(a)
    given = share(a, "b")
    before, clock = a.averager.mass, a.clock.copy()
    with pytest.raises(RemoteProtocolError) as caught:
        a.receive("b", message, NOW)
    assert caught.value.field == field
    assert torch.equal(a.averager.mass, before)
    assert a.clock == clock
    assert a.averager.unconfirmed("b") is given


def test_nobody_else_is_me() -> None:
    a = peer("a", "b")
    for message in (Ping(1), Receipt(1, 1, 1), SnapshotRequest()):
        with pytest.raises(RemoteProtocolError, match="my id"):
            a.receive("a", message, NOW)


def test_misuse() -> None:
    a = peer("a", "b")
    with pytest.raises(LocalProtocolError, match="delta"):
        a.publish(weights_of(1.0), a.context())
    with pytest.raises(LocalProtocolError, match="epoch 0"):
        MixingPeer("a", 0, Replica(weights_of(1.0)), rng=random.Random(0))
    with pytest.raises(LocalProtocolError, match="floating"):
        MixingPeer("a", 1, Replica(torch.ones(2, dtype=torch.int64)), rng=random.Random(0))
