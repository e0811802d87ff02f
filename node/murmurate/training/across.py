"""What a group that trains in step has to do with other groups: whoever speaks for it does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from murmurate.core.staleness import Summary

ACROSS_S = 10.0
"""For whoever speaks for a group to come to the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """One that begins to speak for its group."""

    run: str
    name: str
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    steps: int
    """In the group's weights; 0: all have those they began with."""
    words: Callable[[], tuple[str, ...]]
    """What the speakers of other groups tell of themselves now."""
    is_first: bool
    """Of the groups that are there."""
    check: Callable[[], None]
    """Raises what went wrong in the background."""


class Across(Protocol):
    """A group's place among others, at the one that speaks for it."""

    @property
    def word(self) -> str:
        """What is told of it to all members; without blanks."""

    @property
    def gives(self) -> bool:
        """Whether the group should be given these weights after the step at hand."""

    @property
    def staleness_level(self) -> Summary:
        """Of what came across."""

    def stepped(self, samples: int, seconds: float) -> None:
        """The group has made a step, of so many samples."""

    def take(self) -> None:
        """What has come, into the model."""

    def given(self) -> None:
        """The group has these weights."""

    def finish(
        self, timeout_s: float, all_end: Callable[[], bool], tell: Callable[[], None]
    ) -> None:
        """All of the group have come to the end: when all of all groups have, they even out.
        `tell`: the word has changed."""

    def leave(self) -> None:
        """Somebody else speaks from now on, or nobody."""


Opens = Callable[[Speaker], Across | None]
"""None: not yet, the next step tries again."""
