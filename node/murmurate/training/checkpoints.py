"""Checkpoints of one node's training: taken between two steps, and gone on from at a restart."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from murmurate.edge.disk.checkpoint import PUBLISHING, Checkpoint

if TYPE_CHECKING:
    from murmurate.edge.disk.checkpointer import Keeper
    from murmurate.edge.disk.copies import Copies
    from murmurate.edge.runtime.node_figures import NodeFigures
    from murmurate.edge.runtime.training_port import TrainingPort
    from murmurate.training.publisher import Publisher
    from murmurate.training.training_state import Instant

log = logging.getLogger("murmurate")


class Checkpoints:
    """What a node keeps of its training. Without a keeper it keeps nothing."""

    def __init__(
        self,
        keeper: Keeper | None,
        instant: Instant,
        publisher: Publisher,
        port: TrainingPort,
        figures: NodeFigures,
    ) -> None:
        self.steps = 0
        """Local steps so far, of earlier lives too."""
        self._keeper = keeper
        self._instant = instant
        self._publisher = publisher
        self._port = port
        self._figures = figures

    @property
    def age_s(self) -> float:
        """Since the last checkpoint of this process that is durable; infinite: there was none."""
        return self._keeper.age_s if self._keeper is not None else math.inf

    @property
    def failures(self) -> int:
        """Checkpoints that could not be written."""
        return self._keeper.failures if self._keeper is not None else 0

    def soon(self) -> None:
        """Take the next one at the next occasion."""
        if self._keeper is not None:
            self._keeper.soon()

    def take_if_due(self) -> None:
        """Take one of this instant, if it is time for one."""
        keeper = self._keeper
        if keeper is not None and keeper.due(time.monotonic()) and self._port.whole:
            keeper.take(self._now)
            self._figures.checkpoints_failed(keeper.failures)

    def take_last(self) -> None:
        """Take one of what it came to; nothing is written after it."""
        keeper = self._keeper
        if keeper is None:
            return
        try:
            if self._port.whole:
                keeper.last(self._now)
        finally:
            keeper.close()

    def go_on(self, checkpoint: Checkpoint) -> None:
        """From where an earlier life was when the checkpoint was made."""
        self._instant.put_back(checkpoint, self._port.weights)
        self._instant.put_back_publishing(checkpoint, self._publisher)
        self.steps = checkpoint.step
        self._figures.go_on(checkpoint.samples, checkpoint.step)
        log.info(
            "%s goes on from its checkpoint: step %d, %s",
            self._figures.name,
            checkpoint.step,
            checkpoint.clock,
        )

    def _now(self, copies: Copies) -> Checkpoint:
        tensors = self._instant.copy(self._port.weights, copies)
        publishing = self._instant.plain(PUBLISHING, self._publisher.state(), copies)
        account = self._port.account()
        return Checkpoint(**account, **tensors, publishing=publishing, step=self.steps)
