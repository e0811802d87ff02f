"""The port between the runtime and whatever carries its messages.

A *link* is between two peers, and both speak on it, whoever opened it: I open one when I have
something to say and there is none, and what the other has to say comes on the same. So one who
cannot be dialled is spoken to on the link that it opened. Promises of every transport, both ways:

1. What arrives is what was sent, whole and from the peer it says; on one link, in order.
2. Small messages (`post`) may be lost. They never wait for a bulk message to be through.
3. Of a bulk message (`carry`) exactly one of `Ears.landed` and `Ears.lost` is told. `landed`: the
   other side has consumed it. `lost`: it may or may not have arrived; sending it again is harmless.
4. A link takes a bounded amount of unconsumed bulk messages (`free`), the receiver bounds what it
   holds for all of them together. Nothing here grows with a peer that is slow, gone or hostile.
5. A bad message costs its sender the link, and after three in a minute the ear of this node for a
   while. Nobody else notices.

Everything here is called on the thread of one event loop; `Ears` are never called from inside a
call of a `Transport` method, always later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from murmurate.edge.net.deadline import Deadline

if TYPE_CHECKING:
    from murmurate.core.gossip.average.push_sum import Share
    from murmurate.core.message import Push, Snapshot
    from murmurate.edge.net.wire import BulkHead, Description, Hello
    from murmurate.errors import MurmurateError

INLINE_BYTES = 8 << 20
"""Up to this size a bulk message is sent without asking; a larger one is offered first."""
WINDOW_BYTES = 8 << 20
"""With less than this unconsumed a link takes one more bulk message…"""
WINDOW_MESSAGES = 4
"""… and with fewer than this: what waits here gets old, and what waits before it can be summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much and how long. The defaults are meant to be left alone; tests shorten them."""

    notes_max: int = 1024
    """Small messages waiting on one link; the oldest is dropped for a new one."""
    notes_bytes_max: int = 1 << 20
    links_max: int = 240
    """Incoming links at a time."""
    budget_bytes: int = 64 << 20
    """Memory for large messages being put together; at least twice the largest of them."""
    dial_s: float = 5.0
    """From the first packet to the other side's welcome, at most; less to whom it took less."""
    backoff_min_s: float = 0.1
    backoff_max_s: float = 0.5
    """An outage ends unannounced: after it a link is back within a second or two."""
    refused_s: float = 2.0
    """Who refused me is not asked again before."""
    pause_s: float = 3.0
    """A process that stands still for so long may be all right; see `edge.net.deadline`."""
    stall_s: float = 10.0
    """A transfer that does not move costs the link: after this long when nothing is known yet,
    later after `pause_s` and what its pieces usually take …"""
    stall_max_s: float = 30.0
    """… but never more than this."""
    partial_s: float = 60.0
    """How long the first part of a large message is kept after its link broke."""
    heard_s: float = 0.05
    """Pieces of one message are heard for signs of life this often."""
    landed_s: float = 0.02
    """Receipts wait for company this long, unless half of the window is used …"""
    landed_push_s: float = 0.1
    """… and those of pushes this long: a frame of its own costs both sides 0.2 ms, and nobody waits
    for a single one."""
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 5.0
    strikes: int = 3
    strike_s: float = 60.0
    quarantine_min_s: float = 60.0
    quarantine_max_s: float = 3600.0

    def stall(self, first: float) -> Deadline:
        """How long a transfer with one peer may stand still; remembered when its link breaks."""
        return Deadline(first=first, pause=self.pause_s, most=self.stall_max_s)


class Ears(Protocol):
    """What the runtime hears from a transport."""

    def greet(self, hello: Hello) -> Hello:
        """Somebody opens a link to me: who I am. A `MurmurateError` refuses it with that
        sentence."""

    def answered(self, hello: Hello) -> None:
        """Whom I called says who it is, by the name I called. A `MurmurateError`: not with that
        one."""

    def describe(self) -> Description: ...

    def expected_bytes(self, head: BulkHead) -> int:
        """The exact size of the tensor that such a head comes with, else RemoteProtocolError."""

    def wants(self, sender: str, head: BulkHead) -> bool:
        """Asked before a large message is sent. False: I have it already."""

    def heard(self, sender: str, head: BulkHead) -> None:
        """A piece of a long transfer arrived, or one begins: its sender is alive, even if it says
        nothing else. Then either `received` follows or `broke`."""

    def broke(self, sender: str, head: BulkHead, again: bool) -> None:
        """A long transfer that had begun will not come to its end. `again`: its link broke, so that
        it may go on on the next; else it was not what its head says."""

    def received(self, sender: str, message: Any, done: Callable[[], None]) -> None:
        """A whole message. Call `done` (any thread) once it is consumed; of a small one, or not.

        RemoteProtocolError: the message was bad, nothing has changed, `done` is not called.
        """

    def landed(self, to: str, message: Any) -> None: ...

    def lost(self, to: str, message: Any) -> None: ...

    def refused(self, to: str, error: MurmurateError) -> None:
        """The other side does not listen to me: other run, schema or version, name taken, …"""

    def rejected(self, reason: str, sender: str, detail: str) -> None:
        """Something that came in was not used; `reason` is a counter's label."""

    def fault(self, bug: BaseException) -> None:
        """Something went wrong in the transport that nobody foresaw."""


class Transport(Protocol):
    """Carries messages between this node and its peers."""

    address: str
    """Where others reach me; known after `start`."""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...

    async def start(self, ears: Ears) -> None:
        """Listen. ConfigError: the address is taken, or cannot be one."""

    async def describe(self, address: str, timeout_s: float) -> Description:
        """PeerUnavailable, PeerTimeout; SchemaMismatch: what answers there is no peer."""

    def hello(self, hello: Hello) -> None:
        """What I say first on each link from now on; links opened with another hello are closed."""

    def meet(self, name: str, address: str) -> None:
        """Where a peer is. Nothing is sent before there is something to say. Who has opened a link
        to me can be spoken to on it without this."""

    def drop(self, name: str) -> None:
        """The peer is gone: close its links, forget what waits for it."""

    def post(self, to: str, message: Any) -> None:
        """Send a small message, maybe. Never blocks."""

    def free(self, to: str) -> bool:
        """Whether the link takes another bulk message now."""

    def carry(self, to: str, message: Push | Snapshot | Share) -> None:
        """Send a bulk message whose payload does not change any more."""

    async def stop(self, grace_s: float) -> None:
        """Send what waits, for at most so long; then close everything."""
