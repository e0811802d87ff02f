"""A real coordinator in a thread of the test's process, which can be killed and started again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from murmurate.core.partition import analyse, weights_of
from murmurate.core.partition.whole import whole_structure
from murmurate.core.values.hub_settings import HubSettings
from murmurate.edge.net.credentials import PLAINTEXT
from murmurate_coordinator.service import CoordinatorService
from murmurate_coordinator.sessions import Sessions
from murmurate_coordinator.solvers.table import new_solver

IN, HIDDEN, OUT, BATCH = 6, 24, 3, 16


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
                         nn.Linear(HIDDEN, OUT))  # fmt: skip


def example() -> torch.Tensor:
    return torch.zeros(2, IN)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, IN, generator=rng)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


class Coordinator:
    """`with Coordinator("async") as it:` serves until the end of the block."""

    def __init__(
        self,
        rule: str,
        *,
        founders: int = 1,
        steps: int = 5,
        whole: nn.Module | None = None,
        hub: HubSettings | None = None,
    ) -> None:
        """`hub`: a hub with these settings, not a coordinator of subnets."""
        whole = whole if whole is not None else model()
        shape = whole[0].weight.shape[1]  # type: ignore[index]
        self.solver = new_solver(
            rule,
            whole_structure(whole) if hub else analyse(whole, (torch.zeros(2, int(shape)),)),
            weights_of(whole),
            np.random.default_rng(0),
            steps=steps,
            founders=founders,
            mode="hub" if hub else "ist",
            settings=hub,
        )
        self.address = "127.0.0.1:0"
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._thread: threading.Thread
        self.service: CoordinatorService

    def start(self) -> None:
        ready = threading.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._end = asyncio.Event()
            now = time.monotonic()
            self.centre = Sessions(self.solver, run="test", instance=f"{now}", now=now)
            self.service = CoordinatorService(self.address, self.centre, credentials=PLAINTEXT)
            await self.service.start()
            self.address = self.service.address
            ready.set()
            await self._end.wait()
            await self.service.stop(0.0)

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        assert ready.wait(20)

    def stop(self) -> None:
        """Without a word to the members; what the solver holds stays."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def ask(self, call: Callable[..., Any], *args: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(self.service.own(call, *args), self._loop)
        return future.result(20)

    def weights(self) -> dict[str, torch.Tensor]:
        out: dict[str, torch.Tensor] = self.ask(
            lambda: {n: v.clone() for n, v in self.solver.weights.items()}
        )
        return out

    def __enter__(self) -> Coordinator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
