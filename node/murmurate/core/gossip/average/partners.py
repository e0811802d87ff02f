"""Partners: who is due a share, and when a peer that trains no more may rest.

A turn is due after each update: one random partner on `full`, else all neighbours. Who makes no
more updates takes turns with all of them, until the models are the same.
"""

from __future__ import annotations

import math

from murmurate.core import topology
from murmurate.core.gossip.average.links import ShareLinks
from murmurate.core.gossip.average.push_sum import Merged
from murmurate.core.gossip.average.spread import ModelSpread
from murmurate.core.gossip.average.state import MixingState

EVEN = 3e-6
"""Two models this far apart, over their size, are taken for the same. What is left when all are
seen so near is a tenth of it, and float32 rounds at a fiftieth."""
EVEN_UPKEEPS = 16
"""Where all are the same and nobody trains, a turn is due once in so many digest intervals."""


class Partners:
    """Whom one peer mixes with, and how far their models are from its own."""

    def __init__(self, state: MixingState, links: ShareLinks) -> None:
        self._state = state
        self._links = links
        self.spread = ModelSpread()
        self._turn = 0
        self._neighbours: tuple[str, ...] = ()
        self._neighbours_version = -1
        self._distance: dict[str, float] = {}
        """How far the models of partners were from mine when last seen, and since."""
        self._seq_seen = state.seq
        self._idle = 0
        """Upkeeps since my last update."""
        self._gap = 0.0
        """How many upkeeps there usually are between two updates."""
        self._resting = False
        """Whether I make no more updates."""
        self._told = False
        """Whether all have seen my model since it was even."""
        self._fresh = True
        """Whether my model changed since all were last due a share while I rest."""

    def neighbours(self) -> tuple[str, ...]:
        """Those the topology leads to now."""
        state = self._state
        if self._neighbours_version != state.membership.version:
            self._neighbours_version = state.membership.version
            live = state.membership.live()
            self._neighbours = topology.neighbours(state.config.topology, state.name, live)
        return self._neighbours

    def turn(self) -> None:
        """Make the next partners due a share."""
        state, links = self._state, self._links
        if not state.synced or state.leaving:
            return
        self._turn += 1
        kind = state.config.topology
        if self._resting:
            chosen = list(self.neighbours())
        elif kind == "full":
            waiting = links.unconfirmed()
            free = [to for to in self.neighbours() if to not in waiting and state.shares(to)]
            chosen = [free[state.rng.randrange(len(free))]] if free else []
        else:
            live = state.membership.live()
            chosen = list(topology.open_now(kind, state.name, live, self._turn))
        links.make_due(to for to in chosen if state.shares(to))

    def stepped(self) -> None:
        """I made an update: nobody's model is known to be near mine any more, and a turn is due."""
        self._distance.clear()
        self._resting, self._fresh = False, True
        self.turn()

    def merged(self, sender: str, outcome: Merged) -> None:
        """My model changed by a share: all others are so much further away. Models with different
        updates in them are not the same, however close."""
        distance = math.inf if outcome.staleness else outcome.distance
        for name in self._distance:
            self._distance[name] += distance * outcome.moved
        self._distance[sender] = distance
        self._fresh = True
        if self._resting:
            self._rest()

    def forget(self, name: str) -> None:
        """Nothing is known of that partner's model."""
        self._distance.pop(name, None)
        self.spread.forget(name)

    def even(self) -> bool:
        """Whether those who send to me were seen with nearly my model, unmoved since then."""
        state = self._state
        senders = [name for name in self._senders() if state.shares(name)]
        return state.synced and all(self._distance.get(name, math.inf) <= EVEN for name in senders)

    def settled(self) -> bool:
        """No share is due, on its way or unconfirmed."""
        return self._links.idle()

    def caught_up(self) -> bool:
        """Whether I am part of the swarm, and all I gave away is in."""
        return self._state.synced and self.settled()

    def without_mine(self) -> list[str]:
        """Nobody: what is mixed cannot be told apart."""
        return []

    def never_came(self) -> dict[str, int]:
        """Nothing: what is mixed cannot be told apart."""
        return {}

    def is_level(self, updates_max: int) -> bool:
        """Whoever is synced has mixed weights, which lack no single update."""
        return True

    def _senders(self) -> tuple[str, ...]:
        """Whose neighbour I am: my neighbours, but where edges go one way."""
        state = self._state
        if "exponential" not in state.config.topology or state.leaving:
            return self.neighbours()
        live = state.membership.live()
        me = live.index(state.name)
        return tuple(live[me - (1 << j)] for j in range((len(live) - 1).bit_length()))

    # -- resting ---------------------------------------------------------------------------------

    def turn_if_idle(self) -> None:
        """Notice that I make no more updates; a step may just take its time."""
        if self._state.seq != self._seq_seen:
            self._gap = (self._gap + self._idle) / 2
            self._idle, self._seq_seen = 0, self._state.seq
        else:
            self._idle += 1
        self._resting = self._idle > 2 + 4 * self._gap
        if self._resting:
            if self._idle % EVEN_UPKEEPS == 0:
                self._told, self._fresh = False, True
            self._rest()

    def _rest(self) -> None:
        """Draw the replicas together until they are the same; then let everyone see mine once.

        Not without news: who rests and does not fold would pour its weight into the others.
        """
        if self._state.unfolded or not self._fresh:
            return
        even = self.even()
        if not even or not self._told:
            self.turn()
            self._fresh = False
        self._told = even
