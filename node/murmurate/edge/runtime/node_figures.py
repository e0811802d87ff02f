"""What is counted and known of one node: noted by the training thread, read by whoever asks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from murmurate.core.clock import Dot
from murmurate.core.effect import Applied
from murmurate.core.figures.same_batches import are_same
from murmurate.core.staleness import Summary

if TYPE_CHECKING:
    import torch

    from murmurate.core.figures.counters import Learned
    from murmurate.core.figures.learning import LearningWarning
    from murmurate.core.figures.progress import Progress
    from murmurate.edge.runtime.counting import Counting
    from murmurate.edge.runtime.node_state import NodeState
    from murmurate.edge.runtime.telling import Telling


class NodeFigures:
    """The figures of one node. Each method takes the lock itself."""

    def __init__(self, state: NodeState, telling: Telling, counting: Counting) -> None:
        self._state = state
        self._telling = telling
        self._counting = counting

    # -- noted by the training thread ------------------------------------------------------------

    def log(self, samples: int, learned: Learned) -> None:
        """Count samples and note the latest figures."""
        with self._state.lock:
            tally = self._state.tally
            tally.tell_samples(samples)
            tally.note(learned)
            news = tally.learning.news()
        self._counting.warn(news)

    def stepped(self, seconds: float, started: float, samples: int = 0) -> None:
        """A local step took so long; its batch, if it is the first, was `started` then. `samples`:
        as many were seen in it."""
        with self._state.lock:
            if self._state.tally.began is None:
                self._state.tally.began = started
            self._state.tally.step(seconds)
            self._state.tally.see_samples(samples)

    def began_with(self, batches: tuple[int, ...]) -> bool:
        """These were the first batches. Whether a live member has the same, which is then said."""
        state = self._state
        with state.lock:
            tally = state.tally
            tally.first_batches = batches
            live = state.peer.membership.live()
            same = [
                told.name
                for told in state.board
                if told.name != state.name
                and told.name in live
                and are_same(batches, told.first_batches)
            ]
            tally.learning.draws_as(same)
            news = tally.learning.news()
        self._counting.warn(news)
        return bool(same)

    def stop(self) -> None:
        """Tell everyone that the run is over."""
        with self._state.lock:
            self._state.tally.stopped = True
            self._telling.soon()

    def stepped_together(self, compute_s: float, names: Iterable[str]) -> None:
        """A step was made of a gradient of each of these: nothing of it is stale."""
        dots = [Dot(name, 1, 1) for name in names]
        with self._state.lock:
            self._state.tally.publish(compute_s)
            self._state.tally.apply(Applied(tuple(dots), (0,) * len(dots)))

    def stepped_in_memory(self, compute_s: float, staleness: int) -> None:
        """A step was made on weights that others write too; they made so many meanwhile."""
        with self._state.lock:
            self._state.tally.publish(compute_s)
            mine = (Dot(self._state.name, 1, 1),)
            self._state.tally.apply(Applied(mine, (max(0, staleness),)))

    def ended(self, now: float) -> None:
        """There will be no more steps."""
        with self._state.lock:
            self._state.tally.ended = now

    def waited(self, seconds: float) -> None:
        """Training stood still for so long."""
        with self._state.lock:
            self._state.tally.wait_s += seconds

    def checkpoints_failed(self, count: int) -> None:
        """So many could not be written so far."""
        with self._state.lock:
            self._state.tally.checkpoint_failures = count

    def go_on(self, samples: int, steps: int) -> None:
        """An earlier life had trained on so many samples, in so many steps."""
        with self._state.lock:
            self._state.tally.go_on(samples, steps)

    # -- read ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def run(self) -> str:
        return self._state.settings.run

    @property
    def swarm(self) -> str:
        """The id of the swarm, one of maybe several of this run, that this node is in."""
        return self._state.swarm

    @property
    def came_to_others(self) -> bool:
        """Whether others were in the run when this node came."""
        return self._state.company

    @property
    def address(self) -> str:
        return self._state.transport.address

    @property
    def metrics_address(self) -> str | None:
        """Where its figures are served; None: nowhere."""
        pages = self._state.pages
        return pages.address if pages is not None else None

    def progress(self) -> Progress:
        """Mine, of this instant."""
        with self._state.lock:
            return self._telling.progress()

    def board(self) -> list[Progress]:
        """The last word of every member about its progress, this node's as of now."""
        with self._state.lock:
            self._telling.progress()
            return list(self._state.board)

    def others_told(self) -> list[Progress]:
        """The last word of every other member that was ever heard of."""
        with self._state.lock:
            return [entry for entry in self._state.board if entry.name != self._state.name]

    def members(self) -> dict[str, str]:
        """Names and states (alive, suspect, dead, left), this node's included."""
        with self._state.lock:
            return {r.name: r.state for r in self._state.peer.membership.rumours()}

    def staleness(self) -> Summary:
        """Of every update applied here, own included: a copy."""
        with self._state.lock:
            return self._state.tally.all_staleness()

    def staleness_level(self) -> Summary:
        """The same without what was applied before this node was level with the others: a copy."""
        with self._state.lock:
            copy = Summary()
            copy.merge(self._state.tally.staleness)
            return copy

    def warnings(self) -> tuple[LearningWarning, ...]:
        """What went wrong with the learning at any time, as it was said last."""
        with self._state.lock:
            return self._state.tally.learning.ever

    def samples_of(self) -> dict[str, int]:
        """Of each node, also of those that are gone."""
        state = self._state
        with state.lock:
            others = {entry.name: entry.samples for entry in state.board}
            return {**others, state.name: state.tally.samples}

    def steps_of(self) -> dict[str, int]:
        """Local steps of each node, also of those that are gone."""
        state = self._state
        with state.lock:
            others = {entry.name: entry.steps for entry in state.board}
            return {**others, state.name: state.tally.steps_made}

    def is_stopped(self) -> bool:
        """Whether anybody has said that the run is over."""
        state = self._state
        with state.lock:
            return state.tally.stopped or any(entry.stopped for entry in state.board)

    def by_arrival(self) -> list[str]:
        """The live members in the order in which they came; whoever was not met yet last."""
        with self._state.lock:
            membership = self._state.peer.membership
            lives = [(membership.epoch(name) or math.inf, name) for name in membership.live()]
        return [name for _, name in sorted(lives)]

    @property
    def seed(self) -> int | None:
        """As it was given to `join`."""
        return self._state.settings.seed

    def delays(self) -> tuple[float, float]:
        with self._state.lock:
            return self._state.outlook.delays_so_far

    def accuracy_of(self) -> tuple[float, ...]:
        """By class, as it was logged last."""
        return self._state.tally.accuracy_of

    def weights(self) -> torch.Tensor:
        """A copy of the flat weights."""
        with self._state.lock:
            return self._state.weights.clone()
