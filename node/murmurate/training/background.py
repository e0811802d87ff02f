"""What the publisher asks of others: of the node beside it, and of where batches come from."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from murmurate.core.clock import Clock
from murmurate.core.intervals import Runs
from murmurate.core.publishing.own_update import OwnUpdate
from murmurate.edge.runtime.training_port import Folds, LifeNow


class Background(Protocol):
    """What the publisher asks of the node beside it (`edge.runtime.training_port`)."""

    @property
    def name(self) -> str: ...
    @property
    def weights(self) -> torch.Tensor: ...
    @property
    def synced(self) -> bool: ...
    @property
    def interval_s(self) -> float: ...
    def context(self) -> Clock: ...
    def has_room(self, nbytes: int, *, sparing: bool = False, fresh: bool = False) -> bool: ...
    def under_way(self, number: int) -> bool: ...
    def gives_snapshot(self) -> bool: ...
    def life(self) -> LifeNow: ...
    def members_live(self) -> int: ...
    def commit(self, update: OwnUpdate) -> None: ...
    def waiting(self) -> list[Any]: ...
    def fold(self, count: int) -> Folds: ...
    def step_taken_back(self) -> None: ...


class Source(Protocol):
    """Where batches come from, when it wants to know what becomes of the steps (`feed.Feed`)."""

    def may_publish(self) -> bool:
        """False: the steps since the last update must not leave yet; they are added up."""

    def batches(self) -> Runs:
        """The batches that these steps were made on."""

    def published(self) -> None:
        """They are in an update."""

    def dropped(self) -> None:
        """They are not in the weights any more, and in no update."""

    def undone(self) -> None:
        """The same, because their result could not be used."""
