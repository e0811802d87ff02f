"""What a node counts and logs of what happens to it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from murmurate.core.effect import Adopted, Applied, Drop, Verdict
from murmurate.edge.runtime.other_swarms import TWO, sentence

if TYPE_CHECKING:
    from murmurate.core.driver import Seen
    from murmurate.core.figures.learning import LearningWarning
    from murmurate.edge.runtime.node_state import NodeState
    from murmurate.errors import MurmurateError

log = logging.getLogger("murmurate")

WARN_S = 1.0
"""At most one line for each reason in this time; the counters have all of it."""


class Counting:
    """The driver's watch, and who counts what came in and was not used."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._refusals: dict[str, str] = {}
        self._warned: dict[str, float] = {}

    def saw(self, effect: Seen) -> None:
        """Count what the peer did; lock held."""
        tally, name = self._state.tally, self._state.name
        match effect:
            case Applied():
                tally.apply(effect)
            case Drop():
                tally.drop(effect)
            case Adopted(giver, _, kept, _, given_up):
                if given_up:
                    tally.rejected["given_up"] += len(given_up)
                log.info("%s took a snapshot of %s (%d kept)", name, giver, len(kept))
            case Verdict(who, epoch, state, reason):
                log.info("%s: %s/%d is %s: %s", name, who, epoch, state, reason)
            case _:
                pass

    def rejected(self, reason: str, sender: str, detail: str) -> None:
        """Count something that came in and was not used; `reason` is a counter's label."""
        state, now = self._state, time.monotonic()
        with state.lock:
            if not state.joined:
                return  # others may be quicker than I am, above all when I come back
            state.tally.rejected[reason] += 1
            quiet = now < self._warned.get(reason, -math.inf) + WARN_S
            if reason == "schema":  # it tries again and again, and nothing will be different
                quiet = not self._says_anew(sender, detail)
            if not quiet:
                self._warned[reason] = now
        if not quiet:
            log.warning("rejected (%s) from %s: %s", reason, sender, detail)

    def warn(self, news: Iterable[LearningWarning]) -> None:
        """Say what began to go wrong with the learning; without the lock."""
        for each in news:
            log.warning("%s: %s", self._state.name, each.text)

    def refused(self, to: str, error: MurmurateError) -> None:
        """Say, once for each reason, that somebody does not listen to me."""
        text = f"{to} refuses this node: {error}"
        if str(error).startswith(TWO):  # told from its side: this node is the other one
            state = self._state
            with state.lock:
                where = state.peer.membership.address(to) if state.joined else None
                text = sentence(state.settings.run, to, where or "an unknown address")
                state.other_swarms.note(text, time.monotonic())
        if self._says_anew(to, text):
            log.warning("%s", text)

    def found_twice(self, name: str, address: str, run: str) -> None:
        """Say, once, that there is another swarm: two swarms of one run cannot become one, for they
        began with different weights."""
        text = sentence(run, name, address)
        with self._state.lock:
            self._state.other_swarms.note(text, time.monotonic())
        if self._says_anew(address, text):
            log.warning("%s", text)

    def _says_anew(self, who: str, why: str) -> bool:
        if self._refusals.get(who) == why:
            return False
        self._refusals[who] = why
        return True
