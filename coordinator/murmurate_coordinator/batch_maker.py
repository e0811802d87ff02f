"""The batches of a workload by their numbers: what a coordinator of mode batches has instead of a
model.

They are made in order from the seed, so the same number is the same batch in every life of the
coordinator, and none is kept on a disk. Those that may have to be dealt again are kept in memory;
any other is made once more, from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from murmurate import workloads
from murmurate.core.partition.structure import NO_STRUCTURE
from murmurate.edge.net.batch_values import Batch, shape_of
from murmurate.errors import ConfigError
from murmurate.workloads import Evaluation
from murmurate_coordinator.config import CoordinatorConfig
from murmurate_coordinator.solvers.batches.dealing import BatchDealing
from murmurate_coordinator.solvers.protocol import Solver

STOCK_BYTES_MAX = 512 << 20


class BatchMaker:
    """As `WholeModel`, without a model. `batch` is called by one thread."""

    evaluates = False
    structure = NO_STRUCTURE
    first_weights: Mapping[str, torch.Tensor] = {}
    tied: Mapping[str, str] = {}

    def __init__(self, config: CoordinatorConfig) -> None:
        """ConfigError: there is no such workload, or its batches cannot be sent."""
        it, train = config.coordinator, config.train
        self.workload = workloads.load(
            train.workload,
            data=train.data,
            batch_size=train.batch_size,
            lr=train.lr,
            validation=train.validation,
            seed=it.seed,
        )
        self._seed = it.seed
        self._stock: dict[int, Batch] = {}
        self._batches: Iterator[Batch]
        self._rewind()
        first = self._next()
        self._tensors = shape_of(first)
        self._most = max(1, STOCK_BYTES_MAX // sum(tensor.nbytes for tensor in self._tensors))
        self._stock[1] = first

    def begin(self, solver: Solver, samples: int | None, *, opened: bool) -> None:
        """Let it deal these; with `opened` at once."""
        assert isinstance(solver, BatchDealing)
        solver.samples = self.workload.batch_size
        solver.batch, solver.forget = self.batch, self.forget
        solver.dealer.opened = opened
        if samples is not None:
            solver.dealer.total = -(-samples // self.workload.batch_size)

    def batch(self, number: int) -> Batch:
        if number not in self._stock:
            if number <= self._made:
                self._rewind()
            while self._made < number:
                batch = self._next()
            if (shape := shape_of(batch)) != self._tensors:
                was, now = (" ".join(map(str, each)) for each in (self._tensors, shape))
                raise ConfigError(f"workload: a batch of {now} after one of {was}")
            self._stock[number] = batch
            if len(self._stock) > self._most:
                del self._stock[next(iter(self._stock))]
        return self._stock[number]

    def forget(self, needed: Callable[[int], bool]) -> None:
        """Those that nobody will ask for again."""
        self._stock = {n: batch for n, batch in self._stock.items() if n == 1 or needed(n)}

    def _rewind(self) -> None:
        torch.manual_seed(self._seed)
        none = workloads.parse_split("none")
        share = workloads.DataShare(0, 1, none, self._seed, self.workload.batch_size)
        self._batches, self._made = self.workload.batches(share), 0

    def _next(self) -> Batch:
        self._made += 1
        return next(self._batches)

    # -- what there is not -------------------------------------------------------------------------

    def evaluated(
        self, weights: Mapping[str, torch.Tensor], *, validation: bool = False
    ) -> Evaluation:
        raise ConfigError("mode batches: there is no model to evaluate")

    def put(self, path: str, weights: Mapping[str, torch.Tensor]) -> None:
        raise ConfigError(f"report.model {Path(path).name}: mode batches has no model")

    def packed(self, weights: Mapping[str, torch.Tensor]) -> bytes:
        raise ConfigError("mode batches: there is no model to serve")
