"""Rules under which all wait for all: a plan ends when every lease in it is pushed or over."""

from __future__ import annotations

from collections.abc import Iterator

from murmurate_coordinator.solvers.effects import Effect, Waits
from murmurate_coordinator.solvers.leases import LeasedSolver
from murmurate_coordinator.solvers.protocol import Lease


class BarrierSolver(LeasedSolver):
    """A newcomer waits for the next plan; one who dies is not waited for."""

    barrier = True

    def _joined(self, peer: str) -> Iterator[Effect]:
        yield Waits(peer, f"plan {self.plan} is running: units at the next one")

    def _left(self, lease: Lease | None) -> Iterator[Effect]:
        del lease
        yield from self._next_if_all()

    def _pushed(self, lease: Lease) -> Iterator[Effect]:
        lease.done = True
        yield from self._next_if_all()

    def _next_if_all(self) -> Iterator[Effect]:
        if all(lease.done for lease in self.leases.values()):
            yield from self._start() if self._changed else self._once_more()

    def _once_more(self) -> Iterator[Effect]:
        """Nobody came or went: the same partition, with the weights of now."""
        again = [(lease.owner, lease.held) for lease in self.leases.values()]
        self.leases.clear()
        for owner, held in again:
            self._grant(owner, held)
        self._renumber(same=True)
        for lease in self.leases.values():
            yield self._give(lease)
