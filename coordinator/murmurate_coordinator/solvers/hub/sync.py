"""`sync`: the mean of one gradient of everybody who is there is an update (002's sSGD).

    barrier, w -= (lr / n) · sum of n gradients, M += 1, everybody gets (w, M)

All gradients of an update are of its version, so staleness is 0. A newcomer is given the weights of
now and is waited for from then on; one who died or froze is not. Pipelined, nobody waits: an update
is due when everybody has sent at least one gradient, and is the mean of all that came.
"""

from __future__ import annotations

from murmurate_coordinator.solvers.hub.k_of_n import KOfN
from murmurate_coordinator.solvers.protocol import Lease


class SyncHub(KOfN):
    """All wait for all."""

    rule = "sync"
    barrier = True
    at_once = False

    def _adds_up(self) -> str:
        return ""

    def _complete(self) -> bool:
        owners = {lease.owner for lease in self.leases.values()}
        return self._batch.count > 0 and owners <= self._batch.owners

    def _goes_on(self, lease: Lease) -> bool:
        return lease.owner not in self._batch.owners
