"""What taking over a snapshot would mean: what must be folded in again, and what would be lost.

A snapshot replaces weights and clock together. Whatever I have and it lacks is folded in again from
what I keep, so nothing is lost; if something is only in my weights, the plan says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.gossip.store import Store
from murmurate.core.intervals import runs_has
from murmurate.core.message import Push, Snapshot


@dataclass(frozen=True, slots=True)
class TooFarBehind:
    """This life of mine cannot go on: the others have closed it, or forgotten what I knew."""

    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How to take over a snapshot."""

    again: tuple[Push, ...]
    """To be folded in again."""
    kept: tuple[Dot, ...]
    """The updates in them."""
    retired: tuple[Dot, ...]
    """In my weights, and void by agreement of all."""
    lacking: tuple[Dot, ...]
    """Only in my weights: they would be lost."""
    brings_news: bool


def plan_adoption(
    snapshot: Snapshot, mine: Clock | None, log: Store, store: Store, *, life: Key | None
) -> Plan | TooFarBehind | str:
    """The plan, or why there is none. `mine` is None for a newcomer, `life` for one who leaves."""
    theirs = snapshot.clock
    retired: list[Dot] = []
    if mine is None:
        mine = Clock(generation=theirs.generation, base=theirs.base)
        newcomer = True
    else:
        newcomer = False
        if theirs.generation < mine.generation:
            return "older than mine"
        newer = [g for g in snapshot.history if g.number > mine.generation]
        if len(newer) < theirs.generation - mine.generation:
            return TooFarBehind("further behind than the history that the others keep")
        for generation in newer:
            folds = dict(generation.folds)
            if life in folds:
                return TooFarBehind(f"voted out in generation {generation.number}")
            retired += [
                dot
                for dot in mine
                if (runs := folds.get((dot.origin, dot.epoch))) and not runs_has(runs, dot.seq)
            ]
            mine = mine.lifted(generation.number, folds)
    kept = dict.fromkeys(dot for span in mine.missing(theirs) for dot in span.dots())
    again, lacking = log.cover(kept)
    more, lacking = store.cover(dict.fromkeys(lacking))
    for dot in lacking:
        del kept[dot]
    return Plan(
        again=(*again, *more),
        kept=tuple(kept),
        retired=tuple(retired),
        lacking=tuple(lacking),
        brings_news=newcomer or bool(theirs.missing(mine)),
    )
