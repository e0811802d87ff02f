"""What a loop trains or changes, and nobody exchanges: each kind is said once, in one line.

Parameters that came to the model, or began to be trained, after it joined; those of other models
that one optimizer has as well; frozen ones, which the others' updates still move; and buffers or
frozen parameters that change as training goes on, which are this peer's alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from murmurate.core.layout import tracked
from murmurate.core.plain_names import plain_names

log = logging.getLogger("murmurate")

SHOWN_MAX = 3
CHANGES = 2
"""So often a buffer changes between two looks before it is said: once, somebody has loaded it."""


class Strangers:
    """Looks for them, in one model and its optimizers."""

    def __init__(
        self,
        name: str,
        model: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._name = name
        self._model = model
        self._optimizers = optimizers
        self._known = {id(parameter) for parameter in parameters}
        self._handed = self._count()
        self._said: set[str] = set()
        self._changes: dict[str, int] = {}
        self._sums: dict[str, tuple[int, float | None]] = {}
        """Of what is this peer's alone: when it was last written, and what it then came to. Nobody
        reads what is never written, which may be a large model."""

        self._say(
            "given",
            [name for name, parameter in self._frozen() if parameter.is_floating_point()],
            "are frozen and stay as they are here: load the same ones on every peer",
        )

    def handed_over(self) -> bool:
        """Whether an optimizer was given other parameters since this was asked."""
        before, self._handed = self._handed, self._count()
        return before != self._handed

    def look(self) -> None:
        """Say what is there and was not said."""
        trained = [(n, p) for n, p in self._model.named_parameters() if p.requires_grad]
        self._say(
            "new",
            [name for name, parameter in trained if id(parameter) not in self._known],
            "came to the model, or began to be trained, after join(): they are not"
            " exchanged; leave() and join() again with the model as it is",
        )
        self._say(
            "frozen",
            [
                name
                for name, parameter in self._model.named_parameters()
                if id(parameter) in self._known and not parameter.requires_grad
            ],
            "were frozen after join(): the others' updates and the swarm's momentum still move"
            " them; leave() and join() again with the model as it is",
        )
        self._look_at_others()
        self._look_at_own()

    def _look_at_others(self) -> None:
        """Parameters of optimizers that are of no model here."""
        here = {id(parameter) for parameter in self._model.parameters()}
        for optimizer in self._optimizers:
            others = [
                parameter
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.requires_grad and id(parameter) not in here
            ]
            if others and "others" not in self._said:
                self._said.add("others")
                log.warning(
                    "%s: optimizer %s trains %d parameters that are not of the model given to"
                    " join(): they are not exchanged, each peer has its own; hand over all in one,"
                    " as torch.nn.ModuleList([first, second])",
                    self._name,
                    type(optimizer).__name__,
                    len(others),
                )

    def _look_at_own(self) -> None:
        """Buffers and frozen parameters that change."""
        model = self._model
        merged = {id(each.tensor) for each in tracked(model).values()}
        changed = [
            name
            for name, tensor in (*model.named_buffers(), *self._frozen())
            if tensor.is_floating_point() and id(tensor) not in merged
            if self._has_changed(name, tensor) >= CHANGES
        ]
        self._say(
            "own",
            changed,
            "change as the model is trained, and are this peer's alone: only parameters that are"
            " trained and batch-norm's statistics are exchanged",
        )

    def _has_changed(self, name: str, tensor: torch.Tensor) -> int:
        """How often it was other numbers at a look than at the one before."""
        if tensor.is_inference() or tensor.is_meta:
            return 0
        written = hash((id(tensor), tensor._version))
        last, came_to = self._sums.get(name, (written, None))
        if written != last:
            now = float(tensor.detach().sum(dtype=torch.float64))
            if came_to is not None and abs(now - came_to) > 0.0:  # of no number: not told apart
                self._changes[name] = self._changes.get(name, 0) + 1
            came_to = now
        self._sums[name] = written, came_to
        return self._changes.get(name, 0)

    def _frozen(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Parameters that nobody trains, and never did since it joined."""
        return [
            (name, parameter)
            for name, parameter in self._model.named_parameters()
            if id(parameter) not in self._known and not parameter.requires_grad
        ]

    def _count(self) -> int:
        return sum(len(group["params"]) for each in self._optimizers for group in each.param_groups)

    def _say(self, what: str, names: Sequence[str], says: str) -> None:
        if not names or what in self._said:
            return
        self._said.add(what)
        plain = plain_names(self._model)
        more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
        shown = ", ".join(plain(name) for name in names[:SHOWN_MAX])
        log.warning("%s: %s%s %s", self._name, shown, more, says)
