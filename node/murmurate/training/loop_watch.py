"""Mistakes that only show while a loop runs, each said in one line.

Nothing is exchanged of a model whose optimizer never steps, as where updates are written by hand;
nor of parameters that the model did not have, or did not train, when it joined.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from murmurate.core.plain_names import plain_names
from murmurate.errors import ConfigError

log = logging.getLogger("murmurate")

BY_HAND = 8
"""Training calls without a step, between which the parameters changed, before it is an error."""
LOOK_EVERY = 256
"""Training calls between two looks at which parameters there are; the first few are looked at."""
SAMPLED = 16
SHOWN_MAX = 3


class LoopWatch:
    """Sees each call of a model that is to be trained, and each step."""

    def __init__(
        self, name: str, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        self._name = name
        self._model = model
        self._parameters = parameters
        self._known = {id(parameter) for parameter in parameters}
        self._calls = 0
        self._stepped = False
        self._said = False
        self._before: torch.Tensor | None = None

    def stepped(self) -> None:
        """An optimizer that was handed over has made a step."""
        self._stepped = True
        self._before = None

    def called(self) -> None:
        """The model was called to be trained, and a gradient is about to be taken."""
        self._calls += 1
        if not self._stepped and self._calls <= BY_HAND:
            now = self._sample()
            if self._calls == BY_HAND and self._before is not None:
                if not torch.equal(now, self._before):
                    raise ConfigError(
                        "the parameters change, but step() of the optimizer that was given to"
                        " join() is never called, so nothing is exchanged: let that optimizer make"
                        " the steps"
                    )
            elif self._calls == 1:
                self._before = now
        if not self._said and (self._calls <= 2 or self._calls % LOOK_EVERY == 0):
            self._look()

    def left(self) -> None:
        """The loop is over."""
        if self._calls and not self._stepped:
            log.warning(
                "%s: the model was called %d times to be trained, but step() of the optimizer that"
                " was given to join() never: nothing was exchanged",
                self._name,
                self._calls,
            )

    def _look(self) -> None:
        trained = [(n, p) for n, p in self._model.named_parameters() if p.requires_grad]
        plain = plain_names(self._model)
        new = [plain(name) for name, parameter in trained if id(parameter) not in self._known]
        if new:
            self._said = True
            more = f" and {len(new) - SHOWN_MAX} more" if len(new) > SHOWN_MAX else ""
            log.warning(
                "%s: %s%s came to the model, or began to be trained, after join(): they are not"
                " exchanged; leave() and join() again with the model as it is",
                self._name,
                ", ".join(new[:SHOWN_MAX]),
                more,
            )

    def _sample(self) -> torch.Tensor:
        """A few numbers of the parameters."""
        few = self._parameters[:SAMPLED]
        with torch.no_grad():
            return torch.cat([p.detach().reshape(-1)[:SAMPLED].double().cpu() for p in few])
