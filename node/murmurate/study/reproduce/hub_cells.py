"""The cells of 002's tables: so many workers at a hub, delayed in one way or another, trained in
virtual time until each has had its epochs, which is the paper's stop rule.

The net is FashionMNIST's small perceptron and the budget a part of the paper's, so that a table is
a matter of minutes; a step takes 10 ms, to which the paper's delays come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

    def options(self, samples: int, seed: int) -> list[str]:
        made = [
            *(f"--nodes={self.workers}", "--workload=fashion-mnist-mlp", f"--split={self.split}"),
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
    points: float
    """Of accuracy."""
    nc: bool
    report: dict[str, Any]

    @property
    def counted(self) -> float:
        """As the paper counts: NC is 10 %."""
        return NC_POINTS if self.nc else self.points

    def __str__(self) -> str:
        return "NC" if self.nc else f"{self.points:.1f}"


class HubCells:
    """Each cell is trained once."""

    def __init__(
        self, samples: int, seed: int, train: Callable[..., dict[str, Any]] = trained
    ) -> None:
        self.samples, self.seed = samples, seed
        self._train = train
        self._done: dict[HubCell, CellResult] = {}

    def get(self, cell: HubCell) -> CellResult:
        """NotHere: there is no such rule, or no such data."""
        if cell not in self._done:
            options = cell.options(self.samples, self.seed)
            report = self._train(*options, "--evaluate-s=0")
            points = 100 * float(report["accuracy_mean"] or 0.0)
            self._done[cell] = CellResult(points, bool(report["nc"]), report)
        return self._done[cell]
