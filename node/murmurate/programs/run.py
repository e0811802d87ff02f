"""`run(config, role)`: a program, whatever its role is: from its first signal to its exit code.

Written once: what is said to people (standard error) and to whoever started it (a line of JSON for
each event), the launcher at the other end of standard input, when to look up from the work, why it
ends, and its report. A role opens, makes a step, and says what it came to.

A first SIGTERM or SIGINT ends the work after the step at hand; what was made is not lost, and the
exit code is 0. A second one does not wait.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from murmurate.edge.runtime.malloc import keep_memory
from murmurate.programs.roles.launcher import Launcher
from murmurate.training.signals import Stop, Stopped, stopped_by_signals
from murmurate.watch.report import Json

LOOK_S = 0.02
"""Between two looks at the budget, the launcher and the time."""
TELL_S = 0.25
"""Between two events, at multiples of it on the machine's clock: so nodes are sampled together."""
NAP_S = 0.1
GATE_S = 120.0
"""So long a program waits for the launcher's go."""
OF_EACH = "each"
"""Behind go: the budget that follows is what members have together, and each ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a program came to."""

    settled: bool
    """Nothing of it is missing anywhere."""
    report: Json
    """For the file of --report."""
    sentence: str
    """For people who do not read events; empty: all is said."""
    more: Json = field(default_factory=dict)
    """Beside the row in the event `done`."""


class ProgramRole(Protocol):
    """What a program does."""

    def open(self, program: Program) -> bool:
        """Load everything, join the others or listen to them (`Program.listens`), and be ready for
        the first step. What must be closed goes on `Program.stack`. False: it was told to end
        before there was anything to end."""

    def step(self) -> None:
        """One step of the work: a batch, or a short wait for what others do. Where it takes longer
        it calls `Program.look` on the way."""

    def over(self, now: float) -> str:
        """Why the work ends now; empty: it goes on."""

    def look(self, now: float) -> None:
        """What is to be done beside the work, every LOOK_S."""

    def progress(self, now: float) -> None:
        """The same every TELL_S, before it is told."""

    def row(self) -> Json:
        """This program as it is now: an entry of `nodes` in the report."""

    def details(self, event: str) -> Json:
        """What an event has beside the row."""

    def end(self) -> Outcome:
        """Finish what was begun: all that was made is with the others."""

    def leave(self, outcome: Outcome) -> None:
        """The last word to the others, when all has been said here."""


class Reporting(Protocol):
    """A configuration, as far as every program has it."""

    @property
    def report(self) -> Any: ...


def run(config: Reporting, role: ProgramRole, *, events: bool, launched: bool) -> int:
    """The whole of a program; its exit code. `events`: a line of JSON for each on standard output;
    `launched`: at the other end of standard input is who started it, and is obeyed."""
    with stopped_by_signals() as stop:
        program = Program(role, stop, Launcher() if launched else None, events)
        with contextlib.suppress(Stopped):  # before there was anything to leave
            program.run(config.report.path)
    return 0


class Program:
    """One process around its role."""

    def __init__(
        self, role: ProgramRole, stop: Stop, launcher: Launcher | None, events: bool
    ) -> None:
        self.role = role
        self.stop = stop
        self.launcher = launcher
        self.events = events
        self.stack = ExitStack()
        """What ends with the program, the last first."""
        self._look_at = 0.0
        self._tell_at = math.inf  # there is nothing to tell of before it is open

    def run(self, report: str | None) -> None:
        """To the end of the work."""
        keep_memory()
        role = self.role
        # Until all is loaded nothing is garbage; looking for it takes 13 % of a start (measured).
        gc.disable()
        try:
            with self.stack:
                if not role.open(self):
                    return
                self._look_at = 0.0
                self._tell_at = _grid(time.monotonic())
                if self.abandoned:
                    self.end_for("the launcher is gone")
                while not self.stop.reason:
                    role.step()
                    self.look()
                self._conclude(role.end(), report)
        finally:
            gc.enable()

    def _conclude(self, outcome: Outcome, report: str | None) -> None:
        if report is not None:
            text = json.dumps(outcome.report, indent=2) + "\n"
            Path(report).write_text(text, encoding="utf-8")
        self.tell("done", settled=outcome.settled, reason=self.stop.reason, **outcome.more)
        if outcome.sentence:
            self.announce(outcome.sentence)
        self.role.leave(outcome)

    def listens(self, name: str, address: str, page: str | None) -> None:
        """All is loaded, and the others can come."""
        self.emit("listening", name=name, address=address, metrics=page)
        # All that torch has loaded stays: looking through it again and again for garbage would
        # hold up a step for 145 ms each time (measured).
        gc.collect()
        gc.freeze()
        gc.enable()

    # -- on the way --------------------------------------------------------------------------------

    def look(self) -> bool:
        """Look up from the work, if it is time to: whether to stop."""
        stop, now = self.stop, time.monotonic()
        if now < self._look_at:
            return bool(stop.reason)
        self._look_at = now + LOOK_S
        if not stop.reason:  # else a signal came first
            self.end_for(self.role.over(now) or ("the launcher is gone" if self.abandoned else ""))
        self.role.look(now)
        if now >= self._tell_at:
            self.role.progress(now)
            self.tell("progress")
            self._tell_at = _grid(now)
        return bool(stop.reason)

    def end_for(self, reason: str) -> None:
        """The first reason stands."""
        self.stop.reason = self.stop.reason or reason

    def nap(self, seconds: float) -> None:
        """Wait so long, or until there is a reason to end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.stop.reason:
            time.sleep(min(left, NAP_S))

    # -- the launcher ------------------------------------------------------------------------------

    def first_line(self, otherwise: str) -> str | None:
        """What the launcher says when all have loaded, or that; None: it is gone."""
        return self.launcher.line() if self.launcher is not None else otherwise

    def heard_go(self) -> list[str] | None:
        """The words behind go, if it was said by now: a budget, an address."""
        line = (self.launcher.next() or "") if self.launcher is not None else ""
        return line.split()[1:] if line.startswith("go") else None

    @property
    def abandoned(self) -> bool:
        """Whether whoever started this is gone."""
        return self.launcher is not None and self.launcher.gone

    # -- telling -----------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """One line for people."""
        print(text, file=sys.stderr, flush=True)

    def announce(self, text: str) -> None:
        """The same, if nobody reads events."""
        if not self.events:
            self.say(text)

    def tell(self, event: str, **more: object) -> None:
        """An event with the program as it is now."""
        if self.events:
            row, details = self.role.row(), self.role.details(event)
            self.emit(event, at=time.monotonic(), node=row, **details, **more)

    def emit(self, event: str, **more: Any) -> None:
        """One line of JSON for whoever started this."""
        if not self.events:
            return
        try:
            sys.stdout.write(json.dumps({"event": event, **more}, separators=(",", ":")) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.end_for("the launcher is gone")


def _grid(now: float) -> float:
    return (now // TELL_S + 1) * TELL_S
