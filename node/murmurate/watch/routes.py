"""What every program serves over HTTP: figures, the two probes, a page; once for all of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from murmurate.core.figures.table import Sheet
from murmurate.edge.net.http import Make, Page
from murmurate.watch.html import HTML
from murmurate.watch.metrics import Values, exposition

JSON = "application/json"
FAILED = "the background has failed; see the log"


def routes(
    *,
    values: Callable[[], Values | Awaitable[Values]],
    sheet: Sheet[Any],
    ill: Callable[[], str],
    unready: Callable[[], str],
    page: bytes | None = None,
) -> dict[str, Make]:
    """`/metrics`, `/livez`, `/readyz`, and `/` when there is a page.

    `ill` and `unready` say why not, or nothing. That `/livez` is answered at all says that the loop
    turns.
    """

    async def metrics(headers: Mapping[str, str]) -> Page:
        read = values()
        known = await read if inspect.isawaitable(read) else read
        body, kind = exposition(lambda: known, sheet)(headers.get("accept", ""))
        return Page(body, kind)

    shown: dict[str, Make] = {"/": lambda _: Page(page, HTML)} if page is not None else {}
    return {
        **shown,
        "/metrics": metrics,
        "/livez": lambda _: probe(ill()),
        "/readyz": lambda _: probe(unready()),
    }


def probe(problem: str) -> Page:
    return Page(f"{problem}\n".encode(), status=503) if problem else Page(b"ok\n")


def json_page(told: Mapping[str, Any]) -> Page:
    return Page(json.dumps(told, allow_nan=False).encode(), JSON)
