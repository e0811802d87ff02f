"""What the threads of one node share, and the lock that guards it.

The loop's thread lets the peer hear and speak; the training thread makes updates and folds in what
came, and is the only one to change weights. The lock is held for single calls, so nothing here ever
waits for training, and training waits for nothing here but the lock.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from murmurate.core.figures.counters import Tally
from murmurate.core.figures.curves import Curves
from murmurate.core.figures.progress import Board
from murmurate.core.figures.sketches import Sketches
from murmurate.core.figures.staleness_forecast import Outlook
from murmurate.core.gossip.ways import WAYS, Way
from murmurate.core.membership.timing import Timing
from murmurate.edge.runtime.other_swarms import OtherSwarms
from murmurate.edge.runtime.pace import Pace
from murmurate.edge.runtime.thread_load import Demand

if TYPE_CHECKING:
    import torch

    from murmurate.core.driver import Driver
    from murmurate.core.gossip.protocol import GossipPeer
    from murmurate.core.layout import Layout
    from murmurate.edge.disk.checkpointer import Keeper
    from murmurate.edge.net.http import Pages
    from murmurate.edge.net.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Who I am in which run."""

    run: str
    name: str
    peers: tuple[str, ...] = ()
    found: bool = True
    careful: bool = False
    rule: str = "sum"
    way: Way | None = None
    """How this rule gossips, where it is none of gossip's own; None: as the table says."""
    strength: float = 0.0
    """Its one number, if it looks at staleness (`core.receiving`)."""
    data: str = "same"
    """What is said of the peers' data (`core.gossip.ways.DATA`)."""
    encoded: bool = False
    """Whether updates of mine go through a codec."""
    update_bytes: int = 0
    """Of each update, where it is a part of a large model (`core.publishing.turns`)."""
    topology: str = "full"
    timing: Timing = field(default_factory=Timing)
    join_timeout_s: float = 30.0
    seed: int | None = None
    known_port: bool = False
    """Whether others may know this address from an earlier life: it was asked for, port and all."""


class NodeState:
    """One node, as its threads share it: whoever reads or changes what changes holds `lock`."""

    driver: Driver[GossipPeer]
    """Set once, when the parts of the runtime are put together."""

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        weights: torch.Tensor,
        transport: Transport,
        keeper: Keeper | None,
    ) -> None:
        self.settings = settings
        self.way = settings.way if settings.way is not None else WAYS[settings.rule]
        self.layout = layout
        self.weights = weights
        """The flat weights. Only the training thread changes them, or which buffer they are in."""
        self.transport = transport
        self.keeper = keeper
        self.instance = secrets.token_hex(8)
        self.rng = random.Random(settings.seed)
        self.born = time.monotonic()
        self.name = settings.name
        self.swarm = ""
        self.other_swarms = OtherSwarms()
        self.company = False
        """Whether others were there when I came."""
        self.level_by = 0.0
        """When this life counts as level with the others, whatever it lacks."""
        self.leaving = False
        self.tally = Tally()
        self.tally.learning.summed = self.way.adds_steps
        self.tally.learning.data = settings.data
        self.board = Board()
        self.outlook = Outlook(random.Random(0))
        self.sketches = Sketches(layout.size)
        self.curves = Curves()
        self.pace = Pace(encoded=settings.encoded)
        self.demand = Demand()
        self.pages: Pages | None = None
        """Served while this node lives, if any."""
        self.lock = threading.Lock()
        self.news = threading.Condition(self.lock)
        """Notified when something was delivered, or may have become true for one who waits."""
        self._failure: BaseException | None = None

    @property
    def peer(self) -> GossipPeer:
        return self.driver.peer

    @property
    def joined(self) -> bool:
        """Whether there is a peer; its weights may still be on their way."""
        return self.driver.alive

    @property
    def ready(self) -> bool:
        """Whether this node is part of the swarm, with its weights, and not leaving."""
        return self.joined and self.peer.synced and not self.leaving

    def lag(self) -> int:
        """Updates of live members I have heard of that are not in these weights."""
        clock, live = self.peer.clock, self.peer.membership.live()
        return sum(
            max(0, told.last - clock.last(told.name, told.epoch))
            for told in self.board
            if told.name != self.name and told.name in live
        )

    # -- a failure in the background; these take the lock themselves -----------------------------

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def fail(self, error: BaseException) -> None:
        """Keep the first failure; the training thread raises it at its next step."""
        if self._failure is None:
            self._failure = error
        with self.lock:
            self.news.notify_all()

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._failure is not None:
            raise self._failure
