"""What a member of independent subnet training serves over HTTP: figures and probes."""

from __future__ import annotations

from typing import Protocol

from murmurate.core.figures.sources import MemberSource
from murmurate.core.figures.table import MEMBER, values
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.http import Pages
from murmurate.watch.routes import FAILED, routes


class WatchedMember(MemberSource, Protocol):
    """What is shown of a member (`training.member.Member`)."""

    @property
    def failed(self) -> bool: ...
    @property
    def stopped(self) -> str: ...


def pages(member: WatchedMember, listen: str, credentials: Credentials) -> Pages:
    """To be started on the loop of the member's link.

    A coordinator that is away does not make a member unready: it trains on.
    """
    return Pages(
        listen,
        routes(
            values=lambda: values(MEMBER, member),
            sheet=MEMBER,
            ill=lambda: FAILED if member.failed else "",
            unready=lambda: "" if member.lease and not member.stopped else "it has no subnet",
        ),
        credentials,
    )
