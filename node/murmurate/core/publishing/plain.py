"""Rule `plain`: an update is what the steps gained, no more and no less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from murmurate.core.publishing.rule import Span


class Plain:
    """Publishes gains as they are; keeps nothing, and asks for nothing that costs anything."""

    reads_gains = False

    def stepped(self, span: Span) -> bool:
        """The gain stays in the parameters until it is published."""
        return False

    @property
    def fresh(self) -> bool:
        """A sum is the same wherever it is made."""
        return False

    def update(self, span: Span) -> torch.Tensor:
        return span.gained()

    def applied(self, update: Any, *, own: bool, unseen: float = 0.0) -> None:
        """Nothing depends on what others do."""

    def changed(self, by: torch.Tensor) -> None:
        """It is in the parameters, and so in what was gained."""

    def restored(self) -> None:
        """Nothing is remembered of the way."""

    def rest(self) -> torch.Tensor | None:
        """It is in the parameters."""
        return None

    def forget(self) -> None:
        """Nothing was kept."""

    def state(self) -> dict[str, Any]:
        """There is none."""
        return {}

    def go_on(self, state: Mapping[str, Any]) -> None:
        """There is nothing to go on with."""

    def leads(self, span: Span) -> bool:
        return False

    def lead(self, flat: torch.Tensor) -> None:
        """Nowhere."""
