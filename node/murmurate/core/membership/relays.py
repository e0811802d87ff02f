"""Probes made for others who got no answer themselves."""

from __future__ import annotations

import math

RELAYS_MAX = 16


class Relays:
    """Who waits to hear from whom, and until when; nobody can make it grow beyond its bound."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[float, str, int]]] = {}

    def full(self, target: str) -> bool:
        return len(self._waiting.get(target, ())) >= RELAYS_MAX

    def add(self, target: str, deadline: float, asker: str, number: int) -> None:
        self._waiting.setdefault(target, []).append((deadline, asker, number))

    def answered(self, target: str) -> list[tuple[str, int]]:
        """Those who waited for a sign of life of `target`: it came."""
        if target not in self._waiting:
            return []
        return [(asker, number) for _, asker, number in self._waiting.pop(target)]

    def expired(self, now: float) -> list[tuple[str, str, int]]:
        """Those who waited long enough: each is told that no answer came."""
        out = []
        for target, waiting in list(self._waiting.items()):
            while waiting and now >= waiting[0][0]:
                _, asker, number = waiting.pop(0)
                out.append((target, asker, number))
            if not waiting:
                del self._waiting[target]
        return out

    def earliest(self) -> float:
        return min((waiting[0][0] for waiting in self._waiting.values()), default=math.inf)
