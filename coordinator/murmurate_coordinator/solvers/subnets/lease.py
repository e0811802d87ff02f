"""Rule `lease` (ours): one share more than members; a push is mixed with it and redrawn.

Disjoint at every instant, no barrier, and every block of a middle matrix is trained in time, which
one partition never does (F6).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from murmurate.core.partition.structure import Indices
from murmurate.core.values.member_half import IST_RULES
from murmurate_coordinator.solvers.protocol import Lease
from murmurate_coordinator.solvers.subnets.moves import MovingSubnets


class LeaseSubnets(MovingSubnets):
    """Whoever pushes gets another subnet at once."""

    rule = "lease"
    half = IST_RULES[rule]
    spare = True

    def _redrawn(
        self, lease: Lease, at: int, wanted: Mapping[str, list[int]], mine: Indices, pool: Indices
    ) -> Indices:
        return self._rng.permutation(np.concatenate([mine, pool]))[: wanted[lease.owner][at]]
