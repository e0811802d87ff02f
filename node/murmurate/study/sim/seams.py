"""Where a deliberate mistake can be put: each seam is one public name of the core, the driver or
the simulated disk. Whoever renames it finds out here, not from a mutant that does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from murmurate.core import admission
from murmurate.core.clock import Clock
from murmurate.core.driver import Driver
from murmurate.core.forgetting import attempt
from murmurate.core.forgetting.durable import Durable
from murmurate.core.forgetting.standing import Standing
from murmurate.core.gossip import outbox, peer, store
from murmurate.core.gossip.comparison import Comparison
from murmurate.core.gossip.known_clocks import Knowledge
from murmurate.core.gossip.peer import Peer
from murmurate.core.gossip.repair import Repair
from murmurate.core.gossip.snapshots import Snapshots
from murmurate.core.gossip.state import PeerState
from murmurate.core.gossip.store import Store
from murmurate.core.membership import epochs, swim
from murmurate.core.message import Generation
from murmurate.core.replica import Replica
from murmurate.errors import LocalProtocolError
from murmurate.study.sim.disk import Disk


@dataclass(frozen=True, slots=True)
class Seam:
    """A function, or a method of a class, that a mutant may put another one in the place of."""

    attribute: str
    owners: tuple[Any, ...]
    """The class or module that defines it, and the modules that import it by name."""

    def __post_init__(self) -> None:
        for owner in self.owners:
            if self.attribute.startswith("_") or self.attribute not in vars(owner):
                raise LocalProtocolError(f"no seam: {owner.__name__} has no {self.attribute!r}")

    @property
    def original(self) -> Any:
        """What stands there now."""
        return vars(self.owners[0])[self.attribute]


def _seam(attribute: str, *owners: Any) -> Seam:
    return Seam(attribute, owners)


CLOCK_DISTANCE = _seam("distance", Clock)
CLOCK_LIFTED = _seam("lifted", Clock)
REPLICA_JUDGE = _seam("judge", Replica)
REPLICA_COUNT = _seam("count", Replica)
REPLICA_SNAPSHOT = _seam("snapshot", Replica)
PUSHES_SUMMED = _seam("summed", outbox, store)
PAYLOAD_PROBLEM = _seam("payload_problem", admission, peer)
CHECK_MINE = _seam("check_mine", admission.Gate)
IS_NEW = _seam("is_new", PeerState)
PUBLISH = _seam("publish", Peer)
FOLD = _seam("fold", Peer)
ON_DIGEST = _seam("on_digest", Comparison)
ASK_FOR_MISSING = _seam("ask", Repair)
ADOPT = _seam("adopt", Snapshots)
STORE_COVER = _seam("cover", Store)
KNOWN_EVERYWHERE = _seam("everywhere", Knowledge)
KNOWN_CUTS = _seam("cuts", Knowledge)
NOTE_CLOCK = _seam("note", Knowledge)
CHECKPOINTED = _seam("checkpointed", Durable)
FINISHED = _seam("finished", Standing)
IS_MAJORITY = _seam("is_majority", attempt)
IS_UNANIMOUS = _seam("is_unanimous", attempt)
HAS_VOTE = _seam("has_vote", Generation)
EPOCH_AFTER = _seam("epoch_after", epochs)
NEWER_RUMOUR = _seam("newer", swim)
CARRY_OUT = _seam("carry_out", Driver)
SAVE = _seam("save", Driver)
BEGIN_AGAIN = _seam("begin_again", Driver)
NEW_EPOCH = _seam("new_epoch", Disk)
WRITE_CHECKPOINT = _seam("checkpoint", Disk)
