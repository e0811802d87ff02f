"""The stream stack by itself: a kind of stream that only repeats what it hears.

What peers, members and batch takers say on theirs is tested with them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from tests.integration.ears import SHORT, run, until
from tests.integration.line import Line

from murmurate.edge.net.credentials import PLAINTEXT, Credentials, Identity, Plaintext
from murmurate.edge.net.grpc_terms import LinksFull, StreamRefused, reason_of
from murmurate.edge.net.stream_client import (
    Backoff,
    KeptStream,
    OpenStream,
    StreamBroke,
    open_stream,
)
from murmurate.edge.net.stream_server import Rejections, StreamServer, Visit
from murmurate.edge.net.streams import Kind
from murmurate.edge.net.transport import Limits
from murmurate.errors import (
    ConfigError,
    LocalProtocolError,
    MurmurateError,
    PeerUnavailable,
    RemoteProtocolError,
)

ECHO = Kind(service="murmurate.test.Echo", method="Say", up_bytes_max=1000, down_bytes_max=1000)


@dataclass(frozen=True)
class Name:
    name: str


class Echo:
    """Repeats what is said; "bad" is against the rules, "bug" is one, "end" ends it."""

    def __init__(self, limits: Limits, credentials: Credentials) -> None:
        self.rejections = Rejections()
        self.silenced: list[str] = []
        self.bugs: list[Exception] = []
        self.heard: list[bytes] = []
        self.server = StreamServer(
            "127.0.0.1:0", advertise=None, limits=limits, credentials=credentials
        )
        self.server.take(ECHO, self)

    def greeted(self, data: bytes) -> Name:
        if not data:
            raise RemoteProtocolError("hello", "empty")
        return Name(data.decode())

    async def attend(self, greeting: Name, stream: Visit) -> None:
        await stream.write(b"welcome " + greeting.name.encode(), 1.0, "not read")
        await stream.until_over(self._repeat(stream))

    async def _repeat(self, stream: Visit) -> None:
        while True:
            data = await stream.read()
            self.heard.append(data)
            if data == b"bad":
                raise RemoteProtocolError("word", "bad")
            if data == b"bug":
                raise ZeroDivisionError("a bug")
            if data == b"end":
                stream.end()
                await asyncio.Event().wait()
            await stream.write(data, 1.0, "not read")

    def rejected(self, sender: str, error: MurmurateError) -> None:
        self.rejections.note(reason_of(error), sender, error)

    def quarantined(self, sender: str) -> None:
        self.silenced.append(sender)

    def stumbled(self, sender: str, bug: Exception) -> None:
        self.bugs.append(bug)


@contextlib.asynccontextmanager
async def echo(limits: Limits = SHORT, credentials: Credentials = PLAINTEXT) -> AsyncIterator[Echo]:
    it = Echo(limits, credentials)
    await it.server.start()
    try:
        yield it
    finally:
        await it.server.stop(0.2)


def opened(
    it: Echo, greeting: bytes = b"x", within_s: float = 5.0
) -> contextlib.AbstractAsyncContextManager[OpenStream]:
    return open_stream(
        ECHO,
        it.server.address,
        greeting,
        within_s=within_s,
        limits=SHORT,
        credentials=PLAINTEXT,
    )


async def says(it: Echo, word: bytes, greeting: bytes = b"x") -> bytes:
    async with opened(it, greeting) as stream:
        await stream.write(word)
        return await stream.read()


def test_a_stream_carries_both_ways_and_bytes_are_counted() -> None:
    async def scenario() -> None:
        async with echo() as it:
            async with opened(it) as stream:
                assert stream.welcome == b"welcome x"
                await stream.write(b"word")
                assert await stream.read() == b"word"
            assert it.server.bytes_received == len(b"x" + b"word")
            sent = len(b"welcome x" + b"word")
            await until(lambda: it.server.bytes_sent == sent)  # it is read before it is counted

    run(scenario())


def test_a_bad_word_is_refused_with_a_reason_and_three_are_quarantine() -> None:
    async def scenario() -> None:
        async with echo() as it:
            for _ in range(3):
                with pytest.raises(StreamRefused, match="word: bad") as refused:
                    await says(it, b"bad")
                assert isinstance(refused.value.error, LocalProtocolError)
            with pytest.raises(StreamRefused, match="quarantine") as refused:
                await says(it, b"word")
            assert isinstance(refused.value.error, PeerUnavailable)
            assert it.rejections.counted == {"malformed": 3, "quarantine": 1}
            assert it.silenced == ["x"]
            assert await says(it, b"word", b"another") == b"word"

    run(scenario())


def test_a_bad_greeting_is_nobodys_strike() -> None:
    async def scenario() -> None:
        async with echo() as it:
            for _ in range(4):
                with pytest.raises(StreamRefused, match="hello: empty"):
                    await says(it, b"word", b"")
            assert it.silenced == []

    run(scenario())


def test_a_bug_costs_one_stream_and_is_no_refusal(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with echo() as it:
            with pytest.raises(StreamBroke):
                await says(it, b"bug")
            assert [type(bug) for bug in it.bugs] == [ZeroDivisionError]
            assert await says(it, b"word") == b"word"

    run(scenario())
    assert ["ZeroDivisionError" in str(each.exc_info) for each in caplog.records] == [True]


def test_only_so_many_streams_at_a_time() -> None:
    async def scenario() -> None:
        async with echo(replace(SHORT, links_max=1)) as it:
            async with opened(it):
                with pytest.raises(StreamRefused, match="1 links already"):
                    await says(it, b"word", b"another")
            await until(lambda: it.server.open == 0)
            assert await says(it, b"word") == b"word"
            assert it.rejections.counted == {reason_of(LinksFull("")): 1}

    run(scenario())


def test_streams_of_who_becomes_revoked_are_cut_with_the_reason() -> None:
    """Whatever is spoken on them: members' and batch takers', too."""

    class Revoking(Plaintext):
        shut = False

        def revoked(self, identity: Identity) -> bool:
            return self.shut

    async def scenario() -> None:
        credentials = Revoking()
        async with echo(credentials=credentials) as it:

            async def shut_out() -> None:
                async with opened(it) as stream:
                    await stream.write(b"word")
                    assert await stream.read() == b"word"
                    credentials.shut = True
                    await stream.read()

            with pytest.raises(StreamRefused, match="revoked") as refused:
                await shut_out()
            assert isinstance(refused.value.error, PeerUnavailable)
            assert it.rejections.counted == {"revoked": 1}
            assert it.silenced == [], "it is no strike"

    run(scenario())


def test_nobody_and_a_port_that_is_taken() -> None:
    async def scenario() -> None:
        async with echo() as it:
            again = StreamServer(
                it.server.address, advertise=None, limits=SHORT, credentials=PLAINTEXT
            )
            with pytest.raises(ConfigError, match="in use"):
                await again.start()
        with pytest.raises(StreamBroke):
            async with opened(it, within_s=1.0):
                pass

    run(scenario())


def test_backoff_grows_until_somebody_answers() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [backoff.after(welcomed=False) for _ in range(4)] == [0.2, 0.4, 0.5, 0.5]
    assert backoff.after(welcomed=True) == 0.1


class Kept(KeptStream):
    """Says what is put into `words`."""

    kind = ECHO
    whom = "the echo"
    beat_s = 0.05

    def __init__(
        self, address: str, credentials: Credentials = PLAINTEXT, limits: Limits = SHORT
    ) -> None:
        super().__init__(address, limits, credentials)
        self.words: list[bytes] = []
        self.welcomes = 0
        self.heard: list[bytes] = []
        self.ends: list[tuple[MurmurateError | None, bool]] = []

    def greeting(self) -> bytes:
        return b"x"

    def welcomed(self, data: bytes) -> None:
        self.welcomes += 1

    async def say(self, stream: OpenStream) -> None:
        while self.words:
            await stream.write(self.words.pop(0))

    def goodbye(self) -> bytes:
        return b"bye"

    def hear(self, data: bytes) -> None:
        self.heard.append(data)

    def beat(self) -> None:
        """It only looks whether there is something to say."""

    def broke(self, error: MurmurateError | None, *, renewed: bool) -> bool:
        self.ends.append((error, renewed))
        return not isinstance(error, LocalProtocolError)


def test_a_kept_stream_is_opened_again_until_it_is_closed() -> None:
    async def scenario() -> None:
        async with echo() as it:
            kept = Kept(it.server.address)
            task = asyncio.create_task(kept.run())
            kept.words.append(b"one")
            await until(lambda: kept.heard == [b"one"])
            kept.words.append(b"end")
            kept.wake()
            await until(lambda: kept.welcomes == 2)
            kept.words.append(b"two")
            await until(lambda: kept.heard == [b"one", b"two"])
            kept.renew()
            await until(lambda: kept.welcomes == 3)
            kept.close()
            await task
            assert it.heard[-1] == b"bye"
            (first, renewed), second = kept.ends
            assert isinstance(first, PeerUnavailable)
            assert not renewed
            assert second == (None, True)

    run(scenario())


def test_a_kept_stream_that_is_refused_for_good_is_not_opened_again() -> None:
    async def scenario() -> None:
        async with echo() as it:
            kept = Kept(it.server.address)
            kept.words.append(b"bad")
            await asyncio.wait_for(kept.run(), 5.0)
            assert kept.welcomes == 1

    run(scenario())


def test_a_kept_stream_begins_again_with_new_credentials_after_what_it_was_saying() -> None:
    """However long that takes: here longer than a goodbye may."""

    class Renewed(Plaintext):
        generation = 1

    async def scenario() -> None:
        limits = replace(SHORT, stall_max_s=20.0)
        async with echo() as it, Line(it.server.address, bytes_per_s=4000) as line:
            credentials = Renewed()
            kept = Kept(line.address, credentials, limits)
            task = asyncio.create_task(kept.run())
            await until(lambda: kept.welcomes == 1)
            words = [bytes([65 + k]) * 900 for k in range(10)]
            kept.words += words
            credentials.generation += 1
            await until(lambda: kept.welcomes == 2)
            assert it.heard == words
            assert kept.ends == [(None, True)]
            kept.close()
            await task

    run(scenario())


def test_who_closes_a_kept_stream_while_it_drains_says_goodbye_on_the_next() -> None:
    class Renewed(Plaintext):
        generation = 1

    async def scenario() -> None:
        limits = replace(SHORT, stall_max_s=20.0)
        async with echo() as it, Line(it.server.address, bytes_per_s=4000) as line:
            credentials = Renewed()
            kept = Kept(line.address, credentials, limits)
            task = asyncio.create_task(kept.run())
            await until(lambda: kept.welcomes == 1)
            kept.words += [b"A" * 900] * 4
            credentials.generation += 1
            await until(lambda: not kept.words)
            kept.close()
            await task
            assert it.heard == [b"A" * 900] * 4 + [b"bye"]

    run(scenario())
