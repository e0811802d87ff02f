"""From a recipe (`core.values.recipe`) to an optimizer, and to its rate at any part of a run.

Shapes of schedules are torch's own: its scheduler is run once, beforehand, over a thousand parts of
a budget, and what it does to a rate of 1 is kept. So a rate is a function of the part that is
spent, and of nothing else: a node that joins late, or comes back from a checkpoint, has the rate
that all the others have.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch.optim import lr_scheduler as torch_schedules

from murmurate.core.values.recipe import GAMMA, Recipe
from murmurate.errors import ConfigError
from murmurate.training.lars import Lars
from murmurate.training.sgd_then_adam import SgdThenAdam

PARTS = 1000

CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "asgd": torch.optim.ASGD,
    "lars": Lars,
    "sgd-adam": SgdThenAdam,
}
"""By the names of `core.values.recipe.OPTIMIZERS`."""


def made(
    own: torch.optim.Optimizer, model: torch.nn.Module, recipe: Recipe
) -> torch.optim.Optimizer:
    """The optimizer that a recipe asks for, in the place of a workload's `own`.

    Without a name it is the own one with other numbers in its groups. With a name the rate, if none
    is said, is the own one's if that is of the same kind, and else torch's default for that kind.
    """
    if recipe.optimizer is None:
        return _with_other_numbers(own, recipe)
    make = CLASSES[recipe.optimizer]
    rate = {} if recipe.lr is None else {"lr": recipe.lr}
    if recipe.optimizer == "sgd-adam" and isinstance(own, torch.optim.SGD):
        rate["sgd_lr"] = own.defaults["lr"]
    elif recipe.lr is None and type(own) is make:
        rate["lr"] = own.defaults["lr"]
    return make(model.parameters(), **rate, **recipe.options())


def _with_other_numbers(own: torch.optim.Optimizer, recipe: Recipe) -> torch.optim.Optimizer:
    for name, value in recipe.options().items():
        if any(name not in group for group in own.param_groups):
            raise ConfigError(f"{name}: the workload's optimizer, {type(own).__name__}, has none")
        for group in (own.defaults, *own.param_groups):
            group[name] = value
    if any(group.get("nesterov") and not group["momentum"] for group in own.param_groups):
        raise ConfigError("nesterov: needs a momentum above 0")
    return own


class RateSchedule:
    """Sets an optimizer's rates by the part of the budget that is spent."""

    def __init__(self, optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
        """Before anything was put back into the optimizer: its rates now are those of a recipe."""
        self._optimizer = optimizer
        self._recipe = recipe
        self._first = [float(group["lr"]) for group in optimizer.param_groups]
        self._factors = factors(recipe) if recipe.changes else None

    def at(self, part: float) -> None:
        """The rates of this part of the budget, from 0 to 1. Costs nothing if nothing changes."""
        if self._factors is None:
            return
        rates, optimizer = self._first, self._optimizer
        if isinstance(optimizer, SgdThenAdam) and part >= self._recipe.warmup:
            optimizer.change_over()
            rates = [float(group["adam_lr"]) for group in optimizer.param_groups]
        factor = self._factors[min(PARTS, max(0, int(part * PARTS)))]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor


@cache
def factors(recipe: Recipe) -> tuple[float, ...]:
    """What a rate is multiplied by at each thousandth of the budget, from 0 to 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    warm = round(recipe.warmup * PARTS)
    if warm == 0:
        schedule = _falling(optimizer, recipe, 0)
    else:
        rising = torch_schedules.LinearLR(optimizer, start_factor=1.0 / warm, total_iters=warm)
        falling = _falling(optimizer, recipe, warm)
        schedule = torch_schedules.SequentialLR(optimizer, [rising, falling], [warm])
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are no steps between: only the rates are wanted
        for _ in range(PARTS + 1):
            found.append(float(optimizer.param_groups[0]["lr"]))
            schedule.step()
    return tuple(found)


def _falling(
    optimizer: torch.optim.Optimizer, recipe: Recipe, warm: int
) -> torch_schedules.LRScheduler:
    """What comes after the warm-up, over the thousandths that are left."""
    schedule, left = recipe.schedule, PARTS - warm
    match schedule.kind:
        case "linear" | "poly":
            return torch_schedules.PolynomialLR(optimizer, left, schedule.power)
        case "multistep":
            places = [round(step * PARTS) - warm for step in schedule.steps]
            return torch_schedules.MultiStepLR(optimizer, places, GAMMA)
        case "cosine":
            return torch_schedules.CosineAnnealingLR(optimizer, left)
        case _:
            return torch_schedules.ConstantLR(optimizer, factor=1.0)
