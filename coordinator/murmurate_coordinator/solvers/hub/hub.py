"""What the rules of a hub have in common: weights with a version, and who is answered when.

1. Weights and version are one: an update changes both (`_updated`), a member is given both together
   as one copy, and each push names the version it was computed on. So the staleness of every
   gradient is exact: versions now, less the version it names.
2. A version M is `plan` M + 1: numbers on the wire begin at 1.
3. Request-reply: a push ends the lease, and its answer is another one with the weights of now.
   Pipelined: one lease for as long as a member stays; whenever there is a new version, everybody is
   given it under that lease, and a push names whichever version it was computed on.
4. Whoever is there trains: a newcomer is given the weights of now, and nobody waits for one who is
   gone.

A rule says what a push does (`_fold`), when a batch of them is complete (`_close`), and, where a
member must wait for others, whether it may go on (`_goes_on`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from murmurate.core.partition.structure import Held
from murmurate.core.values.hub_settings import HubSettings
from murmurate.core.values.member_half import (
    HUB_RULES,
    PIPELINED,
    REQUEST_REPLY,
    Up,
    can_pipeline,
    pipelined,
)
from murmurate.errors import ConfigError, PromiseBroken
from murmurate_coordinator.solvers.effects import Effect, GiveLease, MemberPush, Reason, Refused
from murmurate_coordinator.solvers.hub.books import Books
from murmurate_coordinator.solvers.leases import LeasedSolver, Values
from murmurate_coordinator.solvers.protocol import Capacity, Json, Lease
from murmurate_coordinator.solvers.subnets.plan import check_memory

IN_TURN = {
    True: "take rule sync, or k-of-n with K = n, with which one member's rate suits all",
    False: "take rule fedavg-async, or fedbuff with K = n, with which one member's rate suits all",
}
"""By whether the hub decides what a step does: what does not add up everybody's steps."""


class HubSolver(LeasedSolver):
    """Weights with a version, and members that hold all of them."""

    mode = "hub"
    follows_speed = False
    freed = "what it pushed stays"
    at_once = True
    """Every push is answered when it comes: then the conservation law of paper 004 holds."""

    def __init__(self, *args: Any, settings: HubSettings | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.settings = settings or HubSettings()
        half = HUB_RULES[self.rule]
        if self.settings.protocol == PIPELINED:
            if not can_pipeline(self.rule):
                raise ConfigError(f"protocol pipelined: rule {self.rule} has request-reply only")
            half = pipelined(half)
        self.half = half
        self.books = Books()
        self._rate = 1.0
        """What the learning rate is multiplied by now."""
        self._told = 0
        """The newest version that was given to everybody (pipelined)."""
        self._copy: dict[str, torch.Tensor] | None = None
        """Of the weights, while several members are given the same."""
        self._trained = [n for n, t in self.structure.tensors.items() if t.trained]
        self._counted = [n for n, t in self.structure.tensors.items() if not t.trained]

    # -- what a rule says --------------------------------------------------------------------------

    def _close(self) -> None:
        """After every push, and when somebody left: make an update if one is due."""

    def _goes_on(self, lease: Lease) -> bool:
        """Whether one that has pushed is given weights now."""
        del lease
        return True

    def _adds_up(self) -> str:
        """What it does by which members move the weights further the more of them there are; empty:
        they do not."""
        return ""

    @property
    def instead(self) -> str:
        return IN_TURN[self.half.central] if self._adds_up() else ""

    @property
    def caution(self) -> str:
        adds = self._adds_up()
        if not adds:
            return ""
        times = "n / K" if self.settings.gradients > 1 else "n"
        return (
            f"rule '{self.rule}' {adds}: n members move the weights {times} times as far as one"
            " does, by what is up to n updates old, so the learning rate must be right for that:"
            f" divide it by {times}, or {self.instead} (docs/hub.md)"
        )

    # -- the version -------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """M: updates of the weights so far."""
        return max(0, self.plan - 1)

    def _updated(self) -> None:
        """The weights have changed: another version."""
        self._renumber(same=True)

    def _staleness(self, lease: Lease, push: MemberPush) -> int:
        self.books.pushed(lease.owner, self.version, push.plan - 1)
        lease.base = push.plan
        return self.plan - push.plan

    def _problem(self, push: MemberPush) -> Refused | None:
        refusal = super()._problem(push)
        if refusal is not None:
            return refusal
        lease = self.leases[push.lease]
        least = lease.base if self.half.stays else lease.plan
        if not least <= push.plan <= lease.plan:
            said = f"version {push.plan - 1}: this lease was given version {lease.plan - 1}"
            return self.refuse(push.peer, Reason.FUTURE, said)
        if self.half.up is not Up.WEIGHTS and push.steps < 1:
            return self.refuse(push.peer, Reason.SHAPES, f"a {self.half.up} of no step")
        return None

    # -- coming, going, pushing --------------------------------------------------------------------

    def check_room(self, members: Mapping[str, Capacity]) -> None:
        """ConfigError unless each can hold the whole model."""
        for name, capacity in members.items():
            check_memory(self.structure, self.structure.everything(), name, capacity)

    def _shares(self) -> Mapping[str, Held]:
        return {name: self.structure.everything() for name in self.members}

    def _start(self) -> Iterator[Effect]:
        """The first of them are all here."""
        if not self.members or (not self.plan and len(self.members) < self._founders):
            return
        if not self.plan:
            self._renumber()  # version 0
            self._told = self.plan
        yield from self._joined("")

    def _joined(self, peer: str) -> Iterator[Effect]:
        """Whoever waits for its first weights gets them."""
        del peer
        waiting, self._waiting = self._waiting, []
        for name in waiting:
            lease = self._grant(name, self.structure.everything())
            self.books.came(name, self.version)
            yield self._give(lease)

    def _left(self, lease: Lease | None) -> Iterator[Effect]:
        del lease
        yield from self._answers()

    def _pushed(self, lease: Lease) -> Iterator[Effect]:
        lease.done = not self.half.pipelined
        yield from self._answers()

    def _answers(self) -> Iterator[Effect]:
        """What follows for all of them."""
        self._close()
        try:
            if self.half.pipelined:
                if self._told != self.plan:
                    self._told = self.plan
                    for lease in self.leases.values():
                        yield self._give(lease)
            else:
                for lease in [one for one in self.leases.values() if one.done]:
                    if self._goes_on(lease):
                        yield self._give(self._renewed(lease))
        finally:
            self._copy = None

    def _renewed(self, old: Lease) -> Lease:
        """The next lease of the same member."""
        del self.leases[old.number]
        self.books.answered(old.owner, self.version)
        return self._grant(old.owner, old.held)

    def _give(self, lease: Lease) -> GiveLease:
        give = super()._give(lease)
        if not lease.base:
            lease.base = self.plan
        return give

    def _values(self, lease: Lease) -> dict[str, torch.Tensor]:
        if self._copy is None:
            self._copy = {name: value.clone() for name, value in self.weights.items()}
        return self._copy

    def again(self, peer: str) -> list[Effect]:
        effects = super().again(peer)
        self._copy = None
        return effects

    def join(self, peer: str, capacity: Capacity | None = None) -> list[Effect]:
        effects = super().join(peer, capacity)
        self._copy = None
        return effects

    # -- the books ---------------------------------------------------------------------------------

    def _ended(self, lease: Lease) -> None:
        self.books.left(lease.owner, self.version)

    def _replaced(self, old: Lease, new: Lease) -> None:
        self.books.lost(old.owner, self.version)

    def check(self) -> None:
        super().check()
        if not self.half.stays:
            wrong = self.books.wrong(self.version, at_once=self.at_once)
            if wrong:
                raise PromiseBroken("staleness is conserved", wrong)

    def more(self) -> Json:
        """What else is told of it."""
        return {
            "protocol": PIPELINED if self.half.pipelined else REQUEST_REPLY,
            "version": self.version,
            "conservation": self.books.told(self.version),
        }

    # -- gradients ---------------------------------------------------------------------------------

    def _step(self, gradient: Values, scale: float) -> None:
        """w -= lr · (scale · gradient + weight decay · w); lr follows the schedule."""
        if decay := self.settings.weight_decay:
            for name in self._trained:
                self.weights[name].mul_(1 - self._lr * decay)
        self._add(gradient, -self._lr * scale)

    @property
    def _lr(self) -> float:
        """The rate of now."""
        return self.settings.lr * self._rate

    def at_rate(self, factor: float) -> None:
        self._rate = factor

    def _add(self, change: Values, scale: float) -> None:
        """w += scale · change. Buffers are counted, not trained: of those that are numbers the
        changes of all members are averaged, whole numbers are added."""
        with torch.no_grad():
            for name in self._trained:
                self.weights[name].add_(change[name], alpha=scale)
            part = 1.0 / max(1, len(self.members))
            for name in self._counted:
                if self.weights[name].is_floating_point():
                    self.weights[name].add_(change[name], alpha=part)
                else:
                    self.weights[name].add_(change[name])

    # -- over a restart ----------------------------------------------------------------------------

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        about["bases"] = [lease.base for lease in self.leases.values()]
        about["told"] = self._told
        about["rate"] = self._rate
        about["books"] = self.books.memory()
        about["protocol"] = self.settings.protocol

    def _load(self, tensors: Values, about: Json) -> None:
        if about["protocol"] != self.settings.protocol:
            raise ValueError(
                f"of protocol {about['protocol']}, this hub has {self.settings.protocol}"
            )
        super()._load(tensors, about)
        for lease, base in zip(self.leases.values(), about["bases"], strict=True):
            lease.base = int(base)
        self._told = int(about["told"])
        self._rate = float(about.get("rate", 1.0))
        self.books.remember(about["books"])
