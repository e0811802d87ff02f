"""The ways of gossip, by the name of their rule: what a caller must know before there is a peer.

A caller reads a fact from this table instead of comparing names, so a new rule is one more line
here and one kind of peer (`protocol.GossipPeer`). Reading the table costs no import of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from murmurate.core.gossip.protocol import StartsPeer
    from murmurate.core.publishing.rule import Making, PublishingRule
    from murmurate.core.receiving.rule import ReceivingRule

    MakesReceiving = Callable[[float], ReceivingRule]
    MakesRule = Callable[[Making], PublishingRule]


DATA = ("same", "own")
"""What may be said of the peers' data: it is alike, or of each its own kind."""
EVERY_MAX = 1_000_000
"""Local steps per update: beyond it a node would publish nothing in a run of any length."""
EVERY_MEASURED = 128
"""To so many rule `shared` was tried (docs/convergence.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What sets one way of gossip apart from another, as facts."""

    sends_updates: bool
    """Updates travel, each with its id, and not weights. Only updates can be encoded, cut into
    parts or counted by a generator of batches, and only their staleness can be predicted."""
    resumes_among_others: bool
    """Weights of an old checkpoint go on where others have trained meanwhile: they lack updates,
    and get them. Mixed weights do not: they would pull the others back."""
    needs_first_weights: bool
    """A newcomer's weights are read before its first snapshot, so they must be numbers."""
    every: Mapping[str, int] = field(default_factory=lambda: {"same": 1})
    """Local steps per update, unless the user says otherwise; by what may be said of the peers'
    data: that it is alike, or of each its own kind."""
    every_by_gain: Mapping[str, int] = field(default_factory=dict)
    """The same for like data, by the kind of gain that an optimizer's steps have (`training.gain`);
    as many as for others where nothing is said."""
    kind: Callable[[], StartsPeer]
    """The kind of peer, imported when it is asked for."""
    publishing: Callable[[], MakesRule]
    """What makes updates of a node's steps; likewise."""
    strength: float | None = None
    """Of a rule that looks at staleness where an update arrives: its one number, unless the user
    says otherwise. None: the rule has none."""
    warning: str = ""
    """What a user should hear of it at the beginning."""
    adds_steps: bool = False
    """Whether everybody's steps are added up as they are: the rate must suit all at once."""

    def steps(self, data: str, gain: str = "plain") -> int:
        """Local steps per update, unless the user says otherwise."""
        if data == "same" and gain in self.every_by_gain:
            return self.every_by_gain[gain]
        return self.every[data]


def _sum() -> StartsPeer:
    from murmurate.core.gossip.peer import Peer

    return Peer


def _receiving(make: Callable[[], MakesReceiving]) -> Callable[[], StartsPeer]:
    """The peer of rule `sum` that lets such a rule fold in what comes."""

    def kind() -> StartsPeer:
        from murmurate.core.gossip.peer import Peer

        return partial(Peer, receiving=make())

    return kind


def _scaled() -> MakesReceiving:
    from murmurate.core.receiving.scaled import ScaledByStaleness

    return ScaledByStaleness


def _compensated() -> MakesReceiving:
    from murmurate.core.receiving.compensated import CompensatedForDelay

    return CompensatedForDelay


def _bound() -> MakesReceiving:
    from murmurate.core.receiving.bound import BoundedStaleness

    return BoundedStaleness


def _average() -> StartsPeer:
    from murmurate.core.gossip.average.mixing import MixingPeer

    return MixingPeer


def _plain() -> MakesRule:
    from murmurate.core.publishing.plain import Plain

    return lambda making: Plain()


def _plain_or_mean() -> MakesRule:
    """Several steps of every member at once would move the weights n times as far as they may."""
    from murmurate.core.publishing.plain import Plain
    from murmurate.core.publishing.scaled import PartOfGain, mean

    return lambda making: Plain() if making.every == 1 else PartOfGain(making, mean)


def _capped() -> MakesRule:
    from murmurate.core.publishing.scaled import PartOfGain, capped

    return lambda making: PartOfGain(making, capped)


def _shared() -> MakesRule:
    from murmurate.core.publishing.shared import Shared

    return Shared


_APART = (
    " at each receiver, so replicas with the same updates are no longer equal"
    " (docs/convergence.md): it is there for studies, rule 'shared' for training"
)

WAYS = {
    "shared": Way(
        sends_updates=True,
        resumes_among_others=True,
        needs_first_weights=False,
        every={"same": 4, "own": 1},
        every_by_gain={"normalized": 2, "unread": 16},
        kind=_sum,
        publishing=_shared,
    ),
    "capped": Way(
        sends_updates=True,
        resumes_among_others=True,
        needs_first_weights=False,
        kind=_sum,
        publishing=_capped,
    ),
    "sum": Way(
        sends_updates=True,
        resumes_among_others=True,
        needs_first_weights=False,
        kind=_sum,
        publishing=_plain_or_mean,
        adds_steps=True,
        warning="rule 'sum' adds up everybody's steps: n members move the weights n times as far as"
        " one does, so the learning rate must be right for that (docs/convergence.md). With several"
        " steps per update it divides them by n",
    ),
    "average": Way(
        sends_updates=False,
        resumes_among_others=False,
        needs_first_weights=True,
        kind=_average,
        publishing=_plain,
    ),
    "scaled": Way(
        sends_updates=True,
        resumes_among_others=True,
        needs_first_weights=False,
        kind=_receiving(_scaled),
        publishing=_plain_or_mean,
        strength=1.0,
        warning="rule 'scaled' weighs an update by its staleness" + _APART,
    ),
    "compensated": Way(
        sends_updates=True,
        resumes_among_others=True,
        needs_first_weights=False,
        kind=_receiving(_compensated),
        publishing=_plain_or_mean,
        strength=2.0,
        warning="rule 'compensated' corrects an update for its delay" + _APART,
    ),
    "bound": Way(
        sends_updates=True,
        resumes_among_others=True,
        needs_first_weights=False,
        kind=_receiving(_bound),
        publishing=_plain_or_mean,
        strength=8.0,
        warning="rule 'bound' refuses an update that is too stale" + _APART,
    ),
}

MEMBERS_ONLY = Way(
    sends_updates=False,
    resumes_among_others=False,
    needs_first_weights=False,
    kind=_sum,
    publishing=_plain,
)
"""No rule of gossip: members know each other and tell how far they have got, and a first snapshot
is given; what is trained travels by other means (modes `allreduce` and `hogwild`)."""


def data_problem(rule: str, data: str) -> str:
    """What is wrong with this word about the peers' data, for that rule; empty: nothing."""
    if data not in DATA:
        return f"expected {' or '.join(map(repr, DATA))}"
    if rule in WAYS and data not in WAYS[rule].every:
        return f"rule {rule!r} treats all data alike; rule 'shared' does not"
    return ""


def strength_problem(rule: str, strength: float | None) -> str:
    """What is wrong with this number of a rule that looks at staleness; empty: nothing."""
    if strength is None or rule not in WAYS:
        return ""
    if WAYS[rule].strength is None:
        able = [name for name, way in WAYS.items() if way.strength is not None]
        return f"rule {rule!r} has none; {', '.join(able)} have"
    return "" if 0 <= strength < math.inf else "expected a number from 0 on"


def every_problem(every: object) -> str:
    """What is wrong with so many local steps per update; empty: nothing."""
    if every is None or (type(every) is int and 1 <= every <= EVERY_MAX):
        return ""
    return f"expected a whole number of local steps, 1 to {EVERY_MAX:,}"


def every_remark(rule: str, every: int | None) -> str:
    """What a user should hear who asked for so many; empty: nothing."""
    if rule != "shared" or every is None or every <= EVERY_MEASURED:
        return ""
    return (
        f"every {every}: rule 'shared' was measured to {EVERY_MEASURED} local steps per update;"
        " what the others did is seen that late, and a run that is not far longer learns less"
        " (docs/convergence.md)"
    )


def mixes_weights(rule: str) -> bool:
    """Whether this is a rule of gossip by which weights travel, and not updates."""
    return rule in WAYS and not WAYS[rule].sends_updates
