"""Who founds a run when all peers are known by one name: never two, and nobody beside a swarm."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from murmurate.core.clock import Clock, Dot
from murmurate.core.layout import Layout
from murmurate.core.membership.epochs import epoch_after
from murmurate.edge.net import dns
from murmurate.edge.net.description import DescribedMember
from murmurate.edge.net.wire import PROTOCOL_VERSION, Description
from murmurate.edge.runtime import discovery
from murmurate.edge.runtime.discovery import Memory, Place, Wish, find_place
from murmurate.errors import PeerExists, PeerTimeout, PeerUnavailable

LAYOUT = Layout.of(nn.Linear(1, 1))[0]
NAME = "dns:peers:7000"


class World:
    """What a name stands for, and what is at each address."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self.at: dict[str, Description | Exception] = {}
        self.asked = 0

    async def describe(self, address: str, timeout_s: float) -> Description:
        self.asked += 1
        await asyncio.sleep(0)
        answer = self.at.get(address, PeerUnavailable(f"nobody answers at {address}"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def add(self, name: str, instance: str, *, synced: bool = False, swarm: str = "") -> str:
        address = f"{name}:7000"
        self.at[address] = Description(
            version=PROTOCOL_VERSION,
            instance=instance,
            run="r",
            rule="sum",
            swarm=swarm,
            name=name,
            epoch=0,
            address=address,
            synced=synced,
            schema=LAYOUT.schema,
            tensors=(),
            members=(),
            clock=Clock(),
            progress=(),
            folds=(),
        )
        self.listed.append(address)
        return address


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    async def look_up(peers: Any) -> list[str]:
        assert list(peers) == [NAME]
        return list(made.listed)

    monkeypatch.setattr(discovery, "addresses", look_up)
    monkeypatch.setattr(discovery, "ASK_AGAIN_S", 0.002)
    monkeypatch.setattr(discovery, "SURE_S", 0.05)
    return made


def wish(name: str, instance: str, **more: Any) -> Wish:
    values: dict[str, Any] = {
        "run": "r",
        "rule": "sum",
        "name": name,
        "instance": instance,
        "layout": LAYOUT,
        "peers": (NAME,),
        "found": name.endswith("-0"),
        "careful": True,
        "timeout_s": 0.3,
    }
    return Wish(**(values | more))


def place(world: World, asked: Wish) -> Place:
    return asyncio.run(find_place(world, asked, "new"))  # type: ignore[arg-type]


def test_the_first_of_all_founds_the_run(world: World) -> None:
    world.add("m-0", "5")
    world.add("m-1", "1")  # its instance does not matter: it may not found
    assert place(world, wish("m-0", "5")) == Place("new", "m-0", {})


def test_the_others_wait_for_it(world: World) -> None:
    world.add("m-0", "5")
    world.add("m-1", "1")
    with pytest.raises(PeerUnavailable, match=r"m-0 answered, but nobody .* ends in -0"):
        place(world, wish("m-1", "1"))


def test_the_first_joins_a_swarm_that_is_there(world: World) -> None:
    """Pod 0 came back without its volume."""
    world.add("m-0", "5")
    at = world.add("m-1", "1", synced=True, swarm="old")
    assert place(world, wish("m-0", "5")) == Place("old", "m-0", {"m-1": at})


def knows(world: World, address: str, *members: DescribedMember, **more: Any) -> None:
    """What one there says of others."""
    said = world.at[address]
    assert isinstance(said, Description)
    world.at[address] = replace(said, members=members, **more)


def test_the_last_life_of_its_name_is_what_any_of_them_knows(world: World) -> None:
    """By its record, its updates, or what was folded of it: its own clock may be wrong."""
    world.add("m-0", "5")
    first = world.add("m-1", "1", synced=True, swarm="old")
    assert place(world, wish("m-0", "5")).last_life == 0
    knows(world, first, DescribedMember("m-0", 7, "dead", "x:1"))
    assert place(world, wish("m-0", "5")).last_life == 7
    second = world.add("m-2", "1", synced=True, swarm="old")
    knows(world, second, clock=Clock([Dot("m-0", 8, 1)]))
    assert place(world, wish("m-0", "5")).last_life == 8
    knows(world, second, folds=((("m-0", 9), (1, 3)), (("m-1", 11), (1, 1))))
    assert place(world, wish("m-0", "5")).last_life == 9
    assert epoch_after(5, 9) == 10
    assert epoch_after(5000, 9) == 5000


@pytest.mark.parametrize("state", ["alive", "suspect"])
def test_a_name_that_seems_alive_elsewhere_is_waited_for(world: World, state: str) -> None:
    """At one's own address nobody else can be, and of an unknown one nobody was there."""
    world.add("m-0", "5")
    at = world.add("m-1", "1", synced=True, swarm="old")
    knows(world, at, DescribedMember("m-0", 7, state, "x:1"))
    with pytest.raises(PeerExists, match="'m-0' is taken by a live peer at x:1: choose another"):
        place(world, wish("m-0", "5", address="y:1"))
    for where in ("y:1", ""):
        knows(world, at, DescribedMember("m-0", 7, state, where))
        assert place(world, wish("m-0", "5", address="y:1")).name == "m-0"
    knows(world, at, DescribedMember("m-0", 7, "left", "x:1"))
    assert place(world, wish("m-0", "5", address="y:1")).name == "m-0"


def test_nothing_is_founded_before_the_name_stands_for_the_founder(world: World) -> None:
    """Its answer is older than this node: it may lack those who were there before, too."""
    with pytest.raises(PeerUnavailable, match="does not stand for this node"):
        place(world, wish("m-0", "5"))


def test_nothing_is_founded_beside_one_that_is_silent(world: World) -> None:
    """Cut off is not gone: it may be in a swarm."""
    world.add("m-0", "5")
    world.at[world.add("m-1", "1")] = PeerTimeout("m-1:7000 does not answer")
    with pytest.raises(PeerUnavailable, match="not founding a run that may exist: m-1:7000"):
        place(world, wish("m-0", "5"))


def test_nobody_at_an_address_does_not_stop_it(world: World) -> None:
    """Other pods are still loading, or an address is old."""
    world.add("m-0", "5")
    world.listed.append("gone:7000")
    assert place(world, wish("m-0", "5")).swarm == "new"


def test_it_joins_whoever_appears_while_it_makes_sure(world: World) -> None:
    world.add("m-0", "5")

    async def both() -> Place:
        async def soon() -> None:
            await asyncio.sleep(0.02)
            world.add("m-1", "1", synced=True, swarm="old")

        found, _ = await asyncio.gather(find_place(world, wish("m-0", "5"), "new"), soon())  # type: ignore[arg-type]
        return found

    assert asyncio.run(both()).swarm == "old"


@pytest.mark.parametrize("first", ["a", "z"])
def test_of_two_pools_one_founds(world: World, first: str) -> None:
    """Two StatefulSets behind one service, started at the same time."""
    world.add("big-0", first)
    world.add("small-0", "m")
    if first == "a":
        assert place(world, wish("big-0", first)).swarm == "new"
        with pytest.raises(PeerUnavailable):
            place(world, wish("small-0", "m", timeout_s=0.03))
    else:
        assert place(world, wish("small-0", "m")).swarm == "new"


def memory(*, weights: bool = True) -> Memory:
    return Memory(swarm="old", name="m-1", weights=weights)


def test_who_remembers_goes_on_even_if_it_may_not_found(world: World) -> None:
    """All pods restart, pod 0 without its volume: the others have the training."""
    world.add("m-1", "1", swarm="old")
    world.add("m-0", "5")
    assert place(world, wish("m-1", "1", memory=memory())) == Place("old", "m-1", {}, back=True)


def test_who_has_lost_its_memory_waits_for_those_who_remember(world: World) -> None:
    world.add("m-0", "0")
    world.add("m-1", "1", swarm="old")
    began = time.monotonic()

    async def both() -> Place:
        async def soon() -> None:
            await asyncio.sleep(0.1)  # twice as long as it needs to be sure
            world.listed.remove("m-1:7000")
            world.add("m-1", "1", synced=True, swarm="old")

        found, _ = await asyncio.gather(find_place(world, wish("m-0", "0"), "new"), soon())  # type: ignore[arg-type]
        return found

    assert asyncio.run(both()).swarm == "old"
    assert time.monotonic() > began + 0.09


def test_who_remembers_asks_those_the_name_stands_for_first(world: World) -> None:
    """Addresses change with each restart: those in the checkpoint are of no use."""
    world.add("m-1", "1", swarm="old")
    at = world.add("m-0", "5", synced=True, swarm="old")
    found = place(world, wish("m-1", "1", memory=memory()))
    assert found == Place("old", "m-1", {"m-0": at}, back=True)


def test_who_remembers_does_not_go_on_alone_beside_one_that_is_silent_at_once(world: World) -> None:
    world.add("m-1", "1", swarm="old")
    world.at[world.add("m-0", "5")] = PeerTimeout("m-0:7000 does not answer")
    began = time.monotonic()
    assert place(world, wish("m-1", "1", memory=memory())).members == {}
    assert time.monotonic() > began + 0.29, "it did not wait"


def test_an_explicit_wish_is_as_with_addresses(world: World) -> None:
    world.add("other", "9")
    assert place(world, wish("a", "5", found=True, careful=False)).swarm == "new"


# -- the name itself -------------------------------------------------------------------------------


def test_a_name_becomes_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "peers"
        four = (socket.AF_INET, 1, 6, "", ("10.0.0.1", port))
        six = (socket.AF_INET6, 1, 6, "", ("fd00::1", port, 0, 0))
        return [four, six, four]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    found = asyncio.run(dns.addresses(["a:1", NAME, "10.0.0.1:7000"]))
    assert found == ["a:1", "10.0.0.1:7000", "[fd00::1]:7000"]


def test_a_name_that_does_not_resolve_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert asyncio.run(dns.addresses([NAME])) == []


def test_a_resolver_without_an_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> list[Any]:
        time.sleep(0.5)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(dns, "LOOK_UP_S", 0.02)
    began = time.monotonic()
    assert asyncio.run(dns.addresses([NAME])) == []
    assert time.monotonic() < began + 0.4
