"""What the hub does to links, so that tests of others can count on it."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.ears import SHORT, Node, pair, ping, push, run, until

from murmurate.errors import PeerTimeout, PeerUnavailable
from murmurate.io.memory_transport import Hub


def test_delay() -> None:
    hub = Hub(delay_s=lambda _from, _to: 0.05)

    async def scenario(a: Node, b: Node) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(50):
            a.transport.post("b", ping(number))
            await asyncio.sleep(0)
        await until(lambda: b.ears.has(50))
        assert loop.time() - began >= 0.05
        assert b.ears.messages == [ping(number) for number in range(50)]
        with pytest.raises(PeerTimeout):
            await a.transport.describe(b.transport.address, 0.01)

    run(pair(lambda limits: hub.transport(limits=limits), scenario))


def test_cut_and_mend() -> None:
    hub = Hub()

    async def scenario(a: Node, b: Node) -> None:
        b.ears.hold = True
        a.transport.carry("b", push(1))
        await until(lambda: b.ears.got)
        hub.cut(a.transport.address, b.transport.address)
        await until(lambda: a.ears.lost_there)
        with pytest.raises(PeerUnavailable):
            await a.transport.describe(b.transport.address, 1.0)
        b.transport.post("a", ping(1))
        await asyncio.sleep(0.01)
        assert a.ears.got == []
        hub.mend()
        await until(lambda: a.transport.free("b"))
        a.transport.carry("b", push(1))
        await until(lambda: b.ears.has(2))

    run(pair(lambda limits: hub.transport(limits=limits), scenario))


def test_links_break_by_the_seed() -> None:
    """Every push is told landed or lost, once; the same seed loses the same ones."""

    def lost(seed: int) -> list[int]:
        hub = Hub(seed=seed, break_chance=0.1)
        told: list[int] = []

        async def scenario(a: Node, b: Node) -> None:
            for seq in range(1, 101):
                await until(lambda: a.transport.free("b"))
                a.transport.carry("b", push(seq))
                await until(lambda: a.ears.landed_there or a.ears.lost_there)
                told.extend(message.stamps[0].dot.seq for _, message in a.ears.lost_there)
                assert len(a.ears.landed_there) + len(a.ears.lost_there) == 1
                a.ears.landed_there.clear()
                a.ears.lost_there.clear()

        run(pair(lambda limits: hub.transport(limits=limits), scenario, limits=SHORT))
        return told

    first = lost(1)
    assert 2 < len(first) < 30
    assert first == lost(1) != lost(2)
