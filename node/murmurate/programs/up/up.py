"""`murmurate up`: a swarm of real processes on this machine, from start to report.

The launcher is a loop over pipes: it starts `murmurate node` processes (forked.py), reads their
events, and says three things to each: whom to join, when to go, and, if asked to, nothing ever
again (SIGKILL). It imports no torch and takes no part in training; when it dies, its nodes notice
and leave.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from murmurate.core.gossip.ways import WAYS, mixes_weights
from murmurate.core.synchronous.rules import ALLREDUCE, GROUPED, GROUPS_EA_WILD
from murmurate.core.values.member_half import RULES_OF
from murmurate.programs.up.child import (
    DIED,
    DONE,
    ENDED,
    KILLED,
    STARTING,
    STOPPED,
    TRAINING,
    WAITING,
    Child,
    Pipe,
    why,
)
from murmurate.programs.up.forked import Loader
from murmurate.programs.up.launch import GENERATOR, UpPlan, command, generator_command, trajectories
from murmurate.training.signals import heard_by
from murmurate.watch import report
from murmurate.watch.view import LiveView, Scene, beyond

STOP_S = 15.0
"""A node that was told to stop has this long before it is killed."""
JOIN_S = 45.0
POLL_S = 0.05
LINES_MAX = 50
"""Of what one node writes to standard error are shown."""


class UpRun:
    late_s = 60.0
    """After the first node is done the others have this long: a run ends by itself."""
    alone_s = 5.0
    """A generator without any peer left is stopped after this."""

    def __init__(self, plan: UpPlan, view: LiveView, folder: Path) -> None:
        self.plan = plan
        self.view = view
        self.children: list[Child] = []
        self.gone: list[Child] = []
        """Processes in whose place there is another one."""
        self.folder = folder
        self.loader = Loader()
        self.selector = selectors.DefaultSelector()
        self.kills = list(plan.kills)
        self.founder: Child | None = None
        self.listening_at: float | None = None
        self.began = time.monotonic()
        self.went: float | None = None
        self.first_ended: float | None = None
        self.ended: float | None = None
        self.stop_at: float | None = None
        self.budget = plan.config.train.samples
        own = plan.config.train.own_samples
        if own is not None:  # each ends by itself, the slow ones alone
            self.budget, self.late_s = plan.nodes * own, math.inf
        self.generator: Child | None = None
        self.alone_at: float | None = None
        self.said: set[str] = set()
        """Lines of any of them."""

    @property
    def peers(self) -> list[Child]:
        return [child for child in self.children if child is not self.generator]

    @property
    def judges(self) -> list[Child]:
        """If one of them got to the end, so did the run."""
        return self.peers

    def start(self) -> None:
        if (kept := trajectories(self.plan)) is not None:
            kept.mkdir(exist_ok=True)
            for old in kept.glob("*.safetensors"):  # of an earlier run with this report
                old.unlink()
        for number, name in enumerate(self.plan.names):
            self.begin(name, command(self.plan, number, self.folder))
        if self.plan.generator:
            self.generator = self.begin(GENERATOR, generator_command(self.plan))

    def begin(self, name: str, words: Sequence[str]) -> Child:
        """Start `murmurate WORDS…` and listen to it."""
        child = Child(name, self.loader.fork(name, words))
        self.children.append(child)
        for pipe, hear in (
            (child.process.stdout, self._event),
            (child.process.stderr, self._complaint),
        ):
            os.set_blocking(pipe.fileno(), False)
            self.selector.register(pipe, selectors.EVENT_READ, Pipe(child, pipe, hear))
        return child

    def run(self) -> None:
        self.start()
        self.carry_on()

    def carry_on(self) -> None:
        """Until every node has ended."""
        while self.selector.get_map():
            for key, _ in self.selector.select(POLL_S):
                pipe: Pipe = key.data
                for line in pipe.lines():
                    pipe.hear(pipe.child, line)
                if pipe.closed:
                    self.selector.unregister(key.fileobj)
            self._reap()
            self._direct()
            self.view.show(self._scene())
        for child in self.children:
            child.process.wait()
        self._reap()

    # -- what they say -----------------------------------------------------------------------------

    def _event(self, child: Child, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            self._complaint(child, line)  # a workload that prints
            return
        child.hear(event)
        if child.state == DONE and child in self.peers:
            self.ended = time.monotonic()
            self.first_ended = self.first_ended or self.ended
        self._heard(child, event)

    def _heard(self, child: Child, event: dict[str, object]) -> None:
        """Something was said."""

    def _complaint(self, child: Child, line: str) -> None:
        child.errors.append(line)
        if line.startswith("murmurate: ") and line in self.said:
            return  # all were told the same, and all say the same of it
        self.said.add(line)
        if len(child.errors) <= LINES_MAX:
            self.view.say(f"{child.name}: {line}")
        elif len(child.errors) == LINES_MAX + 1:
            self.view.say(f"{child.name}: … more is not shown")
        del child.errors[LINES_MAX + 1 : -1]

    def _reap(self) -> None:
        for child in self.children:
            if child.code is None and (code := child.process.poll()) is not None:
                child.code = code
                if child.state == KILLED:
                    continue
                asked = self.stop_at is not None and child.state != DONE
                if asked and code in (0, -signal.SIGTERM):  # the latter: while it was loading
                    child.state = STOPPED
                elif code != 0 or child.state != DONE:
                    child.state = DIED
                    others = any(other.process.poll() is None for other in self.children)
                    more = "; the others go on" if others else ""
                    self.view.say(f"{child.name} died ({why(code)}){more}")

    # -- what they are told ------------------------------------------------------------------------

    def _direct(self) -> None:
        now = time.monotonic()
        alive = [child for child in self.children if child.code is None]
        if self.stop_at is not None:
            if now > self.stop_at:
                self.kill_all()
            return
        if self.generator is not None:
            self._mind_generator(self.generator, alive, now)
        if self.went is None:
            self._gather(alive, now)
            return
        for child in alive:
            if child.state == WAITING:  # a late one
                self._go(child)
        self._carry_out_kills()
        if self.first_ended is not None and now > self.first_ended + self.late_s and alive:
            self.view.say(f"{', '.join(child.name for child in alive)} did not end; stopped")
            self.stop()

    def _carry_out_kills(self) -> None:
        for kill in list(self.kills):
            if self._part() >= kill.part:
                self.kills.remove(kill)
                child = next(child for child in self.children if child.name == kill.name)
                if child.code is None and child.state not in ENDED:
                    child.state = KILLED
                    child.process.kill()
                    self.view.say(f"{child.name} killed at {self._part():.0%}, as asked")

    def _mind_generator(self, generator: Child, alive: Sequence[Child], now: float) -> None:
        if generator.code is not None and generator.state != DONE and self.stop_at is None:
            self.view.say("the generator is gone: there is nothing more to train on; stopped")
            self.stop()
        elif list(alive) == [generator]:
            self.alone_at = self.alone_at or now
            if now > self.alone_at + self.alone_s:
                self.stop()

    def _gather(self, alive: Sequence[Child], now: float) -> None:
        """All load at once; the first one founds, the others join it, all hear from all, then they
        go together."""
        if any(child.code == 2 for child in self.children):  # what it was told is wrong: for all
            self.stop()
            return
        if any(child.state == STARTING for child in alive):
            return
        if self.founder is None or (self.founder.code is not None and not self.founder.address):
            self.founder = next((child for child in alive if child is not self.generator), None)
            if self.founder is not None:
                self.founder.tell("")
            return
        if not self.founder.address:
            return
        if self.listening_at is None:
            self.listening_at = now
            for child in alive:
                if child is not self.founder:
                    child.tell(self.founder.address)
        there = all(child.state == WAITING and self._has_met(child) for child in alive)
        if there or now > self.listening_at + JOIN_S:
            self.went = time.monotonic()
            self.view.say(
                f"{' '.join(f'{child.name} {child.address}' for child in alive)}"
                " (murmurate status, top: any of them)"
            )
            if pages := [f"http://{child.metrics}/" for child in alive if child.metrics]:
                self.view.say(f"figures and a page of each node: {' '.join(pages)}")
            if self.plan.config.train.seconds is None:
                self.budget = self.budget or max((child.budget for child in alive), default=0)
            for child in alive:
                if child.state == WAITING:
                    self._go(child)

    def _has_met(self, child: Child) -> bool:
        return child.met or child is self.generator

    def _go(self, child: Child) -> None:
        child.state = TRAINING
        if self.generator is None or child is self.generator:
            child.tell(f"go {self.budget or ''}")
        else:
            child.tell(f"go {self.generator.address}")

    def stop(self) -> None:
        """Ask all to leave; whoever does not is killed later."""
        self.stop_at = time.monotonic() + STOP_S
        for child in self.children:
            if child.code is None:
                child.process.terminate()

    def kill_all(self) -> None:
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()

    # -- what it looks like ------------------------------------------------------------------------

    def _part(self) -> float:
        """Of the budget that is spent, whichever ends first."""
        if self.went is None:
            return 0.0
        parts = [0.0]
        if self.budget:
            parts.append(self._spent() / self.budget)
        if seconds := self.plan.config.train.seconds:
            parts.append((time.monotonic() - self.went) / seconds)
        return min(1.0, max(parts))

    def _spent(self) -> int:
        """Samples of the whole swarm."""
        return sum(child.row["samples"] for child in self.children)

    def _scene(self) -> Scene:
        now = time.monotonic()
        loading = sum(child.state == STARTING for child in self.children)
        note = ""
        if self.stop_at is not None:
            note = "stopping"
        elif self.went is None:
            note = f"loading ({loading} of {len(self.children)})" if loading else "joining"
        elif self.ended is not None:
            note = "settling"
        return Scene(
            title=self.plan.config.train.workload,
            elapsed_s=now - (self.went or self.began),
            part=self._part(),
            rows=self.rows() if self.went is not None else (),
            bytes_per_s={child.name: child.bytes_per_s for child in self.children},
            note=note,
        )

    def rows(self) -> list[report.Json]:
        """A node that was killed may have told the others more than me, or me more at its last
        evaluation than before."""
        rows = [{**child.row, "state": child.state} for child in self.children]
        for row, own in zip(rows, self.children, strict=True):
            told = [child.samples_of.get(row["name"], 0) for child in self.children]
            found = [point.own_samples for point in own.curve]
            row["samples"] = max(row["samples"], *told, *found)
        return rows

    def report(self) -> report.Json:
        node, train = self.plan.config.node, self.plan.config.train
        went = self.went if self.went is not None else time.monotonic()
        done = [child for child in self.peers if child.state == DONE]
        predicted = None
        curves = {child.name: child.curve for child in self.peers}
        if train.mode == ALLREDUCE and train.rule not in GROUPED:
            predicted = 0.0  # nothing is stale where all wait for all
        elif train.rule in WAYS and not mixes_weights(train.rule):
            histories = {child.name: child.history for child in self.peers}
            predicted = report.predicted_staleness(
                histories, {child.name: child.row for child in self.peers}
            )
        return report.assemble(
            {
                "run": node.run,
                "mode": train.mode,
                "rule": train.rule,
                "workload": train.workload,
                "seed": node.seed,
            },
            self.rows(),
            wall_s=(self.ended or time.monotonic()) - went,
            distance=report.replica_distance_max(
                [self.folder / f"{child.name}.npy" for child in done]
            ),
            staleness=report.pooled_staleness(child.counts for child in self.children),
            predicted=predicted,
        ) | {
            **report.curves(curves, went, report.swarm_samples(curves)),
            "staleness_counts": {child.name: sorted(child.counts.items()) for child in self.peers},
            "trajectory": self._trajectories(),
        }

    def _trajectories(self) -> dict[str, str]:
        """By node: its file, as seen from the report."""
        kept = trajectories(self.plan)
        files = {} if kept is None else {file.stem: file for file in kept.glob("*.safetensors")}
        return {name: f"{file.parent.name}/{file.name}" for name, file in sorted(files.items())}


def _kind(plan: UpPlan) -> type[UpRun]:
    if plan.config.train.mode in RULES_OF:
        from murmurate.programs.up.subnets import UpCentred

        return UpCentred
    if plan.config.train.rule == GROUPS_EA_WILD:
        from murmurate.programs.up.grouped import UpGrouped

        return UpGrouped
    return UpRun


def run(plan: UpPlan) -> int:
    """Carry a plan out; 0 when a node got to the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="murmurate-")))
        view = LiveView()
        swarm = _kind(plan)(plan, view, folder)
        stack.callback(_clear, swarm)
        stack.enter_context(heard_by(_interrupt))
        interrupted = False
        with view:
            try:
                swarm.run()
            except KeyboardInterrupt:
                interrupted = True
                view.say("stopping: each node publishes what it has and leaves")
                swarm.stop()
                swarm.carry_on()
        if swarm.went is not None and any(child.row["samples"] for child in swarm.children):
            result = swarm.report()
            view.end(result)
            if more := beyond(result["samples"], swarm.budget, result["wall_s"]):
                view.say(more)
            done = [child for child in swarm.children if child.state == DONE]
            if late := [child.name for child in done if not child.settled]:
                view.say(f"{', '.join(late)} ended before everything of the others had arrived")
            if plan.config.report.path is not None:
                text = json.dumps(result, indent=2, allow_nan=False) + "\n"
                Path(plan.config.report.path).write_text(text, encoding="utf-8")
        if interrupted:
            return 130
        if any(child.state == DONE for child in swarm.judges):
            return 0
        codes = {child.code for child in swarm.children if child.state != STOPPED}
        return next((code for code in (2, 3) if codes == {code}), 4)


def _clear(swarm: UpRun) -> None:
    """Nothing that was started stays behind, whatever happened."""
    swarm.kill_all()
    for child in (*swarm.children, *swarm.gone):
        child.process.wait()
        child.process.close()
    swarm.loader.close()
    swarm.selector.close()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
