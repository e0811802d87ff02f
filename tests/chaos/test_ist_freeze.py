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
from murmurate.io import coordinator_wire as wire
from murmurate.io.transport import Limits
from murmurate.partition import example_of
from murmurate_coordinator.centre import Centre, Coming
from murmurate_coordinator.rules import RULES, Partitioner
from murmurate_coordinator.service import CoordinatorService

pytestmark = pytest.mark.chaos

WAIT_S = 120.0
PATIENT = Limits(keepalive_s=300.0, keepalive_timeout_s=300.0)
"""Without pings the stream outlives the freeze, so that what it had to say arrives late."""


class Watched(Centre):
    """Notes every push that was not taken, and whether it changed a weight."""

    def __init__(self, rules: Partitioner) -> None:
        super().__init__(rules, run="murmurate", instance="freeze", now=time.monotonic())
        self.late_pushes: list[tuple[str, bool]] = []

    def push(self, name: str, stream: int, coming: Coming, now: float) -> None:
        before = {key: value.clone() for key, value in self.rules.weights.items()}
        refused = sum(self.rules.totals.refused.values())
        super().push(name, stream, coming, now)
        if coming.answer is not None and isinstance(coming.answer.not_taken, wire.NotTaken):
            same = all(torch.equal(before[key], value) for key, value in self.rules.weights.items())
            self.late_pushes.append((coming.answer.not_taken.reason, same))
        assert sum(self.rules.totals.refused.values()) >= refused
        self.rules.check()


@contextmanager
def serving(centre: Centre, limits: Limits) -> Iterator[CoordinatorService]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> CoordinatorService:
        service = CoordinatorService("127.0.0.1:0", centre, limits=limits)
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
    node = [sys.executable, "-m", "murmurate.cli", "node", "--mode", "ist", *words, *who]
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
    rules = Partitioner(structure, weights_of(model), rule, rng, steps=10, founders=3)
    centre = Watched(rules)
    tally = centre.roll.tally
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
            steps, pushes = tally("member-1").steps, rules.totals.pushes
            until(lambda: rules.totals.pushes >= pushes + 10, "the others go on")
            assert service.failed is None
            assert rules.lease_of("member-1") is None
            assert tally("member-1").steps == steps
            if rule == "async":  # its units are with the others
                until(lambda: not rules._free()[:-1].any(), "its units are dealt")
            frozen.send_signal(signal.SIGCONT)
            until(lambda: rules.lease_of("member-1") is not None, "it is a member again")
            until(lambda: tally("member-1").steps > steps, "it trains again")
            print(f"{rule} {limits}: taken back after {took_s:.1f} s, {centre.late_pushes}")
            assert centre.late == 1
            assert service.failed is None
    assert all(same for _, same in centre.late_pushes)
    assert {reason for reason, _ in centre.late_pushes} <= {"over"}
    assert rules.totals.refused["over"] == len(centre.late_pushes)
