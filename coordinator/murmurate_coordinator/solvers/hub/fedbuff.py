"""`fedbuff`: K differences make an update, each scaled by its age (Nguyen et al., FedBuff).

    buffer += d / sqrt(1 + tau); of K of them: w += buffer / K, M += 1

d is what a member's own optimizer made of its local steps, whole: the sum of its steps, not their
mean. A push is answered at once with the weights of now, so nobody waits for anybody. The sum is
divided by K and not by the sum of the scales, as in the paper: what is old moves the weights less.
With K = 1 and no staleness the weights become the member's.
"""

from __future__ import annotations

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.k_of_n import KOfN
from murmurate_coordinator.solvers.protocol import Lease


class FedBuff(KOfN):
    """A buffer of K pushes."""

    rule = "fedbuff"

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        del lease
        age = self.plan - push.plan
        # A batch counts the mean of a push's steps; here the whole of them counts.
        self._batch.add(push, self._trained, weight=push.steps / (1.0 + age) ** 0.5)

    def _close(self) -> None:
        if self._complete():
            self._add(self._batch.sum, 1.0 / self._batch.count)
            self._batch.take()
            self._updated()
