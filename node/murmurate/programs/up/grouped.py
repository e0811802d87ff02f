"""`murmurate up --mode allreduce --rule groups-ea-wild`: the nodes, and the hub they exchange with.

The hub comes first, for nodes are told where it is; it ends when all of them have.
"""

from __future__ import annotations

import time
from pathlib import Path

from murmurate.programs.up.child import Child
from murmurate.programs.up.launch import COORDINATOR, UpPlan, command, hub_across_command
from murmurate.programs.up.up import STOP_S, UpRun
from murmurate.watch import report
from murmurate.watch.view import LiveView


class UpGrouped(UpRun):
    """`children` are the nodes; the hub is beside them."""

    def __init__(self, plan: UpPlan, view: LiveView, folder: Path) -> None:
        super().__init__(plan, view, folder)
        self.whole: report.Json | None = None
        """What the hub says of itself at its end."""
        self.hub_until: float | None = None

    def start(self) -> None:
        self.hub = self.begin(COORDINATOR, hub_across_command(self.plan))
        self.children.remove(self.hub)
        self.gone.append(self.hub)  # it is cleared away in any case

    def _heard(self, child: Child, event: dict[str, object]) -> None:
        if child is not self.hub:
            return
        if event.get("event") == "listening":
            self.view.say(f"the hub across groups listens at {child.address}")
            for number, name in enumerate(self.plan.names):
                self.begin(name, command(self.plan, number, self.folder, child.address))
        if isinstance(whole := event.get("report"), dict):
            self.whole = whole

    def _direct(self) -> None:
        if self.children:
            super()._direct()
        if self.hub.process.poll() is not None:
            if not self.children or (self.hub_until is None and self.stop_at is None):
                self.hub_until = self.hub_until or time.monotonic()
                self.view.say("the hub across groups is gone: groups train on by themselves")
            return
        if self.children and all(child.code is not None for child in self.children):
            if self.hub_until is None:
                self.hub_until = time.monotonic() + STOP_S
                self.hub.process.terminate()
            elif time.monotonic() > self.hub_until:
                self.hub.process.kill()

    def stop(self) -> None:
        super().stop()
        if not self.children:
            self.hub.process.terminate()

    def kill_all(self) -> None:
        super().kill_all()
        if self.hub.process.poll() is None:
            self.hub.process.kill()

    def report(self) -> report.Json:
        whole = self.whole or {}
        told = {key: whole.get(key) for key in ("pushes", "elastic", "accuracy_mean")}
        return super().report() | {"across": told}
