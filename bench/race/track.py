"""One peer's way through the race, the same for every contender: when it begins, which batches it
gets, how long a step takes, and what it leaves on disk. Needs torch and numpy, no more.

Nothing is evaluated while the race is on: weights are written with their time, and judged later.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from race.workloads import WORKLOADS, Batch, flat, initial

POLL_S = 0.005
LIMIT_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one process is told."""

    folder: str
    workload: str
    seed: int
    seconds: float
    peer: int
    """From 0; a Flower server is the one behind the last."""
    peers: int
    hosts: list[str]
    ports: list[int]
    """Where each may listen, the server's last."""
    step_s: float
    """A step takes at least so long."""
    life: int = 0
    begins_s: float = 0.0
    """After the start: when this one may join. 0: it joins before the start."""
    snapshot_s: float = 1.0
    """So often a peer writes its weights, or how far it is."""
    writes: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    """The contender's own."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def address(self) -> str:
        return f"{self.hosts[self.peer]}:{self.ports[self.peer]}"


class Track:
    """The race as one peer sees it."""

    def __init__(self, entry: Entry) -> None:
        torch.set_num_threads(1)
        self.entry = entry
        self.folder = Path(entry.folder)
        self.workload = WORKLOADS[entry.workload]()
        self.steps = 0
        self.started = 0.0
        self._stream = self._batches()
        self._snapshot_due = 0.0 if entry.begins_s else entry.snapshot_s
        self._kept = -1
        """Steps in the last snapshot."""
        self._lines = (self.folder / f"{entry.peer}.{entry.life}.jsonl").open("a")

    @classmethod
    def told(cls) -> Track:
        """As the last argument of this process says."""
        return cls(Entry(**json.loads(sys.argv[-1])))

    # -- the same for all ------------------------------------------------------------------------

    def model(self) -> nn.Module:
        return initial(self.workload, self.entry.seed)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.workload.optimizer(model.parameters())

    def _batches(self) -> Iterator[Batch]:
        order = (self.entry.seed * 100 + self.entry.peer) * 100 + self.entry.life
        return self.workload.batches(torch.Generator().manual_seed(order))

    def learn(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        """One ordinary training step, as anybody writes it."""
        optimizer.zero_grad()
        self.workload.loss(model, batch).backward()
        optimizer.step()

    def warm_up(self) -> None:
        """What torch imports and allocates at its first steps, with a model that is thrown away."""
        model = self.model()
        optimizer = self.optimizer(model)
        for _ in range(3):
            self.learn(model, optimizer, next(self._stream))
        self._stream = self._batches()

    # -- when ------------------------------------------------------------------------------------

    @property
    def late(self) -> bool:
        return self.entry.begins_s > 0

    def ready(self) -> None:
        self.say("ready")

    def has_begun(self) -> bool:
        if not self.started:
            path = self.folder / "start"
            if not path.exists():
                return False
            self.started = float(path.read_text())
        return time.monotonic() >= self.started + self.entry.begins_s

    def line_up(self) -> None:
        deadline = time.monotonic() + LIMIT_S + self.entry.seconds
        while not self.has_begun():
            assert time.monotonic() < deadline, "the race does not begin"
            time.sleep(POLL_S)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.started + self.entry.seconds

    def laps(self, model: nn.Module, at_most: int = sys.maxsize) -> Iterator[Batch]:
        """Batches until the time is over. What is done with one takes at least `step_s`."""
        for _ in range(at_most):
            began = time.monotonic()
            if began >= self.started + self.entry.seconds:
                break
            yield next(self._stream)
            self.steps += 1
            self.snapshot_if_due(model)
            time.sleep(max(0.0, began + self.entry.step_s - time.monotonic()))

    # -- what is left on disk --------------------------------------------------------------------

    def say(self, what: str, **values: Any) -> None:
        line = {"is": what, "at": time.monotonic(), "steps": self.steps, **values}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()

    def snapshot_if_due(self, model: nn.Module) -> None:
        if time.monotonic() - self.started < self._snapshot_due:
            return
        if self.entry.writes:
            self.snapshot(flat(model))
        else:
            self._snapshot_due += self.entry.snapshot_s
            self.say("lap")

    def snapshot(self, weights: np.ndarray) -> None:
        """Written under another name first: whoever is killed leaves whole ones."""
        at = time.monotonic() - self.started
        interval = self.entry.snapshot_s
        self._snapshot_due = (at // interval + 1) * interval
        self._kept = self.steps
        name = f"{self.entry.peer}.{self.entry.life}.{round(at * 1000):07d}.npy"
        half = self.folder / f"half.{os.getpid()}"
        with half.open("wb") as file:
            np.save(file, weights, allow_pickle=False)
        half.rename(self.folder / "snapshots" / name)
        self.say("snapshot")

    def finish(self, model: nn.Module, **values: Any) -> None:
        """The last weights, and what a contender has to tell."""
        if self.entry.writes and self.steps != self._kept:
            self.snapshot(flat(model))
        self.say("finished", **values)
