"""`scaled`: a push weighs less the older what it was computed on is.

    w -= lr · (1 + τ)^-a · g, M += 1

a = 1 takes a gradient of staleness τ for one of 1 + τ; a = 0 is `async`. What it gives up: a slow
member's data count for less, so what only it has seen is learned last.
"""

from __future__ import annotations

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.async_ import AsyncHub
from murmurate_coordinator.solvers.protocol import Lease


class ScaledHub(AsyncHub):
    """By a power law of its staleness."""

    rule = "scaled"

    def _scale(self, lease: Lease, push: MemberPush) -> float:
        del lease
        return float((1 + self.plan - push.plan) ** -self.settings.power)
