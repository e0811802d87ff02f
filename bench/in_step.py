"""Mode allreduce against plain DDP over gloo: LeNet-5, two processes, samples a second of each.

    python bench/in_step.py [--turns 3] [--steps 400]

In turns, so that a machine that is slower for a while is so for both; `alone` does not communicate.
Processor time of a step is said beside it: that hardly changes when others use the machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import murmurate

MEMBERS, BATCH, WARM = 2, 64, 30


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def rate(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, after: Callable[[], None]
) -> tuple[float, float]:
    """Samples a second, and milliseconds of the processor for a step."""
    x, y = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    began = cpu = 0.0
    for number in range(WARM + steps):
        if number == WARM:
            began, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        after()
    used = time.process_time() - cpu
    return steps * BATCH / (time.perf_counter() - began), 1e3 * used / steps


def member(kind: str, rank: int, port: int, steps: int, told: Any) -> None:
    torch.set_num_threads(1)
    model = lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if kind == "alone":
        told.send(rate(model, optimizer, steps, lambda: None))
    elif kind == "ddp":
        where = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=MEMBERS)
        told.send(rate(nn.parallel.DistributedDataParallel(model), optimizer, steps, lambda: None))
        dist.destroy_process_group()
    else:
        peers = [f"127.0.0.1:{port}"] if rank else []
        with murmurate.join(
            model,
            optimizer,
            run="bench",
            mode="allreduce",
            name=f"n{rank}",
            peers=peers,
            listen=f"127.0.0.1:{0 if rank else port}",
        ) as swarm:
            swarm.follow(lambda: len(swarm.board) >= MEMBERS, 30.0)
            told.send(rate(model, optimizer, steps, lambda: swarm.log(samples=BATCH)))
            assert len(swarm.group) == MEMBERS
            swarm.finish()


def turn(kind: str, steps: int) -> tuple[float, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = multiprocessing.get_context("spawn")
    pipes, started = [], []
    for rank in range(MEMBERS):
        mine, theirs = processes.Pipe()
        one = processes.Process(target=member, args=(kind, rank, port, steps, theirs))
        one.start()
        pipes.append(mine)
        started.append(one)
    found = [pipe.recv() for pipe in pipes]
    for one in started:
        one.join()
    return sum(each[0] for each in found), sum(each[1] for each in found) / MEMBERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "ddp": [], "allreduce": []}
    for _ in range(asked.turns):
        for kind, rates in found.items():
            rates.append(turn(kind, asked.steps))
            said = f"{rates[-1][0]:8,.0f} samples/s {rates[-1][1]:6.2f} ms of the processor a step"
            print(f"{kind:10} {said}", flush=True)
    ours, ddp = found["allreduce"], found["ddp"]
    pairs = [mine[0] / theirs[0] for mine, theirs in zip(ours, ddp, strict=True)]
    cpu = [theirs[1] / mine[1] for mine, theirs in zip(ours, ddp, strict=True)]
    print(f"allreduce / ddp {median(pairs):.2f} [{min(pairs):.2f} - {max(pairs):.2f}]")
    print(f"the same in processor time {median(cpu):.2f} [{min(cpu):.2f} - {max(cpu):.2f}]")


if __name__ == "__main__":
    main()
