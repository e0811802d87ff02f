"""Peak memory of a member that may not hold the model, against the model itself.

Fresh interpreters. `torch` has imported everything and made an optimizer step; `whole` trains the
whole model without us; `member` declares a sixteenth of what that needs, and gets what fits.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

MIB = 2**20
STEPS, BATCH, WIDTH = 40, 8, 4096
COPIES = 3
LIMIT_S = 180.0


def model() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10),
    )  # fmt: skip


def process(kind: str, address: str, memory: int) -> None:
    """Prints its peak."""
    import torch
    from memory import peak_bytes

    import murmurate
    import murmurate.training.member  # gRPC too

    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]).step()
    torch._dynamo  # noqa: B018 - any optimizer's first step loads it
    base = peak_bytes()
    x = torch.randn(BATCH, 784)
    share = 0.0
    if kind == "whole":
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        for _ in range(STEPS):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    elif kind == "member":
        with torch.device("meta"):
            net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        with murmurate.join(
            net,
            optimizer,
            run="bench",
            mode="ist",
            coordinator=address,
            name="small",
            memory=memory,
            example=x[:2],
        ) as swarm:
            share = swarm.share
            for _ in range(STEPS):
                optimizer.zero_grad()
                swarm.model(x).square().mean().backward()
                optimizer.step()
    print(json.dumps({"base": base, "peak": peak_bytes(), "share": share}), flush=True)


def repetition() -> dict[str, float]:
    import torch

    whole = sum(p.numel() * p.element_size() for p in model().parameters())
    memory = whole * COPIES // 16
    out: dict[str, float] = {"model_mib": whole / MIB, "allowed_mib": memory / MIB}
    with torch.random.fork_rng(), _Coordinator() as address:
        for kind in ("torch", "whole", "member"):
            done = subprocess.run(
                [sys.executable, __file__, kind, address, str(memory)],
                check=True,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            told = json.loads(done.stdout.splitlines()[-1])
            out[f"{kind}_mib"] = (told["peak"] - told["base"]) / MIB
            out["share"] = told["share"]
    return out


class _Coordinator:
    def __enter__(self) -> str:
        import time

        import numpy as np
        import torch

        from murmurate.core.partition import analyse, weights_of
        from murmurate.edge.net.credentials import PLAINTEXT
        from murmurate_coordinator.service import CoordinatorService
        from murmurate_coordinator.sessions import Sessions
        from murmurate_coordinator.solvers.table import new_solver

        whole = model()
        solver = new_solver(
            "async",
            analyse(whole, (torch.zeros(2, 784),)),
            weights_of(whole),
            np.random.default_rng(0),
        )
        ready, self._over = threading.Event(), threading.Event()
        addresses: list[str] = []

        async def serve() -> None:
            centre = Sessions(solver, run="bench", instance="bench", now=time.monotonic())
            service = CoordinatorService("127.0.0.1:0", centre, credentials=PLAINTEXT)
            await service.start()
            addresses.append(service.address)
            ready.set()
            while not self._over.is_set():
                await asyncio.sleep(0.05)
            await service.stop()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()))
        self._thread.start()
        ready.wait(LIMIT_S)
        return addresses[0]

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    process(sys.argv[1], sys.argv[2], int(sys.argv[3]))
