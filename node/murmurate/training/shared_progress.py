"""Where the whole swarm is, for the code of a training loop, and which part of it is this node's.

Schedules, epochs and early stopping by what all have done together; a number, a seed and a part of
the data for each; and one member that evaluates, logs and saves for all.
"""

from __future__ import annotations

import hashlib
from typing import Any

from torch.utils.data import Dataset

from murmurate.errors import ConfigError
from murmurate.training.run_view import RunView
from murmurate.training.shards import SwarmSampler, shard


class SharedProgress(RunView):
    """What `Swarm` tells of the swarm as one. Everything is as far as it is known here."""

    _data_size = 0
    resumed = False
    """Whether this node goes on from a checkpoint of its own."""

    @property
    def steps(self) -> int:
        """Local steps of all members together, those that are gone and earlier lives included."""
        return sum(self._figures.steps_of().values())

    @property
    def own_steps(self) -> int:
        """Local steps of this node, those of earlier lives that this one goes on from included."""
        return self._figures.steps_of()[self._figures.name]

    @property
    def epoch(self) -> int:
        """How often the swarm has been through the data that `shard` or `sampler` was given."""
        if not self._data_size:
            raise ConfigError(
                "epoch: of which data? Give it to swarm.sampler(data) or swarm.shard(data) first"
            )
        return self.samples // self._data_size

    @property
    def number(self) -> int:
        """Of this node among the live members, from 0, in the order in which they came."""
        return self._place()[0]

    @property
    def seed(self) -> int:
        """A seed of this node's own: of its name, the run and the `seed` that join was given."""
        figures = self._figures
        before = self.own_steps if self.resumed else 0
        text = f"{figures.run}\n{figures.seed}\n{figures.name}\n{before}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")

    @property
    def chosen(self) -> bool:
        """Whether this is the one member of all that evaluates, logs and saves: the oldest."""
        return self.number == 0

    def shard(self, data: Any) -> Dataset[Any]:
        """This node's part of a dataset, as the members are now."""
        self._data_size = len(data) if hasattr(data, "__len__") else 0
        return shard(data, *self._place())

    def sampler(self, data: Any, *, shuffle: bool = True) -> SwarmSampler:
        """For a DataLoader: this node's part at each pass, following who is there."""
        if not hasattr(data, "__len__"):
            raise ConfigError("sampler: a stream has no places to draw: take swarm.shard(data)")
        self._data_size = len(data)
        return SwarmSampler(data, self._place, self.seed, shuffle=shuffle)

    def _place(self) -> tuple[int, int]:
        names = self._figures.by_arrival()
        mine = self._figures.name
        return (names.index(mine), len(names)) if mine in names else (0, 1)

    # -- the end for all -------------------------------------------------------------------------

    def stop(self) -> None:
        """Say that the run is over, for all: each finds `stopped` to be true within a second."""
        self._figures.stop()

    @property
    def stopped(self) -> bool:
        """Whether any member has said that the run is over. Leave the loop then."""
        return self._figures.is_stopped()
