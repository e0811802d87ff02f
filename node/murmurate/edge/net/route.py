"""The way to a peer: where it is, the links with it, and which of them is spoken on.

Both sides open links, and both must choose the same one without asking. So each link has a number
and names the highest one of the other side that its opener had welcomed: of two links the one whose
opener knew of the other is the newer, and the newest is spoken on. Where neither knew, both dialled
at the same moment, and the one that the smaller name opened counts. The others drain.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from murmurate.edge.net.deadline import Deadline
from murmurate.edge.net.link import Link
from murmurate.edge.net.stream_client import Backoff

if TYPE_CHECKING:
    from murmurate.edge.net.grpc_transport import GrpcTransport
    from murmurate.edge.net.wire import Hello
    from murmurate.errors import MurmurateError

OPEN_MAX = 2
"""Links that one side has opened to the other: the newest, and one that drains."""


def is_newer(one: Hello, other: Hello) -> bool:
    """Whether the link that began with `one` is the newer one; both sides come to the same."""
    if one.name == other.name:
        return one.link >= other.link
    knew, was_known = one.seen >= other.link, other.seen >= one.link
    return knew if knew != was_known else one.name < other.name


class Route:
    """The links with one peer, and when to try again if there is none."""

    def __init__(self, transport: GrpcTransport, name: str) -> None:
        self._transport = transport
        self.name = name
        self.address = ""
        """Empty: it is not known, and the peer is spoken to on a link of its own."""
        self._links: list[Link] = []
        self._spoken: Link | None = None
        self._dialling: Link | None = None
        self._seen = (0, 0)
        """The peer's life, and the highest number of its links in it."""
        self.locate("")

    def locate(self, address: str) -> None:
        """Where the peer is; what was known of the way there does not count any more."""
        limits = self._transport.limits
        for link in [link for link in self._links if link.mine]:
            self._forsake(link)
        self.address = address
        self._retry_at = 0.0
        self._backoff = Backoff(limits.backoff_min_s, limits.backoff_max_s)
        self.dial = Deadline(first=limits.dial_s, pause=limits.pause_s, most=limits.dial_s)
        self.stall = limits.stall(first=limits.stall_max_s)

    @property
    def idle(self) -> bool:
        """There is no link, and no way to open one."""
        return not self._links and not self.address

    @property
    def free(self) -> bool:
        link = self._spoken or self._dialling
        return link.queue.free if link is not None else self._may_dial()

    def open(self, hello: Hello) -> Link | None:
        """The link to speak on. None: there is none, and the last try failed just now."""
        spoken = self._spoken
        generation = self._transport.credentials.generation
        if spoken is not None and not (spoken.mine and spoken.generation != generation):
            return spoken
        if self._dialling is None and self._may_dial():
            number = self._transport.number_of_next_link()
            said = replace(hello, link=number, seen=self._seen[1])
            self._dialling = Link(self._transport, self, said, mine=True)
            self._begin(self._dialling)
            self._dialling.dial()
        # With new credentials the old link goes on until the new one is welcomed.
        return spoken or self._dialling

    def called(self, hello: Hello) -> Link:
        """The peer opens a link to me."""
        epoch, number = self._seen
        known = number if epoch == hello.epoch else 0
        self._seen = (hello.epoch, max(known, hello.link))
        link = Link(self._transport, self, hello, mine=False)
        self._begin(link)
        return link

    def close(self) -> None:
        """End all links with this peer."""
        for link in list(self._links):
            self._forsake(link)

    def _may_dial(self) -> bool:
        if not self.address or time.monotonic() < self._retry_at:
            return False
        return not self._transport.distrusts(self.name, self.address)

    def _begin(self, link: Link) -> None:
        self._links.append(link)
        self._transport.began(link)

    def _forsake(self, link: Link) -> None:
        self.left(link)
        link.end()

    # -- what links tell -------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        """Both sides of a link know each other: is it the one to speak on?"""
        if link is self._dialling:
            self._dialling = None
        for other in [each for each in self._links if each.epoch not in (0, link.epoch)]:
            self._forsake(other if other.epoch < link.epoch else link)  # that life is over
        if link.draining:
            return
        spoken = self._spoken
        if spoken is not None and not is_newer(link.hello, spoken.hello):
            link.drain()
        else:
            self._spoken = link
            if spoken is not None:
                spoken.drain()
            if self._dialling is not None:
                link.take_over(self._dialling)
        opened = [each for each in self._links if each.mine == link.mine and each.epoch]
        opened.sort(key=lambda each: each.hello.link)  # two may be welcomed in another order
        for oldest in opened[:-OPEN_MAX]:
            self._forsake(oldest)

    def left(self, link: Link) -> None:
        """The other side begins nothing more on it: nor do I."""
        link.drain()
        if link is self._spoken:
            self._spoken = None
        elif link is self._dialling:
            self._dialling = None

    def offered(self, link: Link, key: int) -> None:
        """What is offered on a link again, its sender has given up on the others."""
        for other in self._links:
            if other is not link and other.assembly is not None:
                other.assembly.give_way(key)

    def ended(self, link: Link, error: MurmurateError | None) -> None:
        """It is over. When this side dials next depends on why."""
        self.left(link)
        self._links.remove(link)
        limits = self._transport.limits
        if error is not None or link.refusal is not None:
            wait_s = limits.refused_s
        elif link.mine:
            wait_s = self._backoff.after(welcomed=link.epoch > 0)
        else:
            wait_s = limits.backoff_min_s  # who opened it opens the next one, if it can
        if link.mine or not self._links:
            self._retry_at = max(self._retry_at, time.monotonic() + wait_s)
