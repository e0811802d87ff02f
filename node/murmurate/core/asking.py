"""Whom I have asked for a snapshot, and when to ask somebody else.

A snapshot may take long, and a second one on the same line would only make both slower: while one
is coming nobody else is asked. When its giver is gone, it breaks off, or nothing comes at all,
somebody is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from murmurate.core.effect import Rng


class Asking:
    """One request at a time. Whoever is asked has `wait_s` to begin."""

    __slots__ = ("_again", "_asked", "_coming", "_doubted", "_giver", "_open", "_wait_s")

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._giver = ""
        self._asked = -math.inf
        self._coming = False
        self._again = False
        self._open = False
        """Asked for, and nothing came of it so far."""
        self._doubted = False
        """Nor of the one before."""

    def whom(self, others: Sequence[str], live: Container[str], now: float, rng: Rng) -> str | None:
        """One of these to ask now; None: wait. Not the last one again, if there is another."""
        if not others or self._waits(live, now):
            return None
        if self._again and self._giver in others:
            chosen = self._giver
        else:
            pool = [name for name in others if name != self._giver] or others
            chosen = pool[rng.randrange(len(pool))]
        self._giver, self._asked = chosen, now
        self._coming = self._again = False
        self._doubted, self._open = self._open, True
        return chosen

    def _waits(self, live: Container[str], now: float) -> bool:
        return (self._coming or now < self._asked + self._wait_s) and self._giver in live

    def awaits(self, live: Container[str], now: float) -> bool:
        """Whether one is on its way, or most likely is: not if the last one never came."""
        return self._waits(live, now) and (self._coming or (self._open and not self._doubted))

    def comes(self, live: Container[str]) -> bool:
        """Whether a part of one is here, and the rest may follow."""
        return self._coming and self._giver in live

    def wants(self, sender: str) -> bool:
        """Whether one that is offered now should come: not a second one beside the first."""
        return not self._coming or sender == self._giver

    def began(self, sender: str) -> None:
        """One begins to come, or a part of it has come: from whom I asked, or asked before."""
        if not self._coming:
            self._giver, self._coming, self._again = sender, True, False
            self._open = False

    def broke(self, sender: str, *, again: bool) -> None:
        """It will not come; `again`: what came of it is kept, so the same giver is asked first."""
        if sender == self._giver:
            self._coming, self._again, self._asked = False, again, -math.inf
            self._open = False

    def came(self, sender: str) -> None:
        """It is here."""
        if sender == self._giver:
            self._coming = self._open = False
