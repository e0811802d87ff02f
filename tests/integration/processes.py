"""Nodes in processes of their own, which can be killed, and say what they have saved.

They are forked from a process that has loaded torch already, so that starting one takes a moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from murmurate.core.clock import Clock
from murmurate.core.gossip.peer import Peer
from murmurate.core.intervals import runs_has
from murmurate.core.message import Generation
from murmurate.edge.runtime.node_state import NodeState

WAIT_S = 60.0

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)  # where the processes find this file

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "murmurate.training.join",
        "murmurate.edge.net.grpc_transport",
        "torch._dynamo",  # any optimizer's first step loads it
    ]
)


@dataclass(frozen=True, slots=True)
class State:
    """What a node was when it said so."""

    event: str
    name: str
    epoch: int
    swarm: str
    address: str
    step: int
    clock: bytes
    digest: str
    """Of the weights."""
    history: tuple[Generation, ...] = ()
    weights: list[float] | None = None

    def has(self, earlier: State, between: Iterable[State] = ()) -> bool:
        """Whether all updates of an earlier state are in this one.

        A node keeps some generations only; states in between know the others.
        """
        mine, theirs = (Clock.from_bytes(each.clock) for each in (self, earlier))
        generations = [each for state in (self, *between) for each in state.history]
        folds = {key: runs for each in generations for key, runs in each.folds}
        return all(
            runs_has(folds[key], dot.seq) if (key := dot[:2]) in folds else dot in mine
            for dot in theirs
        )


class Process:
    """One node. `kill` ends it as a power cut would."""

    def __init__(self, name: str, folder: Path | None, **join: Any) -> None:
        self.name = name
        self.saved: list[State] = []
        self.states: list[State] = []
        mine, theirs = _processes.Pipe()
        self.connection = mine
        self.process = _processes.Process(
            target=_run, args=(theirs, name, str(folder or ""), join), daemon=True
        )
        self.process.start()
        theirs.close()

    def hear(self, event: str, timeout_s: float = WAIT_S) -> State:
        """The next state of that kind."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not self.connection.poll(left):
                raise AssertionError(f"{self.name}: no {event} in {timeout_s} s")
            state = self._take()
            if state.event == event:
                return state

    def drain(self) -> None:
        """Whatever it said before it ended."""
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll(0):
                self._take()

    def _take(self) -> State:
        state: State | str = self.connection.recv()
        if isinstance(state, str):
            raise AssertionError(f"{self.name}: {state}")
        (self.saved if state.event == "saved" else self.states).append(state)
        return state

    def tell(self, word: str) -> None:
        self.connection.send(word)

    def kill(self) -> None:
        assert self.process.pid is not None
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(WAIT_S)
        self.drain()


@contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """None of them is left at the end."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- in the process ------------------------------------------------------------------------------


def _run(connection: Connection, name: str, folder: str, join: dict[str, Any]) -> None:
    try:
        _train(connection, name, folder, **join)
    except Exception as error:  # noqa: BLE001 - told to the test
        connection.send(f"{type(error).__name__}: {error}")


def _train(
    connection: Connection,
    name: str,
    folder: str,
    *,
    width: int = 8,
    seed: int = 0,
    pause_s: float = 0.005,
    share: float | None = None,
    **join: Any,
) -> None:
    import murmurate
    from murmurate.edge.disk import checkpoint_files as keeping

    if share is not None:
        keeping.SHARE = share
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    swarm = murmurate.join(
        model,
        optimizer,
        **{"run": "test", "rule": "sum", **join, "name": name, "checkpoint": folder or None},
    )
    runtime = swarm.runtime
    keeper = runtime.look(lambda here: here.keeper)

    saying = threading.Lock()  # two threads do; a pipe would mix long words

    def say(state: State) -> None:
        with saying:
            connection.send(state)

    def tell(event: str, **more: Any) -> None:
        made = swarm.own_steps  # it takes the lock itself

        def state(here: NodeState) -> State:
            assert isinstance(here.peer, Peer)
            return State(
                event,
                here.name,
                here.peer.epoch,
                here.swarm,
                here.transport.address,
                made,
                here.peer.clock.to_bytes(),
                digest_of(here.weights),
                here.peer.baseline.history,
                **more,
            )

        say(runtime.look(state))

    def saved(checkpoint: Any, kept: int) -> None:
        told(checkpoint, kept)
        say(
            State(
                "saved",
                checkpoint.name,
                checkpoint.epoch,
                checkpoint.swarm,
                "",
                checkpoint.step,
                checkpoint.clock.to_bytes(),
                digest_of(checkpoint.weights),
                checkpoint.history,
            )
        )

    if keeper is not None:
        told, keeper.on_saved = keeper.on_saved, saved
    tell("joined")
    data = torch.Generator().manual_seed(seed)
    with swarm:
        while True:
            x = torch.randn(16, 8, generator=data)
            optimizer.zero_grad()
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            loss.backward()
            optimizer.step()
            swarm.log(samples=16, loss=loss.item())
            time.sleep(pause_s)
            if connection.poll(0):
                if (word := connection.recv()) == "finish":
                    break
                tell(word)  # that is how somebody asks how far it is
        swarm.finish(WAIT_S / 2)
        tell("done", weights=swarm.weights().tolist())
        connection.recv()


def digest_of(weights: torch.Tensor) -> str:
    return hashlib.blake2b(weights.numpy().tobytes(), digest_size=8).hexdigest()
