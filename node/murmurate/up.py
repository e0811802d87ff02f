"""`murmurate up`: a swarm of real processes on this machine, from start to report.

The launcher is a loop over pipes: it starts `murmurate node` processes, reads their events, and
says three things to each: whom to join, when to go, and, if asked to, nothing ever again (SIGKILL).
It imports no torch and takes no part in training; when it dies, its nodes notice and leave.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from murmurate import report
from murmurate.config import Config, child_environment
from murmurate.errors import ConfigError
from murmurate.io.codec_choice import parse_codec
from murmurate.view import Scene, View

STOP_S = 15.0
"""A node that was told to stop has this long before it is killed."""
LATE_S = 60.0
"""After the first node is done the others have this long: a run ends by itself."""
JOIN_S = 45.0
POLL_S = 0.05
LINES_MAX = 50
"""Of what one node writes to standard error are shown."""
LINE_BYTES_MAX = 4 << 20
RATE_S = 2.0

STARTING, READY, WAITING, TRAINING, DONE, KILLED, DIED, STOPPED = (
    "starting",
    "ready",
    "waiting",
    "training",
    "done",
    "killed",
    "died",
    "stopped",
)
GENERATOR = "generator"
ALONE_S = 5.0
"""A generator without any peer left is stopped after this."""
ENDED = (DONE, KILLED, DIED, STOPPED)


# -- what was asked for --------------------------------------------------------------------------


class Kill(NamedTuple):
    """End this node, without a word to it, when this part of the budget is spent."""

    name: str
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run of `up`: how many nodes, what each is told, and what is done to some of them."""

    nodes: int = 4
    config: Config = field(default_factory=Config)
    kills: tuple[Kill, ...] = ()
    slow_s: Mapping[str, float] = field(default_factory=dict)
    codecs: Mapping[str, str] = field(default_factory=dict)
    generator: bool = False
    """One more process deals the batches; the budget is its own."""
    trajectory: bool = False
    """Keep weights now and then, in a folder beside the report."""

    @property
    def names(self) -> list[str]:
        return [f"node-{number}" for number in range(self.nodes)]


def parse_kill(text: str, names: Sequence[str]) -> Kill:
    """`node-1@30%`."""
    match = re.fullmatch(r"(.+)@(\d{1,3}(?:\.\d+)?)%", text)
    if match is None or not float(match[2]) < 100:
        raise ConfigError(f"--kill {text!r}: NAME@PART% with 0 to 99 %, such as node-1@30%")
    return Kill(_known("--kill", match[1], names), float(match[2]) / 100)


def parse_slow(text: str, names: Sequence[str]) -> tuple[str, float]:
    """`node-2=0.09`: seconds of sleep after each of its steps."""
    match = re.fullmatch(r"(.+)=(\d*\.?\d+)", text)
    if match is None:
        raise ConfigError(f"--slow {text!r}: NAME=SECONDS, such as node-2=0.09")
    return _known("--slow", match[1], names), float(match[2])


def parse_codecs(texts: Sequence[str], names: Sequence[str], rule: str) -> dict[str, str]:
    """`int8`, of all nodes, or `node-2=int8`, of one; the codec of each."""
    everyone: str | None = None
    codecs: dict[str, str] = {}
    for text in texts:
        name, equals, codec = text.rpartition("=")
        if not parse_codec(codec).plain and rule == "average":
            raise ConfigError(f"--codec {text!r}: with rule average everything is sent as it is")
        if equals:
            codecs[_known("--codec", name, names)] = codec
        elif everyone is None:
            everyone = codec
        else:
            raise ConfigError(f"--codec {text!r}: {everyone} was for all nodes already")
    return {name: everyone for name in names if everyone is not None} | codecs


def _known(option: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ConfigError(f"{option} {name!r}: one of {', '.join(names)}")
    return name


def plan(
    nodes: int,
    config: Config,
    *,
    kill: Sequence[str] = (),
    slow: Sequence[str] = (),
    codec: Sequence[str] = (),
    generator: bool = False,
    trajectory: bool = False,
) -> Plan:
    """All of it checked; ConfigError with a line for each mistake."""
    problems: list[str] = []
    names = Plan(nodes=nodes).names
    kills: list[Kill] = []
    slow_s: dict[str, float] = {}
    codecs: dict[str, str] = {}
    for text in kill:
        try:
            kills.append(parse_kill(text, [*names, GENERATOR] if generator else names))
        except ConfigError as error:
            problems.append(str(error))
    for text in slow:
        try:
            name, seconds = parse_slow(text, names)
        except ConfigError as error:
            problems.append(str(error))
        else:
            slow_s[name] = seconds
    try:
        codecs = parse_codecs(codec, names, config.train.rule)
    except ConfigError as error:
        problems.append(str(error))
    if len({each.name for each in kills}) < len(kills):
        problems.append("--kill: each node at most once")
    if generator and config.train.rule == "average":
        problems.append("--generator: only with --rule sum")
    if trajectory and config.report.path is None:
        problems.append("--trajectory: needs --report FILE: the weights are kept beside it")
    if problems:
        raise ConfigError("\n".join(problems))
    return Plan(
        nodes=nodes,
        config=config,
        kills=tuple(kills),
        slow_s=slow_s,
        codecs=codecs,
        generator=generator,
        trajectory=trajectory,
    )


def trajectories(plan: Plan) -> Path | None:
    """The folder for weights kept now and then: `out.trajectory` beside `out.json`."""
    path = plan.config.report.path
    return Path(path).with_suffix(".trajectory") if plan.trajectory and path else None


def command(plan: Plan, number: int, folder: Path) -> list[str]:
    """How node `number` is started."""
    node, train, kept = plan.config.node, plan.config.train, plan.config.checkpoint
    name = plan.names[number]
    threads = node.threads or max(1, cores() // plan.nodes)
    kept_in = trajectories(plan)
    given: dict[str, object] = {
        "--name": name,
        "--run": node.run,
        "--listen": "127.0.0.1:0",
        "--peers": "-",
        "--seed": node.seed,
        "--threads": threads,
        "--workload": train.workload,
        "--data": train.data,
        "--split": train.split,
        "--shard": f"{number}/{plan.nodes}",
        "--batch-size": train.batch_size,
        "--lr": train.lr,
        "--every": train.every,
        "--rule": train.rule,
        "--mode": train.mode,
        "--topology": train.topology,
        "--codec": plan.codecs.get(name, train.codec),
        "--slow-s": plan.slow_s.get(name, train.slow_s),
        "--generator": "-" if plan.generator else None,
        "--samples": None if plan.generator else train.samples,
        "--seconds": None if plan.generator else train.seconds,
        "--checkpoint": kept.dir and Path(kept.dir) / name,
        "--checkpoint-every-s": kept.every_s,
        "--metrics": metrics_listen(plan.config.metrics.listen, number),
        "--weights": folder / f"{name}.npy",
        "--trajectory": kept_in and kept_in / f"{name}.safetensors",
    }
    return _node(given)


def metrics_listen(listen: str | None, number: int) -> str | None:
    """One port after the other; 0: a free one for each."""
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    return f"{host}:{int(port) + number if int(port) else 0}"


def generator_command(plan: Plan) -> list[str]:
    """How the one that deals the batches is started."""
    node, train = plan.config.node, plan.config.train
    return _node(
        {
            "--role": "generator",
            "--name": GENERATOR,
            "--run": node.run,
            "--listen": "127.0.0.1:0",
            "--peers": "-",
            "--seed": node.seed,
            "--workload": train.workload,
            "--data": train.data,
            "--batch-size": train.batch_size,
            "--samples": train.samples,
            "--seconds": train.seconds,
        }
    )


def _node(given: Mapping[str, object]) -> list[str]:
    words = [f"{option}={value}" for option, value in given.items() if value is not None]
    return [sys.executable, "-m", "murmurate.cli", "node", "--events", *words]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- a node as the launcher sees it --------------------------------------------------------------


class Child:
    """One process, what it has said so far, and what has become of it."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self.state = STARTING
        self.address = ""
        self.metrics: str | None = None
        self.budget = 0
        """Of the whole swarm, as its workload would have it."""
        self.row: report.Json = report.empty_row(name)
        self.history = report.History()
        self.curve: list[report.Point] = []
        self.counts: dict[int, int] = {}
        self.settled = False
        self.process = subprocess.Popen(
            list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        self.code: int | None = None
        self.errors: list[str] = []
        self._bytes: list[tuple[float, int]] = []

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it is gone, which its exit code will tell

    def hear(self, event: Mapping[str, Any]) -> None:
        match event.get("event"):
            case "ready":
                self.state = READY
                self.budget = int(event["samples"])
            case "listening":
                self.state = WAITING
                self.address = str(event["address"])
                self.metrics = event.get("metrics")
            case "progress" | "done" as kind:
                self.row = dict(event["node"])
                at, row = float(event["at"]), self.row
                self.history.add(
                    report.Sample(
                        at=at,
                        published=row["updates_published"],
                        applied=row["updates_applied"],
                        compute_s=row["step_s"] * row["updates_published"],
                    )
                )
                self.curve.append((at, row["samples"], row["loss"], row["accuracy"]))
                if "staleness_counts" in event:
                    self.counts = {int(value): int(n) for value, n in event["staleness_counts"]}
                self._bytes.append((at, row["bytes_sent"]))
                while self._bytes[-1][0] - self._bytes[0][0] > RATE_S:
                    self._bytes.pop(0)
                if kind == "done":
                    self.settled = bool(event["settled"])
                    self.state = DONE if self.state == TRAINING else self.state

    @property
    def bytes_per_s(self) -> float:
        if len(self._bytes) < 2 or self.state != TRAINING:
            return 0.0
        (start, before), (end, after) = self._bytes[0], self._bytes[-1]
        return (after - before) / (end - start) if end > start else 0.0


# -- the run -------------------------------------------------------------------------------------


class _Up:
    def __init__(self, plan: Plan, view: View, folder: Path) -> None:
        self.plan = plan
        self.view = view
        self.children: list[Child] = []
        self.folder = folder
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
        self.generator: Child | None = None
        self.alone_at: float | None = None

    @property
    def peers(self) -> list[Child]:
        return [child for child in self.children if child is not self.generator]

    def start(self) -> None:
        if (kept := trajectories(self.plan)) is not None:
            kept.mkdir(exist_ok=True)
            for old in kept.glob("*.safetensors"):  # of an earlier run with this report
                old.unlink()
        started = [
            Child(name, command(self.plan, number, self.folder))
            for number, name in enumerate(self.plan.names)
        ]
        if self.plan.generator:
            self.generator = Child(GENERATOR, generator_command(self.plan))
            started.append(self.generator)
        for child in started:
            self.children.append(child)
            for pipe, hear in (
                (child.process.stdout, self._event),
                (child.process.stderr, self._complaint),
            ):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                self.selector.register(pipe, selectors.EVENT_READ, _Pipe(child, pipe, hear))

    def run(self) -> None:
        self.start()
        self.carry_on()

    def carry_on(self) -> None:
        """Until every node has ended."""
        while self.selector.get_map():
            for key, _ in self.selector.select(POLL_S):
                pipe: _Pipe = key.data
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
        if child.state == DONE and child is not self.generator:
            self.ended = time.monotonic()
            self.first_ended = self.first_ended or self.ended

    def _complaint(self, child: Child, line: str) -> None:
        child.errors.append(line)
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
                if code == 0 and (self.stop_at is not None and child.state != DONE):
                    child.state = STOPPED
                elif code != 0 or child.state != DONE:
                    child.state = DIED
                    others = any(other.process.poll() is None for other in self.children)
                    more = "; the others go on" if others else ""
                    self.view.say(f"{child.name} died ({_why(code)}){more}")

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
        for kill in list(self.kills):
            if self._part() >= kill.part:
                self.kills.remove(kill)
                child = next(child for child in self.children if child.name == kill.name)
                if child.code is None and child.state not in ENDED:
                    child.state = KILLED
                    child.process.kill()
                    self.view.say(f"{child.name} killed at {self._part():.0%}, as asked")
        if self.first_ended is not None and now > self.first_ended + LATE_S and alive:
            self.view.say(f"{', '.join(child.name for child in alive)} did not end; stopped")
            self.stop()

    def _mind_generator(self, generator: Child, alive: Sequence[Child], now: float) -> None:
        if generator.code is not None and generator.state != DONE and self.stop_at is None:
            self.view.say("the generator is gone: there is nothing more to train on; stopped")
            self.stop()
        elif list(alive) == [generator]:
            self.alone_at = self.alone_at or now
            if now > self.alone_at + ALONE_S:
                self.stop()

    def _gather(self, alive: Sequence[Child], now: float) -> None:
        """All load at once; the first one founds, the others join it, then all go together."""
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
        if all(child.state == WAITING for child in alive) or now > self.listening_at + JOIN_S:
            self.went = time.monotonic()
            if pages := [f"http://{child.metrics}/" for child in alive if child.metrics]:
                self.view.say(f"figures and a page of each node: {' '.join(pages)}")
            if self.plan.config.train.seconds is None:
                self.budget = self.budget or max((child.budget for child in alive), default=0)
            for child in alive:
                if child.state == WAITING:
                    self._go(child)

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
            parts.append(sum(child.row["samples"] for child in self.children) / self.budget)
        if seconds := self.plan.config.train.seconds:
            parts.append((time.monotonic() - self.went) / seconds)
        return min(1.0, max(parts))

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
        return [{**child.row, "state": child.state} for child in self.children]

    def report(self) -> report.Json:
        node, train = self.plan.config.node, self.plan.config.train
        went = self.went if self.went is not None else time.monotonic()
        done = [child for child in self.peers if child.state == DONE]
        predicted = None
        if train.rule == "sum":
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
            "curves": {child.name: report.thinned(child.curve, went) for child in self.peers},
            "staleness_counts": {child.name: sorted(child.counts.items()) for child in self.peers},
            "trajectory": self._trajectories(),
        }

    def _trajectories(self) -> dict[str, str]:
        """By node: its file, as seen from the report."""
        kept = trajectories(self.plan)
        files = {} if kept is None else {file.stem: file for file in kept.glob("*.safetensors")}
        return {name: f"{file.parent.name}/{file.name}" for name, file in sorted(files.items())}


class _Pipe:
    """Lines from a pipe that is never waited for."""

    def __init__(self, child: Child, pipe: IO[bytes], hear: Any) -> None:
        self.child = child
        self.hear = hear
        self.closed = False
        self._pipe = pipe
        self._rest = b""

    def lines(self) -> Iterator[str]:
        try:
            part = os.read(self._pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        self.closed = not part
        *lines, self._rest = (self._rest + part).split(b"\n")
        if self.closed or len(self._rest) > LINE_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line.strip():
                yield line.decode(errors="replace")


def _why(code: int) -> str:
    if code < 0:
        return signal.Signals(-code).name
    known = {0: "it left before the end", 2: "configuration", 3: "checkpoint", 4: "network"}
    return known.get(code, f"exit code {code}")


def run(plan: Plan) -> int:
    """Carry a plan out; 0 when a node got to the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="murmurate-")))
        view = View()
        swarm = _Up(plan, view, folder)
        stack.callback(_clear, swarm)
        for each in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, each, signal.signal(each, _interrupt))
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
            done = [child for child in swarm.children if child.state == DONE]
            if late := [child.name for child in done if not child.settled]:
                view.say(f"{', '.join(late)} ended before everything of the others had arrived")
            if plan.config.report.path is not None:
                text = json.dumps(result, indent=2, allow_nan=False) + "\n"
                Path(plan.config.report.path).write_text(text, encoding="utf-8")
        if interrupted:
            return 130
        if any(child.state == DONE for child in swarm.peers):
            return 0
        codes = {child.code for child in swarm.children}
        return next((code for code in (2, 3) if codes == {code}), 4)


def _clear(swarm: _Up) -> None:
    """Nothing that was started stays behind, whatever happened."""
    swarm.kill_all()
    for child in swarm.children:
        child.process.wait()
        for pipe in (child.process.stdin, child.process.stdout, child.process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
    swarm.selector.close()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
