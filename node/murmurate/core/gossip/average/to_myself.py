"""What a peer tells itself: weights change in `fold` only, so what it must change goes there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gone:
    """To myself, never to others: take back what that life of a partner has not confirmed.

    What comes back was given some time ago: it moves the model, and weights change in `fold`.
    """

    life: int
    forget: bool
    """For good."""


@dataclass(frozen=True, slots=True)
class Back:
    """To myself, never to others: that life is there after all; give it again what I took back."""

    life: int
