"""Leases on subnets, as one pure state machine: what comes in is a call, what goes out are effects.

    rule     partition           a member trains            when a push comes
    sync     new after all       J steps, then it waits     folded in; all in: repartition
    once     kept                J steps, then it waits     folded in; all in: the next J steps
    async    kept (001)          without end, no pull       folded in, nothing goes back
    lease    a spare share more  J steps                    mixed with the spare and redrawn
    fedavg   everybody has all   J steps, then it waits     averaged

Rules for all of them:
1. The full weights change only by a push that was accepted, and then by all of it or nothing.
2. A unit that is dealt is with one lease, or free; never lost, never with two.
3. A lease has an owner and a version, the number of its pushes that were accepted. The next push
   must have the next version. A lease that ended is never valid again: a late push changes nothing.
4. What a member that left or died has pushed stays. Its units are free at once; others get them at
   the next plan (sync) or when they push (lease). Where one partition is kept (once, async) they
   stay together for a newcomer, until `vacate` says that none came.
5. A newcomer gets units at once if some are free, else when another member's push makes some free
   (async, lease), or at the next plan (sync, once, fedavg).
6. Members differ in weight: shares are moved towards what each should have, a little at each push;
   with one partition only if somebody has less than half of that, or speeds were measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from murmurate.core.partition.cover import Cover, check_identity, write
from murmurate.core.partition.structure import Held, Indices, Structure
from murmurate.core.partition.subnet import part_of
from murmurate.errors import ConfigError, PromiseBroken
from murmurate_coordinator import homes
from murmurate_coordinator.assemble import covers, fold
from murmurate_coordinator.homes import NOWHERE
from murmurate_coordinator.names import BARRIER, RULES
from murmurate_coordinator.plan import FREE, Capacity, make_plan, targets

KEPT = ("once", "async")
"""One partition: when members come and go, as few units move as can be."""
NORM_MAX = 1e15

# Why a push is refused; the names are labels of a metric.
OVER, NOT_LEASED, SHAPES, NOT_FINITE, FUTURE, DUPLICATE, EXISTS, FULL = (
    *("over", "not_leased", "shapes", "not_finite", "future", "duplicate", "exists", "full"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Give:
    """To a member: «train this». The values are its own copy."""

    peer: str
    plan: int
    lease: int
    version: int
    held: Held
    values: Mapping[str, torch.Tensor]
    steps: int | None
    """Local steps until its push; None: as it likes, pushing whenever the last push is done."""


@dataclass(frozen=True, slots=True)
class Accepted:
    peer: str
    lease: int
    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed."""

    peer: str
    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Waits:
    """A newcomer for whom there is nothing yet, and why."""

    peer: str
    sentence: str


Effect = Give | Accepted | Refused | Waits


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """From a member: its subnet after some steps. The values are the coordinator's from now on."""

    peer: str
    plan: int
    lease: int
    version: int
    steps: int
    samples: int
    values: Mapping[str, torch.Tensor]


@dataclass(slots=True, eq=False)
class Lease:
    number: int
    owner: str
    plan: int
    held: Held
    last: dict[str, torch.Tensor]
    """What it was given or has pushed last, of tensors that others hold too."""
    version: int = 0
    steps: int = 0
    samples: int = 0
    done: bool = False
    """In this plan, under a rule with a barrier."""


@dataclass(slots=True)
class Totals:
    plans: int = 0
    pushes: int = 0
    steps: int = 0
    samples: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Partitioner:
    """The coordinator's state: full weights, plan, leases. No time, no threads, no network."""

    def __init__(
        self,
        structure: Structure,
        weights: Mapping[str, torch.Tensor],
        rule: str,
        rng: np.random.Generator,
        *,
        steps: int = 10,
        founders: int = 1,
        first_lease: int = 1,
    ) -> None:
        """`founders`: the first plan is made when so many are there. `first_lease`: its number; no
        two lives of a coordinator may give the same ones."""
        if rule not in RULES:
            raise ConfigError(f"rule {rule!r}: expected one of {', '.join(RULES)}")
        if steps < 1:
            raise ConfigError(f"steps {steps}: must be at least 1")
        self.structure = structure
        self.weights = {name: value.detach().clone() for name, value in weights.items()}
        self.rule = rule
        self.steps = steps
        self.plan = 0
        self.totals = Totals()
        self.members: dict[str, Capacity] = {}
        self.leases: dict[int, Lease] = {}
        self.trained = {
            name: torch.zeros(t.shape, dtype=torch.bool)
            for name, t in structure.tensors.items()
            if t.trained and t.split
        }
        """Which coordinates were ever in a push: the others are still random."""
        self._coverage: dict[str, float] | None = None
        """Counted when somebody asks, and kept until it changes: that takes a while."""
        self._founders = founders
        self._rng = rng
        self._next = first_lease
        self._waiting: list[str] = []
        self._changed = True
        """Members came or went since the plan was made."""
        self._dealt: tuple[int, ...] = ()
        self._covers: dict[str, Cover] = {}
        self._order: list[int] = []
        self._parts: list[Held] = []
        """The leases that E_k counts, and their units; under a barrier also those that ended."""
        self._shared: frozenset[str] = frozenset()
        self._home: Indices | None = None
        """Of each unit, where there is one partition (homes.py)."""
        self._pushed_in = np.full(structure.units + 1, NOWHERE, dtype=np.int64)
        """The lease under which each unit was pushed last."""
        self._vacant: dict[str, Held] = {}
        """Where one partition is kept: what members that are gone had, kept for newcomers."""
        self._away: set[str] = set()
        self._uneven = False
        """Speeds were measured since members came or went: shares follow them to the unit."""

    # -- what comes in -----------------------------------------------------------------------------

    def join(self, peer: str, capacity: Capacity | None = None) -> list[Effect]:
        if not peer:
            return [self.refuse(peer, EXISTS, "a member needs a name")]
        if peer in self.members:
            return [self.refuse(peer, EXISTS, f"{peer} is a member already")]
        capacity = capacity or Capacity()
        trial = {**self.members, peer: capacity}
        try:
            self._room(trial)
        except ConfigError as error:
            return [self.refuse(peer, FULL, str(error))]
        self.members[peer] = capacity
        self._waiting.append(peer)
        self._changed, self._uneven = True, False
        if len(self.members) < self._founders and not self.plan:
            return [Waits(peer, f"{len(self.members)} of {self._founders} are here")]
        if not self.leases:
            return list(self._start())
        if self.rule in BARRIER:
            return [Waits(peer, f"plan {self.plan} is running: units at the next one")]
        out = list(self._serve())
        if peer in self._waiting:
            out.append(Waits(peer, "no unit is free: at another member's next push"))
        return out

    def leave(self, peer: str) -> list[Effect]:
        """It left or died: what it pushed stays, its lease ends, its units are free."""
        if peer not in self.members:
            return []
        del self.members[peer]
        self._changed, self._uneven = True, False
        if peer in self._waiting:
            self._waiting.remove(peer)
        self._away.discard(peer)
        for lease in [one for one in self.leases.values() if one.owner == peer]:
            del self.leases[lease.number]
            if self.rule in KEPT:
                self._vacant[peer] = lease.held & self._in_dealt()
            if self.rule not in BARRIER:
                self._renumber()
        if self.rule in BARRIER:
            return list(self._next_if_all())
        return list(self._serve()) if self.leases else list(self._start())

    def away(self, peer: str, *, gone: bool = True) -> None:
        """Nobody hears of that member, who may come back or not; `gone` false: it is back. As long
        as it is away nobody gives up units for a newcomer, who may well have come in its place."""
        if gone and peer in self.members:
            self._away.add(peer)
        else:
            self._away.discard(peer)

    def vacate(self, peer: str) -> None:
        """Nobody came for what that member had: the others may have it, at their next push or
        plan."""
        if self._vacant.pop(peer, None) is not None:
            self._changed = True

    def again(self, peer: str) -> list[Effect]:
        """What it was given is lost, or was spoilt: the same units, with the weights of now, under
        another lease: each that is given has a number of its own."""
        old = self.lease_of(peer)
        if old is None or old.done:
            return []
        new = self._grant(peer, old.held)
        numbers = [new.number if n == old.number else n for n in self.leases if n != new.number]
        self.leases = {number: self.leases[number] for number in numbers}  # in its place
        self._order[self._order.index(old.number)] = new.number
        return [self._give(new)]

    def measured(self, peer: str, speed: float) -> None:
        """How fast a member is: its share follows, at the next plan or push."""
        if peer in self.members:
            self.members[peer] = replace(self.members[peer], speed=speed)
            self._changed = self._uneven = True

    def admits(self, peer: str, plan: int, number: int, version: int) -> Refused | None:
        """Whether such a push would be looked at: asked before its values are taken in."""
        return self._wrong_lease(peer, plan, number, version)

    def push(self, push: Push) -> list[Effect]:
        """Fold a subnet in, whole or not at all."""
        refusal = self._problem(push)
        if refusal is not None:
            return [refusal]
        lease = self.leases[push.lease]
        fold(self.weights, self._covers, self._order.index(lease.number), lease.last, push.values)
        if not lease.version:
            self._mark(lease.held)
        self._pushed_in[lease.held] = lease.number
        lease.last = self._common(push.values)
        lease.version += 1
        lease.steps += push.steps
        lease.samples += push.samples
        self.totals.pushes += 1
        self.totals.steps += push.steps
        self.totals.samples += push.samples
        out: list[Effect] = [Accepted(push.peer, lease.number, lease.version)]
        if self.rule in BARRIER:
            lease.done = True
            out += self._next_if_all()
        else:
            out += self._redraw(lease)
        return out

    # -- what it holds -----------------------------------------------------------------------------

    def lease_of(self, peer: str) -> Lease | None:
        return next((one for one in self.leases.values() if one.owner == peer), None)

    @property
    def shared(self) -> frozenset[str]:
        """Tensors of which several members may hold the same coordinates."""
        return self._shared

    def reserved(self) -> Held:
        """Units that are kept together for a newcomer: nobody else takes them."""
        out = self.structure.nothing()
        for held in self._vacant.values():
            out |= held
        return out

    def coverage(self) -> dict[str, float]:
        """Of each tensor that is split: the part that was ever trained."""
        if self._coverage is None:
            self._coverage = {
                name: int(mask.count_nonzero()) / max(1, mask.numel())
                for name, mask in self.trained.items()
            }
        return dict(self._coverage)

    def for_evaluation(self) -> dict[str, torch.Tensor]:
        """The full weights with zeros where nobody ever trained (+0.7 to +2.2 points, F6).

        Where one partition is kept also between units that were in one subnet once, and then no
        longer: both have been trained since as if there were zeros.
        """
        out = dict(self.weights)
        for name, mask in self.trained.items():
            used = mask
            if self.rule in KEPT:
                strange = homes.apart(self.structure.tensors[name], self._pushed_in)
                used = mask & ~torch.from_numpy(strange)
            if not bool(used.all()):
                out[name] = torch.where(used, self.weights[name], 0.0)
        return out

    def check(self) -> None:
        """PromiseBroken unless every dealt unit is with one lease or free, and Σ E_k = I."""
        shares = [lease.held for lease in self.leases.values()]
        owners = [lease.owner for lease in self.leases.values()]
        if len(set(owners)) != len(owners) or not set(owners) <= set(self.members):
            raise PromiseBroken("leases", f"owners {owners}, members {sorted(self.members)}")
        for number, part in zip(self._order, self._parts, strict=True):
            lease = self.leases.get(number)
            if lease is not None and not np.array_equal(part, lease.held):
                raise PromiseBroken("leases", f"lease {number} is folded in as another one's units")
        if not shares or self.rule == "fedavg":
            return
        free = self._free()
        held = [*shares, free] if free[:-1].any() else shares
        for g, group in enumerate(self.structure.groups):
            rows = np.array([h[group.first : group.first + group.count] for h in held])
            if g in self._dealt and (rows.sum(axis=0) != 1).any():
                raise PromiseBroken("sum E_k = I", f"a unit of {group.name} is lost or owned twice")
        if self.rule in BARRIER and len(shares) == len(held) == len(self._order):
            check_identity(self.structure, shares)

    # -- plans -------------------------------------------------------------------------------------

    def _room(self, members: Mapping[str, Capacity]) -> None:
        """ConfigError unless there is a plan for so many."""
        trial = np.random.default_rng(0)
        whole, spare = self.rule == "fedavg", self.rule == "lease"
        make_plan(0, self.structure, members, trial, spare=spare, whole=whole)
        if self.rule not in BARRIER and self._dealt:
            targets(self.structure, self._dealt, members, spare=spare)

    def _start(self) -> Iterator[Effect]:
        """A new plan, everybody in it."""
        if not self.members or (not self.plan and len(self.members) < self._founders):
            return
        drawn = make_plan(
            self.plan + 1,
            self.structure,
            self.members,
            self._rng,
            spare=self.rule == "lease",
            whole=self.rule == "fedavg",
        )
        self._dealt = tuple(
            g
            for g, group in enumerate(self.structure.groups)
            if any(not held[list(group.units)].all() for held in drawn.shares.values())
            or len(drawn.shares) == 1
        )
        self._shared = self._shared_names()
        shares = self._kept(drawn.shares)
        self.leases.clear()
        self._waiting.clear()
        self._changed = False
        for owner, held in shares.items():
            if owner != FREE:
                self._grant(owner, held)
        self._renumber()
        for lease in self.leases.values():
            yield self._give(lease)

    def _kept(self, drawn: Mapping[str, Held]) -> Mapping[str, Held]:
        """With one partition: not what was drawn, but as much as possible of what was."""
        if self.rule not in KEPT:
            return drawn
        if self._home is None or not np.array_equal(self._home >= 0, self._in_dealt()):
            shares = [held for owner, held in drawn.items() if owner != FREE]
            self._home = homes.settle(self.structure, self._dealt, shares)
            return drawn
        before = {lease.owner: lease.held for lease in self.leases.values()}
        wanted = self._wanted()
        if before and self._vacant:  # these do not grow: who comes next gets it as it is
            for name in before.keys() & wanted.keys():
                have = [self._width(g, before[name]) for g in self._dealt]
                wanted[name] = [min(pair) for pair in zip(wanted[name], have, strict=True)]
        now = homes.rearrange(self.structure, self._dealt, before, wanted, self._home, self._rng)
        for name in sorted(now.keys() - before.keys() - {FREE}):
            homes.move_in(self._home, now[name], [h for n, h in now.items() if n != name])
        return now

    def _in_dealt(self) -> Held:
        dealt = self.structure.nothing()
        for g in self._dealt:
            dealt[list(self.structure.groups[g].units)] = True
        return dealt

    def _next_if_all(self) -> Iterator[Effect]:
        """Under a barrier: when the last one has pushed, the next plan, or the same again."""
        if not all(lease.done for lease in self.leases.values()):
            return
        if self.rule == "sync" or self._changed:
            yield from self._start()
            return
        again = [(lease.owner, lease.held) for lease in self.leases.values()]
        self.leases.clear()
        for owner, held in again:
            self._grant(owner, held)
        self._renumber(same=True)
        for lease in self.leases.values():
            yield self._give(lease)

    def _grant(self, owner: str, held: Held) -> Lease:
        lease = Lease(self._next, owner, self.plan, held, {})
        self._next += 1
        self._vacant = {n: v & ~held for n, v in self._vacant.items() if (v & ~held).any()}
        self.leases[lease.number] = lease
        return lease

    def _give(self, lease: Lease) -> Give:
        lease.plan = self.plan
        values = part_of(self.weights, self.structure, lease.held)
        if self._home is not None:
            homes.begin_at_zero(self.structure, lease.held, self._home, self.trained, values)
        lease.last = self._common(values, copy=True)
        steps = None if self.rule == "async" else self.steps
        return Give(lease.owner, self.plan, lease.number, lease.version, lease.held, values, steps)

    def _renumber(self, *, same: bool = False) -> None:
        """Shares have changed: another plan, other E_k."""
        self.plan += 1
        self.totals.plans += 1
        self._order = list(self.leases)
        if not same:
            self._parts = [self.leases[number].held for number in self._order]
            self._covers = covers(self.structure, self._parts)

    def _common(
        self, values: Mapping[str, torch.Tensor], *, copy: bool = False
    ) -> dict[str, torch.Tensor]:
        """What must be remembered of a subnet: tensors that others may hold too."""
        kept = {name: values[name] for name in self._shared}
        return {n: v.clone() for n, v in kept.items()} if copy else kept

    def _shared_names(self) -> frozenset[str]:
        """Tensors with no axis that is dealt from end to end: several members hold parts."""
        dealt = self.structure.nothing() if self.rule == "fedavg" else self._in_dealt()
        return frozenset(
            name
            for name, tensor in self.structure.tensors.items()
            if not any(u is not None and u.min() >= 0 and dealt[u].all() for u in tensor.axes)
        )

    # -- moving units, without a barrier -----------------------------------------------------------

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
        return targets(self.structure, self._dealt, self.members, spare=self.rule == "lease")

    def _redraw(self, lease: Lease) -> Iterator[Effect]:
        """After a push: give up what is too much, take what is free; `lease` draws anew."""
        wanted = self._wanted()
        free = self._free() & ~self.reserved()
        held = lease.held.copy()
        favourite = NOWHERE if self._home is None else homes.home_of(self._home, held)
        for at, (size, g) in enumerate(zip(wanted[lease.owner], self._dealt, strict=True)):
            units = np.arange(*_span(self.structure.groups[g].units))
            mine, pool = units[held[units]], units[free[units]]
            if self.rule == "lease":
                pool = np.concatenate([mine, pool])
                held[mine] = False
                held[self._rng.permutation(pool)[:size]] = True
            elif len(mine) > (kept := self._keeps(lease.owner, at, wanted, len(mine))):
                held[mine] = False
                held[self._some(mine, kept, favourite)] = True
            elif len(mine) < size and len(pool):
                held[self._some(pool, size - len(mine), favourite)] = True
        if np.array_equal(held, lease.held) and self.rule != "lease":
            return
        del self.leases[lease.number]
        new = self._grant(lease.owner, held)
        self._renumber()
        yield self._give(new)
        yield from self._serve()

    def _some(self, units: Indices, size: int, favourite: int) -> Indices:
        """So many of these: at random, or those that belong together."""
        if self._home is None:
            return self._rng.permutation(units)[:size]
        return homes.to_keep(units, size, self._home, favourite, self._rng)

    def _keeps(self, owner: str, at: int, wanted: Mapping[str, list[int]], have: int) -> int:
        """How many of the units it has of a dealt group a member keeps at its push.

        A subnet that loses some of its units is worth little for a while. So nobody gives up any
        before another has less than half of what it should. And for a newcomer one member alone,
        the fullest, shares what it has, instead of all.
        """
        g, size = self._dealt[at], wanted[owner][at]
        enough = 1.0 if self._uneven else 0.5
        widths = {one.owner: self._width(g, one.held) for one in self.leases.values()}
        if any(width < enough * wanted[name][at] for name, width in widths.items()):
            return min(have, size)
        waiting = self._waiting[len(self._away) :]  # the first ones may be in another's place
        if not waiting or self._fullest(wanted) != owner:
            return have
        part = size / (size + wanted[waiting[0]][at])
        return min(have, max(1, (size + 1) // 2, round(have * part)))

    def _fullest(self, wanted: Mapping[str, list[int]]) -> str:
        """Of those who have a lease and are not away."""
        fill = {
            one.owner: float((one.held & self._in_dealt()).sum()) / sum(wanted[one.owner])
            for one in self.leases.values()
            if one.owner not in self._away
        }
        return max(fill, key=lambda name: fill[name], default="")

    def _somebody_has_more(self, g: int) -> bool:
        """Whether a member has more of this group than it should: its next push frees some."""
        wanted, at = self._wanted(), self._dealt.index(g)
        return any(self._width(g, one.held) > wanted[one.owner][at] for one in self.leases.values())

    def _width(self, g: int, held: Held) -> int:
        return self.structure.width(self.structure.groups[g], held)

    def _serve(self) -> Iterator[Effect]:
        """Free units to those who wait, while there are enough of every axis.

        Half of what it should have, as long as others have too many: one that begins with a unit or
        two has its sums multiplied by sqrt(H / 1) and throws away what these units had learnt.
        """
        for peer in list(self._waiting):
            free, held = self._free(), self.structure.everything()
            favourite = NOWHERE if self._home is None else homes.home_of(self._home, free)
            wanted = self._wanted()[peer]
            for size, g in zip(wanted, self._dealt, strict=True):
                units = np.arange(*_span(self.structure.groups[g].units))
                pool = units[free[units]]
                if not len(pool) or (len(pool) < size // 2 and self._somebody_has_more(g)):
                    return
                held[units] = False
                held[self._some(pool, size, favourite)] = True
            if self._home is not None:
                homes.move_in(self._home, held, [one.held for one in self.leases.values()])
            self._waiting.remove(peer)
            lease = self._grant(peer, held)
            self._renumber()
            yield self._give(lease)

    # -- what is refused ---------------------------------------------------------------------------

    def _wrong_lease(self, peer: str, plan: int, number: int, version: int) -> Refused | None:
        lease = self.leases.get(number)
        if number >= self._next:
            return self.refuse(peer, FUTURE, f"lease {number}: the next one is {self._next}")
        if plan > self.plan:
            return self.refuse(peer, FUTURE, f"plan {plan}: this is plan {self.plan}")
        if lease is None:
            return self.refuse(peer, OVER, f"lease {number} is over, it changes nothing")
        if lease.owner != peer:
            return self.refuse(peer, NOT_LEASED, f"lease {number} is {lease.owner}'s")
        if version > lease.version + 1:
            expected = f"version {version}: the next one is {lease.version + 1}"
            return self.refuse(peer, FUTURE, expected)
        if version <= lease.version or lease.done:
            return self.refuse(peer, DUPLICATE, f"version {version} is in already")
        return None

    def _problem(self, push: Push) -> Refused | None:
        refusal = self._wrong_lease(push.peer, push.plan, push.lease, push.version)
        if refusal is not None:
            return refusal
        lease = self.leases[push.lease]
        if push.steps < 0 or push.samples < 0:
            return self.refuse(push.peer, SHAPES, "a negative number of steps or samples")
        if push.values.keys() != self.structure.tensors.keys():
            odd = sorted(push.values.keys() ^ self.structure.tensors.keys())
            return self.refuse(push.peer, SHAPES, f"missing or unknown tensors: {odd[:3]}")
        for name, value in push.values.items():
            shape = self.structure.tensors[name].part(lease.held)
            if tuple(value.shape) != shape or value.dtype != self.weights[name].dtype:
                said = f"{name}: {value.dtype}{list(value.shape)}, expected {list(shape)}"
                return self.refuse(push.peer, SHAPES, said)
        for name, value in push.values.items():
            if value.is_floating_point():
                norm = float(torch.linalg.vector_norm(value))
                still = not self.structure.tensors[name].trained and name in lease.last
                if still and torch.equal(value, lease.last[name]):
                    continue  # a mask may hold infinities
                if not norm <= NORM_MAX:
                    return self.refuse(push.peer, NOT_FINITE, f"{name}: its norm is {norm}")
        return None

    def refuse(self, peer: str, reason: str, sentence: str) -> Refused:
        """Nothing is changed, and it is counted."""
        self.totals.refused[reason] += 1
        return Refused(peer, reason, sentence)

    def _mark(self, held: Held) -> None:
        self._coverage = None
        for name, mask in self.trained.items():
            kept = self.structure.tensors[name].kept(held)
            write(mask, kept, torch.ones(self.structure.tensors[name].part(held), dtype=torch.bool))


def _span(units: range) -> tuple[int, int]:
    return units.start, units.stop


__all__ = [
    "BARRIER",
    "RULES",
    "Accepted",
    "Effect",
    "Give",
    "Lease",
    "Partitioner",
    "Push",
    "Refused",
    "Totals",
    "Waits",
]
