"""The loss of a loop that shows it: its model returns it, or its optimizer is given a closure.

Nobody else need say a word for a loss in `status`, in `top` and on the page. It is looked at once a
second at most, and read after the step, so that no accelerator waits for it more often. What a
model returns counts as its loss only where a gradient was taken of it, downhill: a score that is
maximized, or an output that is not the loss, is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch

from murmurate.training.hook import Hook

EVERY_S = 1.0
"""Between two looks."""


class LossWatch:
    """Sees what a model returns and what a closure does, until a script tells its losses itself."""

    def __init__(self) -> None:
        self.told = False
        """Whether the script does: then nothing is looked at."""
        self._due = 0.0
        self._seen: torch.Tensor | None = None
        self._slope: torch.Tensor | None = None
        """Of what is minimized, by what was seen."""

    def returned(self, output: Any) -> None:
        """The model was called to be trained, and gave this."""
        if self._seen is None and self._is_due() and (loss := _loss_in(output)) is not None:
            self._seen = loss.detach()
            loss.register_hook(Hook(self._went_back))  # type: ignore[no-untyped-call]

    def before(self, _: torch.optim.Optimizer, args: Any, named: Any) -> Any:
        """A step is about to be made: a hook, which puts a closure that is watched in its place."""
        if not self._is_due():
            return None
        if len(args) == 2 and callable(args[1]) and not named:
            return (args[0], self._watched(args[1])), named
        if len(args) == 1 and set(named) == {"closure"} and callable(named["closure"]):
            return args, {"closure": self._watched(named["closure"])}
        return None

    def stepped(self) -> float | None:
        """The step is made: the loss of it, if one was seen."""
        seen, slope = self._seen, self._slope
        self._seen = self._slope = None
        if seen is None or slope is None or self.told:
            return None
        self._due = time.monotonic() + EVERY_S
        return float(seen) if float(slope) > 0.0 else None

    def _is_due(self) -> bool:
        return not self.told and time.monotonic() >= self._due

    def _went_back(self, gradient: torch.Tensor) -> None:
        self._slope = gradient.detach()

    def _watched(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(closure)
        def watched(*args: Any, **named: Any) -> Any:  # an own optimizer may call it with more
            loss = closure(*args, **named)
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self._seen, self._slope = loss.detach(), torch.ones(())
            elif isinstance(loss, float):
                self._seen, self._slope = torch.tensor(loss), torch.ones(())
            return loss

        return watched


def _loss_in(output: Any) -> torch.Tensor | None:
    """What may be the loss in what a model returns: it alone, what is called so, or the only scalar
    of several."""
    if isinstance(output, torch.Tensor):
        return output if _may_be(output) else None
    if isinstance(output, Mapping):
        named = output.get("loss")
        return named if _may_be(named) else None
    if isinstance(output, tuple | list):
        named = getattr(output, "loss", None)
        if _may_be(named):
            return named
        scalars = [each for each in output if _may_be(each)]
        return scalars[0] if len(scalars) == 1 else None
    named = vars(output).get("loss") if hasattr(output, "__dict__") else None
    return named if _may_be(named) else None


def _may_be(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 0
        and value.requires_grad
        and value.is_floating_point()
    )
