"""Who is in which group of those that train in step inside groups (003, section 3.1). Pure.

Fixed: by the number a member's name ends in. Redrawn: the first of each group stays, for it speaks
for the group across, and the rest is dealt anew. What follows from a draw follows from it alone, so
whoever knows it agrees, whoever is there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from murmurate.core.synchronous.rules import group_of
from murmurate.core.values.names import ordinal

NUMBER_MAX = 10**9
MEMBERS_MAX = 4096


@dataclass(frozen=True, slots=True, order=True)
class Draw:
    """One redrawing; of two the larger one counts."""

    number: int = 0
    """0: none was made, groups are by number."""
    members: int = 0
    """Numbers from 0 on that are dealt."""
    key: int = 0
    """What chance said."""

    def text(self) -> str:
        return f"{self.number}.{self.members}.{self.key}"


FIXED = Draw()


def read_draw(text: str) -> Draw:
    """As it was told; what nobody writes is no draw."""
    match = re.fullmatch(r"(\d{1,9})\.(\d{1,4})\.(\d{1,9})", text)
    if match is None:
        return FIXED
    number, members, key = (int(each) for each in match.groups())
    return Draw(number, members, key) if number and members <= MEMBERS_MAX else FIXED


def first_of_group(name: str, size: int) -> bool:
    """Whether it stays where it is, whatever is drawn."""
    number = ordinal(name)
    return number is not None and number % size == 0


def group_by(draw: Draw, name: str, size: int) -> int | None:
    """The group of a member. One whose number was not dealt is where its number says."""
    number = ordinal(name)
    if number is None or not draw.number or number >= draw.members or number % size == 0:
        return group_of(name, size)
    return _dealt(draw, size)[number]


@lru_cache(maxsize=8)
def _dealt(draw: Draw, size: int) -> Mapping[int, int]:
    """Of all but the first ones: their places, in a random order of those who take them."""
    places = [number for number in range(draw.members) if number % size]
    order = sorted(places, key=lambda number: (_chance(draw, number), number))
    return {number: place // size for number, place in zip(order, places, strict=True)}


def _chance(draw: Draw, number: int) -> bytes:
    return hashlib.blake2b(f"{draw.text()}/{number}".encode(), digest_size=8).digest()
