"""What every transport promises (edge/net/transport.py), asked of gRPC, the one there is."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import torch
from tests.integration.ears import (
    LARGE,
    SHORT,
    SMALL,
    Make,
    Memo,
    Node,
    pair,
    ping,
    push,
    run,
    until,
)

from murmurate.core.clock import Clock, Dot
from murmurate.core.gossip.average.push_sum import Share
from murmurate.core.message import Digest, Generation, Ping, Snapshot, Stamp
from murmurate.core.message import Push as PushMessage
from murmurate.edge.net import send_queue
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.net.grpc_transport import GrpcTransport
from murmurate.edge.net.transport import WINDOW_BYTES, Limits
from murmurate.errors import (
    ConfigError,
    LocalProtocolError,
    PeerExists,
    PeerUnavailable,
    SchemaMismatch,
)


@pytest.fixture
def make() -> Make:
    return lambda limits: GrpcTransport("127.0.0.1:0", limits=limits, credentials=PLAINTEXT)


# -- small messages ------------------------------------------------------------------------------


def test_small_messages_arrive_in_order_with_the_name_of_their_sender(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        for number in range(500):
            a.transport.post("b", ping(number))
        await until(lambda: len(b.ears.got) == 500)
        assert b.ears.got == [("a", ping(number)) for number in range(500)]
        assert [hello.name for hello in b.ears.hellos] == ["a"]
        assert a.transport.bytes_sent > 0
        assert b.transport.bytes_received > 0

    run(pair(make, scenario))


def test_both_ways_at_once(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        clock = Clock([Dot("a", 1, 1), Dot("b", 2, 7)])
        a.transport.post("b", Digest(1, clock, clock))
        b.transport.post("a", ping(1))
        await until(lambda: a.ears.got and b.ears.got)
        assert b.ears.messages[0].clock == clock
        assert a.ears.got == [("b", ping(1))]

    run(pair(make, scenario))


def test_what_is_posted_to_a_stranger_is_lost_without_a_word(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        a.transport.post("c", ping(1))
        a.transport.post("b", ping(2))
        await until(lambda: b.ears.got)
        assert b.ears.messages == [ping(2)]

    run(pair(make, scenario))


def test_a_queue_is_bounded_and_loses_the_oldest(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        for number in range(100):
            a.transport.post("b", ping(number))
        await until(lambda: b.ears.got and b.ears.messages[-1] == ping(99))
        assert b.ears.messages == [ping(number) for number in range(90, 100)]

    run(pair(make, scenario, limits=Limits(notes_max=10)))


# -- bulk messages -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1000, 262_144, 262_145, LARGE])
def test_a_push_arrives_as_it_was(make: Make, size: int) -> None:
    async def scenario(a: Node, b: Node) -> None:
        sent = push(1, size)
        assert a.transport.free("b")
        a.transport.carry("b", sent)
        await until(lambda: a.ears.landed_there)
        ((sender, got),) = b.ears.got
        assert sender == "a"
        assert got.stamps == sent.stamps
        assert torch.equal(got.payload, sent.payload)
        assert a.ears.landed_there == [("b", sent)]
        assert a.ears.lost_there == []

    run(pair(make, scenario, size))


def test_snapshots_and_shares_too(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        clock = Clock([Dot("a", 1, 1)])
        snapshot = Snapshot(torch.ones(1000), clock, (Generation(0, ("a", "b")),))
        share = Share(3, 1, 2, 0.5, torch.ones(1000), clock)
        a.transport.carry("b", snapshot)
        a.transport.carry("b", share)
        await until(lambda: len(a.ears.landed_there) == 2)
        first, second = b.ears.messages
        assert torch.equal(first.weights, snapshot.weights)
        assert (first.clock, first.history) == (clock, snapshot.history)
        assert torch.equal(second.model, share.model)
        assert second.weight == 0.5
        assert (second.seq, second.epoch, second.to_epoch) == (3, 1, 2)

    run(pair(make, scenario))


def test_nothing_is_shared_with_the_sender(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        sent = push(1)
        a.transport.carry("b", sent)
        await until(lambda: a.ears.landed_there)
        sent.payload.fill_(-1.0)
        assert float(b.ears.messages[0].payload[5]) == 6.0

    run(pair(make, scenario))


def test_landed_is_told_when_it_is_consumed_and_in_order(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        b.ears.hold = True
        sent = [push(seq) for seq in range(1, 4)]
        for each in sent:
            a.transport.carry("b", each)
        await until(lambda: len(b.ears.dones) == 3)
        assert a.ears.landed_there == []
        b.ears.dones[2]()
        b.ears.dones[1]()
        thread = threading.Thread(target=b.ears.dones[0])
        thread.start()
        thread.join()
        await until(lambda: len(a.ears.landed_there) == 3)
        assert [message for _, message in a.ears.landed_there] == sent
        for done in b.ears.dones:
            done()  # again, or twice: no matter
        a.transport.carry("b", push(4))
        await until(lambda: len(b.ears.dones) == 4)
        assert len(a.ears.landed_there) == 3

    run(pair(make, scenario))


def test_a_link_takes_a_window_full(make: Make) -> None:
    size = WINDOW_BYTES // 4 // 4  # a quarter of the window each

    async def scenario(a: Node, b: Node) -> None:
        b.ears.hold = True
        carried = 0
        while a.transport.free("b"):
            carried += 1
            a.transport.carry("b", push(carried, size))
        assert carried == 4
        await until(lambda: len(b.ears.dones) == 4)
        assert not a.transport.free("b")
        b.ears.dones[0]()
        await until(lambda: a.transport.free("b"))

    run(pair(make, scenario, size))


def test_small_messages_do_not_wait_behind_a_full_window(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        b.ears.hold = True
        a.transport.carry("b", push(1, LARGE))
        a.transport.carry("b", push(2, LARGE))
        await until(lambda: len(b.ears.dones) == 1)
        a.transport.post("b", ping(1))
        await until(lambda: len(b.ears.got) == 2)
        assert b.ears.messages[1] == ping(1)
        b.ears.dones[0]()
        await until(lambda: len(b.ears.got) == 3)
        assert b.ears.messages[2].dots == (Dot("a", 1, 2),)

    run(pair(make, scenario, LARGE))


def test_a_large_message_nobody_wants_is_not_sent(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        b.ears.unwanted = True
        a.transport.carry("b", push(1, LARGE))
        await until(lambda: a.ears.landed_there)
        assert b.ears.got == []
        b.ears.unwanted = False
        a.transport.carry("b", push(2, LARGE))
        await until(lambda: len(a.ears.landed_there) == 2)
        assert len(b.ears.got) == 1

    run(pair(make, scenario, LARGE))


def test_many_pushes_to_and_fro(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        a.transport.post("b", ping(1))
        await until(lambda: b.ears.got)
        b.ears.got.clear()
        sent = {"a": 0, "b": 0}

        def more(me: Node, to: str) -> None:
            while sent[me.ears.name] < 200 and me.transport.free(to):
                sent[me.ears.name] += 1
                me.transport.carry(to, push(sent[me.ears.name], origin=me.ears.name))

        def all_there() -> bool:
            more(a, "b")
            more(b, "a")
            return len(a.ears.landed_there) == len(b.ears.landed_there) == 200

        await until(all_there)
        assert [m.stamps[0].dot.seq for m in b.ears.messages] == list(range(1, 201))
        assert [m.stamps[0].dot.seq for m in a.ears.messages] == list(range(1, 201))
        assert [hello.name for hello in b.ears.hellos] == ["a"]
        assert a.ears.hellos == [], "it was all said on one link"

    run(pair(make, scenario))


# -- who listens to whom -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SchemaMismatch("run «x», here «y»"), PeerExists("a is taken")])
def test_a_refused_link_says_why(make: Make, error: SchemaMismatch | PeerExists) -> None:
    async def scenario(a: Node, b: Node) -> None:
        b.ears.refusal = error
        sent = push(1)
        a.transport.carry("b", sent)
        await until(lambda: a.ears.refusals and a.ears.lost_there)
        to, told = a.ears.refusals[0]
        assert to == "b"
        assert type(told) is type(error)
        assert str(told) == str(error)
        assert a.ears.lost_there == [("b", sent)]
        assert b.ears.got == []
        assert len(b.ears.rejections) == 1
        b.ears.refusal = None
        await until(lambda: a.transport.free("b"))
        a.transport.carry("b", sent)
        await until(lambda: a.ears.landed_there)

    run(pair(make, scenario))


def test_a_bad_message_costs_the_link_and_changes_nothing(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        c = await Node(make(SHORT), Memo("c")).start()
        c.meet(b)
        b.ears.bad = lambda message: isinstance(message, PushMessage) and message.dots[0].seq == 13
        c.transport.carry("b", push(1, origin="c"))
        a.transport.carry("b", push(13))
        await until(lambda: a.ears.refusals and a.ears.lost_there)
        assert isinstance(a.ears.refusals[0][1], LocalProtocolError)
        assert "push.payload: not finite" in str(a.ears.refusals[0][1])
        assert len(a.ears.lost_there) == 1
        assert [(reason, sender) for reason, sender, _ in b.ears.rejections] == [("malformed", "a")]
        await until(lambda: a.transport.free("b"))
        a.transport.carry("b", push(14))
        c.transport.carry("b", push(2, origin="c"))
        await until(lambda: a.ears.landed_there and len(c.ears.landed_there) == 2)
        assert c.ears.refusals == c.ears.lost_there == []
        await c.stop()

    run(pair(make, scenario))


def test_a_payload_of_another_size_is_refused(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        a.transport.carry("b", push(1, 999))
        await until(lambda: a.ears.refusals and a.ears.lost_there)
        assert "bulk.total: 3996 bytes, expected 4000" in str(a.ears.refusals[0][1])
        a.ears.refusals.clear()
        await until(lambda: a.transport.free("b"))
        stamp = Stamp(Dot("a", 1, 1), Clock())
        a.transport.carry("b", PushMessage((stamp,), torch.ones(500, dtype=torch.float64)))
        await until(lambda: a.ears.refusals)
        assert b.ears.got == []

    run(pair(make, scenario))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_snapshot_that_is_not_what_its_checksum_says(
    make: Make, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not delivered, counts as a strike, and whoever waits for it is told."""
    honest = send_queue.told_checksum

    def lie(message: Any, raw: memoryview) -> int:
        return honest(message, raw) ^ (message is lies)

    monkeypatch.setattr(send_queue, "told_checksum", lie)
    weights = torch.arange(size, dtype=torch.float32)
    good = Snapshot(weights, Clock(), (Generation(0, ("a", "b")),))
    lies = dataclasses.replace(good)

    async def scenario(a: Node, b: Node) -> None:
        for strike in range(1, 4):
            await until(lambda: a.transport.free("b"))
            a.transport.carry("b", lies)
            await until(lambda strike=strike: len(a.ears.lost_there) == strike)  # type: ignore[misc]
        assert b.ears.got == a.ears.landed_there == []
        digests = [(reason, sender) for reason, sender, _ in b.ears.rejections]
        assert digests[:3] == [("digest", "a")] * 3
        assert [(sender, again) for sender, _, again in b.ears.broken] == [("a", False)] * 3
        await until(lambda: a.transport.free("b"))
        a.transport.carry("b", good)
        await until(lambda: a.ears.refusals and "quarantine" in str(a.ears.refusals[-1][1]))
        c = await Node(make(SHORT), Memo("c", size)).start()
        c.meet(b)
        c.transport.carry("b", good)
        await until(lambda: c.ears.landed_there)
        assert torch.equal(b.ears.messages[0].weights, weights)
        await c.stop()

    run(pair(make, scenario, size))


def test_a_snapshot_of_another_size_is_refused_before_it_is_sent(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        a.transport.carry("b", Snapshot(torch.ones(2 * LARGE), Clock(), (Generation(0, ("a",)),)))
        await until(lambda: a.ears.refusals and a.ears.lost_there)
        expected = f"bulk.total: {8 * LARGE} bytes, expected {4 * LARGE}"
        assert expected in str(a.ears.refusals[0][1])
        assert b.ears.got == []
        assert b.ears.broken == []
        assert isinstance(b.transport, GrpcTransport)
        assert b.transport.bytes_received < 10_000, "only the offer"
        assert b.transport.depot.used_bytes == 0

    run(pair(make, scenario, LARGE))


def test_three_strikes(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        c = await Node(make(SHORT), Memo("c")).start()
        c.meet(b)
        for strike in range(1, 4):
            await until(lambda: a.transport.free("b"))
            a.transport.carry("b", push(strike, 999))
            await until(lambda: a.ears.refusals)
            assert isinstance(a.ears.refusals.pop()[1], LocalProtocolError)
        await until(lambda: a.transport.free("b"))
        a.transport.carry("b", push(4))
        await until(lambda: a.ears.refusals)
        error = a.ears.refusals[0][1]
        assert isinstance(error, PeerUnavailable)
        assert "quarantine" in str(error)
        assert b.ears.got == []
        c.transport.carry("b", push(1, origin="c"))
        await until(lambda: c.ears.landed_there)
        await c.stop()

    run(pair(make, scenario))


# -- coming and going ----------------------------------------------------------------------------


def test_describe(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        told = await a.transport.describe(b.transport.address, 5.0)
        assert (told.name, told.run, told.address) == ("b", "test", b.transport.address)
        gone = b.transport.address
        await b.stop()
        with pytest.raises(PeerUnavailable, match=gone.rpartition(":")[2]):
            await a.transport.describe(gone, 5.0)

    run(pair(make, scenario))


def test_an_address_that_is_taken(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        again = GrpcTransport(a.transport.address, credentials=PLAINTEXT)
        with pytest.raises(ConfigError, match=a.transport.address):
            await again.start(Memo("again"))
        await again.stop(0.0)
        b.transport.post("a", ping(1))
        await until(lambda: a.ears.got)

    run(pair(make, scenario))


def test_a_peer_that_stops_and_comes_back(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        b.ears.hold = True
        first = push(1)
        a.transport.carry("b", first)
        await until(lambda: b.ears.got)
        await b.stop()
        await until(lambda: a.ears.lost_there)
        assert a.ears.lost_there == [("b", first)]
        await until(lambda: a.transport.free("b"))
        a.transport.carry("b", first)
        await until(lambda: len(a.ears.lost_there) == 2)
        assert not a.transport.free("b"), "it waits a little before it tries again"
        again = await Node(make(SHORT), Memo("b", epoch=2)).start()
        a.meet(again)
        await until(lambda: a.transport.free("b"))
        a.transport.carry("b", first)
        await until(lambda: a.ears.landed_there)
        assert len(again.ears.got) == 1
        assert len(a.ears.lost_there) == 2
        await again.stop()

    limits = dataclasses.replace(SHORT, backoff_min_s=0.2, backoff_max_s=0.2)
    run(pair(make, scenario, limits=limits))


def test_a_peer_that_is_dropped(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        b.ears.hold = True
        a.transport.carry("b", push(1))
        await until(lambda: b.ears.got)
        a.transport.drop("b")
        assert a.ears.lost_there == [], "never from inside a call"
        assert not a.transport.free("b")
        await until(lambda: a.ears.lost_there)
        a.transport.post("b", ping(1))
        a.transport.carry("b", push(2))
        await until(lambda: len(a.ears.lost_there) == 2)
        b.ears.dones[0]()
        a.meet(b)
        a.transport.post("b", ping(2))
        await until(lambda: len(b.ears.got) == 2)
        assert b.ears.messages[1] == ping(2)
        assert a.ears.landed_there == []

    run(pair(make, scenario))


def test_another_who_lives_at_the_address_now(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        a.transport.meet("c", b.transport.address)
        a.transport.carry("c", push(1))
        await until(lambda: a.ears.refusals and a.ears.lost_there)
        assert "is b now" in str(a.ears.refusals[0][1])
        assert b.ears.got == []

    run(pair(make, scenario))


def test_another_hello_opens_the_links_again(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        a.transport.post("b", ping(1))
        await until(lambda: b.ears.got)
        a.transport.hello(a.ears.hello())
        a.transport.post("b", ping(2))
        await until(lambda: len(b.ears.got) == 2)
        assert len(b.ears.hellos) == 1, "the same hello changes nothing"
        a.ears.epoch = 2
        a.transport.hello(a.ears.hello())
        a.transport.post("b", ping(3))
        await until(lambda: len(b.ears.got) == 3)
        assert [hello.epoch for hello in b.ears.hellos] == [1, 2]

    run(pair(make, scenario))


def test_last_words_are_sent(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        a.transport.post("b", ping(1))
        a.transport.carry("b", push(1))
        await a.transport.stop(5.0)
        await until(lambda: len(b.ears.got) == 2)
        assert isinstance(b.ears.messages[0], Ping)
        assert len(a.ears.landed_there) == 1
        a.transport.post("b", ping(2))
        assert not a.transport.free("b")

    run(pair(make, scenario))


def test_stopping_does_not_wait_for_ever(make: Make) -> None:
    async def scenario(a: Node, b: Node) -> None:
        b.ears.hold = True
        a.transport.carry("b", push(1))
        await until(lambda: b.ears.got)
        await a.transport.stop(0.05)
        assert len(a.ears.lost_there) == 1

    run(pair(make, scenario))
