"""What one peer that mixes weights is and has: the state that its links, turns and lives share."""

from __future__ import annotations

from murmurate.core.clock import Clock
from murmurate.core.effect import Deliver, Rng
from murmurate.core.gossip.average.push_sum import Averager, Share
from murmurate.core.gossip.config import PeerConfig
from murmurate.core.membership.swim import Membership
from murmurate.core.message import ALIVE, SUSPECT, Snapshot
from murmurate.core.replica import Replica


class MixingState:
    """One peer's name, weights and members, and who of these can be mixed with."""

    def __init__(
        self,
        name: str,
        epoch: int,
        replica: Replica,
        *,
        rng: Rng,
        config: PeerConfig,
        synced: bool,
        address: str,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.replica = replica
        self.config = config
        self.rng = rng
        self.synced = synced
        """Whether my weights are the swarm's."""
        self.leaving = False
        self.membership = Membership(name, epoch, rng=rng, timing=config.timing, address=address)
        self.averager = Averager(replica.weights, name, epoch, replica.clock)
        if not synced:
            # Of no weight yet, it can take shares already: nothing waits for its snapshot.
            self.averager.weight = 0.0
        replica.clock = self.averager.clock
        self.seq = self.clock.last(name, epoch)
        """The number of my last update."""
        self.apart: dict[str, int] = {}
        """Lives that are here again, and were too long apart from me to go on at once."""
        self.unfolded = 0
        """Messages that were delivered, and that the driver has not folded yet."""

    @property
    def clock(self) -> Clock:
        return self.replica.clock

    def deliver(self, sender: str, message: Share | Snapshot) -> Deliver:
        """Hand a message to the thread that owns the weights."""
        self.unfolded += 1
        return Deliver(sender, message)

    def shares(self, to: str) -> bool:
        """Whether a member can get shares now."""
        return self.is_there(to, self.membership.epoch(to) or 0)

    def is_there(self, name: str, life: int) -> bool:
        """Whether that life is alive, met, and was not too long apart from me."""
        if not life or name == self.name or self.membership.epoch(name) != life:
            return False
        return self.membership.state(name) in (ALIVE, SUSPECT) and self.apart.get(name) != life
