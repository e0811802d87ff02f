"""A member of a coordinator in virtual time: what it trains, and how far it is with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from murmurate.core.figures.training_loss import TrainingLoss
from murmurate.core.values.member_half import Down, MemberHalf
from murmurate.study.virtual.task import Figures
from murmurate.training.member_values import MemberValues
from murmurate.training.recipes import RateSchedule
from murmurate_coordinator.solvers.effects import GiveLease


class VirtualMember:
    """One member: a subnet, its optimizer and its data."""

    def __init__(
        self,
        name: str,
        step_s: float,
        batches: Iterator[tuple[torch.Tensor, ...]],
        values: MemberValues,
    ) -> None:
        self.name = name
        self.step_s = step_s
        self.batches = batches
        self.values = values
        self.subnet: nn.Module | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.rates: RateSchedule | None = None
        self.job: GiveLease | None = None
        self.left: int | None = None
        """Steps until its push; None: as it likes."""
        self.version = 0
        self.new_steps = 0
        self.put = 0
        """Pushes under this lease, answered or not."""
        self.gift: GiveLease | None = None
        """Newer weights that have come during a step (pipelined)."""
        self.on_its_way = False
        self.next_push = 0.0
        self.leaving = False
        self.gone = False
        self.steps = 0
        self.life = 0
        """Steps that were begun for an earlier job are not finished."""
        self.figures = Figures(name, role="member")
        self.loss = TrainingLoss()
        self.seen = 0
        """Pushes of all when it got its values, or pushed last."""
        self.waits_since: float | None = None


def both_of(waiting: GiveLease | None, give: GiveLease, half: MemberHalf) -> GiveLease:
    """What a member takes at the end of its step: the newer; of what is added, both."""
    if waiting is None or waiting.lease != give.lease or half.down is not Down.ADD:
        return give
    sums = {name: waiting.values[name] + value for name, value in give.values.items()}
    return replace(give, values=sums)
