"""The points of a run's trajectory in virtual time: one wherever it is evaluated, and at both ends.

A point of a model that a coordinator or a group holds has its parameters and running statistics, as
a node's flat weights have, so `murmurate plot` reads them alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from murmurate.core.layout import Layout, tracked
from murmurate.edge.disk.trajectory import Trajectory
from murmurate.study.virtual.task import Engine


def kept_whole(model: nn.Module) -> tuple[Layout, torch.Tensor]:
    """A whole model's layout, and its values as flat weights."""
    layout, parameters = Layout.of(model, statistics=True)
    running = [each.tensor for each in tracked(model).values()]
    return layout, layout.gather_all([*parameters, *running])


class VirtualTrajectory:
    """Of one run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: Trajectory | None = None
        self._last_s = -1.0
        self.about: dict[str, str] = {}

    def take(self, now: float) -> None:
        """A point of this instant, once."""
        found = self._engine.weights()
        if found is None or now == self._last_s:
            return
        name, layout, weights = found
        if self._kept is None:
            self._kept = Trajectory(layout.size)
            self.about = {"name": name, "schema": layout.schema}
        self._kept.take(now, self._engine.samples(), weights.numpy())
        self._last_s = now

    def save(self, folder: Path, about: Mapping[str, str]) -> dict[str, str]:
        """Into this folder; the files by name, as seen from the report beside it."""
        if self._kept is None:
            return {}
        folder.mkdir(exist_ok=True)
        file = folder / f"{self.about['name']}.safetensors"
        self._kept.save(file, {**self.about, **about})
        return {self.about["name"]: f"{folder.name}/{file.name}"}
