"""How a node is made slower than it is, for studies: what is waited after each of its steps.

    0.03                      so many seconds (002: 30, 60 and 90 ms)
    gaussian(0.06,0.005)      mean and deviation, clipped at 0, drawn for each step (002)
    exponential(0.03,0.02)    a shift, and the mean of what is added to it (004)
    x2                        as much again as a step takes: a machine of half the speed

Time and chance are arguments, so real nodes and those in virtual time are slowed by the same thing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol

from murmurate.errors import ConfigError

EXPECTED = "seconds, gaussian(MEAN,DEVIATION), exponential(SHIFT,MEAN) or xFACTOR from x1 on"
SECONDS_MAX = 1e6
_NUMBER = r"(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)"
_FORMS = {
    "constant": _NUMBER,
    "gaussian": rf"gaussian\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)",
    "exponential": rf"exponential\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)",
    "factor": rf"x{_NUMBER}",
}


class Chance(Protocol):
    """The part of `random.Random` that is used here."""

    def gauss(self, mu: float, sigma: float) -> float: ...
    def expovariate(self, lambd: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Slowness:
    """What is waited after a step; `str()` gives what `parse_slowness` takes."""

    kind: str = "constant"
    first: float = 0.0
    """Seconds, a mean, a shift or a factor."""
    second: float = 0.0
    """A deviation, or the mean of what is added."""

    def __bool__(self) -> bool:
        return self.mean_s(1.0) > 0.0

    def seconds(self, step_s: float, rng: Chance) -> float:
        """To be waited after a step that took so long."""
        match self.kind:
            case "gaussian":
                return max(0.0, rng.gauss(self.first, self.second))
            case "exponential":
                return self.first + (rng.expovariate(1.0 / self.second) if self.second else 0.0)
            case "factor":
                return (self.first - 1.0) * step_s
            case _:
                return self.first

    def mean_s(self, step_s: float) -> float:
        """What it is on average, but for what is clipped."""
        if self.kind == "factor":
            return (self.first - 1.0) * step_s
        return self.first + (self.second if self.kind == "exponential" else 0.0)

    def __str__(self) -> str:
        if self.kind == "factor":
            return f"x{self.first:g}"
        if self.kind == "constant":
            return f"{self.first:g}"
        return f"{self.kind}({self.first:g},{self.second:g})"


def parse_slowness(text: str) -> Slowness:
    """As above; ConfigError says what is expected."""
    for kind, form in _FORMS.items():
        if (match := re.fullmatch(form, text.strip())) is None:
            continue
        numbers = [float(each) for each in match.groups()]
        least = 1.0 if kind == "factor" else 0.0
        if numbers[0] >= least and all(math.isfinite(n) and n <= SECONDS_MAX for n in numbers):
            return Slowness(kind, *numbers)
    raise ConfigError(f"{text!r}: expected {EXPECTED}")
