"""A kind of stream, as both of its ends know it, and how one comes to its end.

There are three kinds: a link between peers, a member's to the coordinator, a batch taker's to the
generator. All are opened by `stream_client` and attended to by `stream_server`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from murmurate.edge.net.grpc_terms import first_of
from murmurate.errors import MurmurateError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of stream. The first message up is the greeting, the first one down the welcome."""

    service: str
    method: str
    up_bytes_max: int
    """The largest message of who opens it."""
    down_bytes_max: int
    """The largest message of who is called."""

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.method}"


class LivingStream:
    """One stream, at either end, as long as it is spoken on."""

    def __init__(self) -> None:
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: MurmurateError | None = None) -> None:
        """Nothing more is said or heard from now on."""
        if self._closing.done():
            return
        if error is None:
            self._closing.set_result(None)
        else:
            self._closing.set_exception(error)

    @property
    def over(self) -> bool:
        return self._closing.done()

    async def until_over(self, *talks: Coroutine[Any, Any, None]) -> None:
        """Until one of these talks ends, or the stream is ended."""
        await first_of(*talks, self._closing)
