"""What one peer is and has: the state that delivery, repair, snapshots and generations share.

Each of those keeps what only it needs to itself. Here is what more than one of them reads or
changes, and what can be said of it at once.
"""

from __future__ import annotations

from murmurate.core.clock import Clock, Dot
from murmurate.core.effect import Rng
from murmurate.core.forgetting.agreement import Agreement
from murmurate.core.forgetting.baseline import Baseline
from murmurate.core.forgetting.durable import Durable
from murmurate.core.forgetting.standing import Standing
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.gossip.known_clocks import Knowledge
from murmurate.core.gossip.past import Past, caught_up
from murmurate.core.gossip.store import Store
from murmurate.core.membership.swim import Membership
from murmurate.core.message import Digest, Generation, Push
from murmurate.core.receiving.rule import ReceivingRule
from murmurate.core.replica import Replica

CUTS_MAX = 512
"""Ranges of updates that a digest tells of the checkpoints after the oldest: it is a small message.
Where there are more, nobody sums up what they may cut."""


class PeerState:
    """One peer's name, weights, members, generations, and the updates it keeps."""

    def __init__(
        self,
        name: str,
        epoch: int,
        replica: Replica,
        *,
        rng: Rng,
        config: PeerConfig,
        history: tuple[Generation, ...],
        past: Past,
        synced: bool,
        address: str,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.seq = 0
        """The number of my last update."""
        self.replica = replica
        self.rng = rng
        self.config = config
        self.receiving: ReceivingRule | None = None
        """What is made of others' updates, by their staleness here; None: they are added."""
        self.synced = synced
        """Whether my weights are the swarm's."""
        self.membership = Membership(name, epoch, rng=rng, timing=config.timing, address=address)
        self.baseline = Baseline(history, keep=config.history_max)
        self.memory = past.memory
        """The life since which I remember my votes."""
        self.behind = False
        """Whether the others' baseline has what mine does not: only a snapshot brings it."""
        if synced:
            self.behind = not caught_up(replica, self.baseline, (past.history, past.voted_after))
        self.agreement = Agreement(
            name,
            self.baseline.history[-1] if self.baseline.history else None,
            interval_s=config.agree_interval_s,
            vow=past.vow,
            memory=past.memory,
        )
        self.log = Store()
        """Updates of mine, until everyone has them for good."""
        self.store = Store(config.store_bytes_max)
        """Updates of others that somebody may lack."""
        self.knowledge = Knowledge(replica.clock)
        self.durable = Durable(replica, self.baseline)
        self.standing = Standing(
            self.membership,
            epoch,
            replica,
            self.baseline,
            self.knowledge,
            self.durable,
            forget_after_s=config.forget_after_s,
            met=past.met,
        )

    @property
    def clock(self) -> Clock:
        return self.replica.clock

    @property
    def whole(self) -> bool:
        """Whether I have what the baseline says I have."""
        return self.synced and not self.behind

    def others(self) -> list[str]:
        """The members that are there, without me."""
        return [name for name in self.membership.live() if name != self.name]

    def is_new(self, dot: Dot) -> bool:
        """Whether an update is neither in my clock nor in the baseline, with it or without it."""
        return dot not in self.clock and self.baseline.folded(dot) is None

    def as_of_now(self, push: Push) -> Push | None:
        """A push in terms of my generation; None: all or part of it is in the baseline.

        So a push never holds an update that is folded at or before the generation of its contexts:
        whoever has forgotten that fold refuses it for its age.
        """
        if any(self.baseline.folded(dot) is not None for dot in push.dots):
            return None
        return push if self.baseline.is_ahead(push) else self.baseline.lift_push(push)

    def origin_lacks(self, dot: Dot) -> bool:
        """Whether an update's origin is known not to have it any more.

        It came back without it; or it gave it up in the life that made it, and has a later one.
        """
        if dot.origin == self.name:
            return dot.epoch < self.epoch  # and not in the log that life left me
        known = self.knowledge.of(dot.origin)
        if known is None or dot in known:
            return False
        later_life = (self.membership.epoch(dot.origin) or 0) > dot.epoch
        return later_life or known.last(dot.origin, dot.epoch) > dot.seq

    def digest(self, *, ask: bool = False) -> Digest:
        """What I have, and what of it a crash cannot take; `ask`: for the same in return."""
        later = tuple(self.durable.later())
        told = sum(clock.spans for clock in later) <= CUTS_MAX
        return Digest(
            self.epoch,
            self.replica.context(),
            self.durable.clock().copy(),
            ask,
            kept=1 + len(later),
            later=later if told else (),
            memory=self.memory,
        )
