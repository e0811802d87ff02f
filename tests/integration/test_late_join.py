"""A newcomer's snapshot over a slow or broken line, with real sockets: nobody is asked twice, what
broke off goes on, and when the giver dies another gives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, same_weights, wait_for
from tests.integration.line import Line, line_to
from torch import nn

from murmurate import giving
from murmurate.core.effect import Adopted

SIZE = 3_000_000
NBYTES = 4 * SIZE


class Large(nn.Module):
    """12 MB, and a step that costs nothing."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((SIZE,), value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=True) * self.weight[:1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


class Newcomer:
    """Joins in a thread of its own, reached by the others over a line."""

    def __init__(self, line: Line, listen: str, peers: list[str]) -> None:
        self.node: Node | None = None
        self._join = {
            "model": Large(),
            "peers": peers,
            "listen": listen,
            "advertise": line.address,
        }
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.node = Node("late", **self._join)  # type: ignore[arg-type]

    def joined(self) -> Node:
        self._thread.join(60)
        assert self.node is not None, "it did not join"
        return self.node


@contextmanager
def givers(count: int) -> Iterator[list[Node]]:
    """Nodes with the same weights, of which none is 0."""
    nodes: list[Node] = []
    try:
        for index in range(count):
            peers = [nodes[0].swarm.address] if nodes else []
            nodes.append(Node(f"g{index}", model=Large(1.0), peers=peers))
        wait_for(lambda: all(len(node.swarm.members) == count for node in nodes))
        yield nodes
    finally:
        for node in nodes:
            node.swarm.leave(timeout_s=0.2)


@contextmanager
def newcomer(nodes: list[Node], bytes_per_s: float) -> Iterator[tuple[Newcomer, Line]]:
    listen = f"127.0.0.1:{free_port()}"
    with line_to(listen, bytes_per_s) as line:
        late = Newcomer(line, listen, [node.swarm.address for node in nodes])
        try:
            yield late, line
        finally:
            late._thread.join(60)
            if late.node is not None:
                late.node.swarm.leave(timeout_s=0.2)


def gives(node: Node) -> Any:
    return node.swarm._runtime._giving


def is_giving(node: Node) -> bool:
    return any("late" in gift.under_way for gift in gives(node)._gifts)


def even(*nodes: Node) -> None:
    """Fold, each in turn, until all have the same."""

    def same() -> bool:
        settled = [node.swarm.settle(0.1) for node in nodes]
        return all(settled) and all(node.clock == nodes[0].clock for node in nodes)

    wait_for(same)


def test_while_a_snapshot_comes_nobody_else_is_asked() -> None:
    """4 s for one, twice the time after which another is asked for one that does not come."""
    with givers(2) as nodes, newcomer(nodes, NBYTES / 4) as (late, line):
        node = late.joined()
        assert NBYTES <= line.forwarded < 1.2 * NBYTES
        same_weights([*nodes, node])
        assert float(node.weights()[0]) == 1.0


def test_a_giver_that_dies_is_replaced() -> None:
    with givers(2) as nodes, newcomer(nodes, NBYTES / 2) as (late, line):
        wait_for(lambda: line.forwarded > NBYTES / 4)
        dead, other = sorted(nodes, key=is_giving, reverse=True)
        assert is_giving(dead)
        assert not is_giving(other)
        dead.swarm._runtime.stop(grace_s=0.0)  # not a word to anybody
        node = late.joined()
        same_weights([other, node])
        assert float(node.weights()[0]) == 1.0
        assert line.forwarded < 1.8 * NBYTES, "a part of the first, and one whole"


def test_a_snapshot_that_broke_off_goes_on() -> None:
    """The giver trained on: it keeps what it had begun to give, and that is completed."""
    with givers(1) as nodes, newcomer(nodes, NBYTES / 2) as (late, line):
        line.bytes_left = NBYTES / 2
        wait_for(lambda: line.bytes_left < 0)
        (giver,) = nodes
        giver.step()
        line.bytes_left = float("inf")
        node = late.joined()
        even(giver, node)
        same_weights([giver, node])
        sent_twice = line.forwarded - NBYTES * 2  # the snapshot, and the update it lacked
        assert sent_twice < 0.3 * NBYTES
        wait_for(lambda: gives(giver)._gifts == [])


def test_two_who_come_together_share_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "SHARE_S", 20.0)  # however slow this machine is today
    with givers(1) as nodes:
        (giver,) = nodes
        made: list[object] = []
        make = gives(giver)._make

        def counted() -> Any:
            made.append(snapshot := make())
            return snapshot

        gives(giver)._make = counted
        with newcomer(nodes, NBYTES / 2) as (one, line):
            line.bytes_left = NBYTES / 2  # it has half of it until the other one has come
            wait_for(lambda: bool(made))
            two = Node("two", model=Large(), peers=[giver.swarm.address])
            line.bytes_left = float("inf")
            same_weights([giver, two, one.joined()])
            two.swarm.leave(timeout_s=0.2)
        assert len(made) == 1


def test_who_fell_far_behind_takes_a_snapshot_too() -> None:
    """The others let go of what one that is away for long would lack; it catches up as a whole."""
    with givers(3) as nodes:
        away, *others = nodes
        adopted: list[Adopted] = []
        carry_out = away.swarm._runtime._carry_out

        def watch(effects: Any) -> None:
            effects = list(effects)
            adopted.extend(effect for effect in effects if isinstance(effect, Adopted))
            carry_out(effects)

        away.swarm._runtime._carry_out = watch  # type: ignore[method-assign]
        for node in others:
            node.train(pause_s=0.05)
        wait_for(lambda: all(node.swarm.progress().published > 15 for node in others))
        peers: list[Any] = [node.swarm._runtime.peer for node in others]
        assert all(peer.log.updates < 15 for peer in peers)
        away.train(pause_s=0.05)
        wait_for(lambda: bool(adopted))
        for node in nodes:
            node.stop()
        for node in nodes:
            node.end()
        same_weights(nodes)
