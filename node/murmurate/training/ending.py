"""How a node's part in a run ends: what is left is published, and it waits for the others.

As long as they may be expected to end as well (`core.figures.patience`), unless a time was said.
Whatever could not be brought to all is said in one line: by whom it is of, and by whoever lacks it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from murmurate.core.figures.patience import Patience

if TYPE_CHECKING:
    from murmurate.edge.runtime.node_figures import NodeFigures
    from murmurate.edge.runtime.training_port import TrainingPort
    from murmurate.training.checkpoints import Checkpoints
    from murmurate.training.publisher import Publisher
    from murmurate.training.signals import Interrupts

log = logging.getLogger("murmurate")

SETTLED_S = 10.0
"""Once all have the same they leave together, within so long."""
SAY_AFTER_S, SAY_AGAIN_S = 5.0, 60.0
"""Who waits says so after a while, and then now and then."""
NAMED_MAX = 4
"""Names in a line; the rest is counted."""
ROOM_S = 2.0
"""At the end the last update waits for room at most this long, then it is made all the same."""
ROOM_FOR_PART_S = 20.0
"""Each part of a large model waits longer: all of them at once are another model in memory, here
and with each of the others."""


class Follow(Protocol):
    """Folds in what comes until something is true; False: it took too long (`Swarm.follow`)."""

    def __call__(self, until: Callable[[], bool], timeout_s: float) -> bool: ...


class Ending:
    """The end of one node's training. For the training thread, as all that it uses is."""

    def __init__(
        self,
        port: TrainingPort,
        figures: NodeFigures,
        publisher: Publisher,
        checkpoints: Checkpoints,
        interrupts: Interrupts,
        follow: Follow,
    ) -> None:
        self._port = port
        self._figures = figures
        self._publisher = publisher
        self._checkpoints = checkpoints
        self._interrupts = interrupts
        self._follow = follow
        self._even_after = -1
        """How many steps I had made when all were heard to have the same; -1: never."""

    def publish(self) -> None:
        """Publish all that is in no update yet, room or not."""
        self._port.check()
        if self._publisher.unpublished.any:
            with self._interrupts.held_back(), self._publisher.exactly():
                self._publisher.publish_all()
            self._port.flush(at_once=True)

    def settle(self, timeout_s: float) -> bool:
        """Publish, then fold until every known update is in, and mine are with everyone alive."""
        return self._follow(self._port.others.is_caught_up, self._publish_last(timeout_s))

    def finish(self, timeout_s: float | None) -> bool:
        """Say that this is the end, wait until all have, and until all have the same. None: as long
        as the others may be expected to end."""
        port, began = self._port, time.monotonic()
        self._figures.ended(began)
        wait = _Wait(port, began)
        limit_s = math.inf if timeout_s is None else timeout_s
        if self._publisher.encoded and port.synced:
            self._share_rest(min(limit_s, 2 * ROOM_S))
        self._publish_last(began + limit_s - time.monotonic())
        port.others.tell("done")

        def over() -> bool:
            if port.others.are("done") and port.others.is_even():
                wait.even = True
            return wait.even or (timeout_s is None and wait.is_over(time.monotonic()))

        self._follow(over, began + limit_s - time.monotonic())
        port.others.tell("settled")
        left_s = began + limit_s - time.monotonic()
        if wait.even:
            self._even_after = port.steps_made()
            self._follow(lambda: port.others.are("settled"), max(0.0, min(left_s, SETTLED_S)))
        elif port.synced:
            self._say_uneven(time.monotonic() - began)
        self._checkpoints.soon()
        self._checkpoints.take_if_due()
        return not self._say_lost() and wait.even

    def end_at_weights(self) -> None:
        """What somebody wrote into the parameters after the last step is said, and goes."""
        if not self._publisher.unpublished.any or self._publisher.placed.at_weights:
            self._publisher.look.end_at_weights()

    def say_unfinished(self) -> None:
        """A program ends, and has not waited for the others."""
        if self._port.synced and self._port.members_live() > 1:
            log.warning(
                "%s leaves without waiting for the others, so its model and theirs may differ: let"
                " the `with` block end by itself, or call swarm.finish() first",
                self._port.name,
            )

    def _say_uneven(self, waited_s: float) -> None:
        told = self._port.others.not_done()
        if told:
            who = _names([f"{each.name} ({each.steps:,} steps)" for each in told])
            why = f"{who} still trains" if len(told) == 1 else f"{who} still train"
        else:
            why = "not all have been heard to have the same updates"
        log.warning(
            "%s ends after waiting %.0f s, with %s steps, though %s: its model and theirs may"
            " differ; swarm.finish(timeout_s) waits longer",
            self._port.name,
            waited_s,
            f"{self._port.steps_made():,}",
            why,
        )

    def _say_lost(self) -> bool:
        """What members took with them when they left: whether that was anything."""
        lost = self._port.others.never_came()
        if lost:
            log.warning(
                "%s ends without the last updates of %s: they left before these were here",
                self._port.name,
                _names([f"{name} ({count:,})" for name, count in sorted(lost.items())]),
            )
        return bool(lost)

    def leave(self, timeout_s: float) -> None:
        """Publish the rest, say that I leave, and stay until all have what is only here."""
        if timeout_s > 0 and self._port.whole:
            timeout_s = self._publish_last(timeout_s)
            self._port.others.take_leave()
            if self._follow(self._port.others.may_go, timeout_s):
                return
            # Whoever has left since is not heard of any more, but had all of it then.
            even = self._even_after == self._port.steps_made()
            if (without := self._port.others.without_mine()) and not even:
                log.warning(
                    "%s leaves, and its last updates are not known to be with %s: busy for longer"
                    " than leave(timeout_s) waits, or gone",
                    self._port.name,
                    _names(without),
                )

    def _publish_last(self, timeout_s: float) -> float:
        """Publish once there is room, or a large model would be in memory once more than it need
        be. What is left of the time."""
        began = time.monotonic()
        publisher = self._publisher
        with publisher.exactly():
            while publisher.unpublished.any:
                left_s = began + timeout_s / 2 - time.monotonic()
                most_s = ROOM_FOR_PART_S if publisher.in_turns else ROOM_S
                room = self._follow(publisher.has_room, min(left_s, most_s))
                if not room or not publisher.in_turns:
                    break
                with self._interrupts.held_back():
                    publisher.publish()
                self._port.flush(at_once=True)
        self.publish()
        return timeout_s - (time.monotonic() - began)

    def _share_rest(self, timeout_s: float) -> float:
        """What encoding has left out, as all do at the end: each its share of it, so that what is
        added is the mean. Each rest was trained beside its own node's only; their sum would go too
        far, by up to five points of accuracy (docs/codecs.md). What is left of the time."""
        began = time.monotonic()
        publisher = self._publisher
        if publisher.may_publish():
            if publisher.unpublished.steps:
                self._follow(publisher.has_room, min(timeout_s / 2, ROOM_S))
            with self._interrupts.held_back():
                if publisher.unpublished.steps:
                    publisher.publish()
                if publisher.unpublished.residual:
                    publisher.publish_rest(1.0 / max(1, self._port.members_live()))
            self._port.flush(at_once=True)
        return timeout_s - (time.monotonic() - began)


class _Wait:
    """Who is waited for, and what is said of it."""

    def __init__(self, port: TrainingPort, now: float) -> None:
        self.even = False
        """Whether all were done, and had the same."""
        self._port = port
        self._patience = Patience(port.steps_made(), port.trained_s(), now)
        self._say_at = now + SAY_AFTER_S
        self._busy_until = now

    def is_over(self, now: float) -> bool:
        """Whether nobody is waited for any more, and whoever is there has what is mine."""
        others = self._port.others.not_done()
        names = self._patience.waits_for(others, now)
        if names:
            self._busy_until = now + SETTLED_S
            if now >= self._say_at:
                self._say_at = now + SAY_AGAIN_S
                self._say({each.name: each.steps for each in others if each.name in names}, now)
            return False
        if not others:
            return now >= self._busy_until + SETTLED_S  # all are done: even in a moment, mostly
        return self._port.others.is_caught_up() or now >= self._busy_until

    def _say(self, steps: dict[str, int], now: float) -> None:
        log.warning(
            "%s has done its %s steps and waits for %s to end as well, so that all have the same"
            " model; an interrupt leaves at once",
            self._port.name,
            f"{self._port.steps_made():,}",
            _names([self._shown(name, made, now) for name, made in steps.items()]),
        )

    def _shown(self, name: str, made: int, now: float) -> str:
        left_s = self._patience.left_s(name, now)
        about = f", about {left_s:.0f} s" if left_s > 0 else ""
        return f"{name} ({made:,} steps{about})"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
