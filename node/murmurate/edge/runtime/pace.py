"""How often a node speaks, found by itself from what speaking costs it.

A message costs the same however many updates are summed in it. While communication takes more of
the processor than it should, messages wait a little for company; if that does not do, updates are
made less often, each of several steps. Nothing here reads a clock.
"""

from __future__ import annotations

import math

SHARE = 0.045
"""Of this process's processor time that the loop's thread should take. gRPC's own threads take a
third or more of that again, so communication takes 6 % in all."""
COMPANY = 5
"""A message waits until so many updates can go with it, and no longer: waiting makes all of them
older. Where updates are made fast, it may wait for all that come in `PACE_S_MAX`."""
PACE_S_FIRST = 0.02
"""The pause between two messages before anything is known of what they cost."""
PACE_S_MIN = 0.008
"""The shortest pause there is, except for none."""
PACE_S_MAX = 0.05
"""A message may wait as long as this for company, however fast that comes."""
PACE_S_LONGEST = 0.25
"""No message waits longer than this, however slowly its company comes."""
PACE_S_ENCODED = 0.012
"""With a codec this stands for `PACE_S_MAX`: what waits there is not several updates in one message
but several steps in one update, which does not get smaller by it."""
SHARE_MAX = 0.25
"""If communication takes more than this part though messages wait, updates are made less often."""
INTERVAL_S_MAX = 0.01
"""At the least an update is made in this time for each of the others: what else there is to do
(clocks to compare, signs of life) does not become less by making fewer."""
LOOK_S = 0.25
"""Between two looks at what communication costs."""


class Pace:
    """What is waited for, after the last look."""

    __slots__ = (
        "_all_s",
        "_look_at",
        "_made",
        "_mine_s",
        "_short_s",
        "_update_s",
        "communication",
        "interval_s",
        "message_s",
    )

    def __init__(self, *, encoded: bool = False) -> None:
        self._short_s = PACE_S_ENCODED if encoded else PACE_S_MAX
        """As long may messages wait for company however fast it comes."""
        self.message_s = min(PACE_S_FIRST, self._short_s)
        """Least time between two messages with updates on one link."""
        self.interval_s = 0.0
        """Least time between two updates of mine."""
        self.communication = math.nan
        """Part of this process's processor time that the loop's thread took of late."""
        self._look_at = self._mine_s = self._all_s = 0.0
        self._made = 0
        """Updates since the last look."""
        self._update_s = math.inf
        """Mean time an update of mine takes, were all of them sent."""

    def made(self, compute_s: float) -> None:
        """So long took an update, or each of those that were added up in it: how long they wait for
        company must not depend on how long they waited, or both would grow without end."""
        new = self._update_s == math.inf
        self._update_s = compute_s if new else 0.9 * self._update_s + 0.1 * compute_s
        self._made += 1

    def due(self, now: float) -> bool:
        return now >= self._look_at + LOOK_S

    def look(
        self, now: float, mine_s: float, all_s: float, *, peers: int = 1, idle: bool = False
    ) -> None:
        """Processor time so far of the thread that communicates, and of the whole process. `idle`:
        training sleeps or waits much of the time, so that messages take nothing from it."""
        share = (mine_s - self._mine_s) / max(1e-9, all_s - self._all_s)
        made, self._made = self._made, 0
        self.communication = min(1.0, share)
        self._look_at, self._mine_s, self._all_s = now, mine_s, all_s
        if not made:  # training may begin any moment: its first updates must not bury the others
            self.message_s = min(PACE_S_FIRST, self._short_s)
            return
        if idle:
            self.message_s = self.interval_s = 0.0
            return
        longest = min(PACE_S_LONGEST, max(self._short_s, COMPANY * self._update_s))
        full = self.message_s >= longest
        if share > SHARE:
            grown = max(self.message_s, PACE_S_MIN) * min(2.5, share / SHARE)
            self.message_s = min(longest, grown)
        elif share < 0.7 * SHARE:
            self.message_s = 0.8 * self.message_s if self.message_s > PACE_S_MIN else 0.0
        if share > SHARE_MAX and full:
            grown = 1.5 * max(self.interval_s, 0.002)
            self.interval_s = min(INTERVAL_S_MAX * peers, grown)
        elif share < 0.7 * SHARE_MAX:
            self.interval_s = 0.8 * self.interval_s if self.interval_s > 0.001 else 0.0
