"""How many threads torch gets when nobody has said: a node's share of the machine's cores.

Two nodes that take all cores each hold each other up: on 2 cores 609 and 510 samples a second, with
one thread each 42,563 and 42,911 (a small model, measured).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from murmurate.edge.runtime.shared_machine import SharedMachine, cores

LOOK_S = 2.0
"""Between two looks at who else is there."""


class ThreadShare:
    """`chosen` threads, or, if that is 0, all cores divided by the nodes that train here, which
    come and go. `--threads` and OMP_NUM_THREADS are a choice."""

    def __init__(self, chosen: int, say: Callable[[str], None]) -> None:
        import torch

        self._say = say
        self._set = torch.set_num_threads
        self._look_at = 0.0
        self._free = not chosen and "OMP_NUM_THREADS" not in os.environ
        self._machine = SharedMachine()
        self._cores = cores()
        self.threads = chosen or torch.get_num_threads()
        if chosen:
            self._set(chosen)

    def look(self, now: float) -> None:
        """Now and then, in the thread that trains."""
        if not self._free or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        nodes = self._machine.nodes()
        share = max(1, self._cores // nodes)
        if nodes > 1 and share < self.threads:
            self._say(
                f"{nodes} nodes share the {self._cores} cores of this machine: torch gets"
                f" {share} thread{'s' if share > 1 else ''} here instead of {self.threads}"
                " (--threads to choose)"
            )
        if share != self.threads and (nodes > 1 or self.threads < self._cores):
            self.threads = share
            self._set(share)
