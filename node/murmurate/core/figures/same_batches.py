"""Do two peers draw the same batches? Then together they compute what one of them would.

Most scripts fix their seed, and all peers run one script. So each notes what its first batches
were, in a number each, and tells it with its progress; equal numbers are equal batches. Weights do
not matter for this, so it holds whoever began first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

SAMPLED = 64
"""Numbers of a batch that are looked at."""
ENOUGH = 2
"""So many different batches that both had are no chance."""
ONE_AND_THE_SAME = 4
"""So often one batch and no other: it is all the data there is, at each step."""


def number_of(batch: torch.Tensor) -> int | None:
    """What stands for a batch; None: all of it is one value, which says nothing."""
    flat = batch.detach().reshape(-1)
    few = flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED].cpu()
    if few.numel() == 0 or bool((few == few[0]).all()):
        return None
    text = f"{tuple(batch.shape)} {few.dtype} {few.tolist()}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little")


def are_same(mine: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether two peers draw the same."""
    common = set(mine) & set(theirs)
    if len(common) >= ENOUGH:
        return True
    alike = bool(common) and set(mine) == set(theirs)
    return alike and min(len(mine), len(theirs)) >= ONE_AND_THE_SAME
