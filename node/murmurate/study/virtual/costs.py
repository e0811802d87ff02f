"""What work costs in virtual time: a step, a sample of its batch, an update that is folded in.

A node of speed 1 takes `step_s` + `sample_s` × batch for a step and `fold_s` for each message it
folds in, one of speed 2 half of that. By default a step takes one second whatever its batch and
folding is free, as suits comparisons at equal steps. Where batches, models or the number of nodes
are what is compared, that would make the curves the same by construction: give the costs, or have
them measured here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from murmurate.errors import ConfigError
from murmurate.study.virtual.said import NUMBER

if TYPE_CHECKING:
    from murmurate.workloads import Workload

MEASURED = "measured"
SECONDS_MAX = 1e9
STEP_S_MIN = 1e-6
"""A step that takes less makes a second of virtual time a day of this machine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of a node of speed 1, in virtual seconds."""

    step_s: float = 1.0
    sample_s: float = 0.0
    fold_s: float = 0.0
    message_s: float = 0.0
    """Of a node's other threads, for each update that goes from one to another: both ends."""

    def __post_init__(self) -> None:
        for name in ("step_s", "sample_s", "fold_s", "message_s"):
            value = getattr(self, name)
            if not (0 <= value < SECONDS_MAX):
                raise ConfigError(f"cost {name} = {value:g}: must be a number of seconds from 0 on")
        if self.step_s + self.sample_s <= 0:
            raise ConfigError("cost of a step: must be above 0")

    def of_step(self, batch_size: int) -> float:
        return self.step_s + self.sample_s * batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidCosts:
    """What was asked for; None: to be measured, when the workload is there."""

    step: tuple[float, float] | None = (1.0, 0.0)
    fold_s: float | None = 0.0
    message_s: float | None = 0.0

    def found(self, workload: Workload) -> Costs:
        """With what is to be measured, measured."""
        from murmurate.study.virtual import calibration

        costs = Costs()
        if self.step is None or self.fold_s is None:
            costs = calibration.calibrate(workload)
        if self.step is not None:
            costs = replace(costs, step_s=self.step[0], sample_s=self.step[1])
        if self.fold_s is not None:
            costs = replace(costs, fold_s=self.fold_s)
        message_s = self.message_s
        if message_s is None:
            message_s = calibration.message_s(workload)
        return replace(costs, message_s=message_s)


def parse_costs(step: str | None, fold: str | None, message: str | None = None) -> SaidCosts:
    """`0.002+1e-5`, `0.002` or `measured`; and the same without a `+`. ConfigError, a line each."""
    problems = []
    parts: tuple[float, float] | None = (1.0, 0.0)
    if step == MEASURED:
        parts = None
    elif step is not None:
        match = re.fullmatch(rf"{NUMBER}(?:\+{NUMBER})?", step)
        parts = (-1.0, 0.0)
        if match:
            parts = (
                float(match[1] + (match[2] or "")),
                float((match[3] or "0") + (match[4] or "")),
            )
        if not (min(parts) >= 0 and STEP_S_MIN <= sum(parts) < SECONDS_MAX):
            problems.append(
                f"--step-s {step!r}: A[+B], seconds for a step and for each sample of its batch,"
                f" such as 0.002+1e-5 (together a microsecond or more), or {MEASURED}"
            )
    others: dict[str, float | None] = {}
    for option, text in (("--fold-s", fold), ("--message-s", message)):
        seconds = 0.0
        if text is not None and text != MEASURED:
            seconds = float(text) if re.fullmatch(NUMBER, text) else math.nan
        others[option] = None if text == MEASURED else seconds
        if not 0 <= seconds < SECONDS_MAX:
            problems.append(f"{option} {text!r}: seconds from 0 on, such as 0.0005, or {MEASURED}")
    if problems:
        raise ConfigError("\n".join(problems))
    return SaidCosts(step=parts, fold_s=others["--fold-s"], message_s=others["--message-s"])


def cores_said(text: str | None) -> float | None:
    """How many cores all nodes share; None: nothing was said. ConfigError."""
    if text is None:
        return None
    count = float(text) if re.fullmatch(NUMBER, text) else math.nan
    if not 0 < count < SECONDS_MAX:
        raise ConfigError(f"--cores {text!r}: how many all nodes share, above 0, such as 2")
    return count
