"""A model's weights in 64 numbers, so that nodes see how far apart they are.

The flat weights, as rows of 64, are added up with a random sign for each row, the same signs on all
nodes. The squared norm of such a sketch of a difference is on average that of the difference
itself; with 64 numbers a distance comes out right within about 10 %. One pass over the weights, a
few times a minute, beside the training: what changes meanwhile blurs it by less than one update.

All nodes take theirs at the same instants of their wall clocks, or the training in between would be
all that is seen.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection

import torch

WIDTH = 64
EVERY_S = 5
"""Between two instants, counted from 1970."""
KEPT = 3
"""Instants remembered, for those who tell late."""


class Sketches:
    """This node's newest sketches, by instant."""

    def __init__(self, size: int) -> None:
        rows = -(-size // WIDTH)
        generator = torch.Generator().manual_seed(0)
        self._signs = torch.randint(0, 2, (rows,), generator=generator).mul_(2).sub_(1).float()
        self._newest: dict[int, tuple[float, ...]] = {}
        self._apart: dict[str, float] = {}
        self.at = 0

    def due(self, wall: float) -> bool:
        return int(wall) // EVERY_S != self.at

    def take(self, weights: torch.Tensor, wall: float) -> None:
        self.at = int(wall) // EVERY_S
        self._newest[self.at] = self._of(weights)
        while len(self._newest) > KEPT:
            del self._newest[min(self._newest)]

    def _of(self, weights: torch.Tensor) -> tuple[float, ...]:
        whole = len(weights) // WIDTH
        signs = self._signs.to(weights.dtype)
        out = signs[:whole] @ weights[: whole * WIDTH].view(whole, WIDTH)
        if rest := len(weights) - whole * WIDTH:
            out[:rest] += signs[whole] * weights[whole * WIDTH :]
        return tuple(out.float().tolist())

    @property
    def newest(self) -> bytes:
        """As it is told; empty: none yet."""
        mine = self._newest.get(self.at)
        return b"" if mine is None else struct.pack(f"<{WIDTH}f", *mine)

    def apart(self, name: str, at: int, told: bytes) -> float:
        """How far I am from a node by its last word; as it was before, if I have nothing of that
        instant yet. NaN: unknown."""
        distance = self.distance(at, told)
        if math.isnan(distance):
            return self._apart.get(name, math.nan)
        self._apart[name] = distance
        return distance

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        self._apart = {name: each for name, each in self._apart.items() if name in names}

    def distance(self, at: int, told: bytes) -> float:
        """‖mine − theirs‖ / ‖mine‖ at that instant; NaN: one of the two is not there."""
        mine = self._newest.get(at)
        if mine is None or not told:
            return math.nan
        theirs = struct.unpack(f"<{WIDTH}f", told)
        size = math.hypot(*mine)
        apart = math.hypot(*(a - b for a, b in zip(mine, theirs, strict=True)))
        return apart / size if size else apart
