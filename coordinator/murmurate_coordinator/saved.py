"""The coordinator's state at one instant, as tensors and JSON and back. Pure.

The full weights are among the tensors under their own names. Beside them, under names that begin
with `murmurate.`: which coordinates were ever trained, and of each lease what it has of tensors
that others hold too, as it was given or pushed last. That is what makes a push after a restart
count right: its change is taken against what the checkpoint has, so it holds everything since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from murmurate.core.partition.structure import Held, Structure
from murmurate_coordinator.assemble import covers
from murmurate_coordinator.plan import Capacity
from murmurate_coordinator.rules import Lease, Partitioner, Totals

Json = dict[str, Any]
PREFIX = "murmurate."
TRAINED = PREFIX + "trained/"
HELD = PREFIX + "held"
PARTS = PREFIX + "parts"
HOME = PREFIX + "home"
PUSHED_IN = PREFIX + "pushed_in"
LAST = PREFIX + "last/"
LIFE = 10**9
"""Leases of each life of a coordinator begin at another multiple of this: what was given after the
last checkpoint must not be taken for what is given after a restart."""


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """Copies: what is written does not change meanwhile."""

    tensors: Mapping[str, torch.Tensor]
    about: Json


def save(centre: Partitioner) -> Saved:
    leases = list(centre.leases.values())
    tensors = {name: value.clone() for name, value in centre.weights.items()}
    tensors |= {TRAINED + name: mask.clone() for name, mask in centre.trained.items()}
    tensors[HELD] = _bits([lease.held for lease in leases], centre.structure)
    tensors[PARTS] = _bits(centre._parts, centre.structure)
    tensors[PUSHED_IN] = torch.from_numpy(centre._pushed_in.copy())
    if centre._home is not None:
        tensors[HOME] = torch.from_numpy(centre._home.copy())
    for lease in leases:
        for name, value in lease.last.items():
            tensors[f"{LAST}{lease.number}/{name}"] = value.clone()
    totals = centre.totals
    about = {
        "rule": centre.rule,
        "plan": centre.plan,
        "next": centre._next,
        "waiting": list(centre._waiting),
        "changed": centre._changed,
        "dealt": list(centre._dealt),
        "order": list(centre._order),
        "members": {n: [c.speed, c.memory_bytes] for n, c in centre.members.items()},
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
        "rng": centre._rng.bit_generator.state,
    }
    return Saved(tensors, about)


def restore(
    saved: Saved,
    structure: Structure,
    rng: np.random.Generator,
    *,
    steps: int,
    founders: int,
) -> Partitioner:
    """The same centre, in its next life. KeyError, ValueError, TypeError: it is none."""
    about, tensors = saved.about, saved.tensors
    weights = {name: tensors[name] for name in structure.tensors}
    for name, tensor in structure.tensors.items():
        if tuple(weights[name].shape) != tensor.shape:
            raise ValueError(f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}")
    rng.bit_generator.state = about["rng"]
    number = int(about["next"])
    centre = Partitioner(
        structure,
        weights,
        about["rule"],
        rng,
        steps=steps,
        founders=founders,
        first_lease=(number // LIFE + 1) * LIFE + 1,
    )
    for name, mask in centre.trained.items():
        mask.copy_(tensors[TRAINED + name])
    centre.plan = int(about["plan"])
    centre.members.update(
        {name: Capacity(speed=s, memory_bytes=m) for name, (s, m) in about["members"].items()}
    )
    held = tensors[HELD].numpy()
    for row, (number, owner, plan, version, n, samples, done) in enumerate(about["leases"]):
        prefix = f"{LAST}{number}/"
        last = {
            k.removeprefix(prefix): v.clone() for k, v in tensors.items() if k.startswith(prefix)
        }
        centre.leases[number] = Lease(
            number, owner, plan, held[row].copy(), last, version, n, samples, done
        )
    totals: Json = about["totals"]
    centre.totals = Totals(**{**totals, "refused": Counter(totals["refused"])})
    centre._waiting = [str(name) for name in about["waiting"]]
    centre._changed = bool(about["changed"])
    centre._dealt = tuple(about["dealt"])
    centre._shared = centre._shared_names()
    centre._order = [int(number) for number in about["order"]]
    centre._parts = [part.copy() for part in tensors[PARTS].numpy()]
    centre._covers = covers(structure, centre._parts)
    centre._home = tensors[HOME].numpy().copy() if HOME in tensors else None
    if PUSHED_IN in tensors:  # not in a checkpoint of an older version
        centre._pushed_in = tensors[PUSHED_IN].numpy().copy()
    centre.check()
    return centre


def _bits(held: Sequence[Held], structure: Structure) -> torch.Tensor:
    rows = np.array(held, dtype=np.bool_).reshape(len(held), structure.units + 1)
    return torch.from_numpy(rows)
