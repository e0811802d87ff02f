"""`ssp`: `async`, but who is more than s updates ahead of the slowest waits (stale synchronous).

A member's count is its pushes since it came, begun at the slowest one's: so a newcomer holds nobody
up. With s = 0 all go in step, as under `sync`, though every gradient is an update of its own; with
s = inf nobody ever waits, and it is `async`. The dead and the frozen are not waited for. Pipelined,
nobody could be made to wait: it has request-reply only.
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.async_ import AsyncHub
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease


class StaleSynchronous(AsyncHub):
    """Nobody is more than s ahead."""

    rule = "ssp"
    at_once = False

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._counts: dict[str, int] = {}

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        super()._fold(lease, push)
        self._counts[lease.owner] += 1

    def _grant(self, owner: str, held: Any) -> Lease:
        lease = super()._grant(owner, held)
        if owner not in self._counts:
            self._counts[owner] = min(self._counts.values(), default=0)
        return lease

    def _ended(self, lease: Lease) -> None:
        super()._ended(lease)
        self._counts.pop(lease.owner, None)

    def _goes_on(self, lease: Lease) -> bool:
        return self._counts[lease.owner] - min(self._counts.values()) <= self.settings.slack

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["counts"] = dict(self._counts)

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self._counts = {str(name): int(count) for name, count in about["counts"].items()}
