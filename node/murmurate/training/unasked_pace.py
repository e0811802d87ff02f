"""How often a member pushes where no rule says: so that it costs a small part of the time."""

from __future__ import annotations

import time

SHARE = 0.001
"""Of the time goes into a push nobody asked for (a rule without a number of steps), as far as this
program sees it: gRPC's threads, the coordinator, and training that finds its caches cold take some
five times as much (measured)."""
PACE_MAX_S = 5.0
"""… but so often they come: who is silent for longer is taken to be gone."""


class UnaskedPace:
    """What the last push cost, and when the next one is due."""

    def __init__(self) -> None:
        self._copied_s = self._began_s = 0.0
        self._put_at = self.next_at = 0.0

    def due(self, now: float) -> bool:
        return now >= self.next_at

    def put(self, copied_s: float, now: float) -> None:
        """A push was made; taking its values cost so much."""
        self._copied_s, self._put_at = copied_s, now

    def begun(self) -> None:
        """The link's thread begins to send it."""
        self._began_s = time.thread_time()

    def answered(self) -> None:
        """The same thread has the answer."""
        cost_s = self._copied_s + time.thread_time() - self._began_s
        self.next_at = self._put_at + min(cost_s / SHARE, PACE_MAX_S)
