"""What a node serves over HTTP: figures for Prometheus, probes, a page for people."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from murmurate.io.http import Page, Pages
from murmurate.io.metrics import FAMILIES, exposition
from murmurate.report import counts
from murmurate.watch.html import HTML, html
from murmurate.watch.reading import is_ready, read
from murmurate.watch.swarm import Json, as_json

if TYPE_CHECKING:
    from murmurate.runtime import Runtime

BARS_MAX = 64
JSON = "application/json"


def pages(runtime: Runtime, listen: str) -> Pages:
    """To be started by the runtime, on its own loop."""
    expose = exposition(lambda: read(runtime), FAMILIES)
    page = html("murmurate.watch")

    def metrics(headers: Mapping[str, str]) -> Page:
        body, kind = expose(headers.get("accept", ""))
        return Page(body, kind)

    def livez(_: Mapping[str, str]) -> Page:
        """That this is answered at all says that the loop turns."""
        if runtime.failed:
            return Page(b"the background has failed; see the log\n", status=503)
        return Page(b"ok\n")

    def readyz(_: Mapping[str, str]) -> Page:
        if not is_ready(runtime):
            return Page(b"not part of the swarm\n", status=503)
        return Page(b"ok\n")

    def swarm(_: Mapping[str, str]) -> Page:
        return Page(json.dumps(swarm_json(runtime), allow_nan=False).encode(), JSON)

    return Pages(
        listen,
        {
            "/": lambda _: Page(page, HTML),
            "/metrics": metrics,
            "/swarm.json": swarm,
            "/livez": livez,
            "/readyz": readyz,
        },
    )


def swarm_json(runtime: Runtime) -> Json:
    """What the page shows."""
    swarm = as_json(runtime.describe())
    with runtime.lock:
        seen = counts(runtime.tally.staleness)
        curves = runtime.curves.lists()
        by_class = runtime.tally.accuracy_of
    return {
        **swarm,
        "wall": time.time(),
        "staleness_bars": bars(seen),
        "accuracy_by_class": [_known(each) for each in by_class],
        "curves": curves,
    }


def bars(seen: Mapping[int, int]) -> list[list[int]]:
    """A histogram with at most so many bars: [first value, last value, count] of each."""
    if not seen:
        return []
    width = max(1, math.ceil((max(seen) + 1) / BARS_MAX))
    out: dict[int, int] = {}
    for value, times in seen.items():
        out[value // width] = out.get(value // width, 0) + times
    return [[at * width, at * width + width - 1, out.get(at, 0)] for at in range(max(out) + 1)]


def _known(value: float) -> float | None:
    """JSON knows no NaN; and a page needs no more digits than it shows."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
