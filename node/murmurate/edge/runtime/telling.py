"""Telling the others how far this node has got."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from murmurate.core.gossip.config import TOLD_MAX

if TYPE_CHECKING:
    from murmurate.core.figures.progress import Progress
    from murmurate.edge.runtime.node_state import NodeState

TELL_S = 0.5
"""Between two accounts of my progress to the others."""


class Telling:
    """This node's progress: put together, noted on the board, and told. Lock held throughout."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.done = False
        """Whether nothing more will be published."""
        self.settled = False
        """Whether everything the others made is in."""
        self.meeting = ""
        """Where others meet this node to train in step with it; empty: nowhere."""
        self._tell_at = 0.0
        self._told_version = 0
        """Of the membership, when my progress was told last: a newcomer is told at once."""

    def soon(self) -> None:
        """Tell at the next tick, not at the next turn."""
        self._tell_at = 0.0

    def tick(self, now: float) -> None:
        """Tell, if it is time to or the members are others than before."""
        state = self._state
        membership = state.peer.membership
        others = [name for name in membership.live() if name != state.name]
        news = membership.version != self._told_version and len(others) <= TOLD_MAX
        if now < self._tell_at and not news:
            return
        self._tell_at, self._told_version = now + TELL_S, membership.version
        self._look(now, others)
        mine = self.progress()
        entries = [mine]
        if len(others) > TOLD_MAX or state.settings.topology != "full":
            rest = [entry for entry in state.board if entry.name != state.name]
            entries += state.rng.sample(rest, min(TOLD_MAX, len(rest)))
            if not self.done:
                others = state.rng.sample(others, min(TOLD_MAX, len(others)))
        for to in others:
            for entry in entries:
                state.driver.say(to, entry)

    def progress(self) -> Progress:
        """Mine, of this instant."""
        state, now = self._state, time.monotonic()
        mine = state.tally.progress(
            state.name,
            state.peer.epoch,
            now,
            traffic=(state.transport.bytes_sent, state.transport.bytes_received),
            last=state.peer.seq,
            done=self.done,
            settled=self.settled,
        )
        warnings = (*mine.warnings, *state.other_swarms.warnings(now))
        mine = replace(mine, **self._view(now), warnings=tuple(sorted(warnings)))
        state.board.merge(mine)
        return mine

    def _look(self, now: float, others: list[str]) -> None:
        """What needs two readings: rates, sliding means, the distance between replicas."""
        state, tally = self._state, self._state.tally
        seen = tally.staleness  # not of what is old because this node was away
        state.outlook.count(now, tally.published, tally.computed_s, seen.count, seen.total)
        state.outlook.keep(others)
        state.sketches.keep(others)
        if state.pages is not None:
            state.curves.note(now, state.board)
        if state.peer.synced and state.sketches.due(wall := time.time()):
            state.sketches.take(state.weights, wall)

    def _view(self, now: float) -> dict[str, Any]:
        """The part of my progress that is not counted but seen."""
        state, outlook = self._state, self._state.outlook
        return {
            "at": time.time(),
            "delay_s": outlook.delay_s(now),
            "fastest_delay_s": outlook.fastest_s(now),
            "later_updates": outlook.later_updates(now),
            "staleness_now": outlook.staleness(),
            "staleness_predicted": outlook.predicted() if state.way.sends_updates else math.nan,
            "lag": state.lag(),
            "sketch": state.sketches.newest,
            "sketch_at": state.sketches.at,
            "neighbours": state.tally.neighbours(),
            "made_at": outlook.made_at,
            "meeting": self.meeting,
        }
