"""What a node serves over HTTP: figures for Prometheus, probes, a page for people."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from murmurate.core.figures.table import NODE
from murmurate.edge.net.http import Pages
from murmurate.watch.html import html
from murmurate.watch.reading import is_ready, read
from murmurate.watch.routes import FAILED, json_page, routes
from murmurate.watch.swarm import Json, as_json

if TYPE_CHECKING:
    from murmurate.edge.net.credentials import Credentials
    from murmurate.edge.runtime.runtime import Runtime

BARS_MAX = 64


def pages(runtime: Runtime, listen: str, credentials: Credentials) -> Pages:
    """To be started by the runtime, on its own loop."""
    shared = routes(
        values=lambda: read(runtime),
        sheet=NODE,
        ill=lambda: FAILED if runtime.failed else "",
        unready=lambda: "" if is_ready(runtime) else "not part of the swarm",
        page=html("murmurate.watch"),
    )
    own = {"/swarm.json": lambda _: json_page(swarm_json(runtime))}
    return Pages(listen, {**shared, **own}, credentials)


def swarm_json(runtime: Runtime) -> Json:
    """What the page shows."""
    swarm = as_json(runtime.describe())
    seen, curves, by_class = runtime.look(
        lambda node: (node.tally.staleness.counts(), node.curves.lists(), node.tally.accuracy_of)
    )
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
