"""What this node restored last, for the case that another did so at the same time.

Who is chosen is known to each member by itself, and for a moment two may think that they are: while
somebody comes, or goes. What both restored would add up, and lead as far beyond. So whoever's name
comes later takes back what it restored, as soon as it hears of the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from murmurate.core.message import Push

KEPT_S = 60.0
"""It is as large as the model; members hear of each other long before."""


class OwnRestore:
    """The change that this node made, as long as it is kept."""

    def __init__(self) -> None:
        self._change: torch.Tensor | None = None
        self._epoch = self._seq = 0
        self._at = 0.0

    def made(self, change: torch.Tensor, epoch: int, seq: int) -> None:
        """This was just published, as that update."""
        self._change, self._epoch, self._seq = change, epoch, seq
        self._at = time.monotonic()

    def clash(self, mine: str, messages: Iterable[Any]) -> str:
        """Who restored without knowing of mine, and has the say; empty: nobody."""
        if self._change is not None and time.monotonic() > self._at + KEPT_S:
            self._change = None
        if self._change is None:
            return ""
        others = [
            stamp.dot.origin
            for message in messages
            if isinstance(message, Push) and message.written
            for stamp in message.stamps
            if stamp.written and stamp.context.last(mine, self._epoch) < self._seq
        ]
        return min((name for name in others if name < mine), default="")

    def taken_back(self) -> torch.Tensor:
        """What undoes it; it is not kept any more."""
        assert self._change is not None
        change, self._change = self._change, None
        return change.neg_()
