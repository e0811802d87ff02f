"""A budget of samples of a whole swarm, as one of its nodes sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from murmurate.programs.roles.progress_lines import alive
from murmurate.programs.roles.spending import UNHEARD_S, Spending, fresh

if TYPE_CHECKING:
    from murmurate.core.figures.progress import Progress
    from murmurate.training.hogwild import HogwildSwarm
    from murmurate.training.signals import Stop
    from murmurate.training.swarm import Swarm
    from murmurate.training.synchronous import SynchronousSwarm

    Session = Swarm | SynchronousSwarm | HogwildSwarm


class SwarmBudget:
    """Whether it is spent; `waited_s` counts what finding out has cost."""

    def __init__(self, swarm: Session, stop: Stop) -> None:
        self.waited_s = 0.0
        self._swarm = swarm
        self._stop = stop
        self._spending = Spending()

    def spent(self, budget: int) -> bool:
        """Whether the swarm has trained on that many. Where it probably has, by what the others
        make in a second, this node waits for their next word instead of training beyond it."""
        swarm, stop = self._swarm, self._stop
        own, others = swarm.samples_of[swarm.name], self._others()
        now = time.monotonic()
        if own + sum(each.samples for each in others) >= budget:
            return True
        if self._spending.likely(now, own, others, alive(swarm)) < budget:
            return False

        def known() -> bool:
            told = self._others()
            spent = own + sum(each.samples for each in told) >= budget
            return spent or bool(stop.reason) or fresh(others, told, alive(swarm))

        swarm.follow(known, UNHEARD_S)
        self.waited_s += time.monotonic() - now
        return not stop.reason and swarm.samples >= budget

    def _others(self) -> list[Progress]:
        return [each for each in self._swarm.board if each.name != self._swarm.name]
