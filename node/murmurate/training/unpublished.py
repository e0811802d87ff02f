"""The local steps of one node that are in no update yet: how many, since when, on which weights.

Of a model that is published in parts, each part keeps its own (`core.publishing.turns`); here is
what holds for the whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from murmurate.core.clock import Clock
from murmurate.core.publishing.turns import Turns


class TakenSteps(NamedTuple):
    """The steps that go into an update."""

    steps: int
    context: Clock
    """Of the weights that the first of them was computed on."""
    started: float
    """When the batch of that one was begun."""


class UnpublishedSteps:
    """What the parameters are ahead of the weights by, in steps. Only the thread that trains knows
    of them."""

    def __init__(self, turns: Turns | None) -> None:
        self.turns = turns
        """Of a model that is published a part at a time."""
        self.steps = 0
        self.started = 0.0
        """When the batch of the first of them was begun."""
        self.residual = False
        """Whether the parameters are ahead of the weights by what encoding left out, or by parts
        whose turn is still to come."""
        self._context = Clock()

    @property
    def any(self) -> bool:
        """Whether the parameters have anything that no update has."""
        return bool(self.steps) or self.residual

    @property
    def in_parts(self) -> bool:
        """Whether some part has waited for its turn."""
        return self.turns is not None and self.turns.waiting

    def stepped(self) -> None:
        self.steps += 1
        if self.turns is not None:
            self.turns.stepped()

    def begin(self, context: Clock, now: float) -> None:
        """A batch is begun on these weights: the first, for whatever has no steps yet."""
        if self.turns is not None:
            self.turns.begin(context, now)
        if not self.steps:
            self._context, self.started = context, now

    def take(self, *, in_parts: bool) -> TakenSteps:
        """Those of the next update, which count no more, whatever comes of it. `in_parts`: of the
        part whose turn it is, which keeps them until it is said to be published."""
        taken = TakenSteps(self.steps, self._context, self.started)
        if in_parts and self.turns is not None:
            taken = TakenSteps(self.turns.steps, self.turns.context, self.turns.started)
        self.steps = 0
        return taken

    def published(self, *, residual: bool) -> None:
        """All that there was, but what encoding has left out."""
        self.residual = residual
        if self.turns is not None:
            self.turns.forget()
            self.turns.left_out(anything=residual)

    def part_published(self) -> None:
        """Only the part whose turn it was."""
        assert self.turns is not None
        self.turns.published()
        self.residual = self.turns.waiting

    def forget(self) -> None:
        """They are void: taken back, or of a life that is over."""
        self.steps = 0
        self.published(residual=False)

    # -- over a restart --------------------------------------------------------------------------

    def state(self, *, kept: bool) -> dict[str, Any]:
        """What a restart goes on with, as plain values. `kept`: what they gained is, too."""
        steps = self.steps if kept else 0
        context = self._context.to_bytes().hex() if steps else ""
        turns = self.turns.state() if steps and self.turns is not None else None
        return {"steps": steps, "context": context, "turns": turns}

    def go_on(self, state: Mapping[str, Any]) -> bool:
        """With those of an earlier life. False: it published in other parts, and they are lost."""
        if self.turns is not None:
            self.turns.left_out(anything=self.residual)
        if not state["steps"]:
            return True
        if (state["turns"] is None) != (self.turns is None):
            return False
        self.steps, self.started = int(state["steps"]), time.monotonic()
        self._context = Clock.from_bytes(bytes.fromhex(state["context"]))
        if self.turns is not None:
            self.turns.go_on(state["turns"], self.started)
            self.residual = self.residual or self.turns.waiting
        return True
