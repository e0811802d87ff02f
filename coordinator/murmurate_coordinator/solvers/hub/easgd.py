"""`easgd`: elastic averaging in turns (paper 003's round robin).

Member j + 1 does not exchange before member j has: who pushes earlier waits for its turn. So all go
at the pace of the slowest, and each exchange is whole before the next begins. Turns are in the
order of coming; a newcomer is last, and one who is gone has no turn. What it had pushed before is
exchanged at once: the centre keeps its half.

Weights that wait are held by the hub: at most those of each member.
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.elastic import ElasticHub
from murmurate_coordinator.solvers.hub.owned_tensors import put, taken
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease


class Easgd(ElasticHub):
    """One after the other."""

    rule = "easgd"
    barrier = True
    at_once = False

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._turns: list[str] = []
        """Members, the next one first."""
        self._early: dict[str, dict[str, torch.Tensor]] = {}
        """What they pushed before it was their turn."""

    def _members_changed(self) -> None:
        super()._members_changed()
        kept = [name for name in self._turns if name in self.members]
        self._turns = kept + [name for name in self.members if name not in kept]

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        self._early[lease.owner] = dict(push.values)

    def _close(self) -> None:
        while self._turns and self._turns[0] in self._early:
            name = self._turns.pop(0)
            self._turns.append(name)
            self._exchange(name, self._early.pop(name))

    def _goes_on(self, lease: Lease) -> bool:
        return lease.owner in self._returns

    def _ended(self, lease: Lease) -> None:
        super()._ended(lease)
        early = self._early.pop(lease.owner, None)
        if early is not None:
            self._exchange(lease.owner, early)
            del self._returns[lease.owner]

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["turns"] = list(self._turns)
        about["early"] = put(tensors, "early", self._early)

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self._turns = [str(name) for name in about["turns"]]
        self._early = taken(tensors, "early", about["early"])
