"""One link for both ways, whoever opened it; over gRPC on loopback.

That who can only dial out is spoken to, that two who dial at the same moment agree on one link, and
that what the other side owes to who opened a link is what it owes to who was called.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.integration.ears import LARGE, SHORT, Memo, Node, ping, push, run, until
from tests.integration.flock import Node as TrainingNode
from tests.integration.flock import flock, same_weights, train_together
from tests.integration.line import Line
from tests.integration.test_grpc_transport import LARGE_BYTES, half, hello, impostor, used

from murmurate.core.clock import Clock
from murmurate.core.message import Generation, Push, Snapshot
from murmurate.edge.net import send_queue, wire
from murmurate.edge.net.credentials import PLAINTEXT, Credentials, Identity, Plaintext
from murmurate.edge.net.grpc_transport import GrpcTransport
from murmurate.edge.net.link import Link
from murmurate.edge.net.route import is_newer
from murmurate.edge.net.transport import Limits
from murmurate.errors import LocalProtocolError, PeerUnavailable, SchemaMismatch

NOWHERE = "127.0.0.1:1"
"""Nobody listens there."""


@contextlib.asynccontextmanager
async def node(
    name: str,
    size: int = 1000,
    limits: Limits = SHORT,
    advertise: str | None = None,
    epoch: int = 1,
    credentials: Credentials = PLAINTEXT,
) -> AsyncIterator[Node]:
    transport = GrpcTransport(
        "127.0.0.1:0", advertise=advertise, limits=limits, credentials=credentials
    )
    it = await Node(transport, Memo(name, size, epoch)).start()
    try:
        yield it
    finally:
        await it.stop()
        assert it.ears.bugs == []


def links(of: Node) -> list[Link]:
    assert isinstance(of.transport, GrpcTransport)
    return list(of.transport._links)


def sequence(messages: list[Any]) -> list[int]:
    return [each.stamps[0].dot.seq for each in messages if isinstance(each, Push)]


class Courier:
    """Carries so many pushes to somebody, again when one was lost, until all have landed."""

    def __init__(self, me: Node, to: str, count: int) -> None:
        self.me, self.to, self.count = me, to, count
        size, name = me.ears.size, me.ears.name
        self.waiting = [push(seq, size, origin=name) for seq in range(1, count + 1)]
        self.carried = 0

    def done(self) -> bool:
        ears, transport = self.me.ears, self.me.transport
        self.waiting.extend(message for _, message in ears.lost_there)
        ears.lost_there.clear()
        while self.waiting and transport.free(self.to):
            self.carried += 1
            transport.carry(self.to, self.waiting.pop(0))
        return len(ears.landed_there) == self.count

    def check(self, receiver: Node) -> None:
        """All have landed once, and all are there."""
        everything = list(range(1, self.count + 1))
        landed = [message for _, message in self.me.ears.landed_there]
        assert sorted(sequence(landed)) == everything
        assert sorted(set(sequence(receiver.ears.messages))) == everything


# -- who cannot be dialled -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, LARGE])
def test_a_peer_that_can_only_dial_out_is_spoken_to(size: int) -> None:
    async def scenario() -> None:
        async with node("a", size) as a, node("b", size, advertise=NOWHERE) as b:
            a.meet(b)
            a.transport.post("b", ping(1))
            await until(lambda: not links(a) and not a.transport.free("b"))
            b.meet(a)
            b.transport.post("a", ping(2))
            await until(lambda: a.ears.messages == [ping(2)])
            there, back = Courier(a, "b", 5), Courier(b, "a", 5)
            await until(lambda: there.done() & back.done())
            there.check(b)
            back.check(a)
            assert b.ears.hellos == [], "nobody dialled it"
            assert there.carried == back.carried == 5, "nothing was lost"

    run(scenario())


def test_what_is_said_to_whom_is_being_dialled_goes_on_the_link_it_opens_meanwhile() -> None:
    """The address of b takes calls and never answers; b calls a before a gives up."""

    async def silent(_: Any) -> None:
        await asyncio.sleep(60)

    async def scenario() -> None:
        limits = replace(SHORT, dial_s=15.0)
        async with (
            impostor(silent) as address,
            node("a", limits=limits) as a,
            node("b", advertise=address) as b,
        ):
            a.meet(b)
            a.transport.post("b", ping(1))
            a.transport.carry("b", push(1))
            await until(lambda: links(a))
            b.meet(a)
            b.transport.post("a", ping(2))
            await until(lambda: b.ears.has(2) and a.ears.landed_there)
            assert a.ears.lost_there == []

    run(scenario())


def test_who_called_can_be_spoken_to_without_having_been_met() -> None:
    async def scenario() -> None:
        async with node("a") as a:
            async with node("b") as b:
                b.meet(a)
                b.transport.post("a", ping(1))
                await until(lambda: a.ears.got)
                assert a.transport.free("b")
                a.transport.carry("b", push(1))
                await until(lambda: a.ears.landed_there)
            await until(lambda: not links(a))
            assert not a.transport.free("b")
            assert a.transport._routes == {}  # type: ignore[attr-defined]

    run(scenario())


def test_a_link_is_used_instead_of_dialling() -> None:
    async def scenario() -> None:
        async with node("a") as a, node("b") as b:
            a.meet(b)
            b.meet(a)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            b.transport.post("a", ping(2))
            b.transport.carry("a", push(1, origin="b"))
            await until(lambda: a.ears.has(2) and b.ears.landed_there)
            assert a.ears.hellos == []
            assert len(links(a)) == len(links(b)) == 1

    run(scenario())


# -- both dial at the same moment ----------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, LARGE])
def test_who_dial_each_other_at_once_end_with_one_link_and_lose_nothing(size: int) -> None:
    async def scenario() -> None:
        for _ in range(5 if size < LARGE else 1):
            async with node("a", size) as a, node("b", size) as b:
                a.meet(b)
                b.meet(a)
                there, back = Courier(a, "b", 6), Courier(b, "a", 6)
                there.done()
                back.done()
                await until(lambda: len(a.ears.hellos) == len(b.ears.hellos) == 1)
                await until(lambda: there.done() & back.done())  # noqa: B023
                there.check(b)
                back.check(a)
                assert there.carried == back.carried == 6
                await until(lambda: len(links(a)) == len(links(b)) == 1)
                assert [link.hello.name for link in links(a) + links(b)] == ["a", "a"]
                assert [link.draining for link in links(a) + links(b)] == [False, False]
                assert a.ears.rejections == b.ears.rejections == []
                assert a.ears.refusals == b.ears.refusals == []

    run(scenario())


def greeting(name: str, link: int, seen: int) -> wire.Hello:
    return wire.Hello(**Memo(name).greeting(), link=link, seen=seen)


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        (("a", 2, 0), ("a", 1, 0), True),
        (("a", 1, 0), ("b", 1, 0), True),
        (("b", 1, 0), ("a", 1, 0), False),
        (("b", 2, 1), ("a", 1, 0), True),
        (("b", 2, 1), ("a", 3, 0), False),
        (("b", 2, 3), ("a", 3, 1), True),
        (("a", 4, 2), ("b", 2, 3), True),
    ],
)
def test_which_link_is_the_newer_one(
    one: tuple[str, int, int], other: tuple[str, int, int], newer: bool
) -> None:
    assert is_newer(greeting(*one), greeting(*other)) is newer


def test_both_sides_come_to_the_same() -> None:
    """Whatever the numbers, of two links with different openers or numbers one is newer."""
    some = [greeting(*each) for each in itertools.product("ab", range(1, 4), range(4))]
    for one, other in itertools.product(some, some):
        if (one.name, one.link) != (other.name, other.link):
            assert is_newer(one, other) is not is_newer(other, one)


def test_who_noticed_that_a_link_is_dead_is_heard_and_answered_on_the_next() -> None:
    """The line is silent and not cut: a, whose link counts where both dial, does not know yet."""

    async def scenario() -> None:
        limits = replace(SHORT, stall_s=30.0, pause_s=30.0, stall_max_s=30.0)
        async with (
            node("a", limits=limits) as a,
            node("b", limits=limits) as b,
            Line(b.transport.address) as line,
        ):
            a.transport.meet("b", line.address)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            line.silent, line.bytes_left = True, 0
            b.transport.drop("a")
            b.meet(a)
            b.transport.post("a", ping(2))
            await until(lambda: a.ears.got)
            a.transport.post("b", ping(3))
            await until(lambda: b.ears.has(2))
            assert b.ears.messages[-1] == ping(3)
            line.cut()

    run(scenario())


# -- much, and broken off ------------------------------------------------------------------------


def test_large_transfers_both_ways_at_once_on_one_link() -> None:
    async def scenario() -> None:
        async with node("a", LARGE) as a, node("b", LARGE) as b:
            a.meet(b)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            weights = torch.arange(LARGE, dtype=torch.float32)
            snapshot = Snapshot(weights, Clock(), (Generation(0, ("a", "b")),))
            for me, to in ((a, "b"), (b, "a")):
                me.transport.carry(to, push(1, LARGE, origin=me.ears.name))
                me.transport.carry(to, snapshot)
            await until(lambda: a.ears.pieces > 2 and b.ears.pieces > 2)
            assert a.ears.got == [], "both are under way"
            b.transport.post("a", ping(2))
            await until(lambda: a.ears.got)
            assert a.ears.messages[0] == ping(2), "and what is small does not wait"
            await until(lambda: len(a.ears.landed_there) == len(b.ears.landed_there) == 2)
            for me in (a, b):
                assert torch.equal(me.ears.messages[-1].weights, weights)
                assert me.ears.rejections == []
                assert me.ears.lost_there == []
                assert used(me) == 0
            assert len(b.ears.hellos) == 1
            assert a.ears.hellos == []

    run(scenario())


def test_a_window_is_kept_by_who_was_called_too() -> None:
    async def scenario() -> None:
        async with node("a") as a, node("b") as b:
            a.meet(b)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            a.ears.hold = True
            carried = 0
            while b.transport.free("a"):
                carried += 1
                b.transport.carry("a", push(carried, origin="b"))
            assert carried == 4
            await until(lambda: len(a.ears.dones) == 4)
            assert not b.transport.free("a")
            assert b.ears.landed_there == [], "a receipt means consumed"
            a.ears.dones[0]()
            await until(lambda: b.transport.free("a"))

    run(scenario())


def test_a_line_that_is_cut_again_and_again_while_both_speak() -> None:
    """One of them cannot be dialled: every new link is opened by the other."""
    rng = random.Random(2)

    async def scenario() -> None:
        async with (
            node("a") as a,
            node("b", advertise=NOWHERE) as b,
            Line(a.transport.address) as line,
        ):
            a.meet(b)
            b.transport.meet("a", line.address)
            there, back = Courier(a, "b", 100), Courier(b, "a", 100)
            line.bytes_left = 50_000

            def done() -> bool:
                if line.bytes_left < 0:
                    line.bytes_left = rng.randrange(1000, 150_000)
                return there.done() & back.done()

            await until(done)
            there.check(b)
            back.check(a)
            assert back.carried > 100, "some were lost"
            assert len(a.ears.hellos) > 1
            assert a.ears.rejections == b.ears.rejections == []

    run(scenario())


def test_a_large_transfer_to_who_dialled_goes_on_where_the_line_was_cut() -> None:
    async def scenario() -> None:
        async with (
            node("a", LARGE) as a,
            node("b", LARGE, advertise=NOWHERE) as b,
            Line(a.transport.address) as line,
        ):
            b.transport.meet("a", line.address)
            b.transport.post("a", ping(1))
            await until(lambda: a.ears.got)
            sent = push(1, LARGE)
            a.transport.carry("b", sent)
            await until(lambda: b.ears.pieces > 6)
            line.cut()
            await until(lambda: a.ears.lost_there and used(b) == LARGE_BYTES)
            assert b.ears.got == []
            await until(lambda: not links(b) and b.transport.free("a"))
            b.transport.post("a", ping(2))
            await until(lambda: a.ears.has(2))
            before = b.transport.bytes_received
            a.transport.carry("b", sent)
            await until(lambda: a.ears.landed_there)
            assert torch.equal(b.ears.messages[0].payload, sent.payload)
            assert b.transport.bytes_received - before < LARGE_BYTES
            assert used(b) == 0

    run(scenario())


def test_a_new_life_of_who_was_called_ends_the_link_of_the_old_one() -> None:
    async def scenario() -> None:
        async with node("a") as a, node("b") as b:
            a.meet(b)
            b.meet(a)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            b.ears.epoch = 2
            b.transport.hello(b.ears.hello())
            b.transport.post("a", ping(2))
            await until(lambda: a.ears.got)
            assert [said.epoch for said in a.ears.hellos] == [2]
            a.transport.carry("b", push(1))
            await until(lambda: a.ears.landed_there)
            await until(lambda: len(links(a)) == len(links(b)) == 1)
            assert links(a)[0].epoch == 2

    run(scenario())


# -- who was called does not keep the rules ------------------------------------------------------


def test_who_opened_a_link_says_why_it_ends_it() -> None:
    async def scenario() -> None:
        async with node("a") as a, node("b") as b:
            a.meet(b)
            a.ears.bad = lambda message: isinstance(message, Push)
            for strike in range(1, 4):
                await until(lambda: a.transport.free("b"))
                a.transport.post("b", ping(strike))
                await until(partial(b.ears.has, strike))
                b.transport.carry("a", push(strike, origin="b"))
                await until(lambda: b.ears.refusals and b.ears.lost_there)
                to, error = b.ears.refusals.pop()
                assert (to, type(error)) == ("a", LocalProtocolError)
                assert str(error) == "push.payload: not finite"
                b.ears.lost_there.clear()
                await until(lambda: not links(a))
            reasons = [reason for reason, *_ in a.ears.rejections]
            assert reasons == ["malformed"] * 3 + ["quarantine"]
            await asyncio.sleep(2 * SHORT.refused_s)
            assert not a.transport.free("b"), "nor is it dialled"
            b.meet(a)
            await until(lambda: b.transport.free("a"))
            b.transport.carry("a", push(9, origin="b"))
            await until(lambda: b.ears.refusals)
            assert isinstance(b.ears.refusals[0][1], PeerUnavailable)
            assert "quarantine" in str(b.ears.refusals[0][1])

    run(scenario())


def test_a_snapshot_for_who_opened_the_link_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = send_queue.told_checksum
    monkeypatch.setattr(send_queue, "told_checksum", lambda *it: honest(*it) ^ 1)

    async def scenario() -> None:
        async with node("a", LARGE) as a, node("b", LARGE) as b:
            a.meet(b)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            weights = torch.zeros(LARGE)
            b.transport.carry("a", Snapshot(weights, Clock(), (Generation(0, ("a",)),)))
            await until(lambda: b.ears.lost_there)
            assert [reason for reason, *_ in a.ears.rejections] == ["digest"]
            assert [(sender, again) for sender, _, again in a.ears.broken] == [("b", False)]
            assert a.ears.got == []
            await until(lambda: used(a) == 0)

    run(scenario())


def test_a_transfer_to_who_opened_the_link_stalls() -> None:
    async def talk(context: Any) -> None:
        await context.read()
        await context.write(hello("b"))
        await context.write(half(second=False))
        for _ in range(2):
            said.append(wire.decode_frame(await context.read()))

    said: list[wire.Frame] = []

    async def scenario() -> None:
        async with impostor(talk) as address, node("a") as a:
            a.transport.meet("b", address)
            a.transport.post("b", ping(1))
            await until(lambda: a.ears.rejections)
            assert [reason for reason, *_ in a.ears.rejections] == ["stalled"]
            await until(lambda: not links(a))
            assert said[-1].reply is not None
            assert said[-1].reply.refusal is not None
            assert "stalled" in said[-1].reply.refusal.sentence

    run(scenario())


def test_who_answers_is_looked_at() -> None:
    """By the name that was called, and of this run: else nothing is said or heard."""

    async def scenario() -> None:
        async with node("a") as a, node("b") as b:
            a.ears.refusal = SchemaMismatch("run «x», here «y»")
            a.meet(b)
            a.transport.carry("b", push(1))
            await until(lambda: a.ears.refusals and a.ears.lost_there)
            assert a.ears.refusals[0][1] is a.ears.refusal
            assert b.ears.got == []

    run(scenario())


@pytest.mark.parametrize(
    "frames",
    [[b"garbage"], [hello("b")], [wire.encode_frame(notes=[b""])], [half(second=True)]],
    ids=["garbage", "a second hello", "an empty note", "a piece without a head"],
)
def test_nonsense_from_who_was_called(frames: list[bytes]) -> None:
    async def talk(context: Any) -> None:
        await context.read()
        await context.write(hello("b"))
        for frame in frames:
            await context.write(frame)
        while (data := await context.read()) is not None and isinstance(data, bytes):
            said.append(wire.decode_frame(data))

    said: list[wire.Frame] = []

    async def scenario() -> None:
        async with impostor(talk) as address, node("a") as a:
            a.transport.meet("b", address)
            a.transport.post("b", ping(1))
            await until(lambda: a.ears.rejections and not links(a))
            assert [reason for reason, *_ in a.ears.rejections] == ["malformed"]
            assert a.ears.got == []
            refusals = [frame.reply.refusal for frame in said if frame.reply is not None]
            assert [refusal.status for refusal in refusals if refusal is not None] == [3]

    run(scenario())


def test_new_credentials_of_who_opened_it_move_both_ways_to_a_new_link() -> None:
    class Changing(Plaintext):
        generation = 1

    async def scenario() -> None:
        credentials = Changing()
        async with node("a", LARGE, credentials=credentials) as a, node("b", LARGE) as b:
            a.meet(b)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            b.transport.carry("a", push(1, LARGE, origin="b"))
            await until(lambda: a.ears.pieces > 2)
            credentials.generation += 1
            a.transport.post("b", ping(2))
            await until(lambda: len(b.ears.hellos) == 2)
            await until(lambda: [link.hello.link for link in links(b)] == [2])
            b.transport.carry("a", push(2, LARGE, origin="b"))
            await until(lambda: len(b.ears.landed_there) == 2)
            assert b.ears.lost_there == []
            assert a.ears.broken == []
            assert a.ears.hellos == []

    run(scenario())


# -- who is revoked ------------------------------------------------------------------------------


class Revoking(Plaintext):
    """Credentials that shut somebody out when the test says so."""

    revoked_hosts: tuple[str, ...] = ()

    def revoked(self, identity: Identity) -> bool:
        return identity.host in self.revoked_hosts


@pytest.mark.parametrize("dialled", [True, False], ids=["I dialled", "it called"])
def test_living_links_with_who_becomes_revoked_are_cut(dialled: bool) -> None:
    async def scenario() -> None:
        credentials = Revoking()
        async with node("a", credentials=credentials) as a, node("b") as b:
            a.meet(b)
            b.meet(a)
            first, second = (a, b) if dialled else (b, a)
            first.transport.post(second.ears.name, ping(1))
            await until(lambda: second.ears.got)
            b.ears.hold = True
            a.transport.carry("b", push(1))
            await until(lambda: b.ears.dones)
            credentials.revoked_hosts = ("ipv4:127.0.0.1",)
            await until(lambda: not links(a) and not links(b))
            assert [reason for reason, *_ in a.ears.rejections] == ["revoked"]
            assert [str(error) for _, error in b.ears.refusals] == ["what you show was revoked"]
            await until(lambda: a.ears.lost_there)
            await until(lambda: b.transport.free("a"))
            b.transport.post("a", ping(2))
            await until(lambda: len(b.ears.refusals) == 2)
            assert [reason for reason, *_ in a.ears.rejections] == ["revoked"] * 2

    run(scenario())


# -- nodes that train ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["sum", "average"])
def test_a_node_that_can_only_dial_out_trains_with_the_others(rule: str) -> None:
    with flock(2, rule=rule) as nodes:
        peers = [nodes[0].swarm.address]
        out = TrainingNode("out", seed=2, peers=peers, advertise=NOWHERE, rule=rule)
        nodes.append(out)
        train_together(nodes, 30)
        if rule == "sum":
            same_weights(nodes)
        for each in nodes:
            others = {other.swarm.name for other in nodes if other is not each}
            assert others == set(each.swarm.members) - {each.swarm.name}
        said = [each.swarm.runtime.look(lambda here: here.tally) for each in nodes]
        assert all(tally.rejected.total() == 0 for tally in said)
