"""What the rules for subnets share: plans, who holds which units, and moving them.

    rule     partition           a member trains            when a push comes
    sync     new after all       J steps, then it waits     folded in; all in: repartition
    once     kept                J steps, then it waits     folded in; all in: the next J steps
    async    kept (001)          without end, no pull       folded in, nothing goes back
    lease    a spare share more  J steps                    mixed with the spare and redrawn

Rules for all of them, besides those of `leases`:
1. A unit that is dealt is with one lease, or free; never lost, never with two.
2. The units of a member that left or died are free at once; others get them at the next plan (sync)
   or when they push (lease). Where one partition is kept (once, async) they stay together for a
   newcomer, until `vacate` says that none came.
3. A newcomer gets units at once if some are free, else when another member's push makes some free
   (async, lease), or at the next plan (sync, once).
4. Members differ in weight: shares are moved towards what each should have, a little at each push;
   with one partition only if somebody has less than half of that, or speeds were measured.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from murmurate.core.partition.cover import check_identity, write
from murmurate.core.partition.structure import Held, Indices
from murmurate.errors import PromiseBroken
from murmurate_coordinator.solvers.assembling import AssemblingSolver
from murmurate_coordinator.solvers.effects import Effect, MemberPush, Waits
from murmurate_coordinator.solvers.leases import Values
from murmurate_coordinator.solvers.protocol import Capacity, Json, Lease
from murmurate_coordinator.solvers.subnets.plan import make_plan, targets


class SubnetSolver(AssemblingSolver):
    """Each member holds units of its own; which, a plan says."""

    spare: ClassVar[bool] = False
    """Whether a plan has one share more, which is nobody's."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.trained = {
            name: torch.zeros(t.shape, dtype=torch.bool)
            for name, t in self.structure.tensors.items()
            if t.trained and t.split
        }
        """Which coordinates were ever in a push: the others are still random."""
        self._coverage: dict[str, float] | None = None
        """Counted when somebody asks, and kept until it changes: that takes a while."""
        self._dealt: tuple[int, ...] = ()
        """The groups whose units are dealt; of the others everybody holds all."""

    # -- plans -------------------------------------------------------------------------------------

    def check_room(self, members: Mapping[str, Capacity]) -> None:
        """ConfigError unless there is a plan for so many."""
        make_plan(0, self.structure, members, np.random.default_rng(0), spare=self.spare)

    def _shares(self) -> Mapping[str, Held]:
        number = self.plan + 1
        drawn = make_plan(number, self.structure, self.members, self._rng, spare=self.spare).shares
        self._dealt = tuple(
            g
            for g, group in enumerate(self.structure.groups)
            if any(not held[list(group.units)].all() for held in drawn.values()) or len(drawn) == 1
        )
        self._shared = self._shared_names()
        return drawn

    def _in_dealt(self) -> Held:
        dealt = self.structure.nothing()
        for g in self._dealt:
            dealt[list(self.structure.groups[g].units)] = True
        return dealt

    def _shared_names(self) -> frozenset[str]:
        """Tensors with no axis that is dealt from end to end: several members hold parts."""
        dealt = self._in_dealt()
        return frozenset(
            name
            for name, tensor in self.structure.tensors.items()
            if not any(u is not None and u.min() >= 0 and dealt[u].all() for u in tensor.axes)
        )

    def _free(self) -> Held:
        """Units with nobody."""
        free = self.structure.everything()
        for lease in self.leases.values():
            free &= ~lease.held
        for g, group in enumerate(self.structure.groups):
            if g not in self._dealt:
                free[group.first : group.first + group.count] = False
        return free

    def _wanted(self) -> dict[str, list[int]]:
        """How many units of each dealt group a member should have."""
        return targets(self.structure, self._dealt, self.members, spare=self.spare)

    def _width(self, g: int, held: Held) -> int:
        return self.structure.width(self.structure.groups[g], held)

    def _units(self, g: int) -> Indices:
        units = self.structure.groups[g].units
        return np.arange(units.start, units.stop)

    # -- what is trained ---------------------------------------------------------------------------

    def _fold(self, lease: Lease, push: MemberPush) -> None:
        super()._fold(lease, push)
        if not lease.version:
            self._mark(lease.held)

    def _mark(self, held: Held) -> None:
        self._coverage = None
        for name, mask in self.trained.items():
            kept = self.structure.tensors[name].kept(held)
            write(mask, kept, torch.ones(self.structure.tensors[name].part(held), dtype=torch.bool))

    def coverage(self) -> dict[str, float]:
        """Of each tensor that is split: the part that was ever trained."""
        if self._coverage is None:
            self._coverage = {
                name: int(mask.count_nonzero()) / max(1, mask.numel())
                for name, mask in self.trained.items()
            }
        return dict(self._coverage)

    def for_evaluation(self) -> dict[str, torch.Tensor]:
        """The full weights with zeros where nobody ever trained (+0.7 to +2.2 points, F6)."""
        out = dict(self.weights)
        for name in self.trained:
            used = self._used(name)
            if not bool(used.all()):
                out[name] = torch.where(used, self.weights[name], 0.0)
        return out

    def _used(self, name: str) -> torch.Tensor:
        """Which coordinates of a tensor count in evaluation."""
        return self.trained[name]

    def check(self) -> None:
        """PromiseBroken unless every dealt unit is with one lease or free, and Σ E_k = I."""
        super().check()
        shares = [lease.held for lease in self.leases.values()]
        if not shares:
            return
        free = self._free()
        held = [*shares, free] if free[:-1].any() else shares
        for g, group in enumerate(self.structure.groups):
            rows = np.array([h[group.first : group.first + group.count] for h in held])
            if g in self._dealt and (rows.sum(axis=0) != 1).any():
                raise PromiseBroken("sum E_k = I", f"a unit of {group.name} is lost or owned twice")
        if self.barrier and len(shares) == len(held) == len(self._order):
            check_identity(self.structure, shares)

    # -- over a restart ----------------------------------------------------------------------------

    def _save(self, tensors: dict[str, torch.Tensor], about: Json) -> None:
        super()._save(tensors, about)
        tensors |= {f"trained/{name}": mask.clone() for name, mask in self.trained.items()}
        about["dealt"] = list(self._dealt)

    def _load(self, tensors: Values, about: Json) -> None:
        super()._load(tensors, about)
        for name, mask in self.trained.items():
            mask.copy_(tensors[f"trained/{name}"])
        self._dealt = tuple(about["dealt"])
        self._shared = self._shared_names()


class MovingSubnets(SubnetSolver):
    """Without a barrier: units move when their owner pushes, and nobody waits for anybody."""

    def check_room(self, members: Mapping[str, Capacity]) -> None:
        super().check_room(members)
        if self._dealt:
            targets(self.structure, self._dealt, members, spare=self.spare)

    @abstractmethod
    def _redrawn(
        self, lease: Lease, at: int, wanted: Mapping[str, list[int]], mine: Indices, pool: Indices
    ) -> Indices:
        """What its owner has after a push, of the dealt group at this place: out of the units it
        has and those that are free."""

    def _some(self, units: Indices, size: int, beside: Held) -> Indices:
        """So many of these, at random; `beside`: the units they will be or were with."""
        del beside
        return self._rng.permutation(units)[:size]

    def _joined(self, peer: str) -> Iterator[Effect]:
        yield from self._serve()
        if peer in self._waiting:
            yield Waits(peer, "no unit is free: at another member's next push")

    def _left(self, lease: Lease | None) -> Iterator[Effect]:
        if lease is not None:
            self._renumber()
        yield from self._serve() if self.leases else self._start()

    def _pushed(self, lease: Lease) -> Iterator[Effect]:
        """It gives up what is too much and takes what is free."""
        wanted = self._wanted()
        free = self._free() & ~self.reserved()
        held = lease.held.copy()
        for at, g in enumerate(self._dealt):
            units = self._units(g)
            mine = units[held[units]]
            new = self._redrawn(lease, at, wanted, mine, units[free[units]])
            held[mine] = False
            held[new] = True
        if np.array_equal(held, lease.held) and not self.half.waits:
            return
        del self.leases[lease.number]
        new_lease = self._grant(lease.owner, held)
        self._renumber()
        yield self._give(new_lease)
        yield from self._serve()

    def _serve(self) -> Iterator[Effect]:
        """Free units to those who wait, while there are enough of every axis.

        Half of what it should have, as long as others have too many: one that begins with a unit or
        two has its sums multiplied by sqrt(H / 1) and throws away what these units had learnt.
        """
        for peer in list(self._waiting):
            free, held = self._free(), self.structure.everything()
            for size, g in zip(self._wanted()[peer], self._dealt, strict=True):
                units = self._units(g)
                pool = units[free[units]]
                if not len(pool) or (len(pool) < size // 2 and self._somebody_has_more(g)):
                    return
                held[units] = False
                held[self._some(pool, size, free)] = True
            self._moved_in(held)
            self._waiting.remove(peer)
            lease = self._grant(peer, held)
            self._renumber()
            yield self._give(lease)

    def _moved_in(self, held: Held) -> None:
        """A newcomer gets these units."""

    def _somebody_has_more(self, g: int) -> bool:
        """Whether a member has more of this group than it should: its next push frees some."""
        wanted, at = self._wanted(), self._dealt.index(g)
        return any(self._width(g, one.held) > wanted[one.owner][at] for one in self.leases.values())
