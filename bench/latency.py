"""From the hook at the origin to applied at an idle peer: each update by itself.

Two processes on one machine share CLOCK_MONOTONIC. The peer sits in `follow()`; the origin trains,
so that its own steps are in the way as they always are.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import crew
import lenet
import torch
from crew import Shared

SETTLE_S = 30.0
UPDATES = 200
PACE_S = 0.01
"""Beside the step itself: no more than the peer can take one by one."""


def latency(shared: Shared, rank: int) -> dict[str, Any]:
    import murmurate

    model = lenet.lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=lenet.LR)
    hooked: list[float] = []
    optimizer.register_step_post_hook(lambda *_: hooked.append(time.monotonic()))  # before join's
    peers = [shared.addresses.get(timeout=crew.LIMIT_S)] if rank else []
    swarm = murmurate.join(
        model, optimizer, run="bench", name=f"node-{rank}", peers=peers, seed=0, rule="sum"
    )
    if not rank:
        shared.addresses.put(swarm.address)
    assert swarm.follow(lambda: list(swarm.members.values()).count("alive") == 2, SETTLE_S)
    total = shared.task.warm_up + UPDATES
    applied: list[float] = []
    shared.line_up()
    if rank:

        def note() -> bool:
            now = time.monotonic()
            applied.extend([now] * (len(swarm.clock) - len(applied)))
            return len(applied) >= total

        assert swarm.follow(note, crew.LIMIT_S), f"{len(applied)} of {total} updates came"
    else:
        step = lenet.stepper(model, optimizer, rank, shared.task.batch)
        for _ in range(total):
            step()
            time.sleep(PACE_S)
    assert swarm.settle(SETTLE_S)
    assert swarm.finish(SETTLE_S)
    assert len(swarm.clock) == total
    shared.line_up()
    swarm.leave()
    return {"hooked": hooked, "applied": applied}


def repetition(shared: Shared) -> dict[str, float]:
    """p50 and p99 in ms, of the updates after the warm-up."""
    origin, peer = crew.run(latency, shared)
    skip = shared.task.warm_up
    took_ms = [
        (there - here) * 1e3 for here, there in zip(origin["hooked"], peer["applied"], strict=True)
    ][skip:]
    assert min(took_ms) > 0, "applied before it was made"
    cuts = statistics.quantiles(took_ms, n=100, method="inclusive")
    return {"p50_ms": cuts[49], "p99_ms": cuts[98], "max_ms": max(took_ms)}
