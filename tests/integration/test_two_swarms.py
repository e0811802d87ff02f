"""A founder that is killed and started again with its command and no checkpoints."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.flock import Node, wait_for
from tests.integration.processes import free_port

from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.runtime import runtime
from murmurate.edge.runtime.other_swarms import REASON
from murmurate.watch import status, swarm


class Scene:
    """Nodes that are gone at the end."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.over = threading.Event()
        self.followers: list[threading.Thread] = []

    def node(self, name: str, **join: Any) -> Node:
        self.nodes.append(Node(name, **join))
        return self.nodes[-1]

    def killed_founder(self) -> tuple[str, Node]:
        """Its address, and the one it left behind."""
        where = f"127.0.0.1:{free_port()}"
        first = self.node("a", listen=where)
        other = self.node("b", peers=[where])
        for _ in range(5):
            other.step()
        first.swarm.runtime.stop()  # without a word to anybody
        self.nodes.remove(first)
        follow = threading.Thread(target=other.swarm.follow, args=(self.over.is_set, 60.0))
        follow.start()  # it takes part while the test looks on
        self.followers.append(follow)
        return where, other


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    try:
        yield scene
    finally:
        scene.over.set()
        for each in scene.followers:
            each.join()
        for node in scene.nodes:
            node.swarm.leave(timeout_s=0.2)


def warned(node: Node) -> list[str]:
    """As `murmurate status` shows it."""
    told = asyncio.run(status.ask(node.swarm.address, 10.0, PLAINTEXT))
    return [text for text in swarm.as_json(told)["warnings"] if "two swarms of run" in text]


def test_a_restarted_founder_goes_back_to_its_swarm(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    where, other = scene.killed_founder()
    again = scene.node("a", listen=where)
    assert again.swarm.runtime.figures.swarm == other.swarm.runtime.figures.swarm
    assert again.swarm.name == "a"
    assert "joining it instead of founding a second swarm" in caplog.text
    wait_for(lambda: other.swarm.members.get("a") == "alive")
    assert "name 'a' is mine" not in caplog.text, "it does not call itself"


def test_two_swarms_of_one_run_are_seen_and_the_larger_is_joined(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "CALLED_S", 0.0)  # it hears the others too late
    where, other = scene.killed_founder()
    second = scene.node("a", listen=where)
    assert second.swarm.runtime.figures.swarm != other.swarm.runtime.figures.swarm
    wait_for(lambda: bool(warned(second)) and bool(warned(other)), "said by both")
    assert "b at" in warned(second)[0]
    assert f"a at {where}" in warned(other)[0]
    rejected = [text for text in caplog.messages if text.startswith("rejected (schema)")]
    assert len(rejected) == 1, "one line, though it tries again and again"
    for peers in ([where, other.swarm.address], [other.swarm.address, where]):
        newcomer = scene.node(f"c{len(scene.nodes)}", peers=peers)
        assert newcomer.swarm.runtime.figures.swarm == other.swarm.runtime.figures.swarm
    assert "Joining the first; end the smaller one" in caplog.text
    told = other.swarm.runtime.figures.board()
    assert any(each.reason == REASON for row in told for each in row.warnings)
