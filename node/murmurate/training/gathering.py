"""Beginning together: a node waits until as many members are here as were asked for."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from murmurate.edge.runtime.node_figures import NodeFigures
    from murmurate.training.ending import Follow

log = logging.getLogger("murmurate")

GATHER_S = 600.0
"""So long it waits; then it trains with those who are here."""
SAY_AFTER_S, SAY_AGAIN_S = 3.0, 60.0


class Gathering:
    """The wait of one node. For the training thread."""

    def __init__(self, figures: NodeFigures, follow: Follow) -> None:
        self._figures = figures
        self._follow = follow

    def wait(self, members: int) -> None:
        """Until so many are here, or somebody has begun: who comes later, or comes back, does not
        wait for those who may have ended."""
        deadline = time.monotonic() + GATHER_S
        pause_s = SAY_AFTER_S

        def over() -> bool:
            here = len(self._figures.by_arrival())
            return here >= members or any(self._figures.steps_of().values())

        while members > 1 and not self._follow(over, pause_s):
            here = self._figures.by_arrival()
            if time.monotonic() >= deadline:
                log.warning(
                    "%s: after %.0f s %d of %d members are here (%s): it trains with these",
                    self._figures.name,
                    GATHER_S,
                    len(here),
                    members,
                    ", ".join(here),
                )
                return
            log.warning(
                "%s at %s waits until %d members are here; so far there are %d: %s",
                self._figures.name,
                self._figures.address,
                members,
                len(here),
                ", ".join(here),
            )
            pause_s = SAY_AGAIN_S
