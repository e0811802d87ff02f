"""A workload's batches, again and again where it allows: a run ends on its budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from murmurate.workloads import DataShare, Workload

OVER = "batches"
"""Why a node ends that has nothing more to train on."""


def rounds(
    workload: Workload, share: DataShare, say: Callable[[str], None], *, again: Callable[[], bool]
) -> Iterator[tuple[torch.Tensor, ...]]:
    """`again`: whether there is a budget, so that batches which end are made once more. A workload
    whose second call gives nothing does not allow it."""
    said = False
    while True:
        count = 0
        for batch in workload.batches(share):
            count += 1
            yield batch
        if not count or not again():
            return
        if not said:
            said = True
            say(
                f"the workload's batches are over after {count:,}, the budget is not: it goes round"
            )


def all_there_was(samples: int, budget: int | None) -> str:
    """What is said when they are over for good."""
    of = f" of {budget:,}" if budget is not None else ""
    more = ": batches() should go on until the budget is spent, or give them again" if of else ""
    return f"the workload has no more batches after {samples:,}{of} samples{more}"
