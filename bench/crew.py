"""Processes that do something at the same time: started, lined up, timed, and asked for results.

A fork server that has imported torch gives fresh processes in milliseconds, so contenders can take
turns often. Nothing is left in a process by the contender before.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.multiprocessing
from report import busy_s

from murmurate.edge.runtime.malloc import keep_memory

LIMIT_S = 120.0

context = torch.multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", "torch._dynamo"])  # SGD() imports it, in 3 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all processes of one repetition do, and for how long."""

    contender: str
    nodes: int = 2
    batch: int = 64
    seconds: float = 4.0
    warm_up: int = 30
    slow_s: tuple[float, ...] = ()
    """Sleep per step, by rank."""
    extra: dict[str, Any] = field(default_factory=dict)

    def sleep_s(self, rank: int) -> float:
        return self.slow_s[rank] if rank < len(self.slow_s) else 0.0


class Shared:
    """What the processes of one repetition have in common."""

    def __init__(self, task: Task, model: torch.nn.Module | None = None) -> None:
        self.task = task
        self.model = model
        self.barrier = context.Barrier(task.nodes)
        self.addresses = context.Queue()
        self.stop_at = context.Value("q", 0)

    def line_up(self) -> None:
        self.barrier.wait(LIMIT_S)


Act = Callable[[Shared, int], dict[str, Any]]


def run(act: Act, shared: Shared) -> list[dict[str, Any]]:
    """The results of all ranks; a failure in one of them is raised here."""
    pipes, processes = [], []
    for rank in range(shared.task.nodes):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_body, args=(act, shared, rank, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    results: list[dict[str, Any]] = []
    try:
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(LIMIT_S):
                raise TimeoutError(f"{shared.task}: rank {rank} says nothing")
            result = pipe.recv()
            if "error" in result:
                raise RuntimeError(f"{shared.task}: rank {rank}:\n{result['error']}")
            results.append(result)
    finally:
        for process in processes:
            process.join(10 if len(results) == len(processes) else 0.1)
            if process.is_alive():
                process.kill()
    return results


def _body(act: Act, shared: Shared, rank: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    keep_memory()  # the same allocator for every contender
    try:
        result = act(shared, rank)
    except BaseException:  # noqa: BLE001 - it is raised in the parent
        shared.barrier.abort()
        result = {"error": traceback.format_exc()}
    pipe.send(result)
    pipe.close()


def timed(
    shared: Shared, rank: int, step: Callable[[], None], *, in_step: bool = False
) -> dict[str, float]:
    """Steps from a common start until the time is over.

    `in_step`: ranks wait for each other in every step, so they must do equally many. Rank 0 names
    the last one, two ahead: nobody can have begun it yet.
    """
    task, stop_at = shared.task, shared.stop_at
    sleep_s = task.sleep_s(rank)
    for _ in range(task.warm_up):
        step()
    shared.line_up()
    busy, cpu, began = busy_s(), time.process_time(), time.monotonic()
    deadline = began + task.seconds
    steps = 0
    while True:
        if in_step:
            if stop_at.value and steps >= stop_at.value:
                break
        elif time.monotonic() >= deadline:
            break
        step()
        steps += 1
        if sleep_s:
            time.sleep(sleep_s)
        if in_step and rank == 0 and not stop_at.value and time.monotonic() >= deadline:
            stop_at.value = steps + 2
    seconds = time.monotonic() - began
    return {
        "steps": steps,
        "seconds": seconds,
        "samples_per_s": steps * task.batch / seconds,
        "cpu_s": (used := time.process_time() - cpu),
        "cpu_ms_per_step": used / max(steps, 1) * 1e3,
        "busy_s": busy_s() - busy,
    }


def foreign(results: list[dict[str, Any]]) -> float:
    """The share of the machine that others had while these ran."""
    mine = sum(result["cpu_s"] for result in results)
    capacity = results[0]["seconds"] * (os.cpu_count() or 1)
    return float(max(0.0, results[0]["busy_s"] - mine) / capacity)
