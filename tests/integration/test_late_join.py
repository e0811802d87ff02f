"""A newcomer's snapshot over a slow or broken line, with real sockets: nobody is asked twice, what
broke off goes on, and when the giver dies another gives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.integration.flock import Node, same_weights, wait_for
from tests.integration.line import Line, line_to
from torch import nn

from murmurate.core.driver import Seen, WatchPort
from murmurate.core.effect import Adopted
from murmurate.edge.runtime import snapshot_giver
from murmurate.edge.runtime.snapshot_giver import Giving

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
    """Joins in a thread of its own. It can only dial out, so all of its links go over lines."""

    def __init__(self, name: str, lines: list[Line]) -> None:
        self.node: Node | None = None
        self._name = name
        self._peers = [line.address for line in lines]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.node = Node(self._name, model=Large(), peers=self._peers, advertise="127.0.0.1:1")

    def joined(self) -> Node:
        self._thread.join(60)
        assert self.node is not None, "it did not join"
        return self.node


@contextmanager
def givers(count: int) -> Iterator[tuple[list[Node], list[Line]]]:
    """Nodes with the same weights, of which none is 0, each reached over a line."""
    nodes: list[Node] = []
    lines: list[Line] = []
    with ExitStack() as stack:
        for index in range(count):
            listen = f"127.0.0.1:{free_port()}"
            lines.append(stack.enter_context(line_to(listen)))
            nodes.append(
                Node(
                    f"g{index}",
                    model=Large(1.0),
                    peers=[lines[0].address] if nodes else [],
                    listen=listen,
                    advertise=lines[-1].address,
                )
            )
            stack.callback(nodes[-1].swarm.leave, timeout_s=0.2)
        wait_for(lambda: all(len(node.swarm.members) == count for node in nodes))
        yield nodes, lines


@contextmanager
def newcomer(lines: list[Line], bytes_per_s: float, name: str = "late") -> Iterator[Newcomer]:
    for line in lines:
        line.bytes_per_s, line.forwarded = bytes_per_s, 0
    late = Newcomer(name, lines)
    try:
        yield late
    finally:
        late._thread.join(60)
        if late.node is not None:
            late.node.swarm.leave(timeout_s=0.2)


def forwarded(lines: list[Line]) -> int:
    return sum(line.forwarded for line in lines)


class Witness:
    """Notes which snapshots a node adopts, and lets them be counted as ever."""

    def __init__(self, counting: WatchPort, adopted: list[Adopted]) -> None:
        self.counting = counting
        self.adopted = adopted

    def saw(self, effect: Seen) -> None:
        if isinstance(effect, Adopted):
            self.adopted.append(effect)
        self.counting.saw(effect)


def gives(node: Node) -> Giving:
    return node.swarm.runtime.giving


def is_giving(node: Node) -> bool:
    return "late" in gives(node).receivers


def even(*nodes: Node) -> None:
    """Fold, each in turn, until all have the same."""

    def same() -> bool:
        settled = [node.swarm.settle(0.1) for node in nodes]
        return all(settled) and all(node.clock == nodes[0].clock for node in nodes)

    wait_for(same)


def test_while_a_snapshot_comes_nobody_else_is_asked() -> None:
    """4 s for one, twice the time after which another is asked for one that does not come."""
    with givers(2) as (nodes, lines), newcomer(lines, NBYTES / 4) as late:
        node = late.joined()
        assert NBYTES <= forwarded(lines) < 1.2 * NBYTES
        same_weights([*nodes, node])
        assert float(node.weights()[0]) == 1.0


def test_a_giver_that_dies_is_replaced() -> None:
    with givers(2) as (nodes, lines), newcomer(lines, NBYTES / 2) as late:
        wait_for(lambda: forwarded(lines) > NBYTES / 4)
        dead, other = sorted(nodes, key=is_giving, reverse=True)
        assert is_giving(dead)
        assert not is_giving(other)
        dead.swarm.runtime.stop(grace_s=0.0)  # not a word to anybody
        node = late.joined()
        same_weights([other, node])
        assert float(node.weights()[0]) == 1.0
        assert forwarded(lines) < 1.8 * NBYTES, "a part of the first, and one whole"


def test_a_snapshot_that_broke_off_goes_on() -> None:
    """The giver trained on: it keeps what it had begun to give, and that is completed."""
    with givers(1) as (nodes, lines), newcomer(lines, NBYTES / 2) as late:
        (line,) = lines
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
        wait_for(lambda: gives(giver).copies == 0)


def test_two_who_come_together_share_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_giver, "SHARE_S", 20.0)  # however slow this machine is today
    with givers(1) as (nodes, lines):
        (giver,) = nodes
        made: list[object] = []
        peer = giver.swarm.runtime.look(lambda here: here.peer)
        make = peer.snapshot

        def counted() -> Any:
            made.append(snapshot := make())
            return snapshot

        monkeypatch.setattr(peer, "snapshot", counted)
        with newcomer(lines, NBYTES / 20) as one, newcomer(lines, NBYTES / 20, "two") as two:
            wait_for(lambda: gives(giver).receivers == {"late", "two"})
            lines[0].bytes_per_s = float("inf")
            same_weights([giver, one.joined(), two.joined()])
        assert len(made) == 1


def test_who_fell_far_behind_takes_a_snapshot_too() -> None:
    """The others let go of what one that is away for long would lack; it catches up as a whole."""
    with givers(3) as (nodes, _):
        away, *others = nodes
        adopted: list[Adopted] = []
        driver = away.swarm.runtime.look(lambda here: here.driver)
        driver.ports = replace(driver.ports, watch=Witness(driver.ports.watch, adopted))
        for node in others:
            node.train(pause_s=0.05)
        wait_for(lambda: all(node.swarm.progress().published > 15 for node in others))
        peers: list[Any] = [node.swarm.runtime.look(lambda here: here.peer) for node in others]
        assert all(peer.log.updates < 15 for peer in peers)
        away.train(pause_s=0.05)
        wait_for(lambda: bool(adopted))
        for node in nodes:
            node.stop()
        for node in nodes:
            node.end()
        same_weights(nodes)
