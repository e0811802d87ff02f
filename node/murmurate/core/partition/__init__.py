"""Independent subnet training (paper 001): which parts of a model can be held by one peer alone.

analyse(model, example)   what can be dealt: a Structure (docs/ist.md says how it is found)
deal(structure, …)        units to shares, of any widths
cut(model, structure, …)  a subnet, a plain nn.Module
paste(weights, …)         its values back into the whole
"""

from __future__ import annotations

from murmurate.core.partition.analysis import analyse, observe
from murmurate.core.partition.cover import (
    Cover,
    check_identity,
    coverage,
    paste,
)
from murmurate.core.partition.deal import apportion, deal
from murmurate.core.partition.structure import Group, Held, Structure, Tensor
from murmurate.core.partition.subnet import build, cut, load, masked, part_of, weights_of

__all__ = [
    "Cover",
    "Group",
    "Held",
    "Structure",
    "Tensor",
    "analyse",
    "apportion",
    "build",
    "check_identity",
    "coverage",
    "cut",
    "deal",
    "load",
    "masked",
    "observe",
    "part_of",
    "paste",
    "weights_of",
]
