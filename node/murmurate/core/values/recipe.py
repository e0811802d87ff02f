"""A recipe: which optimizer trains, and how rate and batch change on the way. No torch here.

`training.recipes` makes optimizers and rates of it. Whatever changes on the way does so by the part
of the budget that is spent, which is the whole swarm's: so all peers, fast or slow, and one that
joins late or comes back, are at the same place of the same schedule.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from murmurate.errors import ConfigError

_SGD = frozenset({"momentum", "nesterov", "weight_decay"})
_DECAY = frozenset({"weight_decay"})

OPTIMIZERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "sgd": _SGD,
        "adam": _DECAY,
        "adamw": _DECAY,
        "nadam": _DECAY,
        "radam": _DECAY,
        "adamax": _DECAY,
        "rmsprop": frozenset({"momentum", "weight_decay"}),
        "adagrad": _DECAY,
        "adadelta": _DECAY,
        "asgd": _DECAY,
        "lars": _SGD,
        "sgd-adam": _SGD,
    }
)
"""Optimizers by name, and which of a recipe's numbers each takes. Torch's own (lower case), `lars`
(a rate for each layer) and `sgd-adam` (SGD during the warm-up, then Adam), both of 003."""

EXPECTED = "constant, linear, poly(POWER), multistep(PART,…) or cosine, such as multistep(0.5,0.75)"
POWER_MAX = 16.0
GAMMA = 0.1
"""What each step of `multistep` multiplies the rate by (003)."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the rate goes down after the warm-up; `str()` gives what `parse_schedule` takes."""

    kind: str = "constant"
    power: float = 1.0
    """Of `poly`: the rate is lr (1 - t)^power; 1 is `linear`."""
    steps: tuple[float, ...] = ()
    """Of `multistep`: at these parts of the budget the rate is divided by 10."""

    def __str__(self) -> str:
        if self.kind == "poly":
            return f"poly({self.power:g})"
        if self.kind == "multistep":
            return f"multistep({','.join(f'{step:g}' for step in self.steps)})"
        return self.kind


def parse_schedule(text: str) -> Schedule:
    """`constant`, `linear`, `poly(0.5)`, `multistep(0.5,0.75)` or `cosine`; ConfigError says so."""
    match = re.fullmatch(r"\s*([a-z]+)\s*(?:\(([^()]*)\))?\s*", text)
    kind, inside = (match[1], match[2]) if match else ("", None)
    numbers = _numbers(inside)
    if kind in ("constant", "linear", "cosine") and inside is None:
        return Schedule(kind)
    if kind == "poly" and (inside is None or len(numbers) == 1):
        power = numbers[0] if numbers else 1.0
        if 0 < power <= POWER_MAX:
            return Schedule(kind, power=power)
        raise ConfigError(f"schedule {text!r}: a power above 0, at most {POWER_MAX:g}")
    if kind == "multistep" and numbers:
        rising = all(a < b for a, b in itertools.pairwise(numbers))
        if rising and all(0 < number < 1 for number in numbers):
            return Schedule(kind, steps=numbers)
        raise ConfigError(f"schedule {text!r}: parts of the budget, above 0, below 1 and rising")
    raise ConfigError(f"schedule {text!r}: expected {EXPECTED}")


def _numbers(inside: str | None) -> tuple[float, ...]:
    """What stands in the parentheses; none: something there is not a number."""
    try:
        found = tuple(float(each) for each in (inside or "").split(","))
    except ValueError:
        return ()
    return found if all(math.isfinite(each) for each in found) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What of the training is not the workload's own. None: as the workload has it."""

    optimizer: str | None = None
    lr: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    schedule: Schedule = Schedule()
    warmup: float = 0.0
    """So large a part of the budget the rate rises over, linearly, at its beginning."""
    batch_warmup: float = 0.0
    """So large a part of the budget the batch grows over, from an eighth of its size."""

    def __post_init__(self) -> None:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, said in problems(values).items():
            raise ConfigError(f"{name}: {said}")

    @property
    def changes(self) -> bool:
        """Whether anything changes on the way: then there must be a budget."""
        warms = self.warmup > 0 or self.batch_warmup > 0
        return warms or self.schedule.kind != "constant"

    def options(self) -> dict[str, float | bool]:
        """The numbers that were said, as torch's optimizers call them; the rate is not in it."""
        said = {
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "weight_decay": self.weight_decay,
        }
        return {name: value for name, value in said.items() if value is not None}


def problems(values: Mapping[str, Any]) -> dict[str, str]:
    """By name what cannot be, or not together with the rest; of a recipe's values, as far as they
    are there."""
    optimizer, momentum = values.get("optimizer"), values.get("momentum")
    nesterov, warmup = values.get("nesterov"), values.get("warmup") or 0.0
    found: dict[str, str] = {}
    for name in ("lr", "weight_decay"):
        if (value := values.get(name)) is not None and not 0 <= value < math.inf:
            found[name] = "expected a number from 0 on"
    if momentum is not None and not 0 <= momentum < 1:
        found["momentum"] = "expected a number from 0 on and below 1"
    for name in ("warmup", "batch_warmup"):
        if not 0 <= (values.get(name) or 0.0) < 1:
            found[name] = "expected a part of the budget, from 0 on and below 1"
    schedule = values.get("schedule")
    if schedule is not None and schedule.steps and schedule.steps[0] < warmup:
        found["schedule"] = "its first step comes before the warm-up is over"
    if optimizer is not None and optimizer not in OPTIMIZERS:
        return found | {"optimizer": f"expected one of {', '.join(OPTIMIZERS)}"}
    takes_all = frozenset(("momentum", "nesterov", "weight_decay"))
    for name in sorted(takes_all - (OPTIMIZERS[optimizer] if optimizer else takes_all)):
        if values.get(name) is not None:
            able = [each for each, takes in OPTIMIZERS.items() if name in takes]
            found[name] = f"{optimizer} has none; {', '.join(able)} have"
    lacks = not momentum if optimizer is not None and optimizer != "lars" else momentum == 0
    if nesterov and lacks:
        found.setdefault("nesterov", "needs a momentum above 0")
    if optimizer == "sgd-adam" and not warmup:
        found["optimizer"] = "sgd-adam changes over when the warm-up ends: say warmup, such as 0.1"
    return found
