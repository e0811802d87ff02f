"""Mistakes that only show while a loop runs, each said in one line.

Nothing is exchanged of a model whose optimizer never steps, or steps no more, as where updates are
written by hand or another optimizer was made; nor of what the model did not have, or did not train,
when it joined.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from murmurate.errors import ConfigError
from murmurate.training.strangers import Strangers

log = logging.getLogger("murmurate")

BY_HAND = 8
"""Training calls without a step, between which the parameters changed, before it is an error."""
GATHERED = 3
"""Training calls since the last step that nobody looks at: of loops as they mostly are."""
LOOKS_MAX = 64
"""Training calls since the last step that are looked at: more are a gradient that is gathered."""
LOOK_EVERY, LOOK_FIRST = 32, 5
"""Steps between two looks at what is trained; after each of the first few is one."""
SAMPLED = 16


class LoopWatch:
    """Sees each call of a model that is to be trained, and each step."""

    def __init__(
        self,
        name: str,
        model: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self._name = name
        self._parameters = parameters
        self._strangers = Strangers(name, model, parameters, optimizers)
        self._strangers.look()
        self._calls = self._steps = 0
        self._since = 0
        """Training calls since the last step."""
        self._changes = 0
        """Between how many of them the parameters changed."""
        self._before: torch.Tensor | None = None
        self._stepping = self._graded = False

    def steps(self, *_: object) -> None:
        """An optimizer that was handed over begins a step, in which it may call the model."""
        self._stepping = True

    def stepped(self) -> None:
        """It has made it."""
        self._stepping = False
        self._steps += 1
        self._since = self._changes = 0
        self._before = None
        if self._steps <= BY_HAND and not self._graded:
            self._graded = any(parameter.grad is not None for parameter in self._parameters)
            if self._steps == BY_HAND and not self._graded:
                log.warning(
                    "%s: %d steps were made and no parameter had a gradient, so nothing changed:"
                    " is backward() called, on what this model computes?",
                    self._name,
                    self._steps,
                )
        due = self._steps <= LOOK_FIRST or self._steps % LOOK_EVERY == 0
        if due or self._strangers.handed_over():
            self._strangers.look()

    def called(self) -> None:
        """The model was called to be trained, and a gradient is about to be taken."""
        self._calls += 1
        if self._stepping:
            return
        self._since += 1
        if not self._steps:
            self._by_hand()
        elif GATHERED < self._since <= GATHERED + LOOKS_MAX:
            self._by_another()

    def over(self) -> None:
        """The block around the loop has ended by itself."""
        if not (self._calls or self._steps):
            log.warning(
                "%s: neither was the model that was given to join() called to be trained, nor"
                " step() of its optimizer: nothing of this node was exchanged",
                self._name,
            )

    def left(self) -> None:
        """The loop is over."""
        if self._calls and not self._steps:
            log.warning(
                "%s: the model was called %d times to be trained, but step() of the optimizer that"
                " was given to join() never: nothing was exchanged",
                self._name,
                self._calls,
            )
        self._strangers.look()

    def _by_hand(self) -> None:
        if self._calls == 1:
            self._before = self._sample()
        elif self._calls == BY_HAND and self._has_changed():
            raise ConfigError(
                "the parameters change, but step() of the optimizer that was given to"
                " join() is never called, so nothing is exchanged: let that optimizer make"
                " the steps"
            )

    def _by_another(self) -> None:
        self._changes += self._has_changed()
        self._before = self._sample()
        if self._changes >= BY_HAND:
            raise ConfigError(
                "the parameters change, but step() of the optimizer that was given to join() is"
                " not called any more, so nothing is exchanged: go on with that optimizer, hand"
                " both over as a list, or leave() and join() again with the new one"
            )

    def _has_changed(self) -> bool:
        return self._before is not None and not torch.equal(self._sample(), self._before)

    def _sample(self) -> torch.Tensor:
        """A few numbers of the parameters."""
        few = self._parameters[:SAMPLED]
        with torch.no_grad():
            return torch.cat([p.detach().reshape(-1)[:SAMPLED].double().cpu() for p in few])
