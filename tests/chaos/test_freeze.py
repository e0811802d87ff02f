"""SIGSTOP: a node that pauses for a second on a busy machine is not taken for dead."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.chaos.conftest import Figure, size
from tests.chaos.figures import verdicts
from tests.chaos.lab import Lab

NODES, CORES = 8, 2
EVERY_S, FROZEN_S = 10.0, 1.0


def test_a_pause_is_no_death(lab: Callable[..., Lab], figure: Figure) -> None:
    seconds = size("FREEZE_S", 40, 180)
    here = lab(seconds + 300)
    rng = random.Random(0)
    nodes = here.swarm(NODES, slow_s=0.05)
    here.burn(CORES)
    here.rest(3.0)
    began = time.monotonic()
    pauses = 0
    while time.monotonic() < began + seconds:
        node = rng.choice(nodes)
        node.freeze()
        time.sleep(FROZEN_S)
        node.thaw()
        pauses += 1
        here.rest(EVERY_S - FROZEN_S)
    alarms = verdicts(nodes, "dead", began)
    doubts = verdicts(nodes, "suspect", began)
    figure(
        "SIGSTOP 1 s every 10 s",
        f"{pauses} pauses of {NODES} nodes in {seconds:g} s with {CORES} cores busy:"
        f" {len(alarms)} false alarms ({len(doubts)} suspicions, all withdrawn)",
        pauses=pauses,
        seconds=seconds,
        alarms=len(alarms),
        suspicions=len(doubts),
    )
    assert not alarms, alarms
    assert not here.broken()
