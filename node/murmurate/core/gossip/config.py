"""How a peer behaves: one frozen value, the same for every way of gossip."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from murmurate.core.membership.timing import Timing

BUFFER_BYTES = 32 << 20
"""Own updates that may be without everyone's answer, in models smaller than this."""
WAITING_MAX = 8
"""Updates that wait for one link by themselves; more are summed: what waits gets old."""
COMPANY_MAX = 16
"""Updates that may wait for all links, summed or not: more than do for each other's company."""
TOLD_MAX = 8
"""Members told of something at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """How a peer behaves. The defaults suit a local network; nothing here must be guessed."""

    topology: str = "full"
    outbox_bytes_max: int = 64 * 2**20
    """Per path; what waits beyond it is summed up."""
    log_bytes_max: int = 64 * 2**20
    """Of my own updates that not all have answered; beyond it steps are added up (`Peer.room`), and
    what is kept for members that are away is summed up. One update is always kept."""
    store_bytes_max: int = 64 * 2**20
    """Updates of others, kept until everyone has them."""
    pace_s: float = 0.0
    """Least time between two pushes on one path; 0: as fast as the link takes them. A driver may
    change it as it goes (`keep_pause`)."""
    waiting_max: int = 8
    """Updates that may wait on every path before local steps are added up instead."""
    digest_interval_s: float = 0.5
    digest_fanout: int = 2
    snapshot_wait_s: float = 2.0
    """If nothing came of it until then, somebody else is asked for a snapshot."""
    forget_after_s: float = 600.0
    """Dead for this long: the others may vote the member out."""
    agree_interval_s: float = 2.0
    history_max: int = 8
    """Generations kept to understand clocks of peers that are behind."""
    strength: float = 0.0
    """The one number of a rule that looks at staleness here (`core.receiving`)."""
    timing: Timing = field(default_factory=Timing)

    def for_updates(
        self, update_bytes: int, *, buffer_bytes: int = BUFFER_BYTES, one: bool = False
    ) -> PeerConfig:
        """The same with what nodes keep, for updates of that size: what `join` chooses, and what
        the simulator draws. `one`: no two updates are kept, however small they are."""
        return replace(
            self,
            outbox_bytes_max=min(WAITING_MAX * update_bytes, max(buffer_bytes, 2 * update_bytes)),
            log_bytes_max=update_bytes if one else max(buffer_bytes, update_bytes),
            store_bytes_max=buffer_bytes // 2,
            waiting_max=COMPANY_MAX,
            digest_interval_s=0.25,
            digest_fanout=TOLD_MAX,
        )
