"""`murmurate.join()`: an ordinary training loop becomes one of many.

The loop stays as it is. After each `optimizer.step()` a hook takes what the step changed, passes it
on, and folds in what the others sent; the thread that calls `step()` is the only one that writes
weights. What a step changed is counted against the flat weights, so any change to the parameters
since the last step, by whatever means, is published with it.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from murmurate.core.clock import Clock, name_problem
from murmurate.core.gate import NAME_BYTES_MAX, NORM_MAX
from murmurate.core.layout import Layout
from murmurate.core.staleness import Summary
from murmurate.core.timing import Timing
from murmurate.core.topology import TOPOLOGIES
from murmurate.errors import ConfigError, LocalProtocolError, PeerUnavailable
from murmurate.io.malloc import keep_memory
from murmurate.io.progress import Progress
from murmurate.io.transport import Transport
from murmurate.runtime import Runtime, Settings

log = logging.getLogger("murmurate")

BAD_STEPS_MAX = 10
"""Steps in a row without a finite result before it is an error."""
WAIT_S = 0.05


def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str,
    peers: Sequence[str] = (),
    name: str | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    mode: str = "gossip",
    rule: str = "sum",
    every: int = 1,
    topology: str = "full",
    found: bool | None = None,
    insecure: bool = False,
    timing: Timing | None = None,
    join_timeout_s: float = 30.0,
    seed: int | None = None,
    _transport: Transport | None = None,
) -> Swarm:
    """Train `model` together with the peers of this run; returns once it has their weights.

    run        peers of one run exchange weights; others are refused
    peers      addresses of a few members; none: this node founds the run with its own weights
    name       unique in the run (default: host and process)
    listen     where others reach this node; beyond loopback it takes `insecure=True`
    advertise  the address told to others, where it is not the one listened on
    rule       "sum": exchange updates, all end with the same weights; "average": mix weights
    every      local steps per update
    topology   whom this node speaks to: full, ring, k-regular, exponential,
               one-peer-exponential, star or tree
    found      with `peers`: found the run if none of them is in a swarm yet
    insecure   allow plaintext on a network: anybody there can read and change what is sent
    timing     `Timing.lan()` (default) or `Timing.wan()`
    """
    problems = [
        (mode == "gossip", f"mode {mode!r}: expected 'gossip'"),
        (rule in ("sum", "average"), f"rule {rule!r}: expected 'sum' or 'average'"),
        (topology in TOPOLOGIES, f"topology {topology!r}: expected one of {', '.join(TOPOLOGIES)}"),
        (every >= 1, f"every {every}: expected 1 or more local steps"),
        (bool(run) and not name_problem(run, NAME_BYTES_MAX), f"run {run!r}: expected a name"),
        (join_timeout_s > 0, f"join_timeout_s {join_timeout_s}: expected more than 0"),
        (not isinstance(peers, str), f"peers {peers!r}: expected a list of addresses"),
    ]
    name = name if name is not None else f"{socket.gethostname()}-{os.getpid()}"
    if what := name_problem(name, NAME_BYTES_MAX):
        problems.append((False, f"name: {what}"))
    if len(set(peers)) != len(peers):
        problems.append((False, f"peers {list(peers)}: one stands there twice"))
    for good, problem in problems:
        if not good:
            raise ConfigError(problem)
    layout, parameters = Layout.of(model)
    weights = layout.gather(parameters)
    if not float(torch.linalg.vector_norm(weights)) <= NORM_MAX:
        raise ConfigError("model: its weights are not finite")
    keep_memory()
    if _transport is None:
        _transport = _grpc(listen, advertise, peers, insecure, layout)
    runtime = Runtime(
        Settings(
            run=run,
            name=name,
            peers=tuple(peers),
            found=not peers if found is None else found,
            rule=rule,
            topology=topology,
            timing=timing or Timing(),
            join_timeout_s=join_timeout_s,
            seed=seed,
        ),
        layout,
        weights,
        _transport,
    )
    runtime.start()
    swarm = Swarm(runtime, layout, parameters, optimizer, every)
    try:
        swarm._enter(join_timeout_s)
    except BaseException:
        swarm.leave(timeout_s=0.0)
        raise
    return swarm


class Swarm:
    """This node's place in a run. Use it as a context manager, or call `leave()` at the end."""

    def __init__(
        self,
        runtime: Runtime,
        layout: Layout,
        parameters: list[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        every: int,
    ) -> None:
        self._runtime = runtime
        self._layout = layout
        self._parameters = parameters
        self._every = every
        self._unpublished = 0
        self._bad_steps = 0
        self._context = Clock()
        self._started = 0.0
        self._left = False
        self._hook = optimizer.register_step_post_hook(self._after_step)
        self._restore_sigterm: Any = None
        self._told_to_end = False
        self._folding = False

    # -- what is known ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def run(self) -> str:
        return self._runtime.settings.run

    @property
    def address(self) -> str:
        return self._runtime.transport.address

    @property
    def clock(self) -> Clock:
        """The updates in these weights: a copy."""
        with self._runtime.lock:
            return self._runtime.peer.context()

    @property
    def members(self) -> dict[str, str]:
        """Names and states (alive, suspect, dead, left), this node's included."""
        with self._runtime.lock:
            return {r.name: r.state for r in self._runtime.peer.membership.rumours()}

    @property
    def staleness(self) -> Summary:
        """Of every update applied here, own included."""
        with self._runtime.lock:
            copy = Summary()
            copy.merge(self._runtime.tally.staleness)
            return copy

    @property
    def board(self) -> list[Progress]:
        """The last word of every member about its progress, this node's as of now."""
        self._runtime.progress()
        with self._runtime.lock:
            return list(self._runtime.board)

    @property
    def samples(self) -> int:
        """Samples the whole swarm has trained on, as far as it is known here."""
        runtime = self._runtime
        with runtime.lock:
            others = sum(entry.samples for entry in runtime.board if entry.name != runtime.name)
            return others + runtime.tally.samples

    def progress(self) -> Progress:
        return self._runtime.progress()

    def weights(self) -> torch.Tensor:
        """A copy of the flat weights: what the clock says, without unpublished local steps."""
        with self._runtime.lock:
            return self._runtime.weights.clone()

    # -- training --------------------------------------------------------------------------------

    def log(
        self, *, samples: int = 0, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Count samples and note the latest figures, for the others and for reports."""
        tally = self._runtime.tally
        tally.samples += samples
        if loss is not None:
            tally.loss = float(loss)
        if accuracy is not None:
            tally.accuracy = float(accuracy)

    def _after_step(self, *_: Any) -> None:
        runtime = self._runtime
        runtime.check()
        if runtime.tally.began is None:
            runtime.tally.began = self._started
        self._unpublished += 1
        self._folding = True
        try:
            if self._unpublished >= self._every and self._has_room():
                self._publish()
            self._fold()
        finally:
            self._folding = False
        runtime.flush()
        if self._told_to_end:
            raise SystemExit(128 + signal.SIGTERM)

    def _has_room(self) -> bool:
        runtime = self._runtime
        if time.monotonic() - self._started < runtime.interval_s:
            return False
        with runtime.lock:
            peer = runtime.peer
            return peer.synced and peer.room(self._layout.nbytes)

    def _publish(self) -> None:
        runtime = self._runtime
        delta = self._layout.gained(self._parameters, runtime.weights)
        self._unpublished = 0
        try:
            runtime.commit(delta, self._context, time.monotonic() - self._started)
        except LocalProtocolError as error:
            self._undo(error)
        else:
            self._bad_steps = 0
            if self._layout.narrow:
                self._scatter()
        self._start_batch()

    def _undo(self, error: LocalProtocolError) -> None:
        """A step that must not be passed on is taken back: weights stay what the clock says."""
        self._scatter()
        self._bad_steps += 1
        with self._runtime.lock:
            self._runtime.tally.rejected["own_step"] += 1
        log.warning("%s: a local step was taken back: %s", self.name, error)
        if self._bad_steps >= BAD_STEPS_MAX:
            raise LocalProtocolError(f"{self._bad_steps} local steps in a row failed: {error}")

    def _fold(self) -> None:
        runtime = self._runtime
        if not runtime.waiting():
            if not self._unpublished:
                self._start_batch()
            return
        ahead = None
        if self._unpublished:
            ahead = self._layout.gained(self._parameters, runtime.weights)
        life, synced = runtime.peer, runtime.peer.synced
        changed = runtime.fold()
        if runtime.adopted:
            runtime.adopted = False
            if runtime.peer is not life or not synced:
                ahead = None  # local steps of a life that is over
                self._unpublished = 0
        if changed:
            self._scatter(ahead)
        if not self._unpublished:
            self._start_batch()

    def _scatter(self, ahead: torch.Tensor | None = None) -> None:
        weights = self._runtime.weights
        self._layout.scatter(weights if ahead is None else ahead.add_(weights), self._parameters)

    def _start_batch(self) -> None:
        self._context = self._runtime.peer.context()
        self._started = time.monotonic()

    # -- not training ----------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish local steps that were not yet (`every` > 1, or no room before)."""
        self._runtime.check()
        if self._unpublished and self._runtime.peer.synced:
            self._publish()
            self._runtime.flush(at_once=True)

    def follow(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Fold in what comes, from this thread, until something is true; False: it took too long.

        Between training and training: a node that neither steps nor follows keeps what comes
        waiting, and the others sum up what they have for it.
        """
        runtime = self._runtime
        deadline = time.monotonic() + timeout_s
        while True:
            runtime.check()
            self._fold()
            runtime.flush(at_once=True)
            if until():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with runtime.news:
                if not runtime.waiting():
                    runtime.news.wait(min(left, WAIT_S))

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Publish, then fold until every known update is in, and mine are with everyone alive."""
        self.publish()
        return self.follow(self._caught_up, timeout_s)

    def _caught_up(self) -> bool:
        with self._runtime.lock:
            return self._runtime.peer.caught_up()

    def finish(self, timeout_s: float = 10.0) -> bool:
        """The end of the run: say so, wait until all have, and until all have the same.

        Weights do not change any more after this unless somebody goes on training.
        """
        runtime = self._runtime
        runtime.tally.ended = time.monotonic()
        self.publish()
        runtime.done = True
        runtime.tell()
        deadline = time.monotonic() + timeout_s
        even = self.follow(lambda: self._others_are("done") and self._even(), timeout_s)
        runtime.settled = True
        runtime.tell()
        self.follow(lambda: self._others_are("settled"), max(0.0, deadline - time.monotonic()))
        return even

    def _others_are(self, what: str) -> bool:
        runtime = self._runtime
        with runtime.lock:
            for name in runtime.peer.membership.live():
                entry = runtime.board.get(name)
                if name != runtime.name and (entry is None or not getattr(entry, what)):
                    return False
        return True

    def _even(self) -> bool:
        with self._runtime.lock:
            return self._runtime.peer.even()

    # -- coming and going ------------------------------------------------------------------------

    def _enter(self, timeout_s: float) -> None:
        runtime = self._runtime
        began = time.monotonic()
        if not self.follow(lambda: runtime.peer.synced, timeout_s):
            raise PeerUnavailable(
                f"{', '.join(runtime.settings.peers)}: no snapshot in {timeout_s:g} s"
            )
        runtime.tally.wait_s += time.monotonic() - began
        self._start_batch()
        atexit.register(self.leave)
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            self._restore_sigterm = signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, *_: Any) -> None:
        """As an exception, so that `with` blocks end in order; but never in the middle of a fold,
        which would leave weights and clock apart."""
        self._told_to_end = True
        if not self._folding:
            raise SystemExit(128 + signal.SIGTERM)

    def leave(self, timeout_s: float = 5.0) -> None:
        """Publish the rest, say that I leave, and stay until all have what is only here.

        At most `timeout_s`. What the optimizer does after this is local again.
        """
        if self._left:
            return
        self._left = True
        self._hook.remove()
        atexit.unregister(self.leave)
        main = threading.current_thread() is threading.main_thread()
        if self._restore_sigterm is not None and main:
            signal.signal(signal.SIGTERM, self._restore_sigterm)
        runtime = self._runtime
        try:
            if timeout_s > 0 and runtime.peer.synced:
                self.publish()
                runtime.leave()
                self.follow(self._may_go, timeout_s)
        finally:
            runtime.stop()

    def _may_go(self) -> bool:
        with self._runtime.lock:
            return self._runtime.peer.settled()

    def __enter__(self) -> Swarm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"Swarm({self.run!r}, {self.name!r} at {self.address}, {len(self.members)} members)"


def _grpc(
    listen: str, advertise: str | None, peers: Sequence[str], insecure: bool, layout: Layout
) -> Transport:
    from murmurate.io.grpc_transport import GrpcTransport

    host = listen.rpartition(":")[0].strip("[]")
    if not insecure and not (host == "localhost" or host.startswith("127.") or host == "::1"):
        raise ConfigError(
            f"listen {listen!r}: beyond this machine what is sent can be read and changed by"
            " anybody on the way; say insecure=True if that is all right"
        )
    return GrpcTransport(listen, advertise=advertise)
