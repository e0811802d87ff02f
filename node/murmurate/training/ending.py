"""How a node's part in a run ends: what is left is published, and it waits for the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from murmurate.edge.runtime.node_figures import NodeFigures
    from murmurate.edge.runtime.training_port import TrainingPort
    from murmurate.training.checkpoints import Checkpoints
    from murmurate.training.publisher import Publisher
    from murmurate.training.signals import Interrupts

ROOM_S = 2.0
"""At the end the last update waits for room at most this long, then it is made all the same."""


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

    def publish(self) -> None:
        """Publish all that is in no update yet, room or not."""
        self._port.check()
        if self._publisher.pending:
            with self._interrupts.held_back():
                self._publisher.publish_all()
            self._port.flush(at_once=True)

    def settle(self, timeout_s: float) -> bool:
        """Publish, then fold until every known update is in, and mine are with everyone alive."""
        return self._follow(self._port.is_caught_up, self._publish_last(timeout_s))

    def finish(self, timeout_s: float) -> bool:
        """Say that this is the end, wait until all have, and until all have the same."""
        port, began = self._port, time.monotonic()
        self._figures.ended(began)
        deadline = began + timeout_s
        if self._publisher.encoded and port.synced:
            timeout_s = self._share_rest(timeout_s)
        timeout_s = self._publish_last(timeout_s)
        port.say("done")
        even = self._follow(lambda: port.others_are("done") and port.is_even(), timeout_s)
        port.say("settled")
        left_s = max(0.0, deadline - time.monotonic())
        self._follow(lambda: port.others_are("settled"), left_s)
        self._checkpoints.soon()
        self._checkpoints.take_if_due()
        return even

    def leave(self, timeout_s: float) -> None:
        """Publish the rest, say that I leave, and stay until all have what is only here."""
        if timeout_s > 0 and self._port.whole:
            timeout_s = self._publish_last(timeout_s)
            self._port.say_goodbye()
            self._follow(self._port.may_go, timeout_s)

    def _publish_last(self, timeout_s: float) -> float:
        """Publish once there is room, or a large model would be in memory once more than it need
        be. What is left of the time."""
        began = time.monotonic()
        until = began + min(timeout_s / 2, ROOM_S)
        publisher = self._publisher
        while publisher.pending:
            room = self._follow(publisher.has_room, until - time.monotonic())
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
            if publisher.unpublished:
                self._follow(publisher.has_room, min(timeout_s / 2, ROOM_S))
            with self._interrupts.held_back():
                if publisher.unpublished:
                    publisher.publish()
                if publisher.residual:
                    publisher.publish_rest(1.0 / max(1, self._port.members_live()))
            self._port.flush(at_once=True)
        return timeout_s - (time.monotonic() - began)
