"""A coordinator as one of the processes of a benchmark, for whatever solver."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crew import Shared

    from murmurate_coordinator.solvers.leases import LeasedSolver

LEFT_S = 30.0
"""For the last pushes of members, and their goodbye."""


def serve(shared: Shared, solver: LeasedSolver, members: int) -> dict[str, Any]:
    """Until all members have come and gone; its part of the processor while they were timed."""
    from murmurate.edge.net.credentials import PLAINTEXT
    from murmurate_coordinator.service import CoordinatorService
    from murmurate_coordinator.sessions import Sessions

    loop: asyncio.AbstractEventLoop
    over = asyncio.Event()

    async def open_for_them() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        service = CoordinatorService(
            "127.0.0.1:0",
            Sessions(solver, run="bench", instance="bench", now=now),
            credentials=PLAINTEXT,
        )
        await service.start()
        for _ in range(members):
            shared.addresses.put(service.address)
        await over.wait()
        await service.stop()

    thread = threading.Thread(target=lambda: asyncio.run(open_for_them()))
    thread.start()
    shared.line_up()
    cpu = time.process_time()
    time.sleep(shared.task.seconds)
    used = time.process_time() - cpu
    deadline = time.monotonic() + LEFT_S
    while solver.members and time.monotonic() < deadline:
        time.sleep(0.02)
    loop.call_soon_threadsafe(over.set)
    thread.join()
    return {"samples_per_s": 0.0, "cpu_s": used, "steps_in": solver.totals.steps}


def stays_out(shared: Shared) -> dict[str, Any]:
    """In the turn of a contender that has no coordinator."""
    shared.line_up()
    return {"samples_per_s": 0.0, "cpu_s": 0.0}
