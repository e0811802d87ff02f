"""Local steps in a row that came to nothing: each is counted and told, and many are an error."""

from __future__ import annotations

import logging

from murmurate.errors import LocalProtocolError
from murmurate.training.background import Background

log = logging.getLogger("murmurate")

BAD_STEPS_MAX = 10
"""Steps in a row without a finite result before it is an error."""


class BadSteps:
    """Since the last step of one node that could be used."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._count = 0

    def taken_back(self, error: LocalProtocolError) -> None:
        """A step was made, and the update of it could not be used."""
        self._note()
        if self._count == 1:  # the next ones are counted, and told when they end
            log.warning("%s: a local step was taken back: %s", self._background.name, error)
        self._judge(error)

    def left_out(self, why: str) -> None:
        """A step was not made, for its result could not have been passed on."""
        self._note()
        log.warning("%s: a local step was left out: %s", self._background.name, why)
        self._judge(why)

    def over(self) -> None:
        """A step could be used again."""
        if self._count > 1:
            name = self._background.name
            log.warning("%s: %d local steps in a row were taken back", name, self._count)
        self._count = 0

    def _note(self) -> None:
        self._count += 1
        self._background.step_taken_back()

    def _judge(self, why: object) -> None:
        if self._count >= BAD_STEPS_MAX:
            raise LocalProtocolError(f"{self._count} local steps in a row failed: {why}")
