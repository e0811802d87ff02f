"""What paper 001 asks for before subnets converge, watched while they train. Pure.

Section 5.1 has two conditions: every block is updated for ever, and delays follow (nobody computes
for ever on old values). Both proofs need a third one that the paper does not state (F7): for blocks
of zeros and ones a contraction in the l2 norm is not enough, ρ(|I − βH|) < 1 is (Chazan and
Miranker). The first two are counted here, from the effects of the solver; the third can be told for
a quadratic, whose H is known.

    advisor = Advisor(solver)
    advisor.saw(now_s, solver.push(push))     # after every call of the solver, with its effects
    for advice in advisor.news(now_s): …      # now and then: what was not said before
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from murmurate.core.partition.structure import Held
from murmurate_coordinator.solvers.effects import Effect, GiveLease, PushAccepted
from murmurate_coordinator.solvers.protocol import Solver

SILENT, BEHIND, UNTRAINED, STEP = "silent", "behind", "untrained", "step"

SILENT_INTERVALS = 5.0
"""A block is silent after so many of the intervals it had between pushes."""
FIRST_INTERVALS = 25.0
"""Before its first push a member's pace is not known: so many of the slowest one's."""
REMEMBERED = 8
"""Intervals of a member from which the usual one is taken."""
BEHIND_ROUNDS = 20
"""Shared values are old when every member has pushed so often since they were sent."""
SHARED_PART = 0.05
"""Of the parameters: less than that is an output's bias, and nobody has to hear of it."""
UNTRAINED_PART = 0.5
"""Of a tensor: from here on it is said."""
UNTRAINED_ROUNDS = 50
"""By then a rule that trains every block has done most of it."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Advice:
    """One condition that is not met. `kind` is a label; `about` a member, a tensor or «free»."""

    kind: str
    about: str
    sentence: str


@dataclass(slots=True, eq=False)
class _Seen:
    """Of one member."""

    given_s: float
    given_pushes: int
    lease: int
    held: Held
    pushed_s: float | None = None
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def usual_s(self) -> float | None:
        return max(self.intervals) if self.intervals else None


class Advisor:
    """Counts what the solver does; says which of the conditions is not met now."""

    def __init__(self, solver: Solver, now_s: float = 0.0, *, silent_s: float = 0.0) -> None:
        """`silent_s`: a shorter silence is not worth a word, however short the intervals are."""
        self.solver = solver
        self._silent_s = silent_s
        self._seen: dict[str, _Seen] = {}
        self._unit_s = np.full(solver.structure.units + 1, now_s)
        """When each unit was in a push last."""
        self._said: set[tuple[str, str]] = set()

    def saw(self, now_s: float, effects: Iterable[Effect]) -> None:
        """The effects of one call of the solver, in their order."""
        for effect in effects:
            if isinstance(effect, PushAccepted):
                self._accepted(now_s, effect)
            elif isinstance(effect, GiveLease):
                self._given(now_s, effect)
        for name in self._seen.keys() - self.solver.members.keys():
            del self._seen[name]

    def advice(self, now_s: float) -> list[Advice]:
        """All that is not as it should be."""
        return [*self._silent(now_s), *self._behind(), *self._untrained()]

    def news(self, now_s: float) -> list[Advice]:
        """Of that, what is new; what was mended meanwhile may be said again later."""
        all_of_it = self.advice(now_s)
        new = [each for each in all_of_it if (each.kind, each.about) not in self._said]
        self._said = {(each.kind, each.about) for each in all_of_it}
        return new

    # -- counting ----------------------------------------------------------------------------------

    def _accepted(self, now_s: float, effect: PushAccepted) -> None:
        seen = self._seen.get(effect.peer)
        if seen is None:
            return  # from before this advisor began
        since = seen.given_s if seen.pushed_s is None else max(seen.pushed_s, seen.given_s)
        seen.intervals.append(now_s - since)
        seen.pushed_s = now_s
        if seen.lease == effect.lease:
            self._unit_s[seen.held] = now_s

    def _given(self, now_s: float, effect: GiveLease) -> None:
        seen = self._seen.get(effect.peer)
        pushes = self.solver.totals.pushes
        if seen is None:
            self._seen[effect.peer] = _Seen(now_s, pushes, effect.lease, effect.held)
        elif seen.lease == effect.lease:  # newer weights of the same lease: its pace is its own
            seen.given_pushes = pushes
        else:
            seen.given_s, seen.given_pushes = now_s, pushes
            seen.lease, seen.held = effect.lease, effect.held

    # -- every block is updated for ever -----------------------------------------------------------

    def _silent(self, now_s: float) -> Iterable[Advice]:
        known = [seen.usual_s for seen in self._seen.values() if seen.usual_s is not None]
        if not known:
            return
        slowest = max(known)
        structure, leases = self.solver.structure, self.solver.leases.values()
        for lease in leases:
            seen = self._seen.get(lease.owner)
            if seen is None or lease.done:
                continue
            usual, most = seen.usual_s, SILENT_INTERVALS
            if usual is None:
                usual, most = slowest, FIRST_INTERVALS
            since = seen.given_s if seen.pushed_s is None else max(seen.pushed_s, seen.given_s)
            age = now_s - since
            if age > max(most * usual, self._silent_s):
                units, more = int(lease.held[:-1].sum()), ""
                if structure.units:
                    more = f": its {units} of {structure.units} units are not updated"
                if self.solver.barrier:
                    more += "; everybody waits for it"
                yield Advice(
                    SILENT,
                    lease.owner,
                    f"{lease.owner} has pushed nothing for {age:.3g} s, usually every {usual:.3g}"
                    f" s{more}",
                )
        if not self.solver.leases:
            return
        free = np.zeros(structure.units + 1, dtype=np.bool_)
        free[:-1] = True
        for lease in leases:
            free &= ~lease.held
        free &= ~self.solver.reserved()
        still = free & (now_s - self._unit_s > max(SILENT_INTERVALS * slowest, self._silent_s))
        if still.any():
            age = now_s - float(self._unit_s[still].min())
            yield Advice(
                SILENT,
                "free",
                f"{int(still.sum())} of {structure.units} units are nobody's since {age:.3g} s:"
                " they are not updated",
            )

    # -- delays follow -----------------------------------------------------------------------------

    def _behind(self) -> Iterable[Advice]:
        solver = self.solver
        part = shared_part(solver)
        if solver.half.waits or part < SHARED_PART or len(solver.leases) < 2:
            return  # every other rule sends them again
        behind = {
            lease.owner: solver.totals.pushes - seen.given_pushes
            for lease in solver.leases.values()
            if (seen := self._seen.get(lease.owner)) is not None
        }
        worst = max(behind.values(), default=0)
        if worst >= BEHIND_ROUNDS * len(solver.leases):
            yield Advice(
                BEHIND,
                "shared",
                f"{part:.0%} of the parameters are shared, and rule {solver.rule} never sends them"
                f" again: some are {worst} pushes old; rule lease or once does",
            )

    def _untrained(self) -> Iterable[Advice]:
        """A coordinate in no lease is a block that is never updated (F6)."""
        solver = self.solver
        if solver.totals.pushes < UNTRAINED_ROUNDS * max(1, len(solver.leases)):
            return
        covered = solver.coverage()
        if covered:
            name = min(covered, key=covered.__getitem__)
            missing = 1 - covered[name]
            if missing >= UNTRAINED_PART:
                yield Advice(
                    UNTRAINED,
                    name,
                    f"{missing:.0%} of {name} was in no subnet: it is as it was at the start;"
                    " evaluate it masked, or train with rule lease, which gets to all of it",
                )


def shared_part(solver: Solver) -> float:
    """The part of the parameters that several members hold."""
    tensors = solver.structure.tensors.values()
    sizes = {t.name: float(np.prod(t.shape, dtype=np.float64)) for t in tensors if t.trained}
    total = sum(sizes.values())
    return sum(sizes.get(name, 0.0) for name in solver.shared) / total if total else 0.0


# -- step size, where the Hessian is known ---------------------------------------------------------


def radius(hessian: Array, beta: float) -> float:
    """ρ(|I − βH|), the absolute values taken element by element."""
    step = np.abs(np.eye(len(hessian)) - beta * np.asarray(hessian, np.float64))
    return float(np.abs(np.linalg.eigvals(step)).max())


def step_advice(hessian: Array, beta: float) -> Advice | None:
    """Whether a step of this size may diverge by delays alone, on f(x) = x'Hx / 2.

    Below 1 asynchronous iterations converge whatever the (bounded) delays. From 1 on there is a
    schedule under which they do not, though the same step may contract in l2 and converge without
    any delay.
    """
    found = radius(hessian, beta)
    if found < 1:
        return None
    l2 = float(np.linalg.norm(np.eye(len(hessian)) - beta * np.asarray(hessian), 2))
    alone = f"contracts without delay ({l2:.3g})" if l2 < 1 else f"does not contract ({l2:.3g})"
    return Advice(
        STEP,
        f"beta {beta:g}",
        f"step {beta:g}: ρ(|I − βH|) is {found:.3g}, not below 1; it {alone}, and a delay may make"
        " it diverge: a smaller step bears a longer one",
    )
