"""The cells of 002's tables: so many workers at a hub, delayed in one way or another, trained in
virtual time until each has had its epochs, which is the paper's stop rule.

The net is FashionMNIST's small perceptron and the budget a part of the paper's, so that a table is
a matter of minutes; a step takes 10 ms, to which the paper's delays come. A cell is trained on
several seeds at once, one for each core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import fmean, stdev
from types import TracebackType
from typing import Any, Self

from murmurate.study.race.cell_process import end_with
from murmurate.study.reproduce.training import trained

STEP_S = 0.01
DEVIATION_S = 0.005
"""Of gaussian delays, as in the paper's code."""
BATCH = 32
NC_POINTS = 10.0
"""What NC counts as, in the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubCell:
    """One cell of a table."""

    workers: int
    split: str = "dataset"
    momentum: float = 0.9
    delay_ms: int = 0
    who: str = "all"
    """Who is delayed: all, one (the first), or gaussian (all, drawn for each step)."""
    dc_lambda: float = 0.0
    rule: str = "async"
    """Or sync."""
    own: bool = True
    """Each worker ends after its own epochs; else one budget for all."""
    workload: str = "fashion-mnist-mlp"

    def options(self, samples: int, seed: int) -> list[str]:
        made = [
            *(f"--nodes={self.workers}", f"--workload={self.workload}", f"--split={self.split}"),
            *(f"--step-s={STEP_S}", f"--seed={seed}"),
        ]
        delay_s = self.delay_ms / 1000
        if self.rule == "sync":
            made += ["--mode=allreduce", "--rule=flat", f"--momentum={self.momentum}"]
        else:
            made += ["--mode=hub", f"--hub-momentum={self.momentum}"]
            made += (
                ["--rule=dc", f"--hub-dc-lambda={self.dc_lambda}"]
                if self.dc_lambda
                else ["--rule=async-msgd"]
            )
        if delay_s:
            how = f"gaussian({delay_s},{DEVIATION_S})" if self.who == "gaussian" else f"{delay_s}"
            made.append(f"--slow=node-0={how}" if self.who == "one" else f"--slow={how}")
        own = -(-samples // self.workers // BATCH) * BATCH
        if self.own and self.rule != "sync":
            return [*made, f"--own-samples={own}"]
        return [*made, f"--samples={samples}"]


@dataclass(frozen=True, slots=True)
class CellResult:
    """Of all seeds."""

    reports: tuple[dict[str, Any], ...]

    @property
    def each(self) -> list[float]:
        """Points of accuracy, seed by seed."""
        return [100 * float(report["accuracy_mean"] or 0.0) for report in self.reports]

    @property
    def nc(self) -> int:
        """Seeds that came to nothing."""
        return sum(bool(report["nc"]) for report in self.reports)

    @property
    def points(self) -> float:
        return fmean(self.each)

    @property
    def counted(self) -> float:
        """As the paper counts: NC is 10 %."""
        marks = [bool(report["nc"]) for report in self.reports]
        return fmean(NC_POINTS if nc else p for p, nc in zip(self.each, marks, strict=True))

    @property
    def report(self) -> dict[str, Any]:
        """Of the first seed."""
        return self.reports[0]

    def __str__(self) -> str:
        count = len(self.reports)
        if self.nc == count:
            return "NC"
        spread = f" ± {stdev(self.each):.1f}" if count > 1 else ""
        marked = f", {self.nc} of {count} NC" if self.nc else ""
        return f"{self.points:.1f}{spread}{marked}"


class HubCells:
    """Each cell is trained once, with every seed."""

    def __init__(
        self,
        samples: int,
        seeds: Sequence[int],
        train: Callable[..., dict[str, Any]] = trained,
    ) -> None:
        self.samples, self.seeds = samples, tuple(seeds)
        self._train = train
        self._done: dict[tuple[HubCell, int], CellResult] = {}
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        """With a process for each core, where there are several seeds."""
        jobs = min(len(self.seeds), os.cpu_count() or 1)
        if jobs > 1:
            self._pool = ProcessPoolExecutor(
                jobs, get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error is None, cancel_futures=True)
            self._pool = None

    def get(self, cell: HubCell, samples: int | None = None) -> CellResult:
        """`samples`: of all workers; else as all cells. NotHere: there is no such rule, or no such
        data."""
        samples = samples or self.samples
        if (cell, samples) not in self._done:
            commands = [[*cell.options(samples, seed), "--evaluate-s=0"] for seed in self.seeds]
            if self._pool is None:
                reports = [self._train(*command) for command in commands]
            else:
                futures = [self._pool.submit(self._train, *command) for command in commands]
                reports = [future.result() for future in futures]
            self._done[cell, samples] = CellResult(tuple(reports))
        return self._done[cell, samples]
