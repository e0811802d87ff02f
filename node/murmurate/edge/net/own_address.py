"""By which address of this machine a peer is reached: there others can reach this node, too."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from murmurate.core.values.addresses import DNS, loopback, split_address
from murmurate.edge.net.credentials import source_towards


def address_towards(peers: Iterable[str]) -> tuple[str, str] | None:
    """The first peer that is not on this machine, and this machine's address on the way to it;
    None: there is no such peer, or nobody knows one of that name yet. Nothing is sent."""
    for peer in peers:
        try:
            host, port = split_address(peer.removeprefix(DNS))
        except ValueError:
            continue
        if loopback(host):
            continue
        try:
            found = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, number, _, place in found:
            own = source_towards(family, kind, number, place)
            if own is not None and own != place[0] and not loopback(own):
                return peer, own
    return None
