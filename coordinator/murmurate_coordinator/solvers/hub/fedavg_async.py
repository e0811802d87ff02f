"""`fedavg-async`: 001's general form without a barrier: the weights are Σ E_k x^k, all the time.

The hub keeps each member's last x^k. A push replaces it, the sum is assembled anew, and whoever
pushed gets it at once: nobody waits for anybody. E_k is each member's registered share (the width
in its hello; 1 if it said none) over all of them, so ΣE_k = I whoever is there. What a member
claims to have trained on does not count.

A newcomer begins with the sum as its x^k, so its coming changes nothing. When one leaves, its x^k
is shared out by moving the sum's remainder to those who stay: the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from murmurate.errors import PromiseBroken
from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.hub import HubSolver
from murmurate_coordinator.solvers.hub.owned_tensors import put, taken
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease

ROUNDING = 1e-9


class AsyncFedAvg(HubSolver):
    """The mean of what all pushed last."""

    rule = "fedavg-async"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._last: dict[str, dict[str, torch.Tensor]] = {}
        """x^k of each member."""

    def shares(self) -> Mapping[str, float]:
        """E_k of each whose x^k is in the sum."""
        total = sum(self.members[name].speed for name in self._last)
        return {name: self.members[name].speed / total for name in self._last}

    def _grant(self, owner: str, held: Any) -> Lease:
        if owner not in self._last:
            self._last[owner] = {n: value.clone() for n, value in self.weights.items()}
        return super()._grant(owner, held)

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        self._last[lease.owner] = dict(push.values)
        self._assemble()
        self._updated()

    def _assemble(self) -> None:
        """ΣE_k x^k; whole numbers, which are counters, take the largest."""
        shares = self.shares()
        with torch.no_grad():
            for name, value in self.weights.items():
                parts = [(share, self._last[who][name]) for who, share in shares.items()]
                if value.is_floating_point():
                    (share, first), *others = parts
                    torch.mul(first, share, out=value)
                    for share, part in others:
                        value.add_(part, alpha=share)
                else:
                    value.copy_(torch.stack([part for _, part in parts]).amax(0))

    def leave(self, peer: str) -> list[Any]:
        gone = self._last.pop(peer, None)
        if gone is not None and self._last:
            # What is left would be another mean: each takes its part of the difference.
            shares, total = self._last_shares(without=peer)
            for name, value in self.weights.items():
                if value.is_floating_point():
                    mean = sum(shares[w] / total * own[name] for w, own in self._last.items())
                    for own in self._last.values():
                        own[name] = own[name] + (value - mean)
        return super().leave(peer)

    def _last_shares(self, *, without: str) -> tuple[dict[str, float], float]:
        shares = {name: self.members[name].speed for name in self._last if name != without}
        return shares, sum(shares.values())

    def check(self) -> None:
        super().check()
        if self._last and abs(sum(self.shares().values()) - 1) > ROUNDING:
            raise PromiseBroken("ΣE_k = I", f"the shares add up to {sum(self.shares().values())}")

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["last"] = put(tensors, "own", self._last)

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self._last.update(taken(tensors, "own", about["last"]))
