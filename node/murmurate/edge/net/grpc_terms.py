"""What gRPC is told, and what its answers mean: settings, statuses, the ends of calls.

Without torch, so that whoever only wants to know how a swarm is doing has an answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.description import DESCRIPTION_BYTES_MAX, Description, decode_description
from murmurate.edge.net.transport import Limits
from murmurate.errors import (
    ChecksumMismatch,
    ConfigError,
    LocalProtocolError,
    MurmurateError,
    PeerExists,
    PeerTimeout,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)

SERVICE = "murmurate.v1.Peer"
SENTENCE_MAX = 500
HEADER_BYTES = 64
"""More than gRPC puts before a message: one that fits into one frame of HTTP/2 comes in one part,
not in 65, each of which is an object and a copy."""

STATUS: tuple[tuple[type[MurmurateError], grpc.StatusCode], ...] = (
    (ChecksumMismatch, grpc.StatusCode.DATA_LOSS),
    (RemoteProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    (SchemaMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (PeerExists, grpc.StatusCode.ALREADY_EXISTS),
    (ConfigError, grpc.StatusCode.FAILED_PRECONDITION),
    (PeerTimeout, grpc.StatusCode.DEADLINE_EXCEEDED),
    (PeerUnavailable, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (MurmurateError, grpc.StatusCode.UNKNOWN),
)
"""What the side that refuses says: the first that fits."""
REFUSED: dict[grpc.StatusCode | None, type[MurmurateError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: LocalProtocolError,
    grpc.StatusCode.FAILED_PRECONDITION: SchemaMismatch,
    grpc.StatusCode.ALREADY_EXISTS: PeerExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: PeerUnavailable,
    grpc.StatusCode.UNIMPLEMENTED: SchemaMismatch,
}
"""What it means to the side that is refused. Any other status: the link broke, try again."""


class LinksFull(PeerUnavailable):
    """There are as many links as are taken at a time."""


class Revoked(PeerUnavailable):
    """What the other side shows does not count any more."""

    def __init__(self) -> None:
        super().__init__("what you show was revoked")


REASONS: tuple[tuple[type[MurmurateError], str], ...] = (
    (ChecksumMismatch, "digest"),
    (RemoteProtocolError, "malformed"),
    (SchemaMismatch, "schema"),
    (PeerExists, "exists"),
    (PeerTimeout, "stalled"),
    (LinksFull, "full"),
    (Revoked, "revoked"),
    (PeerUnavailable, "quarantine"),
)
"""Labels of the counter of what was not let in: the first that fits."""
T = TypeVar("T")
GRPC_ERRORS = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


def is_bug(error: BaseException) -> bool:
    """Whether an error nobody foresaw is ours, and not one of gRPC's many ways to lose a call."""
    return type(error).__module__.partition(".")[0] != "grpc"


class LinkEnded(Exception):
    """The other side has said all it had to say."""


class StreamRefused(Exception):
    """The other side does not want this stream, and says why."""

    def __init__(self, error: MurmurateError) -> None:
        super().__init__(str(error))
        self.error = error


def channel_options(limits: Limits, message_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.keepalive_time_ms", int(limits.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", int(limits.backoff_min_s * 1000)),
        ("grpc.min_reconnect_backoff_ms", int(limits.dial_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(limits.backoff_max_s * 1000)),
        ("grpc.http2.max_frame_size", message_bytes_max + HEADER_BYTES),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(limits: Limits, up_bytes_max: int, down_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", up_bytes_max),
        ("grpc.max_send_message_length", down_bytes_max),
        ("grpc.keepalive_time_ms", int(limits.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.server_handshake_timeout_ms", 5_000),
        ("grpc.max_connection_age_ms", 3_600_000),
        ("grpc.max_connection_age_grace_ms", 30_000),
        ("grpc.max_concurrent_streams", 16),
        ("grpc.http2.max_frame_size", up_bytes_max + HEADER_BYTES),
        ("grpc.so_reuseport", 0),
    ]


OWN_FAILURE = (grpc.StatusCode.INTERNAL, "Internal error from Core")
"""What grpc.aio puts into a call itself, when a write fails."""


class CallOutcome:
    """How a call ended, as the other side put it.

    A write that fails because the call is over makes grpc.aio set a status of its own in place of
    the one that the other side gave (grpc/grpc#36066), in either order. Its callback comes with the
    first of the two only; the other side's, when it is the second, is found by looking again.
    """

    WAIT_S = 0.5
    LOOK_S = 0.002

    def __init__(self, call: Any) -> None:
        self._call = call
        self._status: tuple[grpc.StatusCode | None, str] = (None, "")
        call.add_done_callback(self._look)

    def _look(self, call: Any) -> None:
        self._status = (without_waiting(call.code()), without_waiting(call.details()) or "")

    async def status(self) -> tuple[grpc.StatusCode | None, str]:
        """(None, ""): it has not ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.WAIT_S):
                while self._status == OWN_FAILURE:
                    await asyncio.sleep(self.LOOK_S)
                    self._look(self._call)
        return self._status

    def cut(self) -> None:
        """End the call here. One that grpc.aio takes for ended by its own failure would go on
        waiting for the other side's status, for ever where something unread stands before it."""
        self._call.cancel()
        if self._status == OWN_FAILURE:
            self._call._cython_call.cancel("cut off")


def without_waiting(ready: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        ready.send(None)
    except StopIteration as result:
        return cast("T", result.value)
    ready.close()
    raise LocalProtocolError("asked for the status of a call that has not ended")


async def read(stream: Any) -> bytes:
    """The next message of a call or a context."""
    data = await stream.read()
    if data is grpc.aio.EOF:
        raise LinkEnded
    return cast("bytes", data)


async def first_of(*things: Coroutine[Any, Any, None] | asyncio.Future[None]) -> None:
    """Until the first of them ends, with its outcome; the others are cancelled."""
    futures = [asyncio.ensure_future(thing) for thing in things]
    try:
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in futures:
            future.cancel()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    del outcomes
    for future in futures:
        if future in done:
            future.result()


def status_of(error: MurmurateError) -> grpc.StatusCode:
    return next(code for kind, code in STATUS if isinstance(error, kind))


def refusal_of(status: int, sentence: str) -> StreamRefused | LinkEnded:
    """What it means that a frame ends the stream with that status, as a number."""
    code = next((code for code in grpc.StatusCode if code.value[0] == status), None)
    refusal = REFUSED.get(code)
    return LinkEnded() if refusal is None else StreamRefused(refusal(sentence))


def reason_of(error: MurmurateError) -> str:
    return next((reason for kind, reason in REASONS if isinstance(error, kind)), "refused")


async def describe(
    address: str,
    timeout_s: float,
    limits: Limits,
    credentials: Credentials,
) -> Description:
    """What the peer at that address says of itself; see `Transport.describe`."""
    path = f"/{SERVICE}/Describe"
    try:
        data = await ask_once(
            address, path, b"", timeout_s, limits, credentials, DESCRIPTION_BYTES_MAX
        )
        return decode_description(data)
    except RemoteProtocolError as error:
        raise SchemaMismatch(f"{address} is not a murmurate peer: {error}") from error


class NotSpoken(SchemaMismatch):
    """Somebody answers there, and does not know that question."""


async def ask_once(
    address: str,
    path: str,
    request: bytes,
    timeout_s: float,
    limits: Limits,
    credentials: Credentials,
    bytes_max: int,
) -> bytes:
    """One question, one answer. A TransportError or SchemaMismatch says why there is none."""
    async with credentials.open_channel(address, channel_options(limits, bytes_max)) as channel:
        try:
            answer: bytes = await channel.unary_unary(path)(request, timeout=timeout_s)
            return answer
        except grpc.aio.AioRpcError as error:
            raise _unanswered(address, error.code(), error.details() or "") from error


def _unanswered(address: str, code: grpc.StatusCode, details: str) -> MurmurateError:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerTimeout(f"{address} does not answer")
    if code is grpc.StatusCode.UNAVAILABLE and "HTTP/2" not in details:
        return PeerUnavailable(f"nobody answers at {address}: {details}"[:SENTENCE_MAX])
    if code is grpc.StatusCode.UNAVAILABLE:  # an answer, and not one of HTTP/2
        return SchemaMismatch(
            f"{address} speaks HTTP/1, so it is no peer's port. If it shows figures (--metrics), "
            f"open http://{address}/, or give the address that the node said it listens at"
        )
    kind = NotSpoken if code is grpc.StatusCode.UNIMPLEMENTED else SchemaMismatch
    return kind(f"{address} is not a murmurate peer: {code.name}"[:SENTENCE_MAX])
