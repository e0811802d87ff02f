"""What the coordinator serves over HTTP: its page, figures, probes, and the model as it is now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from murmurate.core.figures.table import COORDINATOR
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.http import Page, Pages
from murmurate.watch.html import html
from murmurate.watch.metrics import Values
from murmurate.watch.report import Json
from murmurate.watch.routes import json_page, routes

CACHE_S = 5.0
"""A model that is fetched is made at most so often."""


class ServedModel:
    """The model as a file, made when somebody fetches it and kept for a moment."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], pushes: Callable[[], int]) -> None:
        """`make` takes a while; `pushes`: how many are in the model."""
        self._make, self._pushes = make, pushes
        self._made: tuple[float, int, bytes] | None = None
        self._making = asyncio.Lock()

    async def fetched(self) -> bytes:
        """As it is now, give or take a few seconds."""
        async with self._making:
            pushes = self._pushes()
            if self._made is not None:
                at, then, body = self._made
                if then == pushes or time.monotonic() < at + CACHE_S:
                    return body
            body = await self._make()
            self._made = (time.monotonic(), pushes, body)
            return body

    def forget(self, now: float) -> None:
        """If nobody has fetched it for a while: it is as large as the model."""
        if self._made is not None and now > self._made[0] + CACHE_S:
            self._made = None


def coordinator_pages(
    listen: str,
    credentials: Credentials,
    *,
    values: Callable[[], Awaitable[Values]],
    told: Callable[[], Awaitable[Json]],
    model: ServedModel,
    failed: Callable[[], bool],
    ready: Callable[[], bool],
) -> Pages:
    """The routes of every program and two of its own; `told` is what the page in a browser asks for
    again and again."""

    async def about(_: Mapping[str, str]) -> Page:
        return json_page(await told())

    async def file(_: Mapping[str, str]) -> Page:
        return Page(await model.fetched(), "application/octet-stream")

    shared = routes(
        values=values,
        sheet=COORDINATOR,
        ill=lambda: "failed; see the log" if failed() else "",
        unready=lambda: "" if ready() else "it ends",
        page=html("murmurate_coordinator"),
    )
    own = {"/coordinator.json": about, "/model.safetensors": file}
    return Pages(listen, {**shared, **own}, credentials)
