"""What people should hear of a run while the coordinator has it: each thing once, or now and then.

What members tell of their losses, pushes of numbers that are none, and what the advisor sees in who
is given what. No time of its own: it is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from murmurate.core.figures.learning import Learning
from murmurate_coordinator.members import MemberTally, fruitless_most
from murmurate_coordinator.session_words import Lines
from murmurate_coordinator.solvers.effects import Effect
from murmurate_coordinator.solvers.protocol import Solver
from murmurate_coordinator.solvers.subnets.advisor import Advice, Advisor

ADVISE_S = 2.0
SILENT_S = 3.0
"""A busy machine holds a process up for a second or two: that is no silence."""
ADVICE_S = 60.0
"""The same thing is not said again before."""


class Concerns:
    """Puts warnings into the lines that are shown."""

    def __init__(self, solver: Solver, lines: Lines, now: float) -> None:
        self.learning = Learning()
        """How the model learns, by the losses that its members tell."""
        self._solver = solver
        self._lines = lines
        self._cautioned = False
        self._fruitless = 0
        """Pushes of numbers that are none, since the last one that was taken."""
        self._advisor = Advisor(solver, now, silent_s=SILENT_S)
        self._advise_at = now
        self._advised: dict[tuple[str, str], float] = {}

    def heard(self, tally: MemberTally, loss: float) -> None:
        """A member's training loss; one that was heard before tells nothing new."""
        if not math.isnan(loss) and (not tally.losses or loss != tally.losses[-1]):
            tally.losses.append(loss)
            if not self._fruitless:
                self._learns(loss)

    def taken(self) -> None:
        """A push was."""
        self._fruitless = 0

    def not_finite(self) -> None:
        """A push was of numbers that are none."""
        self._fruitless += 1
        self._learns(math.nan)

    @property
    def hopeless(self) -> bool:
        """Whether all that members still push are numbers that are none: so are the weights."""
        return self._fruitless >= fruitless_most(len(self._solver.members))

    def _learns(self, loss: float) -> None:
        """Of subnets a loss may well rise when they are dealt anew."""
        if self._solver.mode != "hub":
            return
        learning, instead = self.learning, self._solver.instead
        learning.summed = bool(instead) and len(self._solver.members) > 1
        learning.instead = instead
        learning.note_loss(loss, self._solver.totals.steps)
        self._lines.warnings += [each.text for each in learning.news()]

    def saw(self, now: float, effects: Sequence[Effect]) -> None:
        """This is done next."""
        self._advisor.saw(now, effects)
        if not self._cautioned and len(self._solver.members) > 1 and self._solver.leases:
            self._cautioned = True
            if caution := self._solver.caution:  # what several members should know
                self._lines.warnings.append(caution)

    def advise(self, now: float) -> None:
        """Say what is not as it should be, now and then."""
        if now >= self._advise_at:
            self._advise_at = now + ADVISE_S
            self._lines.warnings += [advice.sentence for advice in self._news(now)]

    def _news(self, now: float) -> Iterator[Advice]:
        for advice in self._advisor.news(now):
            key = (advice.kind, advice.about)
            if now >= self._advised.get(key, -math.inf) + ADVICE_S:
                self._advised[key] = now
                yield advice

    def advice(self, now: float) -> list[Advice]:
        """All that is not as it should be."""
        return self._advisor.advice(now)
