"""Batches from a generator to training nodes over real gRPC, and what bad ones get."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.integration.flock import Node, flock, same_weights, wait_for
from tests.integration.table import Table, batch, scripted

from murmurate.core.batches.dealer import Take, Totals
from murmurate.core.clock import Clock, Dot
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.batch_link import DIGEST
from murmurate.edge.net.batch_values import pack, shape_of
from murmurate.edge.net.grpc_terms import read
from murmurate.edge.net.transport import Limits
from murmurate.errors import MurmurateError, SchemaMismatch
from murmurate.training.feed import Feed

WAIT_S = 30.0


class Fed:
    """A node that trains on what a generator deals, in a thread of its own."""

    def __init__(self, node: Node, address: str, file: Path) -> None:
        self.node = node
        self.file = file
        self.feed = Feed(node.swarm, address, audit=str(file))
        self.trained: list[int] = []
        self.error: MurmurateError | None = None
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._train)

    def start(self) -> Fed:
        self._thread.start()
        return self

    def _train(self) -> None:
        try:
            while (dealt := self.feed.next(self.stopped.is_set)) is not None:
                x, number = dealt
                self.trained.append(int(number))
                self.node.optimizer.zero_grad()
                self.node.loss(x).backward()
                self.node.optimizer.step()
                self.node.swarm.log(samples=len(x))
            self.feed.close()
            self.node.swarm.finish(WAIT_S)
        except MurmurateError as error:
            self.error = error
            self.feed.close()

    def end(self) -> None:
        self._thread.join(2 * WAIT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def audit(self) -> dict[Dot, list[int]]:
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return {Dot(*line["update"]): line["batches"] for line in lines}


def feed_all(nodes: list[Node], table: Table, folder: Path) -> list[Fed]:
    return [Fed(n, table.address, folder / f"{n.swarm.name}.jsonl").start() for n in nodes]


def consumed(fed: list[Fed], clock: Clock) -> Counter[int]:
    """How many updates of this clock each batch is in."""
    counts: Counter[int] = Counter()
    for each in fed:
        for dot, numbers in each.audit().items():
            if dot in clock:
                counts.update(numbers)
    return counts


def exactly_once(total: int) -> Counter[int]:
    return Counter(range(1, total + 1))


# -- what it is for --------------------------------------------------------------------------------


def test_each_batch_goes_into_exactly_one_update(tmp_path: Path) -> None:
    with flock(3) as nodes, Table(200) as table:
        fed = feed_all(nodes, table, tmp_path)
        for each in fed:
            each.end()
        same_weights(nodes)
        assert consumed(fed, nodes[0].clock) == exactly_once(200)
        assert table.totals == Totals(batches=200, consumed=200)
        assert sorted(n for each in fed for n in each.trained) == list(range(1, 201))
        assert [each.feed.ended for each in fed] == ["samples"] * 3
        held = [n.swarm.runtime.look(lambda here: here.peer.replica.batches) for n in nodes]
        assert {(each.numbers, each.repeated) for each in held} == {((1, 200), ())}
        assert sum(each.feed.consumed for each in fed) == 200
        assert nodes[0].swarm.samples == 200 * 16
        assert not nodes[0].swarm.progress().rejected
        assert not table.dealer._dealt, "nothing is kept that is done"


def test_streams_that_break_lose_nothing(tmp_path: Path) -> None:
    with flock(2) as nodes, Table(150) as table:
        fed = feed_all(nodes, table, tmp_path)
        for least in (20, 50, 80):
            wait_for(lambda least=least: table.totals.batches >= least, "progress")  # type: ignore[misc]
            table.break_streams()
        for each in fed:
            each.end()
        same_weights(nodes)
        assert consumed(fed, nodes[0].clock) == exactly_once(150)
        assert table.totals.consumed == table.totals.batches == 150
        assert table.totals.repeated == 0


def test_a_peer_that_stops_gives_back_what_it_has(tmp_path: Path) -> None:
    with flock(2) as nodes, Table(150) as table:
        fed = feed_all(nodes, table, tmp_path)
        wait_for(lambda: len(fed[1].trained) > 10, "some batches")
        fed[1].stopped.set()
        fed[1].end()
        nodes[1].swarm.leave()
        fed[0].end()
        assert consumed(fed, nodes[0].clock) == exactly_once(150)
        assert table.totals.repeated == 0


def test_a_late_one_joins_in(tmp_path: Path) -> None:
    with flock(1) as nodes, Table(300) as table:
        fed = feed_all(nodes, table, tmp_path)
        wait_for(lambda: table.totals.batches > 50, "progress")
        late = Node("late", peers=[nodes[0].swarm.address], seed=9)
        try:
            fed += feed_all([late], table, tmp_path)
            for each in fed:
                each.end()
            same_weights([*nodes, late])
            assert consumed(fed, late.clock) == exactly_once(300)
            assert late.swarm.progress().wait_s > 0
        finally:
            late.swarm.leave(timeout_s=0.2)


def no_answer(feed: Feed, patch: pytest.MonkeyPatch) -> None:
    """From now on no word is answered in time."""
    patch.setattr(feed, "leased", lambda numbers, until: None)
    feed._until = 0.0


def test_while_the_generator_is_away_nothing_is_published_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flock(1) as nodes, Table(40) as table:
        fed = Fed(nodes[0], table.address, tmp_path / "a.jsonl")
        feed, node = fed.feed, nodes[0]
        dealt = feed.next()
        assert dealt is not None
        no_answer(feed, monkeypatch)
        before = node.swarm.progress().published
        node.loss(dealt[0]).backward()
        node.optimizer.step()
        node.swarm.publish()
        assert node.swarm.progress().published == before, "the step stays with the next one"
        monkeypatch.undo()
        fed.start().end()
        assert consumed([fed], node.clock) == exactly_once(40)


def test_a_step_that_is_taken_back_is_trained_by_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flock(1) as nodes, Table(30) as table:
        fed = Fed(nodes[0], table.address, tmp_path / "a.jsonl")
        node = nodes[0]
        before = node.weights()
        dealt = fed.feed.next()
        assert dealt is not None
        node.loss(dealt[0]).backward()
        no_answer(fed.feed, monkeypatch)
        node.optimizer.step()
        node.swarm.discard()
        monkeypatch.undo()
        assert bool((node.weights() == before).all())
        fed.start().end()
        assert consumed([fed], node.clock) == exactly_once(30)
        assert table.totals.dealt_again >= 1


def test_a_result_that_is_not_finite_is_not_tried_again(tmp_path: Path) -> None:
    with flock(1) as nodes, Table(30) as table:
        fed = Fed(nodes[0], table.address, tmp_path / "a.jsonl")
        node = nodes[0]
        dealt = fed.feed.next()
        assert dealt is not None
        wait_for(fed.feed.may_publish, "the lease")
        (node.loss(dealt[0]) * float("inf")).backward()
        node.optimizer.step()
        node.swarm.publish()
        fed.start().end()
        assert table.totals == Totals(batches=30, consumed=30, spent=1)


# -- a generator that is not what it should be -----------------------------------------------------


def welcome(**more: Any) -> bytes:
    known: dict[str, Any] = {"run": "test", "instance": "i", "rule": "pull", "steps": 0}
    return wire.encode_task(
        wire.Task(welcome=wire.WorkWelcome(**{**known, "mode": "batches", **more}))
    )


def batches(*numbers: int, cut: int | None = None, **more: Any) -> bytes:
    raw = b"".join(pack(batch(number)) for number in numbers)
    known: dict[str, Any] = {
        "numbers": numbers,
        "samples": 16,
        "tensors": shape_of(batch(1)),
        "value_bytes": len(raw),
    }
    head = wire.Batches(**{**known, **more})
    return wire.encode_task(wire.Task(batches=head, raw=raw[:cut]))


def stop(reason: str = "samples") -> bytes:
    return wire.encode_task(wire.Task(stop=reason))


async def attend(context: Any) -> AsyncIterator[bytes]:
    """Lets the peer have all it has, until it ends the stream."""
    while True:
        data = await context.read()
        if data is grpc.aio.EOF:
            return
        work = wire.decode_work(data)
        if work.bye:
            return
        if work.take is not None and work.take.beat:
            lease = wire.BatchLease(beat=work.take.beat, numbers=(1, 100))
            yield wire.encode_task(wire.Task(lease=lease))


def play(words: list[bytes], folder: Path) -> Fed:
    """Train on what these words deal, to the end."""

    async def script(context: Any) -> AsyncIterator[bytes]:
        await read(context)
        for data in words:
            yield data
        async for data in attend(context):
            yield data

    with flock(1) as nodes, scripted(script) as address:
        fed = Fed(nodes[0], address, folder / "a.jsonl").start()
        fed.end()
        return fed


def rejected(fed: Fed) -> dict[str, int]:
    return fed.node.swarm.runtime.look(lambda here: dict(here.tally.rejected))


def test_a_batch_that_comes_twice_is_trained_on_once(tmp_path: Path) -> None:
    words = [welcome(), batches(1), batches(2), batches(1, 2), stop()]
    fed = play(words, tmp_path)
    assert sorted(fed.trained) == [1, 2]
    assert rejected(fed) == {"batch_repeated": 2}


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff\xff",
        batches(2, value_bytes=8),
        wire.encode_task(wire.Task(offset=8, raw=bytes(8))),
        batches(2, tensors=shape_of((batch(1)[0],))),
        batches(2, cut=8) + batches(3),
        batches(2, cut=8) + wire.encode_task(wire.Task(offset=9, raw=bytes(8))),
    ],
    ids=["garbage", "size", "not announced", "other tensors", "two things", "offset"],
)
def test_a_generator_that_talks_nonsense_is_not_listened_to(bad: bytes, tmp_path: Path) -> None:
    fed = play([welcome(), batches(1), bad], tmp_path)
    assert fed.trained in ([], [1])
    assert rejected(fed) == {"malformed": 1}


def test_other_tensors_than_before_are_not_trained_on(tmp_path: Path) -> None:
    raw = pack((batch(1)[0],))
    other = batches(2, tensors=shape_of((batch(1)[0],)), value_bytes=len(raw), cut=len(raw))
    fed = play([welcome(), batches(1), other], tmp_path)
    assert fed.trained in ([], [1])
    assert rejected(fed) == {"malformed": 1}


def test_batches_that_were_damaged_on_their_way_are_dealt_again(tmp_path: Path) -> None:
    """Their stream ends and is opened again; the first word says what did not arrive."""
    keeps: list[Any] = []

    async def script(context: Any) -> AsyncIterator[bytes]:
        await read(context)
        yield welcome()
        keeps.append(wire.decode_work(await read(context)).take)
        damaged = bytearray(batches(1))
        damaged[-20] ^= len(keeps) == 1
        for data in (bytes(damaged), stop() if len(keeps) > 1 else b""):
            if data:
                yield data
        async for data in attend(context):
            yield data

    with flock(1) as nodes, scripted(script) as address:
        fed = Fed(nodes[0], address, tmp_path / "a.jsonl").start()
        fed.end()
        assert [take.keeps for take in keeps] == [(), ()]
        assert fed.trained == [1]
        assert rejected(fed) == {"digest": 1}


def test_what_is_not_in_the_lease_is_taken_back(tmp_path: Path) -> None:
    """It was given to somebody else while nobody heard of this node."""
    heard: list[Any] = []

    async def script(context: Any) -> AsyncIterator[bytes]:
        await read(context)
        yield welcome()
        yield batches(1, 2, 3)
        while True:
            data = await context.read()
            if data is grpc.aio.EOF or (work := wire.decode_work(data)).bye:
                return
            if work.take is not None and work.take.beat:
                heard.append(work.take)
                lease = wire.BatchLease(beat=work.take.beat, numbers=(2, 3))
                yield wire.encode_task(wire.Task(lease=lease))
                if len(heard) == 4:
                    yield stop()

    with flock(1) as nodes, scripted(script) as address:
        fed = Fed(nodes[0], address, tmp_path / "a.jsonl")
        dealt = fed.feed.next()
        assert dealt is not None
        node, before = nodes[0], nodes[0].weights()
        node.loss(dealt[0]).backward()
        fed.feed._until = 0.0
        wait_for(lambda: fed.feed._spoiled, "the lease without it")
        node.optimizer.step()
        fed.start().end()
        assert consumed([fed], node.clock) == Counter({2: 1, 3: 1})
        assert not bool((node.weights() == before).all())


def test_a_coordinator_of_another_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="something else than batches"):
        play([welcome(mode="hub")], tmp_path)


def test_a_generator_that_is_gone_for_ever(tmp_path: Path) -> None:
    """The node goes on following the swarm, and ends when it is told to."""
    with flock(1) as nodes:
        with Table(None) as table:
            fed = feed_all(nodes, table, tmp_path)[0]
            wait_for(lambda: len(fed.trained) > 10, "some batches")
        wait_for(lambda: not fed.feed._connected, "the end of the stream")
        assert fed.error is None
        fed.stopped.set()
        fed.end()


# -- a peer that is not what it should be ----------------------------------------------------------


async def status_of(address: str, *works: bytes) -> tuple[grpc.StatusCode, str]:
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(f"/{wire.SERVICE}/Train")()
        try:
            for work in works:
                await call.write(work)
            async with asyncio.timeout(10):
                while await call.read() is not grpc.aio.EOF:
                    pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code(), await call.details()


def hello(**more: Any) -> bytes:
    known: dict[str, Any] = {"run": "test", "name": "x", "instance": "1", "mode": "batches"}
    known["structure"] = DIGEST
    return wire.encode_work(wire.Work(hello=wire.WorkHello(**{**known, **more})))


def take(**more: Any) -> bytes:
    return wire.encode_work(wire.Work(take=Take(**more)))


BYE = wire.encode_work(wire.Work(bye=True))


@pytest.mark.parametrize(
    ("works", "code", "sentence"),
    [
        ([b"\xff\xff\xff"], "INVALID_ARGUMENT", "work: not a Work"),
        ([take(more=1)], "INVALID_ARGUMENT", "work.hello: missing"),
        ([hello(), hello()], "INVALID_ARGUMENT", "work.hello: again"),
        ([hello(), b""], "INVALID_ARGUMENT", "work: 0 things said"),
        ([hello(), take(keeps=(9, 9))], "INVALID_ARGUMENT", "take.keeps: batch 9, 0 were dealt"),
        ([hello(), take(back=(9, 9))], "INVALID_ARGUMENT", "take.back: batch 9"),
        ([hello(), *[take(more=64)] * 2], "INVALID_ARGUMENT", "take.more"),
        ([hello(run="other")], "FAILED_PRECONDITION", "run 'other', this coordinator has 'test'"),
        ([hello(mode="hub")], "FAILED_PRECONDITION", "mode 'hub', this coordinator is of mode"),
        ([hello(version=2)], "FAILED_PRECONDITION", "version 2"),
        ([hello(structure=bytes(32))], "FAILED_PRECONDITION", "another structure"),
    ],
)
def test_bad_words_get_a_status_and_a_sentence(
    works: list[bytes], code: str, sentence: str
) -> None:
    with Table(None) as table:
        table.dealer.opened = False
        got = asyncio.run(status_of(table.address, *works))
        assert (got[0].name, got[1] if sentence in got[1] else "") == (code, got[1])
        assert sum(table.service.rejections.counted.values()) == 1


def test_another_founding_of_the_same_run_is_refused() -> None:
    with Table(5) as table:
        asyncio.run(status_of(table.address, hello(), take(swarm="s"), BYE))
        code, details = asyncio.run(status_of(table.address, hello(name="y"), take(swarm="t")))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "deals to 's'" in details


def test_a_coordinator_with_a_model_deals_no_batches() -> None:
    from tests.integration.centre import Coordinator

    with Coordinator("async") as it:
        structure = it.service.centre.digest
        words = (hello(structure=structure, mode="ist"), take(more=1))
        code, details = asyncio.run(status_of(it.address, *words))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "deals no batches" in details


def test_one_who_does_not_read_is_cut_off() -> None:
    limits = Limits(stall_s=0.3)

    async def stall(address: str) -> None:
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            call = channel.stream_stream(f"/{wire.SERVICE}/Train")()
            await call.write(hello())
            await call.read()
            await call.write(take(more=60))
            async with asyncio.timeout(30):
                while table.service.open:
                    await asyncio.sleep(0.05)

    with Table(None, limits=limits, large=1 << 19) as table:
        asyncio.run(stall(table.address))
        assert table.service.rejections.counted["stalled"] == 1


def test_a_node_of_another_run_says_why(tmp_path: Path) -> None:
    with flock(1) as nodes, Table(5, run="other") as table:
        fed = feed_all(nodes, table, tmp_path)[0]
        with pytest.raises(SchemaMismatch, match="this coordinator has 'other'"):
            fed.end()
