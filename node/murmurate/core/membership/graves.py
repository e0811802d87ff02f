"""The last word on members of whom there is no record any more."""

from __future__ import annotations

from murmurate.core.message import Rumour

GRAVES_MAX = 1024


class Graves:
    """Keeps old rumours from bringing back who was forgotten; bounded, the oldest goes first."""

    __slots__ = ("_rumours",)

    def __init__(self) -> None:
        self._rumours: dict[str, Rumour] = {}

    def add(self, rumour: Rumour) -> None:
        self._rumours.pop(rumour.name, None)
        self._rumours[rumour.name] = rumour
        if len(self._rumours) > GRAVES_MAX:
            del self._rumours[next(iter(self._rumours))]

    def last_word(self, name: str) -> Rumour | None:
        return self._rumours.get(name)

    def open(self, name: str) -> None:
        """Somebody of that name is a member again."""
        self._rumours.pop(name, None)
