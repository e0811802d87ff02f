"""What a solver says and does where its rule has nothing of its own to say."""

from __future__ import annotations

from typing import ClassVar

import torch

from murmurate.core.batches.dealer import Take
from murmurate.core.partition.structure import Held, Structure
from murmurate.errors import RemoteProtocolError
from murmurate_coordinator.solvers.effects import Effect
from murmurate_coordinator.solvers.protocol import Json, PushTotals


class UsualAnswers:
    """The part of `protocol.Solver` that most rules leave as it is."""

    mode: ClassVar[str] = "ist"
    rule: ClassVar[str]
    barrier: ClassVar[bool] = False
    follows_speed: ClassVar[bool] = True
    freed: ClassVar[str] = "its units are free"
    plan_wants_checkpoint: ClassVar[bool] = False
    structure: Structure
    weights: dict[str, torch.Tensor]
    totals: PushTotals

    # -- what comes in -----------------------------------------------------------------------------

    def away(self, peer: str, *, gone: bool = True) -> None:
        """Nobody hears of that member, who may come back or not; `gone` false: it is back."""
        del peer, gone  # most rules go on either way

    def vacate(self, peer: str) -> None:
        """Nobody came in the place of that member, who left."""
        del peer  # most rules keep no place

    def take(self, peer: str, take: Take, now: float) -> list[Effect]:
        """Only mode batches deals any."""
        del take, now
        raise RemoteProtocolError("work.take", f"from {peer}: rule {self.rule} deals no batches")

    def tick(self, now: float) -> list[Effect]:
        del now
        return []

    def close(self) -> bool:
        """What is out may be pushed when all are told to stop."""
        return True

    def at_rate(self, factor: float) -> None:
        """The members' optimizers make the steps, and follow a schedule by themselves."""
        del factor

    def kept(self, about: Json) -> None:
        del about  # nothing waits for that

    # -- what it holds -----------------------------------------------------------------------------

    @property
    def shared(self) -> frozenset[str]:
        """Tensors of which several members may hold the same coordinates."""
        return frozenset(self.structure.tensors)

    def reserved(self) -> Held:
        """Units that are kept together for a newcomer: nobody else takes them."""
        return self.structure.nothing()

    def coverage(self) -> dict[str, float]:
        """Of each tensor that can be split: the part that was ever trained."""
        tensors = self.structure.tensors.items()
        ever = float(self.totals.pushes > 0)  # whoever pushes has trained all of it
        return {name: ever for name, tensor in tensors if tensor.trained and tensor.split}

    def for_evaluation(self) -> dict[str, torch.Tensor]:
        """The weights as they are served."""
        return dict(self.weights)

    # -- what it says ------------------------------------------------------------------------------

    def more(self) -> Json:
        """Further keys of the report."""
        return {}

    def row(self) -> Json:
        return {}

    def told(self) -> str:
        it = self.totals
        return f"{it.samples:,} samples in {it.pushes:,} pushes, {it.plans:,} plans"

    def wrong(self) -> str:
        return ""

    @property
    def instead(self) -> str:
        """What to take in its place where it adds up everybody's steps; empty: it does not."""
        return ""

    @property
    def caution(self) -> str:
        """What several members should know before they train; empty: nothing."""
        return ""
