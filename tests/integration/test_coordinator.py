"""The coordinator over real gRPC streams on loopback: honest members, and strangers who are not."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import torch
from torch import nn

from murmurate.core.partition import analyse, weights_of
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.net.grpc_terms import describe
from murmurate.edge.net.pieces import PieceSize
from murmurate.edge.net.subnet_values import Incoming, Outgoing, decode_held, structure_digest
from murmurate.edge.net.transport import Limits
from murmurate.training import unasked_pace
from murmurate.training.member import Member
from murmurate_coordinator.figures import description
from murmurate_coordinator.names import RULES
from murmurate_coordinator.service import CoordinatorService
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.table import new_solver

WAIT_S = 90.0
QUICK = Limits(keepalive_s=5.0, keepalive_timeout_s=5.0, dial_s=5.0, stall_max_s=1.0)


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2)
    )


MODEL = make()
STRUCTURE = analyse(MODEL, (torch.randn(2, 4),))
DIGEST = structure_digest(STRUCTURE)


@asynccontextmanager
async def serving(rule: str = "async", founders: int = 1) -> AsyncIterator[CoordinatorService]:
    rng = np.random.default_rng(0)
    solver = new_solver(rule, STRUCTURE, weights_of(MODEL), rng, steps=4, founders=founders)
    centre = Sessions(solver, run="r", instance="c", now=time.monotonic())
    service = CoordinatorService(
        "127.0.0.1:0",
        centre,
        limits=QUICK,
        describe=lambda: description(centre, service.address, "c"),
        credentials=PLAINTEXT,
    )
    await service.start()
    try:
        yield service
    finally:
        await service.stop(0.1)
        assert service.failed is None


class Stranger:
    """A raw stream: says anything."""

    def __init__(self, address: str, name: str = "stranger", instance: str = "i") -> None:
        self.hello = wire.WorkHello(
            run="r", name=name, instance=instance, structure=DIGEST, width=1.0
        )
        own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        self.channel = grpc.aio.insecure_channel(address, options=own)
        self.call = self.channel.stream_stream(f"/{wire.SERVICE}/Train")()
        self.give: wire.Give | None = None
        self.values: dict[str, torch.Tensor] = {}

    async def __aenter__(self) -> Stranger:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        await self.channel.close()

    async def say(self, work: wire.Work | bytes) -> None:
        await self.call.write(work if isinstance(work, bytes) else wire.encode_work(work))

    async def hear(self) -> wire.Task:
        async with asyncio.timeout(WAIT_S):
            data = await self.call.read()
        assert data is not grpc.aio.EOF, await self.call.code()
        return wire.decode_task(data)

    async def enter(self) -> wire.WorkWelcome:
        await self.say(wire.Work(hello=self.hello))
        welcome = (await self.hear()).welcome
        assert welcome is not None
        return welcome

    async def receive(self) -> None:
        """The next give, whole."""
        task = await self.hear()
        while task.give is None:
            task = await self.hear()
        self.give = give = task.give
        held = decode_held(STRUCTURE, give.held)
        into = Incoming("give", STRUCTURE, held, give.value_bytes)
        while not into.take(task.offset, task.raw):
            task = await self.hear()
        self.values = into.values

    def head(self, **lies: Any) -> tuple[wire.Return, Outgoing]:
        assert self.give is not None
        values = Outgoing(STRUCTURE, self.values)
        head = wire.Return(
            plan=self.give.plan,
            lease=self.give.lease,
            version=1,
            steps=1,
            samples=1,
            value_bytes=values.value_bytes,
        )
        return replace(head, **lies), values

    async def push(self, piece_bytes: int = 64, **lies: Any) -> None:
        head, values = self.head(**lies)
        for offset, raw in values.pieces(PieceSize(piece_bytes)):
            await self.say(wire.Work(push=None if offset else head, offset=offset, raw=raw))

    async def refused(self) -> tuple[grpc.StatusCode, str]:
        """How the other side ended it."""
        async with asyncio.timeout(WAIT_S):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return await self.call.code(), await self.call.details()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def weights(service: CoordinatorService) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in service.centre.solver.weights.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


# -- strangers ------------------------------------------------------------------------------------

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOISE = random.Random(7).randbytes(300)


async def garbage(stranger: Stranger) -> None:
    await stranger.say(NOISE)


async def no_hello(stranger: Stranger) -> None:
    await stranger.say(wire.Work(doing=wire.Doing()))


async def other_run(stranger: Stranger) -> None:
    await stranger.say(wire.Work(hello=replace(stranger.hello, run="another")))


async def other_model(stranger: Stranger) -> None:
    await stranger.say(wire.Work(hello=replace(stranger.hello, structure=bytes(32))))


async def same_name(stranger: Stranger) -> None:
    await stranger.say(wire.Work(hello=replace(stranger.hello, name="honest", instance="x")))


async def negative_share(stranger: Stranger) -> None:
    await stranger.say(wire.Work(hello=replace(stranger.hello, width=-1.0)))


async def second_hello(stranger: Stranger) -> None:
    await stranger.enter()
    await stranger.say(wire.Work(hello=stranger.hello))


async def unannounced(stranger: Stranger) -> None:
    await stranger.enter()
    await stranger.say(wire.Work(offset=64, raw=b"x" * 64))


async def later_garbage(stranger: Stranger) -> None:
    await stranger.enter()
    await stranger.say(NOISE)


async def hole(stranger: Stranger) -> None:
    await stranger.enter()
    await stranger.receive()
    head, values = stranger.head()
    pieces = list(values.pieces(PieceSize(64)))
    await stranger.say(wire.Work(push=head, raw=pieces[0][1]))
    await stranger.say(wire.Work(offset=pieces[2][0], raw=pieces[2][1]))


async def two_at_once(stranger: Stranger) -> None:
    await stranger.enter()
    await stranger.receive()
    head, values = stranger.head()
    first = next(values.pieces(PieceSize(64)))[1]
    await stranger.say(wire.Work(push=head, raw=first))
    await stranger.say(wire.Work(push=head, raw=first))


async def too_much(stranger: Stranger) -> None:
    await stranger.enter()
    await stranger.receive()
    head, values = stranger.head(value_bytes=1 << 39)
    await stranger.say(wire.Work(push=head, raw=next(values.pieces(PieceSize()))[1]))


async def damaged(stranger: Stranger) -> None:
    await stranger.enter()
    await stranger.receive()
    head, values = stranger.head()
    said = bytearray(
        wire.encode_work(wire.Work(push=head, raw=next(values.pieces(PieceSize(64)))[1]))
    )
    said[-1] ^= 1
    await stranger.say(bytes(said))


async def stalled(stranger: Stranger) -> None:
    await stranger.enter()
    await stranger.receive()
    head, values = stranger.head()
    await stranger.say(wire.Work(push=head, raw=next(values.pieces(PieceSize(64)))[1]))


@pytest.mark.parametrize(
    ("does", "status", "reason", "says"),
    [
        (garbage, INVALID, "malformed", "work: "),
        (no_hello, INVALID, "malformed", "work.hello: missing"),
        (other_run, grpc.StatusCode.FAILED_PRECONDITION, "schema", "run 'another'"),
        (other_model, grpc.StatusCode.FAILED_PRECONDITION, "schema", "another structure"),
        (same_name, grpc.StatusCode.ALREADY_EXISTS, "exists", "honest is here already"),
        (negative_share, INVALID, "malformed", "hello.width: -1"),
        (second_hello, INVALID, "malformed", "work.hello: again"),
        (unannounced, INVALID, "malformed", "work.raw: values that were not announced"),
        (later_garbage, INVALID, "malformed", "work: "),
        (hole, INVALID, "malformed", "push.offset: 128, expected 64"),
        (two_at_once, INVALID, "malformed", "work.push: before the values of the last one"),
        (too_much, INVALID, "malformed", "push.value_bytes: 549755813888"),
        (damaged, grpc.StatusCode.DATA_LOSS, "digest", "work.checksum"),
        (stalled, grpc.StatusCode.DEADLINE_EXCEEDED, "stalled", "the values of its push"),
    ],
)
def test_a_stranger_is_told_why_and_nothing_changes(
    does: Callable[[Stranger], Any], status: grpc.StatusCode, reason: str, says: str
) -> None:
    async def run() -> None:
        async with (
            serving(founders=1) as service,
            Stranger(service.address, "honest") as honest,
        ):
            await honest.enter()
            await honest.receive()
            before, counted = weights(service), service.rejections.counted[reason]
            async with Stranger(service.address) as stranger:
                room = asyncio.create_task(_make_room(service, honest))
                try:
                    await does(stranger)
                    code, details = await stranger.refused()
                finally:
                    room.cancel()
                    await asyncio.gather(room, return_exceptions=True)
            assert code is status, details
            assert says in details
            assert service.rejections.counted[reason] == counted + 1
            assert same(before, weights(service))  # what the honest one pushes is what it was given

    asyncio.run(run())


def test_a_bug_that_a_member_found_costs_only_that_member(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decode = wire.decode_work

    def stumble(data: bytes) -> wire.Work:
        if data == b"bug":
            raise ZeroDivisionError("a bug")
        return decode(data)

    monkeypatch.setattr(wire, "decode_work", stumble)

    async def run() -> None:
        async with serving(founders=1) as service:  # which asserts that nothing has failed
            async with Stranger(service.address) as stranger:
                await stranger.enter()
                await stranger.receive()
                await stranger.say(b"bug")
                assert (await stranger.refused())[0] is grpc.StatusCode.INTERNAL
            assert service.rejections.counted == {"bug": 1}
            async with Stranger(service.address) as again:
                await again.enter()

    asyncio.run(run())
    assert ["ZeroDivisionError" in str(each.exc_info) for each in caplog.records].count(True) == 1


async def _make_room(service: CoordinatorService, honest: Stranger) -> None:
    """Others get units when somebody pushes: what it was given, so that nothing changes."""
    await until(lambda: "stranger" in service.centre.solver.members)
    await honest.push()
    await honest.receive()


@pytest.mark.parametrize(
    ("lies", "reason"),
    [
        ({"value_bytes": 100}, "shapes"),
        ({"lease": 77}, "future"),
        ({"version": 5}, "future"),
        ({"plan": 77}, "future"),
    ],
)
def test_a_push_that_does_not_fit_is_skipped_and_the_next_one_is_taken(
    lies: dict[str, Any], reason: str
) -> None:
    async def run() -> None:
        async with serving() as service, Stranger(service.address) as member:
            await member.enter()
            await member.receive()
            before = weights(service)
            if "value_bytes" in lies:
                head, _ = member.head(**lies)
                await member.say(wire.Work(push=head, raw=bytes(100)))
            else:
                await member.push(**lies)
            answer = (await member.hear()).not_taken
            assert answer is not None
            assert answer.reason == reason
            assert same(before, weights(service))
            assert service.centre.solver.totals.refused[reason] == 1
            await member.push()
            assert (await member.hear()).taken is not None

    asyncio.run(run())


def test_more_peers_than_units() -> None:
    async def run() -> None:
        async with serving("sync", founders=24) as service:
            members = []
            for k in range(24):
                members.append(Stranger(service.address, f"m{k}"))
                await members[-1].enter()
            members.append(Stranger(service.address, "m24"))
            await members[24].say(wire.Work(hello=members[24].hello))
            code, details = await members[24].refused()
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details == "24 units cannot be dealt to 25 peers, one each"
            assert service.centre.solver.totals.refused["full"] == 1
            for member in members[:24]:
                await member.receive()
            for member in members:
                await member.__aexit__()

    asyncio.run(run())


def test_three_strikes_and_nobody_listens_for_a_while() -> None:
    async def run() -> None:
        async with serving() as service:
            for _ in range(3):
                async with Stranger(service.address) as stranger:
                    await later_garbage(stranger)
                    assert (await stranger.refused())[0] is INVALID
            async with Stranger(service.address) as stranger:
                await stranger.say(wire.Work(hello=stranger.hello))
                code, details = await stranger.refused()
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "quarantine" in details
            async with Stranger(service.address, "other") as other:
                await other.enter()

    asyncio.run(run())


# -- streams --------------------------------------------------------------------------------------


def test_the_newest_stream_of_a_process_counts_and_its_lease_goes_on() -> None:
    async def run() -> None:
        async with serving() as service, Stranger(service.address) as first:
            await first.enter()
            await first.receive()
            await first.push()
            assert (await first.hear()).taken is not None
            async with Stranger(service.address) as second:
                assert first.give is not None
                lease = first.give.lease
                second.hello = replace(first.hello, lease=lease, lease_version=0)
                welcome = await second.enter()
                assert welcome.lease_holds
                assert welcome.lease_version == 1
                assert (await first.refused())[0] is grpc.StatusCode.OK
                second.give, second.values = first.give, first.values
                await second.push()  # once more: it is in
                assert (await second.hear()).taken == wire.Taken(lease=lease, version=1)
                await second.push(version=2, steps=2, samples=2)
                assert (await second.hear()).taken is not None
            assert service.centre.solver.totals.samples == 2

    asyncio.run(run())


def test_a_barrier_does_not_wait_for_a_stream_that_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("murmurate_coordinator.sessions.GRACE_S", 0.3)

    async def run() -> None:
        async with serving("sync", founders=3) as service:
            solver = service.centre.solver
            async with (
                Stranger(service.address, "a") as a,
                Stranger(service.address, "b") as b,
                Stranger(service.address, "dies") as dies,
            ):
                for member in (a, b, dies):
                    await member.enter()
                for member in (a, b, dies):
                    await member.receive()
                plan = solver.plan
                await a.push()
                dies.call.cancel()
                await b.push()
                for member in (a, b):
                    await member.receive()
                    assert member.give is not None
                    assert member.give.plan > plan
                assert solver.members.keys() == {"a", "b"}
                assert service.centre.late == 1

    asyncio.run(run())


def test_status_describes_the_coordinator() -> None:
    async def run() -> None:
        async with serving() as service, Stranger(service.address, "a") as member:
            await member.enter()
            await member.receive()
            found = await describe(service.address, 5.0, QUICK, PLAINTEXT)
            assert found.name == "coordinator"
            assert [m.name for m in found.members] == ["a"]
            assert found.members[0].reason == "100.0% of the parameters"

    asyncio.run(run())


# -- members as they are --------------------------------------------------------------------------


class Worker(threading.Thread):
    """A real member, which trains until the run is over or it is told to leave."""

    def __init__(self, address: str, name: str, **more: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.address, self.more = address, more
        self.steps = 0
        self.leaving = threading.Event()
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            model = make()
            optimizer = torch.optim.SGD(model.parameters(), 0.05)
            generator = torch.Generator().manual_seed(len(self.name))
            x = torch.randn(16, 4, generator=generator)
            with Member(
                model,
                optimizer,
                run="r",
                coordinator=self.address,
                name=self.name,
                credentials=PLAINTEXT,
                **self.more,
            ) as member:
                self.member = member
                while not member.stopped and not self.leaving.is_set():
                    loss = (member.model(x).sum(1) - x.sum(1)).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    self.steps += 1
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failure = error


@pytest.mark.parametrize("rule", RULES)
def test_real_members_train_under_every_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step that was pushed is counted, and all of the last ones are in."""
    monkeypatch.setattr(unasked_pace, "SHARE", 0.1)  # pushes are waited for, and come soon

    async def run() -> None:
        async with serving(rule, founders=3) as service:
            workers = [Worker(service.address, f"w{k}", width=1.0 + k) for k in range(3)]
            solver = service.centre.solver
            await until(lambda: solver.totals.steps >= 150 and solver.totals.pushes >= 12)
            await service.own(service.centre.stop, "enough")
            await until(lambda: service.centre.awaited == 0)
            for worker in workers:
                await asyncio.to_thread(worker.join, WAIT_S)
                assert worker.failure is None
            told = sum(worker.steps - worker.member.steps_lost for worker in workers)
            # Who waits for the others when it ends makes one more step, which nobody asked for.
            more = 0 if rule == "async" else len(workers)
            assert solver.totals.steps <= told <= solver.totals.steps + more
            assert solver.totals.samples == solver.totals.steps * 16
            assert not solver.totals.refused
            made = make().state_dict()
            now = weights(service)
            assert all(bool(torch.isfinite(value).all()) for value in now.values())
            assert not any(torch.equal(made[name], value) for name, value in now.items())

    asyncio.run(run())


@pytest.mark.parametrize("rule", ["once", "async"])
def test_members_come_and_go(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unasked_pace, "SHARE", 0.1)  # pushes are waited for, and come soon

    async def run() -> None:
        async with serving(rule, founders=2) as service:
            solver = service.centre.solver
            stay = Worker(service.address, "stay", width=1.0)
            goes = Worker(service.address, "goes", width=1.0)
            await until(lambda: solver.totals.pushes > 6)
            comes = Worker(service.address, "comes", width=1.0)
            await until(lambda: "comes" in service.centre.shares())
            goes.leaving.set()
            await until(lambda: set(service.centre.shares()) == {"stay", "comes"})
            pushes = solver.totals.pushes
            await until(lambda: solver.totals.pushes > pushes + 6)
            solver.check()
            await service.own(service.centre.stop, "enough")
            await until(lambda: service.centre.awaited == 0)
            for worker in (stay, goes, comes):
                await asyncio.to_thread(worker.join, WAIT_S)
                assert worker.failure is None

    asyncio.run(run())
