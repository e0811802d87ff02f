"""Copies of tensors for a checkpoint, made in the training thread at little cost."""

from __future__ import annotations

import torch


class Copies:
    """Tensors that change, as they were at one instant, in memory that is used again.

    Fresh memory costs 0.6 s of page faults per GB, in the training thread.
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._used: set[str] = set()

    def copy(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        kept = self._kept.get(key)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = self._kept[key] = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._used.add(key)
        with torch.no_grad():
            return kept.copy_(tensor)

    def end(self) -> None:
        """Let go of what is not needed any more."""
        for key in [key for key in self._kept if key not in self._used]:
            del self._kept[key]
        self._used.clear()
