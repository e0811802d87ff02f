"""Memory for large messages under way, all links together, and the parts of broken ones.

When it is used up, further offers wait for their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from murmurate.edge.net import wire
from murmurate.edge.net.incoming import IncomingMessage
from murmurate.edge.net.transport import Limits

if TYPE_CHECKING:
    from murmurate.edge.net.deadline import Deadline

PARTIALS_MAX = 64
SENDERS_MAX = 1024


class AskingLink(Protocol):
    """A link that needs memory for what it was offered."""

    who: tuple[str, int]
    """Name and life of its sender."""

    def grant(self, incoming: IncomingMessage) -> None:
        """There is memory for an offer."""


@dataclass(slots=True, eq=False)
class _Partial:
    payload: torch.Tensor
    filled: int
    total: int
    until: float


class Depot:
    """Memory for large messages under way, all links together, and the parts of broken ones."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self.limits = limits
        self.now = now
        self._budget = limits.budget_bytes
        self._used = 0
        self._waiting: deque[tuple[AskingLink, IncomingMessage]] = deque()
        self._partials: dict[tuple[str, int, int], _Partial] = {}
        self._patience: dict[str, Deadline] = {}

    def patience(self, sender: str) -> Deadline:
        """How long a sender's transfer may stand still; remembered when its link breaks."""
        known = self._patience.pop(sender, None) or self.limits.stall(self.limits.stall_s)
        self._patience[sender] = known  # the latest last
        if len(self._patience) > SENDERS_MAX:
            del self._patience[next(iter(self._patience))]
        return known

    @property
    def used_bytes(self) -> int:
        return self._used

    def ask(self, asking: AskingLink, incoming: IncomingMessage) -> None:
        """Memory for an offer, now or later: then the asking grants it."""
        self._budget = max(self._budget, 2 * incoming.total)
        self._waiting.append((asking, incoming))
        self._serve()

    def release(self, nbytes: int) -> None:
        self._used -= nbytes
        self._serve()

    def leave(self, asking: AskingLink) -> None:
        """A link is closed: its offers need no answer."""
        self._waiting = deque(item for item in self._waiting if item[0] is not asking)

    def keep(self, who: tuple[str, int], incoming: IncomingMessage) -> None:
        """The link broke in the middle: what is here may save sending it again."""
        assert incoming.payload is not None
        until = self.now() + self.limits.partial_s
        partial = _Partial(incoming.payload, incoming.filled, incoming.total, until)
        self._forget((*who, incoming.key))
        self._partials[*who, incoming.key] = partial
        if len(self._partials) > PARTIALS_MAX:
            self._forget(next(iter(self._partials)))
        self._serve()

    def sweep(self) -> None:
        now = self.now()
        for key in [key for key, partial in self._partials.items() if partial.until <= now]:
            self._forget(key)
        self._serve()

    def _forget(self, key: tuple[str, int, int]) -> None:
        partial = self._partials.pop(key, None)
        if partial is not None:
            self._used -= partial.total

    def _serve(self) -> None:
        while self._waiting:
            asking, incoming = self._waiting[0]
            name = (*asking.who, incoming.key)
            partial = self._partials.get(name)
            if partial is not None and partial.total == incoming.total:
                del self._partials[name]  # its memory stays in use, by the transfer again
                incoming.payload = partial.payload
                incoming.filled = partial.filled
                incoming.square = None
                if partial.payload.dtype != wire.payload_dtype(incoming.head):
                    incoming.filled = 0
                    incoming.allocate()
            else:
                while self._used + incoming.total > self._budget and self._partials:
                    self._forget(next(iter(self._partials)))
                if self._used + incoming.total > self._budget:
                    return
                self._used += incoming.total
                incoming.allocate()
            self._waiting.popleft()
            asking.grant(incoming)
