"""A member's side of its stream to the coordinator: kept, and opened again when it broke."""

from __future__ import annotations

from typing import Protocol

from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.grpc_terms import NotSpoken, ask_once
from murmurate.edge.net.stream_client import KeptStream, OpenStream
from murmurate.edge.net.streams import Kind
from murmurate.edge.net.subnet_values import Incoming, Outgoing, Values
from murmurate.edge.net.transport import Limits
from murmurate.errors import (
    ChecksumMismatch,
    ConfigError,
    MurmurateError,
    PeerUnavailable,
    RemoteProtocolError,
    SchemaMismatch,
)

TRAIN = Kind(
    service=wire.SERVICE,
    method="Train",
    up_bytes_max=wire.MESSAGE_BYTES_MAX,
    down_bytes_max=wire.MESSAGE_BYTES_MAX,
)
STOP = "Stop"
"""The method by which somebody ends the run."""
DOING_S = 2.0
"""Between two words about how the member is doing. Each wakes threads on both sides, whose caches
training has emptied: with four members and a coordinator on 2 cores that was seen in the rate."""


class Trainee(Protocol):
    """What the link talks for. Called on the link's thread only."""

    def hello(self) -> wire.WorkHello: ...

    def welcomed(self, welcome: wire.WorkWelcome) -> None:
        """SchemaMismatch: from that one nothing is taken."""

    def push(self) -> tuple[wire.Return, Outgoing] | None:
        """A push that is to be sent now, once."""

    def sent(self) -> None:
        """All of it is out."""

    def doing(self) -> wire.Doing: ...

    def incoming(self, give: wire.Give) -> Incoming:
        """Room for what was announced; RemoteProtocolError: it cannot be a subnet of mine."""

    def given(self, give: wire.Give, values: Values) -> None: ...

    def taken(self, taken: wire.Taken) -> None: ...

    def not_taken(self, not_taken: wire.NotTaken) -> None: ...

    def waits(self, sentence: str) -> None: ...

    def stop(self, reason: str) -> None: ...

    def broke(self, error: MurmurateError | None) -> bool:
        """The stream ended. Whether it is opened again."""


class CoordinatorLink(KeptStream):
    """A stream to the coordinator at `address`, as long as `run` runs."""

    kind = TRAIN
    whom = "the coordinator"
    beat_s = DOING_S

    def __init__(
        self,
        address: str,
        trainee: Trainee,
        limits: Limits | None,
        credentials: Credentials,
    ) -> None:
        super().__init__(address, limits, credentials)
        self._trainee = trainee
        self._due = False
        self._give: wire.Give | None = None
        self._incoming: Incoming | None = None

    def greeting(self) -> bytes:
        return wire.encode_work(wire.Work(hello=self._trainee.hello()))

    def welcomed(self, data: bytes) -> None:
        welcome = wire.decode_task(data).welcome
        if welcome is None:
            raise RemoteProtocolError("task.welcome", "missing: it is said first")
        self._trainee.welcomed(welcome)

    async def say(self, stream: OpenStream) -> None:
        while (push := self._trainee.push()) is not None:
            await self._send(stream, *push)
        if self._due:
            self._due = False
            await stream.write(wire.encode_work(wire.Work(doing=self._trainee.doing())))

    async def _send(self, stream: OpenStream, push: wire.Return, values: Outgoing) -> None:
        for offset, raw in values.pieces(stream.piece):
            said = wire.Work(push=None if offset else push, offset=offset, raw=raw)
            await stream.write(wire.encode_work(said), piece_bytes=len(raw))
        self._trainee.sent()

    def goodbye(self) -> bytes:
        return wire.encode_work(wire.Work(bye=True))

    def hear(self, data: bytes) -> None:
        trainee, task = self._trainee, wire.decode_task(data)
        if self._incoming is not None and (task.give is not None or not task.raw):
            raise RemoteProtocolError("task", "said before all of the values were here")
        if task.give is not None:
            self._give, self._incoming = task.give, trainee.incoming(task.give)
        if task.raw:
            self._take(task)
        if task.welcome is not None:
            raise RemoteProtocolError("task.welcome", "said twice")
        if task.taken is not None:
            trainee.taken(task.taken)
        if task.not_taken is not None:
            trainee.not_taken(task.not_taken)
        if task.waits:
            trainee.waits(task.waits)
        if task.stop:
            trainee.stop(task.stop)

    def _take(self, task: wire.Task) -> None:
        give, incoming = self._give, self._incoming
        if give is None or incoming is None:
            raise RemoteProtocolError("task.raw", "bytes of nothing that was announced")
        if incoming.take(task.offset, task.raw):
            self._give = self._incoming = None
            self._trainee.given(give, incoming.values)

    def beat(self) -> None:
        self._due = True

    def broke(self, error: MurmurateError | None, *, renewed: bool) -> bool:
        self._give = self._incoming = None
        return self._trainee.broke(error)


async def stop_run(
    address: str, timeout_s: float, limits: Limits, credentials: Credentials
) -> wire.RunStops:
    """Tell the coordinator at that address to end its run. ConfigError: it is none."""
    asked = wire.STOP_RUN.encode(wire.StopRun())
    path = f"/{wire.SERVICE}/{STOP}"
    try:
        data = await ask_once(
            address, path, asked, timeout_s, limits, credentials, wire.MESSAGE_BYTES_MAX
        )
        return wire.RUN_STOPS.decode(data)
    except RemoteProtocolError as error:
        raise SchemaMismatch(f"{address} is not a coordinator: {error}") from error
    except NotSpoken:
        raise ConfigError(
            f"{address} is not a coordinator. A swarm of peers ends on its budget, or when each"
            " node gets a SIGTERM"
        ) from None


def lasting(error: MurmurateError) -> bool:
    """Whether trying again cannot help."""
    return not isinstance(error, PeerUnavailable | ChecksumMismatch)
