"""How a peer behaves: one frozen value, the same for every way of gossip."""

from __future__ import annotations

from dataclasses import dataclass, field

from murmurate.core.membership.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """How a peer behaves. The defaults suit a local network; nothing here must be guessed."""

    topology: str = "full"
    outbox_bytes_max: int = 64 * 2**20
    """Per path; what waits beyond it is summed up."""
    log_bytes_max: int = 64 * 2**20
    """Of my own updates that not all have answered; beyond it steps are added up (`Peer.room`), and
    what is kept for members that are away is summed up. One update is always kept."""
    leave_behind: bool = False
    """When half of the log is full, do not wait for one who takes nothing for 2 s (a long
    evaluation, say): it will take a snapshot, and the others, if they are a majority, go on
    exchanging updates."""
    store_bytes_max: int = 64 * 2**20
    """Updates of others, kept until everyone has them."""
    prune_applied: bool = False
    """When half of the log is full, let go of updates that everyone has applied, though a crash may
    still take them from somebody. For drivers that put log and store into each checkpoint instead
    of logging each update: what one crash takes the others give back, by snapshot."""
    pace_s: float = 0.0
    """Least time between two pushes on one path; 0: as fast as the link takes them. A driver may
    change it as it goes (`keep_pause`)."""
    waiting_max: int = 8
    """Updates that may wait on every path before local steps are added up instead."""
    coalesce: bool = False
    """A path takes all that waits as one sum, as it always does on acyclic topologies."""
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
