"""Five ways to train LeNet-5 in several processes, and what each repetition must prove.

isolated   each its own model: no communication, the ceiling
murmurate  every step published, every update applied by everyone (rule sum, topology full)
default    `join` as it comes: rule shared, an update every few steps
ddp        DistributedDataParallel over gloo, gradients as views of the bucket, static graph
hogwild    one model in shared memory, written without locks
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import crew
import lenet
import numpy as np
import torch
from crew import Shared, Task

SETTLE_S = 60.0
DISTANCE_MAX = 1e-5


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lenet.LR)


def _flat(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def isolated(shared: Shared, rank: int) -> dict[str, Any]:
    model = lenet.lenet()
    step = lenet.stepper(model, _sgd(model), rank, shared.task.batch)
    return {**crew.timed(shared, rank, step), "weights": _flat(model)}


def hogwild(shared: Shared, rank: int) -> dict[str, Any]:
    model = shared.model
    assert model is not None
    step = lenet.stepper(model, _sgd(model), rank, shared.task.batch)
    result = crew.timed(shared, rank, step)
    shared.line_up()
    weights = _flat(model)
    shared.line_up()
    return {**result, "weights": weights}


def ddp(shared: Shared, rank: int) -> dict[str, Any]:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    task = shared.task
    dist.init_process_group(
        "gloo", init_method=f"file://{task.extra['store']}", rank=rank, world_size=task.nodes
    )
    model = lenet.lenet()
    wrapped = torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, static_graph=True
    )
    step = lenet.stepper(wrapped, _sgd(model), rank, task.batch)
    result = {**crew.timed(shared, rank, step, in_step=True), "weights": _flat(model)}
    shared.line_up()
    return result  # without destroy_process_group, which hung once in four ranks: the process ends


def default(shared: Shared, rank: int) -> dict[str, Any]:
    return murmurate(shared, rank, rule="shared")


def murmurate(shared: Shared, rank: int, rule: str = "sum") -> dict[str, Any]:
    import murmurate

    task = shared.task
    model = lenet.lenet()
    optimizer = _sgd(model)
    peers = [shared.addresses.get(timeout=crew.LIMIT_S)] if rank else []
    swarm = murmurate.join(
        model, optimizer, run="bench", name=f"node-{rank}", peers=peers, seed=0, rule=rule
    )
    if not rank:
        for _ in range(task.nodes - 1):
            shared.addresses.put(swarm.address)
    assert swarm.follow(lambda: list(swarm.members.values()).count("alive") == task.nodes, SETTLE_S)
    made = 0
    step = lenet.stepper(model, optimizer, rank, task.batch)

    def counted() -> None:
        nonlocal made
        made += 1
        step()

    result: dict[str, Any] = {**crew.timed(shared, rank, counted)}
    at_end = swarm.progress()
    messages = at_end.bytes_sent / (4 * lenet.PARAMETERS * (task.nodes - 1))
    settled = swarm.settle(SETTLE_S)
    even = swarm.finish(SETTLE_S)
    result |= {
        "made": made,
        "published": swarm.progress().published,
        "applied_at_end": at_end.applied,
        "updates_per_message": at_end.published / messages,
        "settled": settled and even,
        "ranges": [(r.origin, r.first, r.last) for r in swarm.clock.ranges()],
        "weights": _flat(model),
        "staleness": swarm.staleness.mean,
    }
    shared.line_up()
    swarm.leave()
    return result


ACTS: dict[str, crew.Act] = {
    "isolated": isolated,
    "murmurate": murmurate,
    "default": default,
    "ddp": ddp,
    "hogwild": hogwild,
}


def repetition(task: Task) -> dict[str, Any]:
    """Run one and check that what it promises has happened."""
    with tempfile.TemporaryDirectory() as folder:
        if task.contender == "ddp":
            task.extra["store"] = str(Path(folder) / "store")
        model = lenet.lenet().share_memory() if task.contender == "hogwild" else None
        results = crew.run(ACTS[task.contender], Shared(task, model))
    _check(task, results)
    for result in results:
        del result["weights"]
    return {
        "samples_per_s": sum(result["samples_per_s"] for result in results),
        "cpu_ms_per_step": sum(result["cpu_ms_per_step"] for result in results) / len(results),
        "foreign": crew.foreign(results),
        "ranks": results,
    }


def _check(task: Task, results: list[dict[str, Any]]) -> None:
    start = _flat(lenet.lenet())
    weights = [result["weights"] for result in results]
    apart = max(float(np.abs(weights[0] - w).max()) for w in weights)
    moved = float(np.abs(weights[0] - start).max())
    assert np.isfinite(apart), f"{task}: not finite"
    assert moved > 1e-3, f"{task}: nothing was learned ({moved})"
    if task.contender == "isolated":
        assert task.nodes == 1 or apart > DISTANCE_MAX, f"{task}: not isolated"
        return
    assert apart <= DISTANCE_MAX, f"{task}: replicas are {apart} apart"
    if task.contender in ("murmurate", "default"):
        everything = sorted((f"node-{k}", 1, r["published"]) for k, r in enumerate(results))
        for result in results:
            assert result["settled"], f"{task}: not settled"
            assert sorted(result["ranges"]) == everything, (
                f"{task}: {result['ranges']} of {everything} were applied"
            )
