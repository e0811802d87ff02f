"""`murmurate up --mode ist` or `hub`: a coordinator and its members, as real processes.

The coordinator decides who trains what and when it is over; the launcher tells members where it is,
shows how they do, and does to them what was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from murmurate.programs.run import OF_EACH
from murmurate.programs.up.child import DIED, DONE, KILLED, READY, TRAINING, WAITING, Child
from murmurate.programs.up.launch import COORDINATOR, UpPlan, coordinator_command, member_command
from murmurate.programs.up.up import STOP_S, UpRun
from murmurate.watch import report
from murmurate.watch.view import LiveView, Scene

AGAIN_MAX = 3
"""A coordinator with checkpoints that was killed is started again so often."""


class UpCentred(UpRun):
    """`children` has the coordinator in front."""

    def __init__(self, plan: UpPlan, view: LiveView, folder: Path) -> None:
        super().__init__(plan, view, folder)
        self.whole: report.Json | None = None
        self.lives = 1
        self.centre_told = False
        """To stop, when all members had time to push."""

    @property
    def centre(self) -> Child:
        return self.children[0]

    @property
    def peers(self) -> list[Child]:
        return self.children[1:]

    @property
    def judges(self) -> list[Child]:
        return [self.centre]

    def start(self) -> None:
        self.begin(COORDINATOR, coordinator_command(self.plan))
        for number, name in enumerate(self.plan.names):
            self.begin(name, member_command(self.plan, number))

    # -- what they are told ------------------------------------------------------------------------

    def _heard(self, child: Child, event: dict[str, object]) -> None:
        if child is not self.centre:
            if child.state == WAITING:  # it has a subnet, and trains
                child.state = TRAINING
                self.went = self.went or time.monotonic()
            return
        if event.get("event") == "listening":
            page = f", figures and a page at http://{child.metrics}/" if child.metrics else ""
            self.view.say(f"the coordinator listens at {child.address}{page}")
        if event.get("event") == "ready" and self.plan.config.train.seconds is None:
            self.budget = self.budget or child.budget
            each = f"{OF_EACH} " if self.plan.config.train.own_samples is not None else ""
            child.tell(f"go {each}{self.budget}")
        if child.state == WAITING:
            child.state = TRAINING
        if isinstance(whole := event.get("report"), dict):
            self.whole = whole
            self.ended = time.monotonic()

    def _direct(self) -> None:
        now = time.monotonic()
        alive = [child for child in self.children if child.code is None]
        if self.stop_at is not None:
            self._stopping(now, self.stop_at)
            return
        if self.centre.address:
            for child in self.peers:
                if child.state == READY and child.code is None and not child.told:
                    child.told = True
                    child.tell(self.centre.address)
        if self.went is None:
            if gone := [child.name for child in self.peers if child.state == DIED]:
                self.view.say(f"{', '.join(gone)} died before the first plan; stopped")
                self.stop()
            elif self.centre.state == DIED:
                self.stop()
            return
        self._carry_out_kills()
        if self.centre.code is not None and self.centre.state in (DIED, KILLED):
            self._without_coordinator(alive)
        elif not any(child.code is None for child in self.peers) and self.centre.code is None:
            self._nobody_left(now)
        if self.first_ended is not None and now > self.first_ended + self.late_s and alive:
            self.view.say(f"{', '.join(child.name for child in alive)} did not end; stopped")
            self.stop()

    def stop(self) -> None:
        """Members first: their last pushes are in the model before the coordinator ends."""
        self.stop_at = time.monotonic() + STOP_S
        for child in self.peers:
            if child.code is None:
                child.process.terminate()

    def _stopping(self, now: float, stop_at: float) -> None:
        pushing = any(child.code is None for child in self.peers)
        if not self.centre_told and (not pushing or now > stop_at):
            self.centre_told = True
            self.stop_at = now + STOP_S
            if self.centre.code is None:
                self.centre.process.terminate()
        elif now > stop_at:
            self.kill_all()

    def _nobody_left(self, now: float) -> None:
        self.alone_at = self.alone_at or now
        # Members that are done were told so: the coordinator waits for the rest, then evaluates.
        ending = any(child.state == DONE for child in self.peers)
        limit_s = self.late_s if ending else self.alone_s
        if ending and self.plan.config.train.own_samples is not None:
            limit_s = 0.0  # each had the end it was told of, and its last push is in
        if now > self.alone_at + limit_s and self.centre.state != DONE:
            self.view.say("no member is left; stopped")
            self.stop()

    def _without_coordinator(self, alive: Sequence[Child]) -> None:
        """With checkpoints it comes back where it was; meanwhile the members train on."""
        centre = self.centre
        if not alive:
            return
        if self.plan.config.checkpoint.dir is None or self.lives > AGAIN_MAX:
            self.view.say("the coordinator is gone: nobody assembles any more; stopped")
            self.stop()
            return
        self.lives += 1
        self.view.say("the coordinator is started again from its checkpoint; members train on")
        words = coordinator_command(self.plan, listen=centre.address)
        again = self.begin(COORDINATOR, words)
        again.row, again.curve, again.counts = centre.row, centre.curve, centre.counts
        again.address = centre.address
        self.children.remove(again)
        self.children[0] = again
        self.gone.append(centre)

    # -- what it looks like ------------------------------------------------------------------------

    def _spent(self) -> int:
        return int(self.centre.row["samples"])

    def _scene(self) -> Scene:
        row = self.centre.row
        scene = super()._scene()
        if scene.note or "plan" not in row:
            return scene
        if self.plan.config.train.mode == "hub":
            return scene.with_note(f"version {row['plan'] - 1:,}, {row['pushes']:,} pushes")
        covered = row["coverage"].values()
        least = f", {min(covered):.0%} covered" if covered else ""
        return scene.with_note(f"plan {row['plan']}{least}, {row['pushes']:,} pushes")

    def report(self) -> report.Json:
        node, train = self.plan.config.node, self.plan.config.train
        went = self.went if self.went is not None else time.monotonic()
        rows = self.rows()
        if self.whole is None:  # the coordinator did not get to it
            whole = report.assemble(
                {
                    "run": node.run,
                    "mode": train.mode,
                    "rule": self.plan.rule,
                    "workload": train.workload,
                    "seed": node.seed,
                },
                rows,
                wall_s=(self.ended or time.monotonic()) - went,
                distance=None,
                staleness=report.pooled_staleness(child.counts for child in self.peers),
                predicted=None,
            )
            whole["samples"] = self._spent()
        else:
            known = {row["name"]: row for row in self.whole["nodes"]}
            for row in rows[1:]:
                told = known.get(row["name"], {})
                row["samples_in_model"] = told.get("samples", 0)
                row["steps_in_model"] = told.get("steps", 0)
            rows[0] |= known.get(COORDINATOR, {}) | {"state": self.centre.state}
            whole = self.whole | {"nodes": rows}
        return whole | {
            **report.centred_curves(
                {COORDINATOR: self.centre.curve},
                {child.name: child.curve for child in self.peers},
                went,
            ),
            "staleness_counts": {child.name: sorted(child.counts.items()) for child in self.peers},
            "coordinator_lives": self.lives,
        }
