"""`async`: every gradient is an update (paper 002's aSGD, 004 with K = 1).

    w -= lr · g, M += 1, and the one who pushed is answered with (w, M)

A push of several steps is their mean: steps on the same weights are a larger batch. Paper 002's
code reads weights without a lock while others write them; here one thread owns them.
"""

from __future__ import annotations

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.hub import HubSolver
from murmurate_coordinator.solvers.protocol import Lease


class AsyncHub(HubSolver):
    """Nobody waits for anybody."""

    rule = "async"

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        self._step(push.values, self._scale(lease, push) / push.steps)
        self._updated()

    def _adds_up(self) -> str:
        return "makes an update of every gradient"

    def _scale(self, lease: Lease, push: MemberPush) -> float:
        """What a gradient weighs."""
        del lease, push
        return 1.0
