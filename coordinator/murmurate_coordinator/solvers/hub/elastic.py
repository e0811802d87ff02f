"""The elastic exchange of paper 003 (eqs 2 and 3), which its three rules have in common.

    d = alpha (w_j - w~); w_j -= d; w~ += d        both sides with the values before it

Members train on their own, with an optimizer of their own; now and then their weights and the
centre w~ draw near to each other. What leaves one arrives at the other, so w_j + w~ is conserved,
and their distance shrinks by 1 - 2 alpha. With P members keep P alpha at most 1: 0.9 / P, unless
the hub was told otherwise. The paper gives no alpha.

A newcomer, and one whose answer was lost, begins with the centre. Buffers are not trained: a member
keeps its own, the centre's follow them; of whole numbers it has the largest.
"""

from __future__ import annotations

from typing import Any

import torch

from murmurate_coordinator.solvers.effects import MemberPush
from murmurate_coordinator.solvers.hub.hub import HubSolver
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Json, Lease

TOGETHER = 0.9
"""P alpha, if nothing was said."""
BLOCK = 1 << 15
"""Numbers of a block: of 100 MB an exchange takes 4.4 copies of them in one, 1.7 in these."""


def exchange(member: torch.Tensor, centre: torch.Tensor, alpha: float) -> None:
    """One elastic exchange, in place; in blocks, so that the differences stay in the cache."""
    for mine, theirs in blocks(member, centre):
        difference = mine - theirs
        mine.sub_(difference, alpha=alpha)
        theirs.add_(difference, alpha=alpha)


def blocks(one: torch.Tensor, other: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Views of both, block by block."""
    if not (one.is_contiguous() and other.is_contiguous()):
        return [(one, other)]
    parts = (torch.split(each.view(-1), BLOCK) for each in (one, other))
    return list(zip(*parts, strict=True))


class ElasticHub(HubSolver):
    """Each push is answered with the member's own weights after the exchange."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._returns: dict[str, dict[str, torch.Tensor]] = {}
        """What members get for the exchanges that were just made."""
        self.exchanges = 0

    @property
    def alpha(self) -> float:
        """The part of the difference that moves."""
        return self.settings.alpha or TOGETHER / max(1, len(self.members))

    @property
    def caution(self) -> str:
        members = max(len(self.members), self._founders)
        alpha = self.settings.alpha
        if alpha is None or members * alpha <= 1:
            return ""
        return (
            f"alpha {alpha:g} with {members} members: together they move the centre by more than"
            f" all of the difference, which is not stable; at most {1 / members:.2g}"
            " (docs/hub.md)"
        )

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        self._exchange(lease.owner, dict(push.values))

    def _exchange(self, name: str, values: dict[str, torch.Tensor]) -> None:
        """With these weights of that member: they are changed in place."""
        alpha = self.alpha
        with torch.no_grad():
            for key in self._trained:
                exchange(values[key], self.weights[key], alpha)
            self._follow(values, alpha)
        self._returns[name] = values
        self.exchanges += 1
        self._updated()

    def _follow(self, values: dict[str, torch.Tensor], alpha: float) -> None:
        """The centre's buffers."""
        for key in self._counted:
            centre = self.weights[key]
            if centre.is_floating_point():
                centre.lerp_(values[key], alpha)
            else:
                torch.maximum(centre, values[key], out=centre)

    def _values(self, lease: Lease) -> dict[str, torch.Tensor]:
        mine = self._returns.pop(lease.owner, None)
        return mine if mine is not None else super()._values(lease)

    def more(self) -> Json:
        return super().more() | {"elastic": {"alpha": self.alpha, "exchanges": self.exchanges}}

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["exchanges"] = self.exchanges

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        self.exchanges = int(about["exchanges"])
