"""Where a node's weights have been: a few points of a run, for the picture of its loss landscape.

Points are evenly spaced in time, the first before the first step and the last after everything has
arrived. There are never more than `POINTS_MAX` of them, and never more than `BYTES_MAX`: when there
are too many, every other one goes and the next come half as often. A file of safetensors, float32;
nothing in it can be executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from murmurate.errors import ConfigError

POINTS_MIN, POINTS_MAX = 4, 64
BYTES_MAX = 128 << 20
"""Of one node's points in memory, unless `POINTS_MIN` of them are more."""
EVERY_S = 0.25
"""Between two points, at first."""


class Trajectory:
    """Points of one node while it trains."""

    def __init__(self, size: int) -> None:
        self.points_max = max(POINTS_MIN, min(POINTS_MAX, BYTES_MAX // (4 * size)))
        self.at_s: list[float] = []
        """Since the first."""
        self.samples: list[int] = []
        """This node's own."""
        self._weights: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        self._every_s = EVERY_S
        self._began: float | None = None

    def due(self, now: float) -> bool:
        return not self.at_s or now - self._since(now) >= self.at_s[-1] + self._every_s

    def take(self, now: float, samples: int, weights: np.ndarray[Any, Any]) -> None:
        """A point; `weights` are flat and are copied."""
        self.at_s.append(now - self._since(now))
        self.samples.append(samples)
        self._weights.append(np.array(weights, dtype=np.float32))
        if len(self.at_s) >= self.points_max:  # one place stays free for the last
            self._every_s *= 2
            for points in (self.at_s, self.samples, self._weights):
                del points[1::2]

    def _since(self, now: float) -> float:
        self._began = now if self._began is None else self._began
        return self._began

    def __len__(self) -> int:
        return len(self.at_s)

    def save(self, file: Path, about: Mapping[str, str]) -> None:
        """`about` is what one must know to put the weights back into a model."""
        from safetensors.numpy import save_file

        save_file(
            {
                "weights": np.stack(self._weights),
                "at_s": np.array(self.at_s),
                "samples": np.array(self.samples, dtype=np.int64),
            },
            file,
            dict(about),
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """One node's points, as read from a file."""

    weights: np.ndarray[Any, np.dtype[np.float32]]
    """One row for each point."""
    about: Mapping[str, str]
    at_s: np.ndarray[Any, np.dtype[np.float64]]
    """Of each point: seconds since the first."""


def read(file: Path) -> Kept:
    """ConfigError: it is not there, or not what `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as held:
            about = dict(held.metadata() or {})
            return Kept(held.get_tensor("weights"), about, held.get_tensor("at_s"))
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{file}: {error}; expected a file of murmurate up --trajectory"
        ) from None
