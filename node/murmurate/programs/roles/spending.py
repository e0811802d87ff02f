"""How much of a budget of samples is spent by now: what was told, and what was made since. Pure.

Nodes tell each other how far they are twice a second. In a run of a few seconds that alone would
let all of them train a sixth to a third beyond the budget (measured), so each also reckons with
what the others have made since they told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from murmurate.core.figures.progress import Progress

UNHEARD_S = 1.5
"""Nobody is taken to train on for longer than this without a word."""


class Spending:
    """The samples of the others, from one look to the next."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, float, float]] = {}
        """Of each: samples, when they were heard of, and samples a second."""
        self._began: tuple[int, float] | None = None
        """My own samples at the first look, and when that was."""

    def likely(
        self, now: float, own: int, others: Iterable[Progress], alive: Collection[str]
    ) -> float:
        """Samples of all by now: what was told, and what those who train have made since. Who has
        told nothing of its pace yet is taken to have mine: a short run is over before that."""
        total = float(own)
        first, began = self._began = self._began or (own, now)
        mine = (own - first) / (now - began) if now > began else 0.0
        for each in others:
            samples, at, rate = self._told.get(each.name, (-1, now, each.samples_per_s))
            if each.samples != samples:
                if samples >= 0 and now > at:
                    rate = (each.samples - samples) / (now - at)
                samples, at = each.samples, now
                self._told[each.name] = samples, at, rate
            total += samples
            if each.name in alive and not each.done:
                total += (rate if rate > 0 else mine) * min(now - at, UNHEARD_S)
        return total


def fresh(before: Iterable[Progress], now: Iterable[Progress], alive: Collection[str]) -> bool:
    """Whether everybody who trains has told something since."""
    then = {each.name: (each.epoch, each.version) for each in before}
    return all(
        each.done or each.name not in alive or (each.epoch, each.version) > then.get(each.name, ())
        for each in now
    )
