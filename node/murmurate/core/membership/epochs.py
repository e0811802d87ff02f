"""The number of a life that remembers none before it."""

from __future__ import annotations


def epoch_after(clock_ms: int, told: int) -> int:
    """Larger than that of any life before, as the wall clock or the members have it.

    `told`: the last life of that name that a member knows, 0 if none does; then a clock that was
    set back does no harm.
    """
    return max(clock_ms, told + 1)
