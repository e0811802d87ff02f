"""Whom I have asked for a snapshot, and when to ask somebody else.

A snapshot may take long, and a second one on the same line would only make both slower: while one
is coming nobody else is asked. When its giver is gone, it breaks off, or nothing comes at all,
somebody is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from enum import Enum, auto

from murmurate.core.effect import Rng


class Stage(Enum):
    """How far a request for a snapshot has come."""

    NONE = auto()
    """Nobody has been asked, or what came of it is over."""
    ASKED = auto()
    """Somebody has been asked, and nothing came of it so far."""
    ASKED_AGAIN = auto()
    """So it is, and nothing came of the request before either."""
    COMING = auto()
    """A part of one is here, and the rest may follow."""
    BROKEN_OFF = auto()
    """One broke off, and what came of it is kept: the same giver is asked first."""


class Asking:
    """One request at a time. Whoever is asked has `wait_s` to begin."""

    __slots__ = ("_asked_at", "_giver", "_stage", "_wait_s")

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._giver = ""
        self._asked_at = -math.inf
        self._stage = Stage.NONE

    def whom(self, others: Sequence[str], live: Container[str], now: float, rng: Rng) -> str | None:
        """One of these to ask now; None: wait. Not the last one again, if there is another."""
        if not others or self._waits(live, now):
            return None
        if self._stage is Stage.BROKEN_OFF and self._giver in others:
            chosen = self._giver
        else:
            pool = [name for name in others if name != self._giver] or others
            chosen = pool[rng.randrange(len(pool))]
        in_vain = self._stage in (Stage.ASKED, Stage.ASKED_AGAIN)
        self._giver, self._asked_at = chosen, now
        self._stage = Stage.ASKED_AGAIN if in_vain else Stage.ASKED
        return chosen

    def _waits(self, live: Container[str], now: float) -> bool:
        in_time = now < self._asked_at + self._wait_s
        return (self._stage is Stage.COMING or in_time) and self._giver in live

    def awaits(self, live: Container[str], now: float) -> bool:
        """Whether one is on its way, or most likely is: not if the last one never came."""
        return self._stage in (Stage.COMING, Stage.ASKED) and self._waits(live, now)

    def comes(self, live: Container[str]) -> bool:
        """Whether a part of one is here, and the rest may follow."""
        return self._stage is Stage.COMING and self._giver in live

    def wants(self, sender: str) -> bool:
        """Whether one that is offered now should come: not a second one beside the first."""
        return self._stage is not Stage.COMING or sender == self._giver

    def began(self, sender: str) -> None:
        """One begins to come, or a part of it has come: from whom I asked, or asked before."""
        if self._stage is not Stage.COMING:
            self._giver, self._stage = sender, Stage.COMING

    def broke(self, sender: str, *, again: bool) -> None:
        """It will not come; `again`: what came of it is kept, so the same giver is asked first."""
        if sender == self._giver:
            self._stage = Stage.BROKEN_OFF if again else Stage.NONE
            self._asked_at = -math.inf

    def came(self, sender: str) -> None:
        """It is here."""
        if sender == self._giver:
            self._stage = Stage.NONE
