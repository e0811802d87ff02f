"""What every way of gossip obeys: the whole of what a driver may ask of a peer.

A driver, the runtime, the training thread, the simulators and whoever shows figures hold a
`GossipPeer`. They never ask which kind it is: where the ways differ, each answers for itself, and
to what concerns the other one only it answers with nothing.

Nothing here waits, sends or sleeps: messages and the time go in, effects come out. Weights change
in `publish` and `fold` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from murmurate.core.batches.held import NO_BATCHES, HeldBatches
from murmurate.core.clock import Clock, Dot, Key
from murmurate.core.effect import Effect, Rng
from murmurate.core.intervals import Runs
from murmurate.core.membership.swim import Membership
from murmurate.core.message import Delta, Generation, Push, Snapshot
from murmurate.core.replica import Replica

if TYPE_CHECKING:
    from murmurate.core.gossip.average.push_sum import Share
    from murmurate.core.gossip.config import PeerConfig
    from murmurate.core.gossip.past import Past


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a checkpoint keeps of a peer beside its weights, all of one instant."""

    epoch: int
    seq: int
    clock: Clock
    members: tuple[tuple[str, str], ...]
    """The other members with their addresses, where one is known."""
    history: tuple[Generation, ...] = ()
    log: tuple[Push, ...] = ()
    """Updates of this peer that somebody may lack."""
    store: tuple[Push, ...] = ()
    """Updates of others that somebody may lack."""
    batches: HeldBatches = NO_BATCHES
    """Those in the weights."""


class Driven(Protocol):
    """The part of a peer that the driver calls (`core.driver`)."""

    @property
    def name(self) -> str: ...
    @property
    def synced(self) -> bool:
        """Whether the weights are the swarm's: a newcomer's are not before its first snapshot."""

    def join(self, names: Iterable[str], now: float) -> list[Effect]:
        """Get to know the seed peers."""
        ...

    def leave(self, now: float) -> list[Effect]:
        """Say that I leave; keep driving me until `settled`, or as long as you can wait."""
        ...

    def tick(self, now: float) -> list[Effect]:
        """Do whatever is due."""
        ...

    def receive(self, sender: str, message: Any, now: float) -> list[Effect]:
        """Check a message and answer it. `RemoteProtocolError`: nothing has changed."""
        ...

    def heard(self, sender: str, now: float, *, snapshot: bool = False) -> list[Effect]:
        """A piece of a long message came, maybe of a snapshot: its sender is alive."""
        ...

    def fold(self, sender: str, message: Any, now: float) -> list[Effect]:
        """Let a message that came as `Deliver` change the weights, or say why it does not."""
        ...

    def beside(self, waiting: Sequence[Any], new: Any) -> Any | None:
        """How a message may wait beside these of its sender, without a place on the link: as it is,
        or as the sum of it and the last of them, which takes that one's place; None: it may not.
        """
        ...

    def publish(
        self, delta: Delta, context: Clock, batches: Runs = (), *, written: bool = False
    ) -> list[Effect]:
        """Make an update: it gets an id, goes into the weights and is passed on.

        `batches`: those of a generator that it was computed on; `written`: no step made it.
        `LocalProtocolError`: it cannot be used, nothing has changed.
        """
        ...

    def ready(self, now: float) -> list[str]:
        """The peers for which `take` has something now."""
        ...

    def take(self, to: str, now: float) -> Any:
        """The next large message for a peer, when its link can carry one; None: nothing now.

        `landed` or `lost` must follow for each.
        """
        ...

    def landed(self, to: str, message: Any) -> None:
        """What was taken is there, or its link cannot tell."""
        ...


class OutgoingLinks(Protocol):
    """What waits for the links to one peer's partners, and how they are paced."""

    def has_waiting(self, now: float) -> bool:
        """Whether anything is to go out, now or after a pause."""
        ...

    def keep_pause(self, pause_s: float) -> bool:
        """Leave so long between two messages on one link; whether links pause at all now."""
        ...

    def outbox_bytes(self) -> int:
        """The bytes of updates that wait for slow links, before they are summed."""
        ...

    def under_way(self, number: int) -> bool:
        """Whether this one of my updates is still to get to most of those it is sent to."""
        ...


class OthersKnown(Protocol):
    """What one peer knows of the others: whether they have what it has, and it what they have."""

    def settled(self) -> bool:
        """Whether I may go: nobody waits for anything that only I can give."""
        ...

    def caught_up(self) -> bool:
        """Whether I have all I heard of, and all I gave is where it should be."""
        ...

    def even(self) -> bool:
        """Whether the others were last seen with what I have."""
        ...

    def without_mine(self) -> list[str]:
        """Those alive who are not known to have all that I made."""
        ...

    def never_came(self) -> dict[str, int]:
        """Of those who have left: how many of the updates they said they made are not here."""
        ...

    def is_level(self, updates_max: int) -> bool:
        """Whether I lack at most so many of the updates of one whose clock I know.

        Who lacks more would make its next update on weights that are as old.
        """
        ...


class GossipPeer(Driven, Protocol):
    """One node's part in a swarm, whichever way its weights are gossiped."""

    @property
    def epoch(self) -> int:
        """The number of this life, larger than that of every life before."""

    @property
    def seq(self) -> int:
        """The number of the last update that this life has made."""

    @property
    def config(self) -> PeerConfig: ...
    @property
    def replica(self) -> Replica:
        """Weights and clock. The weights' buffer may be another one after `publish` and `fold`."""

    @property
    def clock(self) -> Clock: ...
    @property
    def membership(self) -> Membership: ...
    @property
    def links(self) -> OutgoingLinks: ...
    @property
    def others(self) -> OthersKnown: ...

    # -- my own updates --------------------------------------------------------------------------

    def context(self) -> Clock:
        """A copy of the clock, to be taken when a batch is started."""
        ...

    def room(self, nbytes: int, *, sparing: bool = False, fresh: bool = False) -> bool:
        """Whether an update of that size should be made now, or be added to the next one."""
        ...

    # -- what the links take ---------------------------------------------------------------------

    def take(self, to: str, now: float) -> Push | Share | None:
        """The next update or share of weights for a peer, as the driver asks for it."""
        ...

    def lost(self, to: str, message: Any) -> None:
        """The link broke with what was taken."""
        ...

    # -- messages --------------------------------------------------------------------------------

    def broke(self, sender: str, *, again: bool) -> None:
        """A snapshot that was coming will not; `again`: it may go on where it broke off."""
        ...

    def wants_push(self, dots: Iterable[Dot]) -> bool:
        """Whether a push of these updates, which is offered to me, should be sent."""
        ...

    def wants_share(self, sender: str, seq: int, epoch: int, to_epoch: int) -> bool:
        """Whether a share, which is offered to me, should be sent."""
        ...

    def wants_snapshot(self, sender: str, clock: Clock) -> bool:
        """Whether a snapshot with this clock, which is offered to me, should be sent."""
        ...

    def gives(self) -> bool:
        """Whether I have a snapshot to give."""
        ...

    def snapshot(self) -> Snapshot:
        """Weights, clock and what is needed to understand it, of one instant."""
        ...

    # -- what outlives me ------------------------------------------------------------------------

    def account(self, now: float) -> Account:
        """What a checkpoint of this instant keeps beside the weights."""
        ...

    def checkpointed(self, clock: Clock, *, kept: int = 1) -> None:
        """A checkpoint with this clock is durable, and `kept` are kept now, this one included."""
        ...

    def past(self) -> Past:
        """What my next life must know, though nothing is on a disk: my word binds it."""
        ...

    def weights_for_next_life(self) -> torch.Tensor:
        """Weights that nothing on its way refers to, so that my next life may change them."""
        ...

    # -- what others are told --------------------------------------------------------------------

    def folds(self) -> tuple[tuple[Key, Runs], ...]:
        """The lives that are folded into the baseline, and what of each is in it."""
        ...

    def arrived(self) -> Clock | None:
        """The clock there will be when all that is here is folded in; None: this cannot be told."""
        ...


class StartsPeer(Protocol):
    """The constructor of a kind of peer."""

    def __call__(
        self,
        name: str,
        epoch: int,
        replica: Replica,
        *,
        rng: Rng,
        config: PeerConfig | None = None,
        history: tuple[Generation, ...] = (),
        past: Past | None = None,
        synced: bool = True,
        address: str = "",
    ) -> GossipPeer: ...
