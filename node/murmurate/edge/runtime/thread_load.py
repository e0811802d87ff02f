"""Whether a thread wants the processor, from what the kernel counts of it (Linux)."""

from __future__ import annotations

import math

IDLE = 0.6
"""A thread that wants less than this part of a core sleeps, or waits for something else."""


def wanted_s(thread: int) -> float:
    """Seconds a thread of this process has run so far, or stood in line to; NaN: not known.

    Time in line counts: on a crowded machine a busy thread may run for half of the time or less.
    """
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb", buffering=0) as counted:
            ran, waited, _ = counted.read().split()
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        return math.nan


class Demand:
    """What one thread wants, look by look."""

    __slots__ = ("_now", "_wanted_s", "thread")

    def __init__(self) -> None:
        self.thread = 0
        """Its number in the kernel; 0: not known yet."""
        self._now = self._wanted_s = math.nan

    def idle(self, now: float) -> bool:
        """Since the last look. False where it is not known."""
        wanted = wanted_s(self.thread) if self.thread else math.nan
        part = (wanted - self._wanted_s) / (now - self._now)
        self._now, self._wanted_s = now, wanted
        return 0.0 <= part < IDLE
