"""What a rule keeps of each member, as tensors of a checkpoint and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

Values = Mapping[str, torch.Tensor]


def put(tensors: dict[str, torch.Tensor], prefix: str, owned: Mapping[str, Values]) -> list[str]:
    """Copies of all of it. The owners in order, for `taken`."""
    for k, values in enumerate(owned.values()):
        tensors.update({f"{prefix}/{k}/{name}": value.clone() for name, value in values.items()})
    return list(owned)


def taken(
    tensors: Values, prefix: str, owners: Iterable[str]
) -> dict[str, dict[str, torch.Tensor]]:
    """The same again."""
    owned: dict[str, dict[str, torch.Tensor]] = {}
    for k, owner in enumerate(owners):
        start = f"{prefix}/{k}/"
        owned[str(owner)] = {
            name.removeprefix(start): value.clone()
            for name, value in tensors.items()
            if name.startswith(start)
        }
    return owned
