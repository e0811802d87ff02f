"""Who gets how much: members and what they can do, to a numbered plan. Pure.

Shares follow speed, so that all take about the same time for a step, as far as the declared memory
goes. ResIST's rule updates them: share ∝ old share / measured time, which is what `speed` is when
it is measured as units trained in a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from murmurate.core.partition.cover import check_identity
from murmurate.core.partition.deal import apportion, deal
from murmurate.core.partition.structure import Held, Structure
from murmurate.errors import ConfigError
from murmurate_coordinator.solvers.protocol import FREE, Capacity

MEMORY_COPIES = 3
"""Of a subnet's tensors that training holds: themselves, gradients, one optimizer buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class SubnetPlan:
    """A numbered partition: what each owner holds. FREE is nobody's."""

    number: int
    shares: Mapping[str, Held] = field(default_factory=dict)


def make_plan(
    number: int,
    structure: Structure,
    members: Mapping[str, Capacity],
    rng: np.random.Generator,
    *,
    spare: bool = False,
) -> SubnetPlan:
    """A new partition, drawn at random; `spare`: one share more, FREE.

    What all members together cannot hold is FREE too. ConfigError when it cannot be: more members
    than units, or one with less memory than the smallest subnet takes.
    """
    if not members:
        return SubnetPlan(number)
    weights = fitting(structure, members, spare=spare)
    shares = deal(structure, list(weights.values()), rng)
    for (name, capacity), held in zip(members.items(), shares, strict=False):
        check_memory(structure, held, name, capacity)
    check_identity(structure, shares)
    return SubnetPlan(number, dict(zip(weights, shares, strict=True)))


def targets(
    structure: Structure,
    dealt: Sequence[int],
    members: Mapping[str, Capacity],
    *,
    spare: bool = False,
) -> dict[str, list[int]]:
    """How many units of each dealt group a member should have; FREE too, if there is a spare."""
    weights = fitting(structure, members, spare=spare)
    sizes = [apportion(structure.groups[g].count, list(weights.values())) for g in dealt]
    return {name: [row[k] for row in sizes] for k, name in enumerate(weights)}


def fitting(
    structure: Structure, members: Mapping[str, Capacity], *, spare: bool = False
) -> dict[str, float]:
    """Weights that follow speed and respect memory; what one cannot hold goes to the others, and
    what none of them can is FREE."""
    names = list(members)
    speeds = [members[name].speed for name in names]
    if spare:
        names.append(FREE)
        speeds.append(sum(speeds) / len(speeds))
    capped: dict[int, float] = {}  # fractions of all units
    for _ in range(len(names) + 1):
        left = 1.0 - sum(capped.values())
        rest = sum(s for k, s in enumerate(speeds) if k not in capped)
        if not rest:
            free = {FREE: left} if left > 1e-9 else {}
            return {name: capped[k] for k, name in enumerate(names)} | free
        fractions = [capped.get(k, left * speeds[k] / rest) for k in range(len(names))]
        over = {
            k: most
            for k, name in enumerate(names)
            if name != FREE
            and k not in capped
            and (most := _most(structure, name, members[name])) < fractions[k]
        }
        if not over:
            return dict(zip(names, fractions, strict=True))
        capped.update(over)
        if sum(capped.values()) >= 1.0:
            break
    return {name: capped.get(k, 1e-9) for k, name in enumerate(names)}


def _most(structure: Structure, name: str, capacity: Capacity) -> float:
    """The largest fraction of every axis that fits into a member's memory."""
    if capacity.memory_bytes is None:
        return 1.0
    largest = max((group.count for group in structure.groups), default=1)
    low, high = 0, largest  # in units of the widest axis
    while low < high:
        middle = (low + high + 1) // 2
        if _bytes(structure, middle / largest) <= capacity.memory_bytes:
            low = middle
        else:
            high = middle - 1
    if not low:
        need = _bytes(structure, 1 / largest)
        raise ConfigError(
            f"memory of {name}: {capacity.memory_bytes} bytes, the smallest subnet needs {need}"
        )
    # Rounding may add a unit to every axis: leave room for it.
    return low / largest if low == largest else max(low - 1, 0.5) / largest


def _bytes(structure: Structure, fraction: float) -> int:
    held = structure.nothing()
    for group in structure.groups:
        held[group.first : group.first + max(1, math.ceil(group.count * fraction))] = True
    return structure.nbytes(held) * MEMORY_COPIES


def check_memory(structure: Structure, held: Held, name: str, capacity: Capacity) -> None:
    """ConfigError unless that member has the memory to train these units."""
    need = structure.nbytes(held) * MEMORY_COPIES
    if capacity.memory_bytes is not None and need > capacity.memory_bytes:
        raise ConfigError(
            f"memory of {name}: {capacity.memory_bytes} bytes, its subnet needs {need}"
        )
