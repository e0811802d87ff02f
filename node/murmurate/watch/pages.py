"""What a node serves over HTTP: figures for Prometheus, probes, a page for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from murmurate.io.http import Page, Pages
from murmurate.io.metrics import exposition
from murmurate.watch.reading import is_ready, read

if TYPE_CHECKING:
    from murmurate.runtime import Runtime


def pages(runtime: Runtime, listen: str) -> Pages:
    """To be started by the runtime, on its own loop."""
    expose = exposition(lambda: read(runtime))

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

    return Pages(listen, {"/metrics": metrics, "/livez": livez, "/readyz": readyz})
