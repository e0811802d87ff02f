"""A member of a coordinator is stopped by SIGSTOP, for longer than it may be silent."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from murmurate import workloads
from murmurate.core.partition import analyse, weights_of
from murmurate.edge.net import coordinator_wire as wire
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate.edge.net.transport import Limits
from murmurate.programs.cli.partition import example_of
from murmurate_coordinator.names import RULES
from murmurate_coordinator.service import CoordinatorService
from murmurate_coordinator.session_words import Coming
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.protocol import Solver
from murmurate_coordinator.solvers.subnets.moves import SubnetSolver
from murmurate_coordinator.solvers.table import new_solver

pytestmark = pytest.mark.chaos

WAIT_S = 120.0
PATIENT = Limits(keepalive_s=300.0, keepalive_timeout_s=300.0)
"""Without pings the stream outlives the freeze, so that what it had to say arrives late."""


class Watched(Sessions):
    """Notes every push that was not taken, and whether it changed a weight."""

    def __init__(self, solver: Solver) -> None:
        super().__init__(solver, run="murmurate", instance="freeze", now=time.monotonic())
        self.late_pushes: list[tuple[str, bool]] = []

    def push(self, name: str, stream: int, coming: Coming, now: float) -> None:
        before = {key: value.clone() for key, value in self.solver.weights.items()}
        refused = self.solver.totals.refused.copy()
        super().push(name, stream, coming, now)
        same = all(torch.equal(before[key], value) for key, value in self.solver.weights.items())
        newly = self.solver.totals.refused - refused
        if coming.answer is None:  # all values were awaited: it may still have come too late
            self.late_pushes += [(reason, same) for reason in newly.elements()]
        else:
            assert not newly, "it was counted when it was announced, and not again"
            if isinstance(coming.answer.not_taken, wire.NotTaken):
                self.late_pushes.append((coming.answer.not_taken.reason, same))
        self.solver.check()


@contextmanager
def serving(centre: Sessions, limits: Limits) -> Iterator[CoordinatorService]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> CoordinatorService:
        service = CoordinatorService("127.0.0.1:0", centre, limits=limits, credentials=PLAINTEXT)
        await service.start()
        return service

    service = asyncio.run_coroutine_threadsafe(begin(), loop).result(WAIT_S)
    try:
        yield service
    finally:
        asyncio.run_coroutine_threadsafe(service.stop(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def member(address: str, number: int) -> Iterator[subprocess.Popen[bytes]]:
    words = ("--workload", "digits", "--threads", "1", "--slow-s", "0.02", "--width", "1")
    who = ("--name", f"member-{number}", "--shard", f"{number}/3", "--coordinator", address)
    node = [sys.executable, "-m", "murmurate", "node", "--mode", "ist", *words, *who]
    with subprocess.Popen(node, stderr=subprocess.DEVNULL) as it:
        try:
            yield it
        finally:
            it.kill()


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"does not happen: {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("limits", ["patient", "usual"])
@pytest.mark.parametrize("rule", RULES)
def test_a_frozen_member_holds_up_nobody_and_its_late_push_changes_nothing(
    rule: str, limits: str
) -> None:
    if limits == "usual" and rule != "async":
        pytest.skip("how a stream ends does not depend on the rule")
    digits = workloads.load("digits")
    torch.manual_seed(0)
    model = digits.model()
    structure = analyse(model, example_of(digits, model))
    rng = np.random.default_rng(0)
    solver = new_solver(rule, structure, weights_of(model), rng, steps=10, founders=3)
    centre = Watched(solver)
    tally = centre.members.tally
    kept = {"limits": PATIENT} if limits == "patient" else {}
    with serving(
        centre, **(kept or {"limits": Limits(keepalive_s=5.0, keepalive_timeout_s=5.0)})
    ) as service:
        address = service.address
        with member(address, 0), member(address, 1) as frozen, member(address, 2):
            until(lambda: min(tally(f"member-{k}").pushes for k in range(3)) >= 3, "three pushes")
            frozen.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            until(lambda: centre.late, "its lease is taken back")
            took_s = time.monotonic() - began
            assert took_s < 30
            steps, pushes = tally("member-1").steps, solver.totals.pushes
            until(lambda: solver.totals.pushes >= pushes + 10, "the others go on")
            assert service.failed is None
            assert solver.lease_of("member-1") is None
            assert tally("member-1").steps == steps
            if rule == "async":  # its units are with the others
                assert isinstance(solver, SubnetSolver)
                until(lambda: not solver._free()[:-1].any(), "its units are dealt")
            frozen.send_signal(signal.SIGCONT)
            until(lambda: solver.lease_of("member-1") is not None, "it is a member again")
            until(lambda: tally("member-1").steps > steps, "it trains again")
            print(f"{rule} {limits}: taken back after {took_s:.1f} s, {centre.late_pushes}")
            assert centre.late == 1
            assert service.failed is None
    assert all(same for _, same in centre.late_pushes)
    assert {reason for reason, _ in centre.late_pushes} <= {"over"}
    assert solver.totals.refused["over"] == len(centre.late_pushes)
