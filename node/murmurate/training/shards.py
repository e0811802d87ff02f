"""A part of the data for each peer, so that together they see all of it.

Who has which part follows from who is there: number k of n members has every n-th sample of one
order that all know, from the k-th on. When members come or go, parts change with the next sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, Subset

from murmurate.errors import ConfigError


class Place(Protocol):
    """Which of how many members this node is, at the moment of asking."""

    def __call__(self) -> tuple[int, int]: ...


class SwarmSampler(Sampler[int]):
    """Indices of this node's part of a dataset, in an order of its own at each pass."""

    def __init__(self, data: Sized, place: Place, seed: int, *, shuffle: bool = True) -> None:
        self._size = len(data)
        self._place = place
        self._shuffle = shuffle
        self._order = torch.randperm(self._size, generator=torch.Generator().manual_seed(0))
        """The same for all, so that no class or author is one peer's alone."""
        self._own = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        """Each sample of the part once, if the members stay; a part that changes on the way is
        drawn from as it is then."""
        passed = torch.arange(self._size)
        if self._shuffle:
            passed = torch.randperm(self._size, generator=self._own)
        for at in passed.tolist():
            number, count = self._place()
            if at % count == number:
                yield int(self._order[at])

    def __len__(self) -> int:
        number, count = self._place()
        return len(range(number, self._size, count))


class _Every(IterableDataset[Any]):
    """Of a stream every n-th sample; with workers of a loader each takes its part of that."""

    def __init__(self, data: IterableDataset[Any], number: int, count: int) -> None:
        self._data, self._number, self._count = data, number, count

    def __iter__(self) -> Iterator[Any]:
        for at, sample in enumerate(self._data):
            if at % self._count == self._number:
                yield sample


def shard(data: Any, number: int, count: int) -> Dataset[Any]:
    """The part of a dataset that is number k of n's, as it is now."""
    if isinstance(data, IterableDataset):
        return _Every(data, number, count)
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise ConfigError(f"shard: {type(data).__name__} is no dataset: it has no length")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return Subset(data, order[number::count].tolist())
