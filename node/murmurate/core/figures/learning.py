"""What goes wrong with the learning of one node, each in a sentence that says what to do.

A sentence is said once when its condition begins, and again when that has ended and come back.
False alarms are worse than silence: what could not be told apart by measuring is not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from murmurate.core.figures.loss_trend import LossTrend
from murmurate.core.values.limits import Line, Name

if TYPE_CHECKING:
    from murmurate.core.publishing.likeness import Likeness

REASONS = ("alike", "loss_not_finite", "loss_risen", "same_batches", "timid", "unlike")
"""Sorted. `timid`: the learning rate could be higher."""


class LearningWarning(NamedTuple):
    """One thing that goes wrong now."""

    reason: Name
    text: Line


class Learning:
    """What is known of how one node learns. Whoever calls it holds the runtime's lock."""

    def __init__(self) -> None:
        self.summed = False
        """Whether everybody's steps are added up, so that the rate must suit all at once."""
        self.instead = "take rule 'shared', with which one node's rate suits any number of peers"
        """What there is besides a lower rate then."""
        self.data = "same"
        """What was said of the peers' data (`core.gossip.ways.DATA`)."""
        self.own_cosine = math.nan
        self.others_cosine = math.nan
        """Of this node's gain with its own of late, and with the others' (`likeness`)."""
        self._trend = LossTrend()
        self._now: dict[str, str] = {}
        self._all: dict[str, str] = {}
        self._news: list[LearningWarning] = []

    def note_loss(self, loss: float, steps: int) -> None:
        """The loss of a batch, after so many local steps."""
        trend = self._trend
        trend.note(loss, steps)
        self._set("loss_not_finite", trend.not_finite, self._not_finite)
        self._set("loss_risen", trend.risen or trend.shot_up, self._risen)

    def compare(self, likeness: Likeness) -> None:
        """A publication was held against those before it, and against the others'."""
        self.own_cosine, self.others_cosine = likeness.own.mean, likeness.others.mean
        self._set("unlike", likeness.unlike and self.data == "same", self._unlike)
        self._set("alike", likeness.alike and self.data == "own", self._alike)
        self._set("timid", likeness.timid, self._timid)

    def draws_as(self, names: Sequence[str]) -> None:
        """These members draw the same batches as this node does."""
        who = ", ".join(sorted(names))
        self._set("same_batches", bool(names), lambda: _same_batches(who))

    @property
    def warnings(self) -> tuple[LearningWarning, ...]:
        """Those that hold now, sorted by reason."""
        return tuple(LearningWarning(*each) for each in sorted(self._now.items()))

    @property
    def ever(self) -> tuple[LearningWarning, ...]:
        """All that held at any time, as they were said last; sorted by reason."""
        return tuple(LearningWarning(*each) for each in sorted(self._all.items()))

    def news(self) -> list[LearningWarning]:
        """What began since this was asked last."""
        news, self._news = self._news, []
        return news

    def _set(self, reason: str, holds: bool, sentence: Callable[[], str]) -> None:
        if not holds:
            self._now.pop(reason, None)
        elif reason not in self._now:
            self._now[reason] = self._all[reason] = text = sentence()
            self._news.append(LearningWarning(reason, text))

    # -- sentences ---------------------------------------------------------------------------------

    def _risen(self) -> str:
        trend = self._trend
        if trend.shot_up:
            return (
                f"the loss rose from {trend.began:.3g} to {trend.high:.3g} and is"
                f" {trend.mean:.3g} after {trend.steps:,} steps, no better than at first:"
                f" {self._remedy}, and begin again"
            )
        return (
            f"the loss has risen from {trend.best:.3g} to {trend.mean:.3g} over the last"
            f" {trend.steps - trend.best_at:,} steps: {self._remedy}"
        )

    def _not_finite(self) -> str:
        return (
            f"the loss is no number any more, after {self._trend.steps:,} steps: {self._remedy},"
            " and go back to a checkpoint from before"
        )

    @property
    def _remedy(self) -> str:
        if self.summed:
            return f"lower the learning rate, or {self.instead}"
        if "unlike" in self._now:
            return (
                'say data="own", as the others pull another way, and if that is not enough, lower'
                " the learning rate"
            )
        return "lower the learning rate"

    @property
    def _cosines(self) -> str:
        return f"cosine {self.others_cosine:.2f}; with its own of before {self.own_cosine:.2f}"

    def _unlike(self) -> str:
        return (
            f"the others' updates pull another way than this node's ({self._cosines}), as they do"
            ' where peers hold different data: say data="own" on all of them (--peers-data own)'
        )

    def _alike(self) -> str:
        return (
            f"the others' updates go the same way as this node's ({self._cosines}), as they do"
            ' where data is alike: say data="same" on all (--peers-data same), which learns faster'
        )

    def _timid(self) -> str:
        return (
            f"all updates go straight on (cosine {self.own_cosine:.2f} with those of before): the"
            " learning rate could be higher; try twice as much"
        )


def _same_batches(who: str) -> str:
    return (
        f"this node draws the same batches as {who}, so that together they learn no more than one:"
        " seed each by swarm.seed after join(), or take DataLoader(…, sampler=swarm.sampler(data))"
    )
