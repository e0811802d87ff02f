"""What a script may say to `join`, by kind: a mistake is one line, and not an error from below."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from murmurate.core.values.addresses import DNS, split_address, wildcard
from murmurate.errors import ConfigError

_TEXT: tuple[str, tuple[type, ...]] = "text", (str,)
_WHOLE: tuple[str, tuple[type, ...]] = "a whole number", (int,)
_SECONDS: tuple[str, tuple[type, ...]] = "a number of seconds", (int, float)
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "run": ("a name", (str,)),
    "name": ("a name", (str,)),
    "listen": ('host:port, such as "127.0.0.1:7000"', (str,)),
    "advertise": ('host:port, such as "10.0.0.5:7000"', (str,)),
    "metrics": ('host:port, such as "127.0.0.1:9100"', (str,)),
    "rule": _TEXT,
    "data": _TEXT,
    "topology": _TEXT,
    "codec": _TEXT,
    "coordinator": ('host:port, such as "10.0.0.5:7000"', (str,)),
    "checkpoint": ("a folder", (str, os.PathLike)),
    "checkpoint_s": _SECONDS,
    "join_timeout_s": _SECONDS,
    "wait_for": _WHOLE,
    "seed": _WHOLE,
    "strength": ("a number", (int, float)),
}
_MAY_BE_NONE = ("name", "advertise", "metrics", "checkpoint", "seed", "strength", "coordinator")


def check_kinds(asked: Any) -> None:
    """Raise if one of these is not of its kind. `asked` has them as attributes."""
    for key, (expected, kinds) in _KINDS.items():
        value = getattr(asked, key, None)
        if value is None and (key in _MAY_BE_NONE or not hasattr(asked, key)):
            continue
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigError(f"{key} {value!r}: expected {expected}")
    peers = asked.peers
    if isinstance(peers, str) or not isinstance(peers, Iterable):
        raise ConfigError(f"peers {peers!r}: expected a list of addresses")


def peer_problem(peer: Any) -> str:
    """Why nobody can be found there; empty: somebody may be."""
    if not isinstance(peer, str):
        return "expected host:port, such as 10.0.0.5:7000"
    try:
        host, port = split_address(peer.removeprefix(DNS))
    except ValueError as error:
        return str(error)
    if port == 0:
        return "port 0 is none: say the one at which that peer listens"
    return "it stands for all interfaces, not for a machine" if wildcard(host) else ""
