"""Giving snapshots away, at little cost to the training of the one who gives.

A copy of large weights is made into memory that another thread has touched before (fresh memory
costs five times the copy), so training waits for the copy alone: 10 ms for 100 MB. Whoever asks
within a second, or of a large one while it is under way, gets the same copy; so does one whose link
broke, for a while: the part that it has is then not sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine
from dataclasses import dataclass, field
from typing import Any

import torch

from murmurate.core import buffers
from murmurate.core.message import Snapshot
from murmurate.edge.net.transport import Transport

SHARE_S = 1.0
"""Who asks within this time gets the same snapshot."""
KEEP_S = 30.0
"""How long one that broke off is kept for its next try."""
ALONE_S = 2.0
"""So long, at most, the one that is given has the memory for itself, and updates wait."""
GIFTS_MAX = 2
"""Different snapshots at a time; whoever else asks gets none, and asks somebody else."""
SMALL_BYTES = 1 << 20
"""Below this another thread costs more than it saves, and so does letting go of a copy early."""


@dataclass(slots=True, eq=False)
class _Gift:
    snapshot: Snapshot
    made_at: float
    under_way: set[str] = field(default_factory=set)
    broken: dict[str, float] = field(default_factory=dict)
    """To whom it broke off, and until when it is kept."""


class Giving:
    """Who is given which snapshot. On the thread of the event loop only."""

    def __init__(
        self,
        transport: Transport,
        weights: torch.Tensor,
        *,
        make: Callable[[], Snapshot | None],
        carry: Callable[[str, Snapshot], bool],
        do: Callable[[Coroutine[Any, Any, None]], None],
        now: Callable[[], float],
    ) -> None:
        """`make`: a snapshot of this instant, or None: there is none to give. `carry`: False: it
        cannot be sent. `do`: beside everything else, and its failure is everyone's."""
        self._transport = transport
        self._size, self._dtype = weights.numel(), weights.dtype
        self._large = weights.numel() * weights.element_size() >= SMALL_BYTES
        self._make, self._carry, self._do, self._now = make, carry, do, now
        self._gifts: list[_Gift] = []
        self._waiting: dict[str, None] = {}
        """For whom one is being made."""
        self._again: set[str] = set()
        """Who asked again, and whose link is not back yet."""

    def busy(self) -> bool:
        """Whether a large one was begun a moment ago and is not there yet. For any thread."""
        since = self._now() - ALONE_S
        young = any(gift.under_way and gift.made_at > since for gift in tuple(self._gifts))
        return self._large and (young or bool(self._waiting))

    @property
    def receivers(self) -> set[str]:
        """To whom one is on its way."""
        return {to for gift in self._gifts for to in gift.under_way}

    @property
    def copies(self) -> int:
        """How many there are in memory."""
        return len(self._gifts)

    def asked(self, to: str) -> None:
        """It gets a snapshot: one at a time, however often it asks."""
        now = self._now()
        for gift in self._gifts:
            if to in gift.under_way or to in gift.broken:
                self._again.add(to)
                self._go_on(gift)
                return
        if self._waiting:
            self._waiting[to] = None
        elif self._gifts and now < self._gifts[-1].made_at + SHARE_S:
            self._give(self._gifts[-1], to)
        elif len(self._gifts) < GIFTS_MAX:
            self._waiting[to] = None
            self._do(self._prepare())

    def landed(self, to: str) -> None:
        for gift in self._gifts:
            gift.under_way.discard(to)
        self._again.discard(to)
        self._let_go()

    def lost(self, to: str) -> None:
        for gift in self._gifts:
            if to in gift.under_way:
                gift.under_way.remove(to)
                gift.broken[to] = self._now() + KEEP_S

    def sweep(self, live: Container[str]) -> None:
        """Now and then: go on with what broke off, and let go of what nobody waits for."""
        now = self._now()
        for gift in self._gifts:
            self._go_on(gift)
            for to, until in list(gift.broken.items()):
                if now >= until or to not in live:
                    del gift.broken[to]
                    self._again.discard(to)
        self._let_go()

    def _let_go(self) -> None:
        """Of what nobody waits for. A large copy is the size of the model: at once."""
        young = self._now() - (0.0 if self._large else SHARE_S)
        self._gifts = [
            gift for gift in self._gifts if gift.under_way or gift.broken or gift.made_at > young
        ]

    def forget(self) -> None:
        """Another life begins: none of these is its own."""
        self._gifts.clear()
        self._again.clear()

    def _go_on(self, gift: _Gift) -> None:
        for to in [to for to in gift.broken if to in self._again and self._transport.free(to)]:
            self._again.remove(to)
            del gift.broken[to]
            self._give(gift, to)

    def _give(self, gift: _Gift, to: str) -> None:
        gift.under_way.add(to)
        if not self._carry(to, gift.snapshot):
            self.landed(to)

    async def _prepare(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._large:
                await loop.run_in_executor(None, buffers.touch, self._size, self._dtype)
            snapshot = self._make()
            if snapshot is None:
                return
            gift = _Gift(snapshot, self._now())
            self._gifts.append(gift)
            for to in self._waiting:
                self._give(gift, to)
        finally:
            self._waiting.clear()
