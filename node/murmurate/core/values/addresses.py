"""Addresses of peers as text: host and port, what they stand for, and which are the same."""

from __future__ import annotations

import ipaddress
import re

DNS = "dns:"
"""Before a peer: the name stands for all addresses it has, now and later (`edge.net.dns`)."""


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[::1]:port`; ValueError says what is wrong with it."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]]+)):(\d{1,9})", text)
    if match is None:
        raise ValueError("expected host:port, such as 127.0.0.1:7000 or [::1]:7000")
    port = int(match[3])
    if port > 65535:
        raise ValueError(f"expected host:port with a port up to 65535, not {port}")
    return match[1] or match[2], port


def loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def place_of(address: str) -> tuple[str, int]:
    host, port = split_address(address.removeprefix(DNS))
    return ("127.0.0.1" if loopback(host) else host.lower(), port)


def same_place(peer: str, own: str) -> bool:
    host, port = split_address(own)
    if port == 0 or port != split_address(peer)[1]:
        return False
    return place_of(peer) == place_of(own) or (wildcard(host) and loopback(split_address(peer)[0]))
