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

from murmurate.core.batches.dealer import Totals
from murmurate.core.clock import Clock, Dot
from murmurate.edge.net import generator_wire as wire
from murmurate.edge.net.generator_batch import pack, shape_of
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
        assert [each.feed.totals for each in fed] == [table.totals] * 3
        assert sum(each.feed.consumed for each in fed) == 200
        assert nodes[0].swarm.samples == 200 * 16
        assert not nodes[0].swarm.progress().rejected
        assert not table.service._stock, "nothing is kept that is done"


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
    """From now on no ping is answered in time."""
    patch.setattr(feed, "leased", lambda _: None)
    feed._lease = 0.0


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
        wait_for(fed.feed.may_publish, "the confirmation")
        (node.loss(dealt[0]) * float("inf")).backward()
        node.optimizer.step()
        node.swarm.publish()
        fed.start().end()
        assert table.totals == Totals(batches=30, consumed=30, spent=1)


# -- a generator that is not what it should be -----------------------------------------------------


def welcome(**more: Any) -> bytes:
    known: dict[str, Any] = {
        "run": "test",
        "instance": "i",
        "samples": 16,
        "tensors": shape_of(batch(1)),
    }
    return wire.encode_deal(wire.Deal(welcome=wire.FeedWelcome(**{**known, **more})))


def piece(number: int, place: int) -> bytes:
    raw = pack(batch(number))
    return wire.encode_deal(wire.Deal(piece=wire.Piece(number, 0, place), raw=raw))


async def attend(context: Any) -> AsyncIterator[bytes]:
    """Confirms everything, answers every ping, until the peer ends it."""
    while True:
        data = await context.read()
        if data is grpc.aio.EOF:
            return
        ask = wire.decode_ask(data)
        if ask.bye:
            return
        yield wire.encode_deal(wire.Deal(confirmed=[n for n, _ in ask.claims], pong=ask.ping))


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


def end(batches: int, consumed: int | None = None) -> bytes:
    count = batches if consumed is None else consumed
    return wire.encode_deal(wire.Deal(end=Totals(batches=batches, consumed=count)))


def rejected(fed: Fed) -> dict[str, int]:
    return fed.node.swarm.runtime.look(lambda here: dict(here.tally.rejected))


def test_a_batch_that_comes_twice_is_trained_on_once(tmp_path: Path) -> None:
    words = [welcome(), piece(1, 1), piece(2, 2), piece(1, 3), piece(2, 4), end(2)]
    fed = play(words, tmp_path)
    assert sorted(fed.trained) == [1, 2]
    assert rejected(fed) == {"batch_repeated": 2}


def test_a_batch_that_did_not_come_is_noticed(tmp_path: Path) -> None:
    fed = play([welcome(), piece(1, 1), piece(4, 4), end(4)], tmp_path)
    assert rejected(fed) == {"batch_skipped": 1}
    assert sorted(fed.trained) == [1, 4]


@pytest.mark.parametrize(
    "words",
    [
        [welcome(batches=3), piece(1, 1), end(2)],
        [welcome(), piece(7, 1), end(6)],
        [welcome(batches=5), piece(1, 1), end(5, consumed=4)],
    ],
)
def test_a_wrong_total_is_noticed(words: list[bytes], tmp_path: Path) -> None:
    assert rejected(play(words, tmp_path)) == {"batch_skipped": 1}


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff\xff",
        wire.encode_deal(wire.Deal(piece=wire.Piece(2, 0, 2), raw=bytes(600))),
        wire.encode_deal(wire.Deal(piece=wire.Piece(2, 8, 2), raw=bytes(8))),
        wire.encode_deal(wire.Deal(piece=wire.Piece(2, 0, 1), raw=bytes(8))),
        wire.encode_deal(wire.Deal(piece=wire.Piece(2, 0, 2))),
    ],
    ids=["garbage", "too long", "offset", "number", "empty"],
)
def test_a_generator_that_talks_nonsense_is_not_listened_to(bad: bytes, tmp_path: Path) -> None:
    fed = play([welcome(), piece(1, 1), bad], tmp_path)
    assert fed.trained in ([], [1])
    assert rejected(fed) == {"malformed": 1}


def test_a_piece_that_was_damaged_on_its_way_is_dealt_again(tmp_path: Path) -> None:
    """Its stream ends and is opened again; on it the generator deals what was not taken."""
    greeted = 0

    async def script(context: Any) -> AsyncIterator[bytes]:
        nonlocal greeted
        await read(context)
        greeted += 1
        damaged = bytearray(piece(1, 1))
        damaged[-1] ^= greeted == 1
        for data in (welcome(), bytes(damaged), end(1)):
            yield data
        async for data in attend(context):
            yield data

    with flock(1) as nodes, scripted(script) as address:
        fed = Fed(nodes[0], address, tmp_path / "a.jsonl").start()
        fed.end()
        assert greeted == 2
        assert fed.trained == [1]
        assert rejected(fed) == {"digest": 1}


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"instance": "another"}, "another one than before"),
        ({"tensors": shape_of((batch(1)[0],))}, "its batches are"),
    ],
)
def test_another_generator_in_its_place_is_refused(
    other: dict[str, Any], sentence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    async def script(context: Any) -> AsyncIterator[bytes]:
        await read(context)
        calls.append(1)
        yield welcome(**(other if len(calls) > 1 else {}))
        if len(calls) == 1:
            yield piece(1, 1)
        else:
            async for data in attend(context):
                yield data

    with flock(1) as nodes, scripted(script) as address:
        Fed(nodes[0], address, tmp_path / "a.jsonl").start().end()
    assert len(calls) == 2
    assert sentence in caplog.text


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


async def status_of_asks(address: str, *asks: bytes) -> tuple[grpc.StatusCode, str]:
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(f"/{wire.SERVICE}/Feed")()
        try:
            for ask in asks:
                await call.write(ask)
            async with asyncio.timeout(10):
                while await call.read() is not grpc.aio.EOF:
                    pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code(), await call.details()


def hello(**more: Any) -> bytes:
    known: dict[str, Any] = {"run": "test", "swarm": "s", "name": "x", "epoch": 1}
    return wire.encode_ask(wire.Ask(hello=wire.FeedHello(**{**known, **more})))


@pytest.mark.parametrize(
    ("asks", "code", "sentence"),
    [
        ([b"\xff\xff\xff"], "INVALID_ARGUMENT", "ask: not a Ask"),
        ([wire.encode_ask(wire.Ask(pull=1))], "INVALID_ARGUMENT", "ask.hello: missing"),
        ([hello(), hello()], "INVALID_ARGUMENT", "ask.hello: again"),
        ([hello(), b""], "INVALID_ARGUMENT", "ask: empty"),
        ([hello(), wire.encode_ask(wire.Ask(claims=[(9, 1)]))], "INVALID_ARGUMENT", "claim.batch"),
        ([hello(), *[wire.encode_ask(wire.Ask(pull=64))] * 2], "INVALID_ARGUMENT", "ask.pull"),
        ([hello(), b"\x10" + b"\xff" * 9 + b"\x01"], "INVALID_ARGUMENT", "ask.pull"),
        ([hello(run="other")], "FAILED_PRECONDITION", "run 'other', this generator has 'test'"),
        ([hello(version=2)], "FAILED_PRECONDITION", "version 2"),
        ([hello(name="")], "INVALID_ARGUMENT", "hello.name: empty"),
        ([bytes(70_000)], "RESOURCE_EXHAUSTED", ""),
    ],
)
def test_bad_words_get_a_status_and_a_sentence(
    asks: list[bytes], code: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Table(1) as table:
        got, details = asyncio.run(status_of_asks(table.address, *asks))
        assert got.name == code
        assert sentence in details
        assert sum(table.service.rejections.counted.values()) == (code != "RESOURCE_EXHAUSTED")
        assert "Traceback" not in caplog.text
        assert table.service.peers == 0


def test_given_back_and_claimed_anew_in_one_breath() -> None:
    asks = [
        hello(),
        wire.encode_ask(wire.Ask(pull=1)),
        wire.encode_ask(wire.Ask(claims=[(1, 1)], back=[1])),
        wire.encode_ask(wire.Ask(bye=True)),
    ]
    with Table(1) as table:
        wait_for(lambda: len(table.service._fresh) == 1, "a batch")
        code, _ = asyncio.run(status_of_asks(table.address, *asks))
        assert code is grpc.StatusCode.OK
        assert table.service.dealer is not None
        assert table.service.dealer.state(1) == "claimed"


def test_another_founding_of_the_same_run_is_refused() -> None:
    with Table(5) as table:
        asyncio.run(status_of_asks(table.address, hello(), wire.encode_ask(wire.Ask(bye=True))))
        code, details = asyncio.run(status_of_asks(table.address, hello(swarm="t")))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "deals to 's'" in details


def test_one_who_does_not_read_is_cut_off() -> None:
    limits = Limits(stall_s=0.3)

    async def stall(address: str) -> None:
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            call = channel.stream_stream(f"/{wire.SERVICE}/Feed")()
            await call.write(hello())
            await call.read()
            for _ in range(40):
                await call.write(wire.encode_ask(wire.Ask(pull=50)))
                await asyncio.sleep(0.05)
                if not table.service.peers:
                    break
            await asyncio.sleep(0.5)

    with Table(None, limits=limits) as table:
        asyncio.run(stall(table.address))
        wait_for(lambda: table.service.peers == 0, "the end of the stream")


def test_a_node_of_another_run_says_why(tmp_path: Path) -> None:
    with flock(1) as nodes, Table(5, run="other") as table:
        fed = feed_all(nodes, table, tmp_path)[0]
        with pytest.raises(SchemaMismatch, match="this generator has 'other'"):
            fed.end()
