"""The process of `murmurate up` that loads everything once and forks all the others.

It has one thread, runs nothing of torch and opens no channel: what is forked must find everything
as it is right after an import. It is run as `python -m murmurate.programs.up.loader SOCKET`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import select
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

LOADED = (
    "murmurate.programs.cli.main",
    "murmurate.programs.run",
    "murmurate.programs.roles.node",
    "murmurate.programs.roles.subnet_member",
    "murmurate.edge.net.grpc_transport",
    "murmurate.training.join",
    "torch._dynamo",  # any optimizer's first step imports it
)
MESSAGE_BYTES = 1 << 18
LOOK_S = 0.02
"""Between two looks at who has ended."""
NAME_BYTES = 15
"""Linux keeps no more of a process's name."""


def load() -> None:
    # Asking the driver whether there is a GPU would spoil it for all that are forked.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for module in LOADED:
        with suppress(ImportError):  # whoever needs it says so, in its own words
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # or the first collection of each process would copy every page


def serve(orders: socket.socket) -> Sequence[str] | None:
    """Fork what is ordered and tell what becomes of it; None: nobody orders any more.

    Returns in a forked process too, with what it is to run.
    """
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([orders], [], [], LOOK_S if running else None)
        _tell_ended(orders, running)
        if ready:
            text, pipes, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, 3)
            if not text:
                return None
            order = json.loads(text)
            if not (pid := os.fork()):
                orders.close()
                _become(order["name"], pipes)
                return list(order["words"])
            for pipe in pipes:
                os.close(pipe)
            running[pid] = order["number"]
            orders.send(json.dumps({"number": order["number"], "pid": pid}).encode())


def _tell_ended(orders: socket.socket, running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        orders.send(json.dumps({"number": running.pop(pid), "code": code}).encode())


def _become(name: str, pipes: Sequence[int]) -> None:
    """What a process is that was started, and one that was forked is not."""
    os.setpgid(0, 0)
    for standard, pipe in enumerate(pipes):
        os.dup2(pipe, standard)
        os.close(pipe)
    with suppress(OSError), open("/proc/self/comm", "wb") as comm:
        comm.write(name.encode()[:NAME_BYTES])
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # or all of them would draw the same


def main() -> int:
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        load()
        words = None
        with suppress(ConnectionError):  # who orders is gone
            words = serve(orders)
    if words is None:
        return 0
    from murmurate.programs.cli.main import main as murmurate

    sys.argv = ["murmurate", *words]
    return murmurate(words)


if __name__ == "__main__":
    sys.exit(main())
