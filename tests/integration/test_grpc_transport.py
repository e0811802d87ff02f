"""The gRPC transport among strangers: garbage, stalls, cut lines, and peers that are none.

Whatever one peer does, an honest one is served before and after.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import grpc
import grpc.aio
import pytest
import torch
from tests.integration.ears import LARGE, SHORT, Memo, Node, ping, push, run, until
from tests.integration.line import Line

from murmurate.core.clock import Clock, Dot
from murmurate.core.gossip.average.push_sum import Share
from murmurate.core.message import Generation, Snapshot, Stamp
from murmurate.edge.net import wire
from murmurate.edge.net.credentials import PLAINTEXT, Identity, Plaintext
from murmurate.edge.net.grpc_terms import OWN_FAILURE, CallOutcome
from murmurate.edge.net.grpc_transport import GrpcTransport
from murmurate.edge.net.transport import INLINE_BYTES, WINDOW_MESSAGES, Limits
from murmurate.errors import ConfigError, PeerTimeout, PeerUnavailable, SchemaMismatch

TALK = "/murmurate.v1.Peer/Talk"
LARGE_BYTES = 4 * LARGE
Code = grpc.StatusCode


def hello(name: str = "x", **changes: Any) -> bytes:
    return wire.encode_frame(hello=wire.Hello(**{**Memo(name).greeting(), **changes}))


def head(seq: int = 1) -> wire.PushHead:
    return wire.PushHead((Stamp(Dot("x", 1, seq), Clock()),), "f4")


def piece(raw: bytes = b"", **fields: Any) -> bytes:
    return wire.encode_frame(piece=wire.encode_piece(**fields), raw=raw)


@contextlib.asynccontextmanager
async def node(name: str = "b", size: int = 1000, limits: Limits = SHORT) -> AsyncIterator[Node]:
    it = await Node(
        GrpcTransport("127.0.0.1:0", limits=limits, credentials=PLAINTEXT), Memo(name, size)
    ).start()
    try:
        yield it
    finally:
        await it.stop()


class Stranger:
    """Anything that can open a stream: says what it likes, and is told how that ended."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.call = self._channel.stream_stream(TALK)()
        self._outcome = CallOutcome(self.call)

    async def __aenter__(self) -> Stranger:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._outcome.cut()
        await self._channel.close()

    async def say(self, *frames: bytes) -> None:
        for frame in frames:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self.call.write(frame)

    async def hear(self) -> wire.Frame:
        return wire.decode_frame(await self.call.read())

    async def told(self) -> wire.Reply:
        """The next reply; it is alone in its frame."""
        frame = await self.hear()
        assert frame.reply is not None
        return frame.reply

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """The status comes after the last reply, so those are read first."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await self.call.read() is not grpc.aio.EOF:
                pass
        code, details = await self._outcome.status()
        assert code is not None
        return code, details


async def told(address: str, *frames: bytes) -> tuple[grpc.StatusCode, str]:
    """How a stream ends on which these frames are sent."""
    async with Stranger(address) as stranger:
        ended = asyncio.create_task(stranger.end())
        await stranger.say(*frames)
        return await ended


def used(node: Node) -> int:
    """Memory for large transfers in use."""
    assert isinstance(node.transport, GrpcTransport)
    return node.transport.depot.used_bytes


async def served(b: Node, name: str = "honest") -> None:
    """An honest peer can still push."""
    async with node(name, b.ears.size) as a:
        a.meet(b)
        sent = push(1, b.ears.size, origin=name)
        a.transport.carry("b", sent)
        await until(lambda: a.ears.landed_there or a.ears.lost_there)
        assert a.ears.landed_there == [("b", sent)]


# -- nonsense ------------------------------------------------------------------------------------

NONSENSE: dict[str, list[bytes]] = {
    "garbage": [b"\xff\x00garbage" * 10],
    "nothing at all": [b""],
    "a message before hello": [wire.encode_frame(notes=[wire.encode_note(ping(1))])],
    "a nameless hello": [hello("")],
    "garbage after hello": [hello(), b"\x12\x05abc"],
    "a second hello": [hello(), hello()],
    "a transfer that begins with 2": [hello(), piece(b"1234", number=2, total=4000, head=head())],
    "no head": [hello(), piece(b"1234", number=1, total=4000)],
    "not in the beginning": [hello(), piece(b"1234", number=1, offset=8, total=4000)],
    "another size": [hello(), piece(b"1234", number=1, total=4004, head=head())],
    "an offer of what is small": [hello(), piece(number=1, total=4000, head=head(), offer=True)],
    "a gap": [
        hello(),
        piece(b"1234", number=1, total=4000, head=head()),
        piece(b"1234", number=1, offset=8, total=4000),
    ],
    "an overlap": [
        hello(),
        piece(b"1234", number=1, total=4000, head=head()),
        piece(b"1234", number=1, offset=0, total=4000),
    ],
    "another transfer in between": [
        hello(),
        piece(b"1234", number=1, total=4000, head=head()),
        piece(b"1234", number=2, total=4000, head=head(2)),
    ],
    "more than it said": [
        hello(),
        piece(b"1" * 3996, number=1, total=4000, head=head()),
        piece(b"1" * 8, number=1, offset=3996, total=4004),
    ],
    "a bomb of notes": [hello(), b"\x12\x00" * 30_000],
}


@pytest.mark.parametrize("frames", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense(frames: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with node() as b:
            code, details = await told(b.transport.address, *frames)
            assert code is Code.INVALID_ARGUMENT, details
            assert ": " in details, "it names the field"
            assert [reason for reason, _, _ in b.ears.rejections] == ["malformed"]
            assert b.ears.got == []
            await served(b)

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert caplog.records == [], "no traceback"


def test_large_transfers_go_by_the_rules() -> None:
    offer = piece(number=1, total=LARGE_BYTES, head=head(), offer=True)
    first = piece(b"1" * 1000, number=1, total=LARGE_BYTES, head=head())

    async def scenario() -> None:
        async with node(size=LARGE) as b:
            code, details = await told(b.transport.address, hello("x1"), first)
            assert (code, "bulk.offer" in details) == (Code.INVALID_ARGUMENT, True)
            code, details = await told(b.transport.address, hello("x2"), offer, offer)
            assert (code, "bulk.head" in details) == (Code.INVALID_ARGUMENT, True)
            async with Stranger(b.transport.address) as stranger:
                await stranger.say(hello("x3"), offer)
                assert (await stranger.hear()).hello is not None
                assert (await stranger.told()).grants == (wire.Grant(1, 0),)
                await stranger.say(piece(b"1", number=1, offset=7, total=LARGE_BYTES))
                assert (await stranger.end())[0] is Code.INVALID_ARGUMENT
            await served(b)

    run(scenario())


def test_the_window_is_kept() -> None:
    size = INLINE_BYTES // 4

    def whole(number: int) -> list[bytes]:
        part = b"1" * wire.RAW_BYTES_MAX
        frames = []
        for offset in range(0, INLINE_BYTES, len(part)):
            first = None if offset else head(number)
            fields = {"number": number, "offset": offset, "total": INLINE_BYTES}
            frames.append(piece(part, **fields, head=first))
        return frames

    async def scenario() -> None:
        async with node(size=size) as b:
            b.ears.hold = True
            code, details = await told(b.transport.address, hello(), *whole(1), *whole(2))
            assert code is Code.INVALID_ARGUMENT
            assert "window" in details
            assert len(b.ears.got) == 1

    run(scenario())


def test_mutated_frames_get_a_status_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(0)
    good = [
        hello("x"),
        wire.encode_frame(notes=[wire.encode_note(ping(1))]),
        piece(b"1" * 4000, number=1, total=4000, head=head()),
    ]

    async def scenario() -> None:
        async with node(limits=replace(SHORT, strikes=10_000)) as b:
            for _ in range(150):
                frames = list(good)
                at = rng.randrange(len(frames))
                frame = bytearray(frames[at][:200] if rng.random() < 0.3 else frames[at])
                for _ in range(rng.randrange(4)):
                    frame[rng.randrange(min(len(frame), 80))] = rng.randrange(256)
                frames[at] = bytes(frame)
                refused = len(b.ears.rejections)
                async with Stranger(b.transport.address) as stranger:
                    await stranger.say(*frames)
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await stranger.call.done_writing()
                    code, details = await stranger.end()
                    expected = (Code.OK, Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)
                    # Who writes while it is refused is told so by its own gRPC, which then reads no
                    # more and so never comes to the status: here the node's count must say it.
                    if (code, details) == OWN_FAILURE:
                        await until(partial(refused_since, b, refused))
                    else:
                        assert code in expected, details
            await served(b)

    def refused_since(b: Node, refused: int) -> bool:
        return len(b.ears.rejections) > refused

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert caplog.records == []


def test_a_message_that_is_too_large(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with node() as b:
            for frames in ([b"1" * (8 << 20)], [hello(), b"1" * (2 << 20)]):
                code, _ = await told(b.transport.address, *frames)
                assert code is Code.RESOURCE_EXHAUSTED
            await served(b)

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert caplog.records == []


def test_another_version_and_another_method() -> None:
    async def scenario() -> None:
        async with node() as b:
            code, details = await told(b.transport.address, hello(version=99))
            assert code is Code.FAILED_PRECONDITION
            assert "99" in details
            assert str(wire.PROTOCOL_VERSION) in details
            async with grpc.aio.insecure_channel(b.transport.address) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await channel.unary_unary("/murmurate.v1.Peer/Shell")(b"")
                assert error.value.code() is Code.UNIMPLEMENTED
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await channel.unary_unary("/murmurate.v1.Peer/Describe")(b"\xff garbage")
                assert error.value.code() is Code.INVALID_ARGUMENT

    run(scenario())


def test_quarantine_is_for_a_name() -> None:
    async def scenario() -> None:
        async with node() as b:
            for _ in range(3):
                code, _ = await told(b.transport.address, hello("x"), b"garbage")
                assert code is Code.INVALID_ARGUMENT
            code, details = await told(b.transport.address, hello("x"))
            assert (code, "quarantine" in details) == (Code.RESOURCE_EXHAUSTED, True)
            await served(b)

    run(scenario())


# -- slow and silent -----------------------------------------------------------------------------


def test_who_says_no_hello_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with node(limits=replace(SHORT, dial_s=0.1)) as b, Stranger(b.transport.address) as s:
            await s.call.wait_for_connection()
            code, details = await s.end()
            assert (code, details) == (Code.DEADLINE_EXCEEDED, "no hello")
            assert [reason for reason, _, _ in b.ears.rejections] == ["stalled"]

    run(scenario())


def test_a_transfer_that_stalls_is_ended() -> None:
    async def scenario() -> None:
        async with node() as b, Stranger(b.transport.address) as s:
            await s.say(hello(), piece(b"1234", number=1, total=4000, head=head()))
            await served(b)
            code, details = await s.end()
            assert (code, "stalled" in details) == (Code.DEADLINE_EXCEEDED, True)
            assert [reason for reason, _, _ in b.ears.rejections] == ["stalled"]

    run(scenario())


def test_an_idle_link_is_not_ended() -> None:
    async def scenario() -> None:
        async with node("a") as a, node() as b:
            a.meet(b)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            await asyncio.sleep(4 * SHORT.stall_s)
            a.transport.post("b", ping(2))
            await until(lambda: len(b.ears.got) == 2)
            assert len(b.ears.hellos) == 1

    run(scenario())


def test_too_many_links() -> None:
    async def scenario() -> None:
        async with node(limits=replace(SHORT, links_max=2)) as b:
            async with Stranger(b.transport.address) as one, Stranger(b.transport.address) as two:
                for name, stranger in (("x", one), ("y", two)):
                    await stranger.say(hello(name))
                    assert (await stranger.hear()).hello is not None
                code, details = await told(b.transport.address, hello("z"))
                assert (code, "links" in details) == (Code.RESOURCE_EXHAUSTED, True)
            assert isinstance(b.transport, GrpcTransport)
            server = b.transport._server
            await until(lambda: not server.open, "the node hears that they left")
            await served(b)

    run(scenario())


def test_the_newest_link_of_a_name_counts() -> None:
    async def scenario() -> None:
        async with node() as b, Stranger(b.transport.address) as old:
            await old.say(hello(link=1))
            await old.hear()
            async with Stranger(b.transport.address) as new:
                await new.say(hello(link=2))
                await new.hear()
                assert (await old.end())[0] is Code.OK
                await new.say(piece(b"1" * 4000, number=1, total=4000, head=head()))
                await until(lambda: b.ears.got)

    run(scenario())


def half(second: bool, number: int = 1) -> bytes:
    """Of a push of 4000 bytes."""
    first = None if second else head(number)
    return piece(b"1" * 2000, number=number, offset=2000 * second, total=4000, head=first)


def test_what_is_on_its_way_when_a_new_link_opens_still_arrives() -> None:
    async def scenario() -> None:
        async with node() as b, Stranger(b.transport.address) as old:
            await old.say(hello(link=1), half(second=False))
            await old.hear()
            async with Stranger(b.transport.address) as new:
                await new.say(hello(link=2), piece(b"1" * 4000, number=1, total=4000, head=head(2)))
                await until(lambda: b.ears.has(1))
                await old.say(half(second=True), half(False, 2), half(True, 2))
                await until(lambda: b.ears.has(3))
                assert (await old.told()).last, "nothing more is said on it here"
                assert (await old.told()).landed == 2, "and that is told"
                await old.call.done_writing()
                assert (await old.end())[0] is Code.OK
                assert [sender for sender, _ in b.ears.got] == ["x"] * 3
                assert b.ears.broken == []

    run(scenario())


def test_a_link_that_does_not_come_to_its_end_is_not_drained_for_ever() -> None:
    """It goes on sending, one byte after the other."""

    async def scenario() -> None:
        async with (
            node(limits=replace(SHORT, stall_max_s=0.5)) as b,
            Stranger(b.transport.address) as old,
            Stranger(b.transport.address) as new,
        ):
            await old.say(hello(link=1), piece(b"1", number=1, total=4000, head=head()))
            await old.hear()
            await new.say(hello(link=2))
            await new.hear()
            ended = asyncio.create_task(old.end())
            for offset in range(1, 4000):
                await old.say(piece(b"1", number=1, offset=offset, total=4000))
                await asyncio.sleep(0.01)
                if ended.done():
                    break
            assert (await ended)[0] is Code.OK
            assert [again for *_, again in b.ears.broken] == [True]
            await new.say(half(second=False), half(second=True))
            await until(lambda: b.ears.has(1))

    run(scenario())


def test_of_three_links_of_a_name_the_oldest_ends_at_once() -> None:
    async def scenario() -> None:
        limits = replace(SHORT, pause_s=30.0, stall_s=30.0, stall_max_s=30.0)
        async with (
            node(limits=limits) as b,
            Stranger(b.transport.address) as oldest,
            Stranger(b.transport.address) as old,
            Stranger(b.transport.address) as new,
        ):
            for number, each in enumerate((oldest, old, new), 1):
                await each.say(hello(link=number))
                await each.hear()
            assert (await oldest.end())[0] is Code.OK
            await old.say(half(second=False), half(second=True))
            await until(lambda: b.ears.has(1))

    run(scenario())


def test_a_new_life_of_a_name_ends_the_link_of_the_old_one() -> None:
    async def scenario() -> None:
        limits = replace(SHORT, pause_s=30.0, stall_max_s=30.0)
        async with node(limits=limits) as b, Stranger(b.transport.address) as old:
            await old.say(hello(), half(second=False))
            await old.hear()
            async with Stranger(b.transport.address) as new:
                await new.say(hello(epoch=2))
                await new.hear()
                assert (await old.end())[0] is Code.OK
                assert b.ears.got == []

    run(scenario())


def test_what_a_new_link_offers_again_goes_on_where_the_old_one_stood() -> None:
    """Its sender has given the old link up; here that is not known yet."""
    offer = piece(number=1, total=LARGE_BYTES, key=7, head=head(), offer=True)
    part = b"1" * wire.RAW_BYTES_MAX

    async def scenario() -> None:
        limits = replace(SHORT, pause_s=30.0, stall_s=30.0, stall_max_s=30.0)
        async with node(size=LARGE, limits=limits) as b, Stranger(b.transport.address) as old:
            await old.say(hello(link=1), offer)
            await old.hear()
            assert (await old.told()).grants == (wire.Grant(1, 0),)
            await old.say(piece(part, number=1, total=LARGE_BYTES, key=7))
            await until(lambda: b.ears.pieces == 2)
            async with Stranger(b.transport.address) as new:
                await new.say(hello(link=2), offer)
                await new.hear()
                assert (await new.told()).grants == (wire.Grant(1, len(part)),)
                assert [again for *_, again in b.ears.broken] == [True]
                assert (await old.end())[0] is Code.OK
                for offset in range(len(part), LARGE_BYTES, len(part)):
                    rest = b"1" * min(len(part), LARGE_BYTES - offset)
                    await new.say(piece(rest, number=1, offset=offset, total=LARGE_BYTES, key=7))
                await until(lambda: b.ears.has(1))
            assert len(b.ears.broken) == 1
        assert used(b) == 0

    run(scenario())


class Renewed(Plaintext):
    """Credentials that change when the test says so."""

    generation = 1
    revoked_hosts: tuple[str, ...] = ()

    def revoked(self, identity: Identity) -> bool:
        return identity.host in self.revoked_hosts


def test_new_credentials_open_a_new_link_and_nothing_on_the_old_one_is_lost() -> None:
    async def scenario() -> None:
        credentials = Renewed()
        transport = GrpcTransport("127.0.0.1:0", limits=SHORT, credentials=credentials)
        a = await Node(transport, Memo("a", LARGE)).start()
        async with node("b", LARGE) as b:
            a.meet(b)
            sent = [push(seq, LARGE) for seq in (1, 2, 3)]
            a.transport.carry("b", sent[0])
            await until(lambda: b.ears.pieces > 2)
            assert b.ears.got == [], "it is on its way"
            credentials.generation += 1
            for each in sent[1:]:
                a.transport.carry("b", each)
            await until(lambda: len(a.ears.landed_there) == 3)
            await a.stop()
            assert a.ears.lost_there == []
            assert b.ears.broken == []
            assert len(b.ears.hellos) == 2

    run(scenario())


def test_who_is_revoked_is_refused() -> None:
    async def scenario() -> None:
        credentials = Renewed()
        transport = GrpcTransport("127.0.0.1:0", limits=SHORT, credentials=credentials)
        b = await Node(transport, Memo("b")).start()
        await served(b)
        credentials.revoked_hosts = ("ipv4:127.0.0.1",)
        code, details = await told(b.transport.address, hello())
        assert (code, "revoked" in details) == (Code.RESOURCE_EXHAUSTED, True)
        await b.stop()

    run(scenario())


# -- peers of the other kind: I dial, they misbehave ---------------------------------------------


@contextlib.asynccontextmanager
async def impostor(talk: Callable[[Any], Any]) -> AsyncIterator[str]:
    """Somebody who answers to Talk in its own way."""

    async def answer(_: Any, context: Any) -> None:
        await talk(context)

    server = grpc.aio.server()
    methods = {"Talk": grpc.stream_stream_rpc_method_handler(answer)}
    generic = grpc.method_handlers_generic_handler("murmurate.v1.Peer", methods)
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def welcome(name: str = "b") -> bytes:
    return hello(name)


def test_a_peer_that_does_not_read() -> None:
    async def talk(context: Any) -> None:
        await context.write(welcome())
        await asyncio.sleep(60)

    async def scenario() -> None:
        async with impostor(talk) as address, node("a") as a:
            a.transport.meet("b", address)
            sent = [push(1), push(2, 2_000_000)]
            for each in sent:
                a.transport.carry("b", each)
            await until(lambda: len(a.ears.lost_there) == 2)
            assert [message for _, message in a.ears.lost_there] == sent

    run(scenario())


def test_who_waits_for_a_receipt_gets_it_soon() -> None:
    """A sender waits for that of a share, and for those of pushes when half of its window is full;
    here any other receipt would come after half a minute."""

    async def scenario() -> None:
        limits = replace(SHORT, landed_s=0.01, landed_push_s=30.0)
        async with node("a") as a, node("b", limits=limits) as b:
            a.transport.meet("b", b.transport.address)
            share = Share(1, 1, 2, 0.5, torch.ones(1000), Clock())
            a.transport.carry("b", share)
            await until(lambda: len(a.ears.landed_there) == 1)
            for seq in range(1, WINDOW_MESSAGES // 2 + 1):
                a.transport.carry("b", push(seq))
            await until(lambda: len(a.ears.landed_there) == 1 + WINDOW_MESSAGES // 2)
            a.transport.carry("b", push(7))
            a.transport.carry("b", share)
            await until(lambda: len(a.ears.landed_there) == 3 + WINDOW_MESSAGES // 2)

    run(scenario())


def test_a_peer_that_does_not_read_its_receipts() -> None:
    """Its stream takes no more: told by a context whose second write, after the welcome, waits."""

    class Full:
        def __init__(self, frames: list[bytes]) -> None:
            self.frames = frames
            self.written = 0

        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        async def read(self) -> bytes:
            return self.frames.pop(0) if self.frames else await asyncio.Future()

        async def write(self, _: bytes) -> None:
            self.written += 1
            if self.written > 1:
                await asyncio.Future()

    async def scenario() -> None:
        limits = replace(SHORT, stall_max_s=0.1, landed_push_s=0.01)
        async with node("b", limits=limits) as b:
            assert isinstance(b.transport, GrpcTransport)
            context = Full([hello(), piece(bytes(4000), number=1, total=4000, head=head())])
            with pytest.raises(PeerTimeout, match="what is sent is not read"):
                await asyncio.wait_for(b.transport._server.visit(b.transport, context), 5.0)
            assert context.written == 2
            assert [reason for reason, *_ in b.ears.rejections] == ["stalled"]

    run(scenario())


@pytest.mark.parametrize(
    "reply",
    [
        b"\xff\xffgarbage",
        wire.encode_frame(reply=wire.encode_reply(wire.Reply(landed=7))),
        wire.encode_frame(reply=wire.encode_reply(wire.Reply(grants=(wire.Grant(1, 0),)))),
    ],
    ids=["garbage", "landed before it was sent", "granted without an offer"],
)
def test_a_peer_that_answers_nonsense(reply: bytes) -> None:
    async def talk(context: Any) -> None:
        await context.read()
        await context.write(welcome())
        await context.write(reply)
        await asyncio.sleep(60)

    async def scenario() -> None:
        async with impostor(talk) as address, node("a") as a:
            a.transport.meet("b", address)
            a.transport.post("b", ping(1))
            await until(lambda: a.ears.rejections)
            assert a.ears.rejections[0][:2] == ("malformed", "b")

    run(scenario())


def test_a_peer_that_never_welcomes() -> None:
    async def talk(context: Any) -> None:
        await asyncio.sleep(60)

    async def scenario() -> None:
        limits = replace(SHORT, dial_s=0.1)
        async with impostor(talk) as address, node("a", limits=limits) as a:
            a.transport.meet("b", address)
            a.transport.carry("b", push(1))
            await until(lambda: a.ears.lost_there)
            assert a.ears.refusals == []

    run(scenario())


# -- mistakes of our own -------------------------------------------------------------------------


def test_a_bug_on_my_link_is_told_and_what_it_carried_is_lost() -> None:
    async def scenario() -> None:
        async with node("a") as a, node("b") as b:
            a.meet(b)
            a.transport.post("b", ping(1))
            await until(lambda: b.ears.got)
            (link,) = a.transport._links  # type: ignore[attr-defined]
            bug = ZeroDivisionError("a bug")

            def next_frame(_: bytes) -> bytes:
                raise bug

            link.queue.next_frame = next_frame
            a.transport.carry("b", push(1))
            await until(lambda: a.ears.lost_there)
            assert a.ears.bugs == [bug]

    run(scenario())


def test_what_the_other_side_said_counts_though_a_write_failed_before_it_came() -> None:
    """grpc.aio calls back once: with its own INTERNAL, if that comes first."""

    class Call:
        told: ClassVar = [(Code.INTERNAL, "Internal error from Core")]

        def add_done_callback(self, callback: Callable[[Any], None]) -> None:
            callback(self)

        async def code(self) -> grpc.StatusCode:
            return self.told[-1][0]

        async def details(self) -> str:
            return self.told[-1][1]

    async def scenario() -> None:
        call = Call()
        status = asyncio.create_task(CallOutcome(call).status())
        await asyncio.sleep(0)
        call.told.append((Code.INVALID_ARGUMENT, "no hello"))
        assert await status == (Code.INVALID_ARGUMENT, "no hello")

    run(scenario())


def test_a_bug_that_a_sender_found_costs_only_that_sender(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with node() as b:
            received = b.ears.received

            def stumble(sender: str, message: Any, done: Callable[[], None]) -> None:
                if sender == "x":
                    raise ZeroDivisionError("a bug")
                received(sender, message, done)

            b.ears.received = stumble  # type: ignore[method-assign]
            note = wire.encode_frame(notes=[wire.encode_note(ping(1))])
            code, _ = await told(b.transport.address, hello("x"), note)
            assert code is Code.INTERNAL
            assert [reason for reason, _, _ in b.ears.rejections] == ["bug"]
            await served(b)

    run(scenario())
    assert ["ZeroDivisionError" in str(each.exc_info) for each in caplog.records] == [True]


# -- addresses where no peer lives ---------------------------------------------------------------


@contextlib.asynccontextmanager
async def tcp(answer: bytes | None) -> AsyncIterator[str]:
    """Something that listens: says this to everyone and hangs up; None: says nothing."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await over.wait()
        else:
            await reader.read(1000)
            writer.write(answer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        over.set()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", SchemaMismatch),
        (b"SSH-2.0-OpenSSH_9.2\r\n", SchemaMismatch),
        (None, PeerTimeout),
    ],
    ids=["http", "ssh", "silence"],
)
def test_describe_what_is_no_peer(answer: bytes | None, error: type[Exception]) -> None:
    async def scenario() -> None:
        async with tcp(answer) as address, node("a") as a:
            with pytest.raises(error, match=address):
                await a.transport.describe(address, 1.0)
            a.transport.meet("b", address)
            a.transport.carry("b", push(1))
            await until(lambda: a.ears.lost_there)

    run(scenario())


def test_describe_another_service() -> None:
    async def scenario() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        address = f"127.0.0.1:{port}"
        async with node("a") as a:
            with pytest.raises(SchemaMismatch, match="not a murmurate peer"):
                await a.transport.describe(address, 5.0)
            a.transport.meet("b", address)
            a.transport.carry("b", push(1))
            await until(lambda: a.ears.refusals and a.ears.lost_there)
            assert isinstance(a.ears.refusals[0][1], SchemaMismatch)
        await server.stop(None)

    run(scenario())


def test_describe_nonsense_and_nobody() -> None:
    async def scenario() -> None:
        async with node("a") as a:
            with pytest.raises(PeerUnavailable):
                await a.transport.describe("127.0.0.1:1", 5.0)
            with pytest.raises(PeerUnavailable):
                await a.transport.describe("no.such.host.invalid:7000", 5.0)

    run(scenario())


@pytest.mark.parametrize("listen", ["", "7000", "127.0.0.1:", "127.0.0.1:http", "h:70000", ":7000"])
def test_a_listen_address_that_is_none(listen: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match="listen"):
            await GrpcTransport(listen, credentials=PLAINTEXT).start(Memo("a"))

    run(scenario())


def test_an_address_of_another_machine_and_all_interfaces() -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match="advertise"):
            await GrpcTransport("0.0.0.0:0", credentials=PLAINTEXT).start(Memo("a"))
        with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
            await GrpcTransport("192.0.2.1:7000", credentials=PLAINTEXT).start(Memo("a"))
        everywhere = GrpcTransport("0.0.0.0:0", advertise="localhost:0", credentials=PLAINTEXT)
        await everywhere.start(Memo("a"))
        assert everywhere.address.startswith("localhost:")
        assert not everywhere.address.endswith(":0")
        await everywhere.stop(0.0)

    run(scenario())


# -- cut lines -----------------------------------------------------------------------------------


def test_a_slow_line_that_moves_is_not_given_up() -> None:
    """A piece of 1 MiB takes 2 s here, and is not feared before smaller ones have been seen."""
    size = 600_000

    async def scenario() -> None:
        limits = replace(SHORT, stall_s=1.0, pause_s=0.3, stall_max_s=5.0)
        async with (
            node("a", size, limits) as a,
            node("b", size, limits) as b,
            Line(b.transport.address, bytes_per_s=512 << 10) as line,
        ):
            a.transport.meet("b", line.address)
            a.transport.carry("b", push(1, size))
            await until(lambda: a.ears.landed_there or a.ears.lost_there)
            assert a.ears.lost_there == []
            assert b.ears.rejections == []
            assert len(b.ears.hellos) == 1

    run(scenario())


@pytest.mark.parametrize("pause_s", [0.3, 1.0])
def test_on_a_fast_line_silence_is_noticed_soon(pause_s: float) -> None:
    """What takes milliseconds may take a pause more, not the ten seconds for the unknown."""

    async def scenario() -> None:
        limits = replace(SHORT, stall_s=10.0, pause_s=pause_s)
        async with (
            node("a", LARGE, limits) as a,
            node("b", LARGE, limits) as b,
            Line(b.transport.address) as line,
        ):
            a.transport.meet("b", line.address)
            line.silent, line.bytes_left = True, 0.5 * LARGE_BYTES
            a.transport.carry("b", push(1, LARGE))
            await until(lambda: line.bytes_left < 0)
            began = time.monotonic()
            await until(lambda: a.ears.lost_there or b.ears.rejections)
            assert pause_s - 0.2 <= time.monotonic() - began < pause_s + 2.0

    run(scenario())


def test_who_stood_still_itself_does_not_blame_the_others() -> None:
    async def scenario() -> None:
        async with node("a", LARGE) as a, node("b", LARGE) as b:
            a.meet(b)

            def stand_still(*_: object) -> None:
                b.ears.pieces += 1
                if b.ears.pieces in (3, 6, 9):
                    time.sleep(1.5 * SHORT.pause_s + 0.1)

            b.ears.heard = stand_still  # type: ignore[assignment, method-assign]
            a.transport.carry("b", push(1, LARGE))
            await until(lambda: a.ears.landed_there or a.ears.lost_there)
            assert a.ears.lost_there == []
            assert b.ears.rejections == []

    run(scenario())


def test_a_snapshot_goes_on_where_the_line_was_cut_and_is_checked_as_a_whole() -> None:
    async def scenario() -> None:
        async with node("a", LARGE) as a, node("b", LARGE) as b, Line(b.transport.address) as line:
            a.transport.meet("b", line.address)
            weights = torch.arange(LARGE, dtype=torch.float32)
            sent = Snapshot(weights, Clock(), (Generation(0, ("a",)),))
            line.bytes_left = 0.75 * LARGE_BYTES
            a.transport.carry("b", sent)
            await until(lambda: a.ears.lost_there and b.ears.broken)
            assert [(sender, again) for sender, _, again in b.ears.broken] == [("a", True)]
            line.forwarded, line.bytes_left = 0, float("inf")
            await until(lambda: a.transport.free("b"))
            a.transport.carry("b", sent)
            await until(lambda: a.ears.landed_there)
            assert torch.equal(b.ears.messages[0].weights, weights)
            assert line.forwarded < 0.8 * LARGE_BYTES, "a part of it was there"
            assert b.ears.rejections == []

    run(scenario())


def test_what_was_damaged_on_the_way_is_told() -> None:
    """One flipped bit of a snapshot: the status says so, and no memory stays in use."""
    weights = bytearray(LARGE_BYTES)
    head = wire.SnapshotHead(Clock(), (Generation(0, ("x",)),), (), "f4")
    damaged_at = LARGE_BYTES // 3

    async def scenario() -> None:
        async with node(size=LARGE) as b, Stranger(b.transport.address) as s:
            await s.say(hello(), piece(number=1, total=LARGE_BYTES, head=head, offer=True))
            await s.hear()
            assert (await s.told()).grants == (wire.Grant(1, 0),)
            for at in range(0, LARGE_BYTES, 1 << 20):
                raw = weights[at : at + (1 << 20)]
                crc = wire.checksum(raw)
                if at <= damaged_at < at + len(raw):
                    raw[damaged_at - at] ^= 4
                await s.say(piece(bytes(raw), number=1, offset=at, total=LARGE_BYTES, checksum=crc))
                if at > damaged_at:
                    break  # it was told at once, not when all is there
            code, details = await s.end()
            assert (code, "snapshot.checksum" in details) == (Code.DATA_LOSS, True)
            assert b.ears.pieces == 1 + (damaged_at >> 20), "the offer, and those before"
            assert b.ears.got == []
            assert [reason for reason, _, _ in b.ears.rejections] == ["digest"]
            await until(lambda: used(b) == 0)

    run(scenario())


def test_a_large_transfer_goes_on_where_the_line_was_cut() -> None:
    async def scenario() -> None:
        async with node("a", LARGE) as a, node("b", LARGE) as b, Line(b.transport.address) as line:
            a.transport.meet("b", line.address)
            sent = push(1, LARGE)
            line.bytes_left = 0.75 * LARGE_BYTES
            a.transport.carry("b", sent)
            await until(lambda: a.ears.lost_there)
            assert b.ears.got == []
            await until(lambda: used(b) == LARGE_BYTES)
            line.forwarded, line.bytes_left = 0, float("inf")
            await until(lambda: a.transport.free("b"))
            a.transport.carry("b", push(1, LARGE))  # another object, the same content
            await until(lambda: a.ears.landed_there)
            assert torch.equal(b.ears.messages[0].payload, sent.payload)
            assert line.forwarded < 0.8 * LARGE_BYTES, "a part of it was there"
            assert used(b) == 0
            assert b.ears.pieces > 3

    run(scenario())


def test_not_every_piece_is_a_sign_of_life_of_its_own() -> None:
    async def scenario() -> None:
        for heard_s, few in ((0.0, False), (30.0, True)):
            limits = replace(SHORT, heard_s=heard_s)
            async with node("a", LARGE) as a, node("b", LARGE, limits) as b:
                a.meet(b)
                a.transport.carry("b", push(1, LARGE))
                await until(lambda: a.ears.landed_there)
                assert (b.ears.pieces == 2) is few, "the offer, and the first piece"

    run(scenario())


def test_what_has_changed_since_is_sent_anew() -> None:
    async def scenario() -> None:
        async with node("a", LARGE) as a, node("b", LARGE) as b, Line(b.transport.address) as line:
            a.transport.meet("b", line.address)
            line.bytes_left = 0.5 * LARGE_BYTES
            a.transport.carry("b", push(1, LARGE))
            await until(lambda: a.ears.lost_there)
            line.bytes_left = float("inf")
            other = push(1, LARGE)
            other.payload.add_(1.0)
            await until(lambda: a.transport.free("b"))
            a.transport.carry("b", other)
            await until(lambda: a.ears.landed_there)
            assert torch.equal(b.ears.messages[0].payload, other.payload)

    run(scenario())


def test_parts_nobody_comes_back_for_are_dropped() -> None:
    async def scenario() -> None:
        limits = replace(SHORT, partial_s=0.2)
        async with (
            node("a", LARGE) as a,
            node("b", LARGE, limits) as b,
            Line(b.transport.address) as line,
        ):
            a.transport.meet("b", line.address)
            line.bytes_left = 0.5 * LARGE_BYTES
            a.transport.carry("b", push(1, LARGE))
            await until(lambda: a.ears.lost_there)
            await until(lambda: used(b) == 0)

    run(scenario())


def test_memory_for_large_transfers_is_bounded() -> None:
    """Room for two: the third offer waits, and its sender's small messages do not."""

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            b = await stack.enter_async_context(
                node("b", LARGE, replace(SHORT, budget_bytes=2 * LARGE_BYTES))
            )
            b.ears.hold = True
            senders = [await stack.enter_async_context(node(f"a{i}", LARGE)) for i in range(4)]
            for i, sender in enumerate(senders):
                sender.meet(b)
                sender.transport.carry("b", push(1, LARGE, origin=f"a{i}"))
            await until(lambda: len(b.ears.dones) == 2)
            for sender in senders:
                sender.transport.post("b", ping(1))
            await until(lambda: len(b.ears.got) == 6)
            assert used(b) == 2 * LARGE_BYTES
            for more in (1, 2):
                b.ears.dones[more - 1]()
                await until(partial(b.ears.has, 6 + more))
                assert used(b) == 2 * LARGE_BYTES
            for done in b.ears.dones:
                done()
            await until(lambda: all(sender.ears.landed_there for sender in senders))
            assert used(b) == 0

    run(scenario())


def test_a_line_that_is_cut_is_dialled_again() -> None:
    async def scenario() -> None:
        async with node("a") as a, node("b") as b, Line(b.transport.address) as line:
            a.transport.meet("b", line.address)
            for times in range(1, 4):
                await until(lambda: a.transport.free("b"))
                a.transport.post("b", ping(times))
                await until(partial(b.ears.has, times))
                assert len(b.ears.hellos) == times
                line.cut()
                await until(lambda: not a.transport.free("b"))
            assert a.ears.lost_there == a.ears.refusals == []

    run(scenario())


def test_a_line_that_is_cut_again_and_again() -> None:
    """Every push is told landed or lost, once; sent again until it landed, all are there."""
    rng = random.Random(1)
    count = 150

    async def scenario() -> None:
        async with node("a") as a, node("b") as b, Line(b.transport.address) as line:
            a.transport.meet("b", line.address)
            waiting = [push(seq) for seq in range(1, count + 1)]
            carried = 0
            line.bytes_left = 50_000

            def done() -> bool:
                nonlocal carried
                waiting.extend(message for _, message in a.ears.lost_there)
                a.ears.lost_there.clear()
                if line.bytes_left < 0:
                    line.bytes_left = rng.randrange(1000, 150_000)
                while waiting and a.transport.free("b"):
                    carried += 1
                    a.transport.carry("b", waiting.pop(0))
                return len(a.ears.landed_there) == count

            await until(done)
            landed = sorted(message.stamps[0].dot.seq for _, message in a.ears.landed_there)
            assert landed == list(range(1, count + 1))
            assert {message.stamps[0].dot.seq for message in b.ears.messages} == set(landed)
            assert carried > count, "some were lost"
            assert not waiting
            assert b.ears.rejections == []
            assert a.ears.refusals == []

    run(scenario())
