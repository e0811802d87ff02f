"""`ea-msgd`: elastic averaging of members that have momentum (paper 003).

    v = mu v + g; w_j -= lr v                 at the member, at each of its steps
    d = alpha (w_j - w~); w_j -= d; w~ += d   at the hub, first come, first served

The momentum is the member's: that of its own optimizer, and where that has none, 0.9 (the half of
this rule says so). An exchange moves weights and leaves momentum alone.
"""

from __future__ import annotations

from murmurate_coordinator.solvers.hub.elastic import ElasticHub


class EaMsgd(ElasticHub):
    """Each exchange is whole before the next begins; nobody waits for another's turn."""

    rule = "ea-msgd"
