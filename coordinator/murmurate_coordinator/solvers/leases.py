"""What all solvers have in common: members, leases with versions, what is refused and counted.

1. The weights change only by a push that was accepted, and then by all of it or nothing.
2. A lease has an owner and a version, the number of its pushes that were accepted. The next push
   must have the next version. A lease that ended is never valid again: a late push changes nothing.
3. What a member that left or died has pushed stays.

A rule says what is left open: who gets what at a plan (`_shares`), what a push does to the weights
(`_fold`), and what follows when a member came, went or pushed (`_joined`, `_left`, `_pushed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from murmurate.core.partition.structure import Held, Structure
from murmurate.core.partition.subnet import part_of
from murmurate.core.values.member_half import MemberHalf, PushPace
from murmurate.errors import ConfigError, PromiseBroken
from murmurate_coordinator.solvers.effects import (
    Effect,
    GiveLease,
    MemberPush,
    PushAccepted,
    Reason,
    Refused,
    Waits,
)
from murmurate_coordinator.solvers.protocol import (
    FREE,
    LIFE,
    Capacity,
    Json,
    Lease,
    PushTotals,
    SolverState,
)
from murmurate_coordinator.solvers.usual import UsualAnswers

NORM_MAX = 1e15
SAMPLES_MAX = 1 << 24
"""In one step; more is a claim, not a batch."""
Values = Mapping[str, torch.Tensor]


class LeasedSolver(UsualAnswers, ABC):
    """Members and their leases on the weights, under a rule. No time, no threads, no network."""

    half: MemberHalf

    def __init__(
        self,
        structure: Structure,
        weights: Values,
        rng: np.random.Generator,
        *,
        steps: int = 10,
        founders: int = 1,
        first_lease: int = 1,
    ) -> None:
        """`founders`: the first plan is made when so many are there. `first_lease`: its number; no
        two lives of a coordinator may give the same ones."""
        if steps < 1:
            raise ConfigError(f"steps {steps}: must be at least 1")
        self.structure = structure
        self.weights = {name: value.detach().clone() for name, value in weights.items()}
        self.steps = steps
        self.plan = 0
        self.totals = PushTotals()
        self.members: dict[str, Capacity] = {}
        self.leases: dict[int, Lease] = {}
        self._founders = founders
        self._rng = rng
        self._next = first_lease
        self._waiting: list[str] = []
        """Members that were given nothing yet, in the order in which they came."""
        self._changed = True
        """Who should have what has changed since the plan was made."""

    # -- what a rule says --------------------------------------------------------------------------

    @abstractmethod
    def check_room(self, members: Mapping[str, Capacity]) -> None:
        """ConfigError unless there is something to train for each of so many."""

    @abstractmethod
    def _shares(self) -> Mapping[str, Held]:
        """Of a new plan: who holds which units. FREE is nobody."""

    @abstractmethod
    def _fold(self, lease: Lease, push: MemberPush) -> None:
        """A push that was accepted changes the weights; the lease still has its old version."""

    @abstractmethod
    def _joined(self, peer: str) -> Iterable[Effect]:
        """There is a newcomer, and others have leases."""

    @abstractmethod
    def _left(self, lease: Lease | None) -> Iterable[Effect]:
        """A member is gone; `lease`, if it had one, is over."""

    @abstractmethod
    def _pushed(self, lease: Lease) -> Iterable[Effect]:
        """A push was folded in."""

    def _staleness(self, lease: Lease, push: MemberPush) -> int | None:
        """How old what a push was computed on is, counted before it is folded in; None: whoever
        asks counts the pushes of others."""
        del lease, push
        return None

    def _values(self, lease: Lease) -> dict[str, torch.Tensor]:
        """What its owner is given, as copies."""
        return part_of(self.weights, self.structure, lease.held)

    def _ended(self, lease: Lease) -> None:
        """A lease is over because its owner is gone."""
        del lease  # nothing is kept of it

    def _replaced(self, old: Lease, new: Lease) -> None:
        """A lease is over because its owner got the same units again under another one."""
        del old, new

    def _renumbered(self, *, same: bool) -> None:
        """There is a new plan; `same`: of the units as they were."""
        del same

    def _members_changed(self) -> None:
        self._changed = True

    def _speeds_changed(self) -> None:
        self._changed = True

    # -- what comes in -----------------------------------------------------------------------------

    def join(self, peer: str, capacity: Capacity | None = None) -> list[Effect]:
        if not peer:
            return [self.refuse(peer, Reason.EXISTS, "a member needs a name")]
        if peer in self.members:
            return [self.refuse(peer, Reason.EXISTS, f"{peer} is a member already")]
        capacity = capacity or Capacity()
        try:
            self.check_room({**self.members, peer: capacity})
        except ConfigError as error:
            return [self.refuse(peer, Reason.FULL, str(error))]
        self.members[peer] = capacity
        self._waiting.append(peer)
        self._members_changed()
        if len(self.members) < self._founders and not self.plan:
            return [Waits(peer, f"{len(self.members)} of {self._founders} are here")]
        return list(self._joined(peer) if self.leases else self._start())

    def leave(self, peer: str) -> list[Effect]:
        """It left or died: what it pushed stays, its lease ends."""
        if peer not in self.members:
            return []
        del self.members[peer]
        self._members_changed()
        self.away(peer, gone=False)
        if peer in self._waiting:
            self._waiting.remove(peer)
        lease = self.lease_of(peer)
        if lease is not None:
            del self.leases[lease.number]
            self._ended(lease)
        return list(self._left(lease))

    def again(self, peer: str) -> list[Effect]:
        """What it was given is lost, or was spoilt: the same units, with the weights of now, under
        another lease: each that is given has a number of its own."""
        old = self.lease_of(peer)
        if old is None or old.done:
            return []
        new = self._grant(peer, old.held)
        numbers = [new.number if n == old.number else n for n in self.leases if n != new.number]
        self.leases = {number: self.leases[number] for number in numbers}  # in its place
        self._replaced(old, new)
        return [self._give(new)]

    def measured(self, peer: str, speed: float) -> None:
        """How fast a member is: what it has follows, at the next plan or push."""
        if peer in self.members:
            self.members[peer] = replace(self.members[peer], speed=speed)
            self._speeds_changed()

    def admits(self, peer: str, plan: int, number: int, version: int) -> Refused | None:
        """Whether such a push would be looked at: asked before its values are taken in."""
        lease = self.leases.get(number)
        if number >= self._next:
            return self.refuse(peer, Reason.FUTURE, f"lease {number}: the next one is {self._next}")
        if plan > self.plan:
            return self.refuse(peer, Reason.FUTURE, f"plan {plan}: this is plan {self.plan}")
        if lease is None:
            return self.refuse(peer, Reason.OVER, f"lease {number} is over, it changes nothing")
        if lease.owner != peer:
            return self.refuse(peer, Reason.NOT_LEASED, f"lease {number} is {lease.owner}'s")
        if version > lease.version + 1:
            expected = f"version {version}: the next one is {lease.version + 1}"
            return self.refuse(peer, Reason.FUTURE, expected)
        if version <= lease.version or lease.done:
            return self.refuse(peer, Reason.DUPLICATE, f"version {version} is in already")
        return None

    def push(self, push: MemberPush) -> list[Effect]:
        """Fold it in, whole or not at all."""
        refusal = self._problem(push)
        if refusal is not None:
            return [refusal]
        lease = self.leases[push.lease]
        staleness = self._staleness(lease, push)
        self._fold(lease, push)
        lease.version += 1
        lease.steps += push.steps
        lease.samples += push.samples
        self.totals.pushes += 1
        self.totals.steps += push.steps
        self.totals.samples += push.samples
        taken = PushAccepted(push.peer, lease.number, lease.version, staleness)
        return [taken, *self._pushed(lease)]

    def refuse(self, peer: str, reason: Reason, sentence: str) -> Refused:
        """Nothing is changed, and it is counted."""
        self.totals.refused[reason] += 1
        return Refused(peer, reason, sentence)

    def _problem(self, push: MemberPush) -> Refused | None:
        refusal = self.admits(push.peer, push.plan, push.lease, push.version)
        if refusal is not None:
            return refusal
        lease = self.leases[push.lease]
        if push.steps < 0 or push.samples < 0:
            return self.refuse(push.peer, Reason.SHAPES, "a negative number of steps or samples")
        if push.samples > SAMPLES_MAX * max(1, push.steps):
            said = f"{push.samples} samples in {push.steps} steps: at most {SAMPLES_MAX} in one"
            return self.refuse(push.peer, Reason.SAMPLES, said)
        if push.values.keys() != self.structure.tensors.keys():
            odd = sorted(push.values.keys() ^ self.structure.tensors.keys())
            return self.refuse(push.peer, Reason.SHAPES, f"missing or unknown tensors: {odd[:3]}")
        for name, value in push.values.items():
            shape = self.structure.tensors[name].part(lease.held)
            if tuple(value.shape) != shape or value.dtype != self.weights[name].dtype:
                said = f"{name}: {value.dtype}{list(value.shape)}, expected {list(shape)}"
                return self.refuse(push.peer, Reason.SHAPES, said)
        for name, value in push.values.items():
            if value.is_floating_point():
                norm = float(torch.linalg.vector_norm(value))
                still = not self.structure.tensors[name].trained and name in lease.last
                if still and torch.equal(value, lease.last[name]):
                    continue  # a mask may hold infinities
                if not norm <= NORM_MAX:
                    return self.refuse(push.peer, Reason.NOT_FINITE, f"{name}: its norm is {norm}")
        return None

    # -- what it holds -----------------------------------------------------------------------------

    def lease_of(self, peer: str) -> Lease | None:
        return next((one for one in self.leases.values() if one.owner == peer), None)

    def check(self) -> None:
        """PromiseBroken unless each lease is a member's, and no member has two."""
        owners = [lease.owner for lease in self.leases.values()]
        if len(set(owners)) != len(owners) or not set(owners) <= set(self.members):
            raise PromiseBroken("leases", f"owners {owners}, members {sorted(self.members)}")

    # -- leases ------------------------------------------------------------------------------------

    def _start(self) -> Iterator[Effect]:
        """A new plan, everybody in it."""
        if not self.members or (not self.plan and len(self.members) < self._founders):
            return
        shares = self._shares()
        self.leases.clear()
        self._waiting.clear()
        self._changed = False
        for owner, held in shares.items():
            if owner != FREE:
                self._grant(owner, held)
        self._renumber()
        for lease in self.leases.values():
            yield self._give(lease)

    def _grant(self, owner: str, held: Held) -> Lease:
        lease = Lease(self._next, owner, self.plan, held, {})
        self._next += 1
        self.leases[lease.number] = lease
        return lease

    def _give(self, lease: Lease) -> GiveLease:
        lease.plan = self.plan
        values = self._values(lease)
        steps = self.steps if self.half.every is PushPace.AFTER_STEPS else None
        return GiveLease(
            lease.owner, self.plan, lease.number, lease.version, lease.held, values, steps
        )

    def _renumber(self, *, same: bool = False) -> None:
        """Who holds what has changed: another plan."""
        self.plan += 1
        self.totals.plans += 1
        self._renumbered(same=same)

    # -- over a restart ----------------------------------------------------------------------------

    def state(self) -> SolverState:
        tensors: dict[str, torch.Tensor] = {}
        about: Json = {}
        self._save(tensors, about)
        return SolverState(tensors, about)

    def begin_life(self) -> None:
        """After a restart: leases from now on have numbers that no earlier life gave."""
        self._next = (self._next // LIFE + 1) * LIFE + 1

    def restore(self, state: SolverState) -> None:
        self._load(state.tensors, state.about)
        self.check()

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        """A rule that has more to remember adds it; names of tensors are its own."""
        leases, totals = list(self.leases.values()), self.totals
        tensors["held"] = self._bits([lease.held for lease in leases])
        for lease in leases:
            for name, value in lease.last.items():
                tensors[f"last/{lease.number}/{name}"] = value.clone()
        about |= {
            "plan": self.plan,
            "next": self._next,
            "waiting": list(self._waiting),
            "changed": self._changed,
            "members": {n: [c.speed, c.memory_bytes] for n, c in self.members.items()},
            "leases": [
                [one.number, one.owner, one.plan, one.version, one.steps, one.samples, one.done]
                for one in leases
            ],
            "totals": {
                "plans": totals.plans,
                "pushes": totals.pushes,
                "steps": totals.steps,
                "samples": totals.samples,
                "refused": dict(totals.refused),
            },
            "rng": self._rng.bit_generator.state,
        }

    def _load(self, tensors: Values, about: Json) -> None:
        self._rng.bit_generator.state = about["rng"]
        self.plan = int(about["plan"])
        self.members.update(
            {name: Capacity(speed=s, memory_bytes=m) for name, (s, m) in about["members"].items()}
        )
        held = tensors["held"].numpy()
        for row, (number, owner, plan, version, n, samples, done) in enumerate(about["leases"]):
            prefix = f"last/{number}/"
            last = {
                k.removeprefix(prefix): v.clone()
                for k, v in tensors.items()
                if k.startswith(prefix)
            }
            self.leases[number] = Lease(
                number, owner, plan, held[row].copy(), last, version, n, samples, done
            )
        totals: Json = about["totals"]
        self.totals = PushTotals(**{**totals, "refused": Counter(totals["refused"])})
        self._waiting = [str(name) for name in about["waiting"]]
        self._changed = bool(about["changed"])

    def _bits(self, held: Sequence[Held]) -> torch.Tensor:
        """A row for each share, a bit for each unit."""
        rows = np.array(held, dtype=np.bool_).reshape(len(held), self.structure.units + 1)
        return torch.from_numpy(rows)
