"""Peers by name over real gRPC: who came back alone is found again, wherever it is now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.flock import Node, same_weights, train_together, wait_for
from tests.integration.processes import free_port

from murmurate.edge.runtime import discovery, seeking
from murmurate.edge.runtime.others_port import OthersPort


class Names:
    """What each name stands for."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}

    async def addresses(self, peers: Iterable[str]) -> list[str]:
        await asyncio.sleep(0)
        return [address for peer in peers for address in self.known.get(peer, [])]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(discovery, "addresses", made.addresses)
    monkeypatch.setattr(seeking, "addresses", made.addresses)
    monkeypatch.setattr(discovery, "SURE_S", 0.1)
    monkeypatch.setattr(seeking, "NAMES_S", 0.2)
    return made


def node(name: str, names: Names, folder: Path, *, known: Iterable[str] = ()) -> Node:
    """Each asks another name, so that they need not see the same."""
    address = f"127.0.0.1:{free_port()}"
    names.known[f"dns:{name}:1"] = [address, *known]
    more: dict[str, Any] = {"listen": address, "peers": [f"dns:{name}:1"]}
    return Node(name, checkpoint=folder / name, **more)


def test_two_that_came_back_alone_find_each_other(names: Names, tmp_path: Path) -> None:
    a = node("a-0", names, tmp_path)
    b = node("a-1", names, tmp_path, known=[a.swarm.address])
    train_together([a, b], 20)
    swarm = a.swarm.runtime.figures.swarm
    for each in (a, b):
        each.swarm.leave(timeout_s=0.5)

    # All addresses are new, and each name stands for its own node only.
    a, b = (node(name, names, tmp_path) for name in ("a-0", "a-1"))
    try:
        assert [each.swarm.runtime.figures.swarm for each in (a, b)] == [swarm, swarm]
        assert not a.swarm.runtime.look(lambda here: here.company)
        assert not b.swarm.runtime.look(lambda here: here.company)
        names.known["dns:a-1:1"].append(a.swarm.address)
        wait_for(lambda: a.swarm.members.get("a-1") == "alive")
        wait_for(lambda: b.swarm.members.get("a-0") == "alive")
        train_together([a, b], 20)
        same_weights([a, b])
    finally:
        for each in (a, b):
            each.swarm.leave(timeout_s=0.5)


def test_who_is_stopped_while_it_comes_back_says_so(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready, not training yet, and SIGTERM comes."""
    a = node("a-0", names, tmp_path)
    try:
        b = node("a-1", names, tmp_path, known=[a.swarm.address])
        train_together([a, b], 5)
        b.swarm.leave(timeout_s=2.0)
        membership = a.swarm.runtime.look(lambda here: here.peer.membership)
        before = membership.epoch("a-1") or 0

        def stop(_: OthersPort) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(OthersPort, "is_level", stop)
        with pytest.raises(KeyboardInterrupt):
            node("a-1", names, tmp_path, known=[a.swarm.address])
        wait_for(lambda: (membership.epoch("a-1") or 0) > before)
        wait_for(lambda: membership.state("a-1") in ("left", "dead"))
        assert membership.state("a-1") == "left"
    finally:
        a.swarm.leave(timeout_s=0.5)


def test_a_second_swarm_of_the_run_is_named(
    names: Names, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (node(name, names, tmp_path) for name in ("a-0", "b-0"))  # neither can see the other
    try:
        names.known["dns:a-0:1"].append(b.swarm.address)
        wait_for(lambda: "b-0 at" in caplog.text)
        assert "two swarms of run 'test': b-0 at" in caplog.text
        assert caplog.text.count("two swarms of run") == 1
    finally:
        for each in (a, b):
            each.swarm.leave(timeout_s=0.5)
