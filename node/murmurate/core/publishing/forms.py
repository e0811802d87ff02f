"""What rule `shared` makes of the likeness of the peers' data: two forms of one rule.

Peers whose data are alike move alike: own updates stand for those of the others that cannot be seen
yet, and the mean of n gradients has less noise, so the step may be larger. Peers whose data differ
(each has labels of its own) do not: there own steps say nothing about the others', a peer that
makes fewer steps must not be heard less, and only the swarm's momentum tells where it is going.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from murmurate.core.publishing.company import Company

AHEAD = 0.5
"""How far the view looks ahead along the swarm's momentum, in updates of each member."""
BOOST = 0.25
"""The power of n by which a step may be larger. ½ fails at three times the right rate."""
MEMBERS_BY_DELAY = 64.0
"""Of so many members, over the own updates on their way, the noise is counted on: a larger step
that is seen late overshoots. 64 members 16 steps apart, at three times the right rate, end at 79 %
with it, at 69 % without, and one alone at 73 %; 16 of them lose half a point."""
SHARE_MAX = 8.0
"""A slow peer's updates count for at most so many of its own: they get noisier by it."""


class Lookahead(NamedTuple):
    """Where a gradient is taken, from the weights: so many times each of these."""

    own: float
    """Own updates that the others have not seen."""
    gain: float
    """What was gained since the last of them."""
    momentum: float
    """The mean update of all."""


class Form(Protocol):
    """The numbers of rule `shared`, for peers as a node measures them."""

    every: int
    """Local steps per update, where the link allows it."""
    blend: float
    """How much an own update that others have not seen moves the momentum it is based on."""

    def step(self, company: Company) -> float:
        """How much larger than one node's a step of all may be."""

    def view(self, company: Company, step: float) -> Lookahead:
        """`step`: what a gain counts for in an update, times the members."""


class SameData:
    """Every peer draws from the same data, or its part of it does not differ from the others'."""

    every = 4
    blend = 0.3

    def step(self, company: Company) -> float:
        late = company.in_flight / company.parts
        members = float(company.members)
        if late > 1.0:
            members = min(members, max(1.0, MEMBERS_BY_DELAY / late))
        return float(members**BOOST)

    def view(self, company: Company, step: float) -> Lookahead:
        n, c = company.members, company.for_own
        return Lookahead(own=c - 1.0, gain=c / n * step, momentum=AHEAD * n)


class OwnData:
    """Every peer has data of its own, unlike the others'."""

    every = 1
    blend = 0.0

    def step(self, company: Company) -> float:
        """All peers count alike, however many updates each of them makes."""
        return min(SHARE_MAX, company.publications / company.members)

    def view(self, company: Company, step: float) -> Lookahead:
        """Where those are who have not seen my last updates, and on along the momentum for as long
        as an update is on its way."""
        under_way = company.in_flight * company.publications / company.members
        return Lookahead(own=-1.0, gain=0.0, momentum=(AHEAD + under_way) * company.members)


FORMS: dict[str, type[Form]] = {"same": SameData, "own": OwnData}
"""By what a user says of the peers' data."""
