"""What the core asks its driver to do.

A list of effects is carried out in order. When one fails, the rest of the list is dropped: what
comes after a `Save` must not leave the machine unless the `Save` is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Rng(Protocol):
    """The part of `random.Random` the core uses; the driver passes a seeded one in."""

    def random(self) -> float: ...
    def randrange(self, stop: int, /) -> int: ...


def shuffled(items: list[T], rng: Rng) -> list[T]:
    """A new list in random order (Fisher-Yates), from the given rng alone."""
    out = list(items)
    for i in range(len(out) - 1, 0, -1):
        j = rng.randrange(i + 1)
        out[i], out[j] = out[j], out[i]
    return out


@dataclass(frozen=True, slots=True)
class Send:
    """Pass a message to a peer. It may be lost, delayed, reordered or duplicated."""

    to: str
    message: Any


@dataclass(frozen=True, slots=True)
class Save:
    """Make `value` durable under `key` before carrying out the next effect."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Deliver:
    """A checked message that changes weights: hand it to `Peer.fold` when weights may change."""

    sender: str
    message: Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """A member's state changed here, and why."""

    name: str
    epoch: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Something was not used, and why (a counter's label) — never silently."""

    sender: str
    reason: str
    detail: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Applied:
    """Updates were folded in: their dots and, in the same order, their exact staleness."""

    dots: tuple[Any, ...]
    staleness: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adopted:
    """A snapshot replaced the weights; what it lacked of mine was folded in again.

    `retired`: updates that were in my weights and are void by agreement of all members.
    `given_up`: updates that were in my weights in a sum nobody can take apart any more.
    """

    giver: str
    snapshot: Any
    kept: tuple[Any, ...]
    retired: tuple[Any, ...]
    given_up: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The clock moved to a new generation of the baseline."""

    generation: Any


@dataclass(frozen=True, slots=True)
class Rejoin:
    """This peer's epoch was retired by the others: start again with a new epoch, by snapshot."""

    reason: str


Effect = Send | Save | Deliver | Verdict | Drop | Applied | Adopted | Moved | Rejoin
