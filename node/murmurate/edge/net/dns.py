"""Seed peers by one name that stands for all of them: `dns:NAME:PORT`.

A headless service of Kubernetes, or any name with several addresses. What it stands for changes as
peers come and go, so it is looked up again and again; that it does not resolve is normal at first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterable

from murmurate.core.values.addresses import DNS, split_address

LOOK_UP_S = 5.0
"""A resolver that takes longer has no answer this time."""


def is_named(peer: str) -> bool:
    return peer.startswith(DNS)


async def addresses(peers: Iterable[str]) -> list[str]:
    """Where they are now, each once; a name as all that it stands for, as nobody if unknown."""
    found: list[str] = []
    for peer in peers:
        found += (
            await _look_up(*split_address(peer.removeprefix(DNS))) if is_named(peer) else [peer]
        )
    return list(dict.fromkeys(found))


async def _look_up(host: str, port: int) -> list[str]:
    """In a thread that nobody waits for: a resolver without an answer must not hold up an exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(found: list[str]) -> None:
        if not answer.done():
            answer.set_result(found)

    def ask() -> None:
        found: list[str] = []
        with contextlib.suppress(OSError, UnicodeError):
            for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                six = family == socket.AF_INET6
                found.append(f"[{place[0]}]:{port}" if six else f"{place[0]}:{port}")
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=ask, name="murmurate-names", daemon=True).start()
    try:
        async with asyncio.timeout(LOOK_UP_S):
            return await answer
    except TimeoutError:
        return []
