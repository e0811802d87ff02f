"""A node that is slower than its machine, for studies (`core.values.slowness`)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from murmurate.core.values.slowness import Slowness


class SlowedSteps:
    """Waits after each step, for as long as was said."""

    def __init__(self, slowness: Slowness, seed: int, name: str, nap: Callable[[float], None]):
        """`nap` waits so many seconds, or until the node is told to stop. The draws are this node's
        own, and the same whenever it is started with that rng seed."""
        self._slowness = slowness
        self._rng = random.Random(f"slow/{seed}/{name}")
        self._nap = nap
        self._since = time.monotonic()

    def stepped(self) -> None:
        """A step is over."""
        if not self._slowness:
            return
        step_s = time.monotonic() - self._since
        self._nap(self._slowness.seconds(step_s, self._rng))
        self._since = time.monotonic()
