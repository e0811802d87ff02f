"""How often a node speaks, found by itself from what speaking costs it.

A message costs the same however many updates are summed in it. While communication takes more of
the processor than it should, messages wait a little for company; if that does not do, updates are
made less often, each of several steps. Nothing here reads a clock.
"""

from __future__ import annotations

import math

SHARE = 0.06
"""Of this process's processor time that communication should take."""
PACE_S_MIN, PACE_S_MAX = 0.008, 0.05
"""No message waits longer than this for company, and only where company comes (updates every 14 ms
or faster); else 12 ms."""
PACE_S_ALONE, COMPANY_S = 0.012, 0.014
SHARE_MAX = 0.25
"""Beyond this share updates are made less often."""
LOOK_S = 0.25
IDLE = 0.25
"""A process that used less than this part of one core takes nothing from its training."""


class Pace:
    """What is waited for, after the last look."""

    __slots__ = (
        "_all_s",
        "_look_at",
        "_mine_s",
        "_update_s",
        "communication",
        "interval_s",
        "message_s",
    )

    def __init__(self) -> None:
        self.message_s = 0.0
        """Least time between two messages with updates on one link."""
        self.interval_s = 0.0
        """Least time between two updates of mine."""
        self.communication = math.nan
        """Part of this process's processor time that the loop's thread took of late."""
        self._look_at = self._mine_s = self._all_s = 0.0
        self._update_s = math.inf
        """Mean time an update of mine takes."""

    def made(self, compute_s: float) -> None:
        """An update took so long."""
        new = self._update_s == math.inf
        self._update_s = compute_s if new else 0.9 * self._update_s + 0.1 * compute_s

    def due(self, now: float) -> bool:
        return now >= self._look_at + LOOK_S

    def look(self, now: float, mine_s: float, all_s: float) -> None:
        """Processor time so far of the thread that communicates, and of the whole process."""
        spent_s, passed_s = all_s - self._all_s, now - self._look_at
        share = (mine_s - self._mine_s) / max(1e-9, spent_s)
        self.communication = min(1.0, share)
        if spent_s < IDLE * passed_s:
            share = 0.0  # the processor has nothing else to do
        self._look_at, self._mine_s, self._all_s = now, mine_s, all_s
        if share > SHARE:
            grown = max(self.message_s, PACE_S_MIN) * min(2.5, share / SHARE)
            often = self._update_s < COMPANY_S
            self.message_s = min(PACE_S_MAX if often else PACE_S_ALONE, grown)
        elif share < 0.7 * SHARE:
            self.message_s = 0.8 * self.message_s if self.message_s > PACE_S_MIN else 0.0
        if share > SHARE_MAX:
            self.interval_s = min(1.0, 1.5 * max(self.interval_s, 0.002))
        elif share < 0.7 * SHARE_MAX:
            self.interval_s = 0.8 * self.interval_s if self.interval_s > 0.001 else 0.0
