"""`ea-wild`: elastic averaging without a lock (paper 003).

    d = alpha (w_j - w~); w~ += d at the hub, and when it arrives w_j -= d at the member

A member does not wait for its exchange: it trains on, and its half of the difference is subtracted
from weights that have moved meanwhile. Nobody has a turn. In the paper's shared memory two writers
may also lose an addition of each other; here one thread writes the centre, so of its half nothing
is lost. What can be lost is the member's half: its stream broke while the difference was on its
way, and it trains on without it. These are counted: the lost share of all exchanges is in the
report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from murmurate_coordinator.solvers.effects import Effect, MemberPush
from murmurate_coordinator.solvers.hub.elastic import ElasticHub, blocks
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease


class EaWild(ElasticHub):
    """One lease for as long as a member stays; differences come under it."""

    rule = "ea-wild"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lost = 0
        """Exchanges of which the member's half was never made, by members that trained on."""
        self._open: dict[str, list[int]] = {}
        """Of each member: the plans of differences that it has not named in a push yet."""
        self._broke: dict[str, int] = {}
        """Of members whose stream broke: the newest of these plans at that time."""

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        self._seen(lease.owner, push.plan)
        super()._fold(lease, push)
        self._open.setdefault(lease.owner, []).append(self.plan)

    def _exchange(self, name: str, values: dict[str, torch.Tensor]) -> None:
        """The same, but that the member gets the difference and not the sum."""
        alpha = self.alpha
        with torch.no_grad():
            for key in self._trained:
                for mine, theirs in blocks(values[key], self.weights[key]):
                    theirs.add_(mine.sub_(theirs).mul_(alpha))
                    mine.neg_()
            self._follow(values, alpha)
            for key in self._counted:
                values[key] = torch.zeros_like(values[key])
        self._returns[name] = values
        self.exchanges += 1
        self._updated()

    def _pushed(self, lease: Lease) -> Iterator[Effect]:
        self.books.answered(lease.owner, self.version)
        yield self._give(lease)

    # -- what is lost ------------------------------------------------------------------------------

    def _seen(self, name: str, plan: int) -> None:
        """It pushes, having subtracted all up to this plan. What it has not, and was sent before
        its stream broke, it will never have."""
        late = [one for one in self._open.get(name, []) if one > plan]
        broke = self._broke.pop(name, 0)
        self._open[name] = [one for one in late if one > broke]
        self.lost += len(late) - len(self._open[name])

    def away(self, peer: str, *, gone: bool = True) -> None:
        super().away(peer, gone=gone)
        if gone and self._open.get(peer):
            self._broke[peer] = self._open[peer][-1]

    def _ended(self, lease: Lease) -> None:
        super()._ended(lease)
        self._drop(lease.owner)

    def _replaced(self, old: Lease, new: Lease) -> None:
        super()._replaced(old, new)
        self._drop(old.owner)

    def _drop(self, name: str) -> None:
        """It is gone, or begins with the centre: nobody lacks its half."""
        self._open.pop(name, None)
        self._broke.pop(name, None)

    def more(self) -> Json:
        told = super().more()
        told["elastic"] |= {"lost": self.lost, "lost_share": self.lost / max(1, self.exchanges)}
        return told

    # -- over a restart ----------------------------------------------------------------------------

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["lost"] = self.lost
        about["open"] = {name: list(plans) for name, plans in self._open.items()}

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self.lost = int(about["lost"])
        self._open = {str(name): list(plans) for name, plans in about["open"].items()}
        self._broke = {name: plans[-1] for name, plans in self._open.items() if plans}
