"""The coordinator without its network: streams that break, members that die, freeze and lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from murmurate.core.partition import analyse, weights_of
from murmurate.core.partition.structure import Held
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.pieces import PieceSize
from murmurate.edge.net.subnet_values import (
    Incoming,
    Outgoing,
    decode_held,
    structure_digest,
)
from murmurate.errors import MurmurateError, PeerExists, RemoteProtocolError, SchemaMismatch
from murmurate_coordinator.checkpoint import restore, save
from murmurate_coordinator.members import FROZEN_S, GRACE_S, RESTART_S
from murmurate_coordinator.names import RULES
from murmurate_coordinator.session_words import NoRoom
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.protocol import LIFE, Solver
from murmurate_coordinator.solvers.table import new_solver

J = 3
BATCH = 8


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)
    )


MODEL = make()
STRUCTURE = analyse(MODEL, (torch.randn(4, 3),))
DIGEST = structure_digest(STRUCTURE)


@dataclass
class Peer:
    """The other end: what it holds, and what it was told."""

    name: str
    instance: str = "one"
    width: float = 1.0
    memory_bytes: int = 0
    stream: int = 0
    give: wire.Give | None = None
    held: Held | None = None
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    version: int = 0
    steps: int = 0
    told: list[wire.Task] = field(default_factory=list)
    ended: bool = False

    def train(self, steps: int = J) -> None:
        """Something that changes every coordinate, and depends on what it was."""
        for _ in range(steps):
            for value in self.values.values():
                if value.is_floating_point():
                    value.mul_(0.9).add_(0.01 * (1 + len(self.name)))
                else:
                    value.add_(1)
        self.steps += steps

    @property
    def last(self) -> wire.Task:
        return self.told[-1]


class Table:
    def __init__(self, rule: str, founders: int = 1, solver: Solver | None = None) -> None:
        self.now = 100.0
        rng = np.random.default_rng(0)
        self.solver = solver or new_solver(
            rule, STRUCTURE, weights_of(MODEL), rng, steps=J, founders=founders
        )
        self.centre = Sessions(self.solver, run="r", instance="c", now=self.now)
        self.peers: dict[int, Peer] = {}
        self.streams = 0

    def hello(self, peer: Peer, **changed: Any) -> wire.WorkWelcome:
        self.streams += 1
        lease = peer.give.lease if peer.give is not None else 0
        said = {
            "run": "r",
            "name": peer.name,
            "instance": peer.instance,
            "structure": DIGEST,
            "width": peer.width,
            "memory_bytes": peer.memory_bytes,
            "lease": lease,
            "lease_version": peer.version if lease else 0,
        }
        hello = wire.WorkHello(**{**said, **changed})
        self.peers[self.streams] = peer
        try:
            welcome = self.centre.hello(self.streams, hello, self.now)
            peer.stream, peer.ended = self.streams, False
        finally:
            self.carry()
        if welcome.lease_holds:
            peer.version = welcome.lease_version
        return welcome

    def carry(self) -> None:
        out, self.centre.out = self.centre.out, []
        for each in out:
            peer = self.peers[each.stream]
            if each.task is None:
                peer.ended = peer.ended or peer.stream == each.stream
                continue
            if peer.stream not in (0, each.stream):
                continue
            peer.told.append(each.task)
            if (give := each.task.give) is not None:
                assert each.values is not None
                held = decode_held(STRUCTURE, give.held)
                into = Incoming("give", STRUCTURE, held, give.value_bytes)
                for offset, raw in each.values.pieces(PieceSize(100)):
                    into.take(offset, raw)
                peer.give, peer.held, peer.values = give, held, into.values
                peer.version, peer.steps = give.version, 0
            taken = each.task.taken
            if taken is not None and peer.give is not None and taken.lease == peer.give.lease:
                peer.version = taken.version

    def push(self, peer: Peer, values: dict[str, torch.Tensor] | None = None, **lies: Any) -> None:
        assert peer.give is not None
        packed = Outgoing(STRUCTURE, values or peer.values)
        said = {
            "plan": peer.give.plan,
            "lease": peer.give.lease,
            "version": peer.version + 1,
            "steps": peer.steps,
            "samples": peer.steps * BATCH,
            "value_bytes": packed.value_bytes,
        }
        head = wire.Return(**{**said, **lies}, loss=0.5, seconds=0.1 * peer.steps)
        coming = self.centre.announce(peer.name, peer.stream, head)
        if "value_bytes" not in lies:
            for offset, raw in packed.pieces(PieceSize(100)):
                coming.into.take(offset, raw)
        self.centre.push(peer.name, peer.stream, coming, self.now)
        self.carry()

    def gone(self, peer: Peer) -> None:
        self.centre.gone(peer.name, peer.stream, self.now)
        self.carry()

    def wait(self, seconds: float, *alive: Peer) -> None:
        self.now += seconds
        for peer in alive:
            peer.train(1)
        self.centre.tick(self.now)
        self.carry()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.solver.weights.items()}


def seated(rule: str, *names: str) -> tuple[Table, list[Peer]]:
    table = Table(rule, founders=len(names))
    peers = [Peer(name) for name in names]
    for peer in peers:
        table.hello(peer)
    assert all(peer.give is not None for peer in peers)
    return table, peers


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


# -- what was trained is in the model -------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_model_holds_exactly_what_was_pushed(rule: str) -> None:
    """Two members, J steps each: split coordinates are theirs, shared ones the mean."""
    table, peers = seated(rule, "a", "b")
    units = [table.centre.part(one.held) for one in table.centre.solver.leases.values()]
    assert sum(units) <= 1 or rule == "fedavg"
    before = table.weights
    pushed = []
    for peer in peers:
        peer.train()
        assert peer.held is not None
        pushed.append((peer.held.copy(), {n: v.clone() for n, v in peer.values.items()}))
        given = peer.give
        table.push(peer)
        assert given is not None
        taken = [task.taken for task in peer.told if task.taken is not None]
        assert [(t.lease, t.version) for t in taken] == [(given.lease, 1)]
    after = table.weights
    for name, tensor in STRUCTURE.tensors.items():
        total = np.zeros(tensor.shape)
        count = np.zeros(tensor.shape)
        for held, values in pushed:
            grid = np.ix_(
                *(
                    np.arange(s) if k is None else k
                    for s, k in zip(tensor.shape, tensor.kept(held), strict=True)
                )
            )
            total[grid] += values[name].double().numpy()
            count[grid] += 1
        mean = np.where(count > 0, total / np.maximum(count, 1), before[name].double().numpy())
        if before[name].is_floating_point():
            assert np.allclose(after[name].double().numpy(), mean, atol=1e-6), name
        else:
            assert int(after[name]) == J  # batch-norm's counter: the largest
    assert table.solver.totals.steps == 2 * J
    assert table.solver.totals.samples == 2 * J * BATCH


def test_staleness_counts_the_others_pushes() -> None:
    table, (a, b) = seated("async", "a", "b")
    for peer in (a, a, b, a):
        peer.train(1)
        table.push(peer)
    stale = [t.taken.staleness for t in b.told + a.told if t.taken is not None]
    assert stale == [2, 0, 0, 1]
    assert table.centre.staleness.report()["max"] == 2


# -- broken streams -------------------------------------------------------------------------------


def test_back_within_the_grace_goes_on() -> None:
    table, (a, b) = seated("async", "a", "b")
    table.push(a)
    lease = a.give
    table.gone(a)
    table.wait(GRACE_S - 0.1, b)
    welcome = table.hello(a)
    assert welcome.lease_holds
    assert welcome.lease_version == 1
    assert a.give is lease
    a.train(2)
    table.push(a)
    assert a.last.taken == wire.Taken(lease=lease.lease if lease else 0, version=2, staleness=0)


def test_an_answer_that_got_lost_counts_once() -> None:
    """Pushed and folded in, then the stream breaks: the welcome says so, and it counts once."""
    table, (a, _) = seated("async", "a", "b")
    a.train(4)
    table.push(a)
    a.version = 0  # «Taken» never came
    table.gone(a)
    again = table.hello(a, lease_version=0)
    assert again.lease_version == 1
    a.version = 0
    before = table.weights
    table.push(a)
    assert a.last.taken is not None
    assert a.last.taken.version == 1
    assert same(before, table.weights)
    assert table.solver.totals.samples == 4 * BATCH
    a.version = 1
    a.train(1)
    table.push(a)
    assert table.solver.totals.samples == 5 * BATCH
    assert table.solver.totals.steps == 5


def test_a_gift_that_got_lost_is_given_again() -> None:
    table, (a, _) = seated("lease", "a", "b")
    a.train()
    known = a.give
    table.push(a)  # taken, and given something new
    assert a.give is not known
    newest = a.give
    a.give = known  # … which did not arrive
    table.gone(a)
    welcome = table.hello(a)
    assert not welcome.lease_holds
    assert a.give is not None
    assert newest is not None
    assert a.give.lease > newest.lease
    assert a.give.held == newest.held


@pytest.mark.parametrize("rule", ["once", "sync", "async", "lease"])
def test_units_given_again_stay_whose_they_were(rule: str) -> None:
    """Found by `test_churn`: the next push of everybody went into another one's units."""
    table, peers = seated(rule, "a", "bb", "ccc")
    table.gone(peers[0])
    peers[0].give = None  # it never came
    table.hello(peers[0])
    for _ in range(2):
        for peer in peers:
            peer.train()
            held, values = peer.held, {n: v.clone() for n, v in peer.values.items()}
            table.push(peer)
            assert held is not None
            rows = STRUCTURE.tensors["0.weight"].kept(held)[0]
            assert torch.equal(table.weights["0.weight"][rows], values["0.weight"])
        table.solver.check()


@pytest.mark.parametrize("rule", ["sync", "once", "fedavg"])
def test_a_dead_member_does_not_hold_up_a_barrier(rule: str) -> None:
    table, (a, b, c) = seated(rule, "a", "b", "c")
    for peer in (a, b):
        peer.train()
        table.push(peer)
    plan = table.solver.plan
    table.gone(c)
    table.wait(GRACE_S - 0.1)
    assert table.solver.plan == plan
    gives = a.give, b.give
    table.wait(0.2)
    assert table.solver.plan > plan
    assert (a.give, b.give) != gives
    assert table.centre.late == 1
    assert c.give is not None
    late = table.hello(c)  # it was only away: its lease is over, and the next plan has it
    assert not late.lease_holds
    assert c.last.waits
    before = table.weights
    table.push(c)
    assert c.last.not_taken is not None
    assert c.last.not_taken.reason == "over"
    assert same(before, table.weights)
    for peer in (a, b):
        peer.train()
        table.push(peer)
    assert c.give.plan == table.solver.plan


@pytest.mark.parametrize("rule", ["once", "async"])
def test_a_frozen_member_loses_its_lease_and_may_come_again(rule: str) -> None:
    table, (a, b) = seated(rule, "a", "b")
    for _ in range(3):
        for peer in (a, b):
            peer.train()
            table.now += 0.5
            table.push(peer)
    if rule == "async":
        plan = table.solver.plan
    else:
        a.train()
        table.push(a)
        plan = table.solver.plan
    for _ in range(int(FROZEN_S) + 1):
        table.wait(1.0)
        if rule == "async":
            a.train(1)
            table.push(a)
    assert table.centre.states()["silent"] == 1
    assert table.solver.plan > plan
    assert "b" not in table.solver.members
    assert any("b has not pushed" in line for line in table.centre.lines.warnings)
    b.train()
    before = table.weights
    table.push(b)  # it woke up: too late, but it is a member again
    answers = [t for t in b.told if t.not_taken is not None]
    assert [t.not_taken.reason for t in answers if t.not_taken] == ["over"]
    assert same(before, table.weights)
    assert "b" in table.solver.members
    assert table.centre.states()["silent"] == 0


def test_a_slow_first_push_is_waited_for_as_long_as_it_steps() -> None:
    table, (a, b) = seated("async", "a", "b")
    for k in range(1, 200):
        table.now += 1.0
        table.centre.doing("b", b.stream, wire.Doing(steps=k), table.now)
        a.train(1)
        table.push(a)
        table.wait(0.0)
    assert table.centre.states()["silent"] == 0
    for _ in range(70):  # … and no longer
        table.wait(1.0)
        a.train(1)
        table.push(a)
    assert table.centre.states()["silent"] == 1


@pytest.mark.parametrize(
    ("mode", "rule", "what"),
    [
        ("ist", "async", "its units are free"),
        ("hub", "async", "what it pushed stays"),
        ("batches", "pull", "those of its batches that are in no update are dealt again"),
    ],
)
def test_what_is_said_of_one_who_is_gone_is_of_its_mode(mode: str, rule: str, what: str) -> None:
    rng = np.random.default_rng(0)
    table = Table(rule, solver=new_solver(rule, STRUCTURE, weights_of(MODEL), rng, mode=mode))
    peer = Peer("a")
    table.hello(peer, mode=mode)
    table.gone(peer)
    table.wait(GRACE_S)
    assert table.centre.lines.warnings == [f"a has been away for {GRACE_S:.0f} s: {what}"]


def test_another_process_takes_the_name_only_when_the_first_is_gone() -> None:
    table, (a, _) = seated("async", "a", "b")
    twin = Peer("a", instance="two")
    with pytest.raises(PeerExists, match="a is here already"):
        table.hello(twin)
    a.train()
    table.push(a)
    assert a.last.taken is not None
    table.gone(a)
    welcome = table.hello(twin)
    assert not welcome.lease_holds
    assert twin.give is not None
    assert table.solver.members.keys() == {"a", "b"}


def test_a_new_stream_of_the_same_process_ends_the_old_one() -> None:
    table, (a, _) = seated("async", "a", "b")
    old = a.stream
    assert table.hello(a).lease_holds
    table.centre.gone("a", old, table.now)  # the old one's end is no news
    table.wait(GRACE_S + 1)
    assert table.centre.states()["training"] == 2


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lies", "reason"),
    [
        ({"lease": 999}, "future"),
        ({"plan": 999}, "future"),
        ({"version": 7}, "future"),
        ({"value_bytes": 8}, "shapes"),
        ({"steps": 0, "samples": 0}, "shapes"),
    ],
)
def test_a_push_that_lies_changes_nothing(lies: dict[str, Any], reason: str) -> None:
    table, (a, _) = seated("async", "a", "b")
    a.train()
    table.push(a)
    a.train()
    before, counted = table.weights, table.solver.totals.refused[reason]
    table.push(a, **lies)
    assert a.last.not_taken is not None
    assert a.last.not_taken.reason == reason
    assert same(before, table.weights)
    assert table.solver.totals.refused[reason] == counted + 1
    table.push(a)
    assert a.last.taken is not None


def test_a_push_for_anothers_lease_or_one_that_is_over() -> None:
    table, (a, b) = seated("async", "a", "b")
    assert b.give is not None
    table.push(a, lease=b.give.lease)
    assert a.last.not_taken is not None
    assert a.last.not_taken.reason == "not_leased"
    table, (a, b) = seated("sync", "a", "b")
    first = a.give
    assert first is not None
    for peer in (a, b):
        peer.train()
        table.push(peer)
    before = table.weights
    table.push(a, lease=first.lease)
    assert a.last.not_taken is not None
    assert a.last.not_taken.reason == "over"
    assert same(before, table.weights)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_values_that_are_not_finite_are_refused_and_the_member_begins_again(value: float) -> None:
    table, (a, _) = seated("async", "a", "b")
    before, lease = table.weights, a.give
    spoilt = {name: v.clone() for name, v in a.values.items()}
    spoilt["0.weight"][0, 0] = value
    table.push(a, spoilt)
    assert any(t.not_taken and t.not_taken.reason == "not_finite" for t in a.told)
    assert same(before, table.weights)
    assert a.give is not lease
    a.train()
    table.push(a)
    assert a.last.taken is not None


def test_more_bytes_than_the_model_has_are_not_even_skipped() -> None:
    table, (a, _) = seated("async", "a", "b")
    with pytest.raises(RemoteProtocolError, match=r"push.value_bytes: 1099511627776"):
        table.push(a, value_bytes=1 << 40)


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"run": "other"}, SchemaMismatch, "run 'other', this coordinator has 'r'"),
        ({"structure": b"0" * 32}, SchemaMismatch, "another structure"),
        ({"memory_bytes": 10}, NoRoom, "memory of x: 10 bytes, the smallest subnet needs"),
    ],
)
def test_who_does_not_fit_is_told_why(
    changed: dict[str, Any], error: type[MurmurateError], says: str
) -> None:
    table, _ = seated("async", "a", "b")
    with pytest.raises(error, match=says):
        table.hello(Peer("x"), **changed)
    assert table.solver.members.keys() == {"a", "b"}


@pytest.mark.parametrize("rule", ["sync", "async", "lease"])
def test_more_members_than_units(rule: str) -> None:
    table = Table(rule)
    refused = 0
    for k in range(12):
        peer = Peer(f"p{k}")
        try:
            table.hello(peer)
        except NoRoom:
            refused += 1
        for seat in list(table.peers.values()):
            if seat.give is not None and seat.stream and not seat.ended:
                seat.train(1)
                table.push(seat)
    assert refused >= 4
    assert table.solver.totals.refused["full"] == refused
    table.solver.check()


# -- a model that nobody may hold -----------------------------------------------------------------


@pytest.mark.parametrize("rule", ["sync", "once", "async", "lease"])
def test_a_model_larger_than_every_member(rule: str) -> None:
    whole = STRUCTURE.nbytes(STRUCTURE.everything()) * 3
    table = Table(rule)
    peers = [Peer(name, memory_bytes=int(whole * 0.6)) for name in "abc"]
    for peer in peers:
        table.hello(peer)
    for _ in range(30):
        for peer in peers:
            if peer.give is not None:
                assert peer.held is not None
                assert STRUCTURE.nbytes(peer.held) * 3 <= peer.memory_bytes
                peer.train()
                table.push(peer)
    assert all(peer.give is not None for peer in peers)
    assert min(table.solver.coverage().values()) > (0.99 if rule in ("sync", "lease") else 0.2)


# -- shares that follow speed ---------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["sync", "async"])
def test_who_is_faster_gets_more(rule: str) -> None:
    table = Table(rule, founders=2)
    a, b = Peer("a", width=0.0), Peer("bb", width=0.0)
    for peer in (a, b):
        table.hello(peer)
    for _ in range(8):
        for peer, seconds in ((a, 0.3), (b, 0.9)):
            peer.train()
            assert peer.give is not None
            packed = Outgoing(STRUCTURE, peer.values)
            head = wire.Return(
                plan=peer.give.plan,
                lease=peer.give.lease,
                version=peer.version + 1,
                steps=peer.steps,
                samples=peer.steps,
                seconds=seconds * peer.steps / J,
                value_bytes=packed.value_bytes,
            )
            coming = table.centre.announce(peer.name, peer.stream, head)
            for offset, raw in packed.pieces(PieceSize()):
                coming.into.take(offset, raw)
            table.centre.push(peer.name, peer.stream, coming, table.now)
            table.carry()
    leases = table.centre.solver.leases.values()
    shares = {one.owner: table.centre.part(one.held) for one in leases}
    assert shares["a"] == pytest.approx(0.75, abs=0.08)
    assert shares["a"] + shares["bb"] == pytest.approx(1.0)


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_last_pushes_are_in_and_nothing_is_given_any_more(rule: str) -> None:
    table, (a, b) = seated(rule, "a", "b")
    gives = a.give, b.give
    table.centre.stop("samples")
    table.carry()
    assert a.last.stop == b.last.stop == "samples"
    for peer in (a, b):
        peer.train(2)
        table.push(peer)
        assert peer.last.taken is not None
        table.centre.bye(peer.name, peer.stream, table.now)
        table.carry()
        assert peer.ended
    assert (a.give, b.give) == gives
    assert table.solver.totals.steps == 4
    assert table.centre.awaited == 0
    with pytest.raises(NoRoom, match="the run is over"):
        table.hello(Peer("late"))


def test_what_members_will_push_when_it_ends_is_counted_for_the_budget() -> None:
    """A push is of many steps: with those of all members a short run went 45 % beyond it."""
    table, (a, b) = seated("async", "a", "b")
    centre = table.centre
    assert centre.samples_if_stopped(table.now + 1.0) == 0  # nobody knows how fast they are
    for peer in (a, b):
        peer.train(J)
        table.push(peer)
    pushed = 2 * J * BATCH
    assert centre.samples_if_stopped(table.now) == pushed
    per_second = BATCH / 0.1  # `Table.push` says 0.1 s for each step
    later = table.now + 1.0
    assert centre.samples_if_stopped(later) == pytest.approx(pushed + 2 * per_second, 0.01)
    table.gone(b)
    assert centre.samples_if_stopped(later) == pytest.approx(pushed + per_second, 0.01)
    barrier, (c, _) = seated("sync", "c", "d")
    c.train(J)
    barrier.push(c)
    assert barrier.centre.samples_if_stopped(barrier.now + 1.0) == J * BATCH  # it waits


# -- kill -9 --------------------------------------------------------------------------------------


def reborn(table: Table) -> Table:
    """What a checkpoint of this instant comes to, and the old one is gone."""
    saved = save(table.solver)
    solver = restore(saved, STRUCTURE, np.random.default_rng(5), steps=J, founders=1)
    new = Table(table.solver.rule, solver=solver)
    new.now = new.centre.members.seats["a"].away_s
    return new


@pytest.mark.parametrize("rule", RULES)
def test_from_a_checkpoint_it_is_the_same(rule: str) -> None:
    """The same pushes after it lead to the same model as without a restart, to the bit."""
    table, (a, b) = seated(rule, "a", "b")
    a.train()
    table.push(a)
    new = reborn(table)
    assert same(table.weights, new.weights)
    assert new.solver.plan == table.solver.plan
    twins = []
    for peer in (a, b):
        twin = Peer(peer.name, peer.instance, peer.width, give=peer.give, held=peer.held)
        twin.values = {n: v.clone() for n, v in peer.values.items()}
        twin.version, twin.steps = peer.version, peer.steps
        welcome = new.hello(twin)
        assert welcome.lease_holds
        twins.append(twin)
    for peer, twin in zip((a, b), twins, strict=True):
        if rule in ("sync", "once", "fedavg") and peer is a:
            continue  # it has pushed, and waits
        for one, at in ((peer, table), (twin, new)):
            one.train()
            at.push(one)
    assert same(table.weights, new.weights)
    assert new.solver.totals == table.solver.totals
    assert new.solver.coverage() == table.solver.coverage()
    for peer, twin in zip((a, b), twins, strict=True):  # what is drawn next is the same too
        assert peer.give is not None
        assert twin.give is not None
        assert peer.give.held == twin.give.held
    new.solver.check()


@pytest.mark.parametrize("rule", ["async", "once"])
def test_pushes_after_the_checkpoint_are_not_lost(rule: str) -> None:
    """Taken, then the coordinator dies and comes back from before: the next push has it all."""
    table, (a, b) = seated(rule, "a", "b")
    twin_table, twins = seated(rule, "a", "b")
    new = reborn(table)
    a.train()
    table.push(a)  # taken, and forgotten
    assert a.last.taken is not None
    welcome = new.hello(a)
    assert welcome.lease_holds
    assert welcome.lease_version == 0
    assert new.hello(b).lease_holds
    if rule == "async":
        a.train(2)
    new.push(a)
    twins[0].train(J + (2 if rule == "async" else 0))
    twin_table.push(twins[0])
    for peer, at in ((b, new), (twins[1], twin_table)):
        peer.train()
        at.push(peer)
    for name, value in twin_table.weights.items():
        assert torch.allclose(value.double(), new.weights[name].double(), atol=1e-6), name
    assert new.solver.totals.samples == twin_table.solver.totals.samples


def test_a_lease_of_a_forgotten_time_is_never_taken_for_a_new_one() -> None:
    table, (a, _) = seated("lease", "a", "b")
    new = reborn(table)
    a.train()
    table.push(a)  # a new lease, which no checkpoint knows
    forgotten = a.give
    assert forgotten is not None
    welcome = new.hello(a)
    assert not welcome.lease_holds
    assert a.give is not None
    assert a.give.lease > LIFE > forgotten.lease
    before = new.weights
    new.push(a, lease=forgotten.lease)
    assert a.last.not_taken is not None
    assert same(before, new.weights)


def test_who_waited_before_a_restart_is_served_after_it() -> None:
    table, (a, _) = seated("async", "a", "b")
    late = Peer("late")
    table.hello(late)
    assert late.give is None
    new = reborn(table)
    for peer in (a, late):
        new.hello(peer)
    a.train()
    new.push(a)
    assert late.give is not None


def test_after_a_restart_members_have_longer_to_come_back() -> None:
    table, _ = seated("async", "a", "b")
    new = reborn(table)
    new.wait(RESTART_S - 1)
    assert new.solver.members.keys() == {"a", "b"}
    new.wait(1.5)
    assert not new.solver.members
    assert not new.solver.leases


# -- anything may happen ---------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
def test_churn(rule: str, seed: int) -> None:
    """Joins, leaves, broken streams, frozen and reborn members, lies, and a coordinator that is
    killed: the promises hold after each, a refused push changes nothing, and it goes on."""
    rng = np.random.default_rng(seed)
    table = Table(rule)
    peers: dict[str, Peer] = {}
    kept = save(table.solver)
    for step in range(220):
        table.now += float(rng.exponential(0.3))
        here = [p for p in peers.values() if p.stream and not p.ended]
        trains = [p for p in here if p.give is not None]
        event = rng.choice(
            ["push", "lie", "join", "bye", "break", "back", "reborn", "wait", "keep", "kill"],
            p=[0.55, 0.06, 0.1, 0.04, 0.06, 0.08, 0.03, 0.05, 0.02, 0.01],
        )
        pick = (lambda some: some[int(rng.integers(len(some)))]) if peers else None
        before, pushes = table.weights, table.solver.totals.pushes
        if event in ("push", "lie") and trains and pick is not None:
            peer = pick(trains)
            peer.train(1)
            if event == "lie":
                lie: list[dict[str, Any]]
                lie = [{"lease": 1 << 50}, {"version": 99}, {"value_bytes": 12}, {"steps": 0}]
                table.push(peer, **lie[int(rng.integers(len(lie)))])
            else:
                table.push(peer)
            if table.solver.totals.pushes == pushes:
                assert same(before, table.weights)
        elif event == "join" and len(peers) < 7:
            name = f"p{step}"
            peers[name] = Peer(name, width=float(rng.choice([0.0, 1.0, 3.0])))
            try:
                table.hello(peers[name])
            except NoRoom:
                del peers[name]
        elif event == "bye" and len(here) > 1 and pick is not None:
            peer = pick(here)
            table.centre.bye(peer.name, peer.stream, table.now)
            table.carry()
            del peers[peer.name]
        elif event == "break" and here and pick is not None:
            table.gone(pick(here))
            continue
        elif event in ("back", "reborn") and peers and pick is not None:
            peer = pick(list(peers.values()))
            if event == "reborn" and peer in here:
                continue
            if event == "reborn":
                peer = peers[peer.name] = Peer(peer.name, instance=f"i{step}", width=peer.width)
            try:
                welcome = table.hello(peer)
            except NoRoom:
                del peers[peer.name]
                continue
            if not welcome.lease_holds and table.solver.lease_of(peer.name) is None:
                peer.give = None
        elif event == "wait":
            table.wait(float(rng.choice([1.0, GRACE_S + 1, FROZEN_S * 12])))
        elif event == "keep":
            kept = save(table.solver)
        elif event == "kill":
            solver = restore(kept, STRUCTURE, np.random.default_rng(step), steps=J, founders=1)
            now, table = table.now, Table(rule, solver=solver)
            table.now = now
            for seat in table.centre.members.seats.values():
                seat.away_s = now
            for peer in peers.values():
                peer.stream, peer.ended = 0, False
        table.solver.check()
        owners = [lease.owner for lease in table.solver.leases.values()]
        assert len(owners) == len(set(owners))
        assert all(bool(torch.isfinite(v).all()) for v in table.weights.values())
    # Whatever happened: a member that comes now trains.
    last = Peer("last")
    table.wait(RESTART_S + 1)
    for peer in [p for p in peers.values() if p.stream]:
        table.gone(peer)
    table.wait(GRACE_S + 1)
    assert not table.solver.members
    table.hello(last)
    last.train()
    pushes = table.solver.totals.pushes
    table.push(last)
    assert table.solver.totals.pushes == pushes + 1
