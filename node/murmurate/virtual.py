"""`murmurate up --virtual`: the same training in virtual time, in one process.

Speeds and delays are what they are said to be, whatever this machine does, and the rng seed
decides all the rest: the same command gives the same report, to the last digit. Gossip runs on the
core that nodes run (`sim.gossip`); subnets on the coordinator's rules, which are found by entry
point, because murmurate does not import its coordinator.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmurate import report
from murmurate.config import Config
from murmurate.core.staleness import gossip_expected_unequal
from murmurate.errors import ConfigError
from murmurate.io.codec_choice import parse_codec
from murmurate.launch import Kill, known, parse_codecs, parse_kill, parse_widths
from murmurate.view import Scene, View
from murmurate.workloads import load as load_workload

if TYPE_CHECKING:  # torch comes with them
    from murmurate.sim.task import Encodes, Engine, Figures, Task

GROUP = "murmurate.virtual"
SLICES = 400
"""Looks at the run, so many in all; more would cost, fewer would not look alive."""
SAMPLES_S = 1e9
"""A run that ends by its samples ends before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for, checked as far as that goes without the workload."""

    nodes: int
    config: Config
    speeds: Mapping[str, float] = field(default_factory=dict)
    widths: Mapping[str, float] = field(default_factory=dict)
    delay_s: float = 0.0
    delays_s: Mapping[str, float] = field(default_factory=dict)
    kills: tuple[Kill, ...] = ()
    every: int | None = None
    codecs: Mapping[str, str] = field(default_factory=dict)


def plan(
    nodes: int,
    config: Config,
    *,
    speed: Sequence[str] = (),
    delay: Sequence[str] = (),
    widths: str | None = None,
    kill: Sequence[str] = (),
    codec: Sequence[str] = (),
    every: int | None = None,
    refused: Mapping[str, object] | None = None,
) -> Plan:
    """ConfigError with a line for each mistake. `refused`: options that need a real machine."""
    problems = [
        f"{option}: not with --virtual; {why}"
        for option, why in _REFUSED.items()
        if (refused or {}).get(option)
    ]
    names = [f"node-{number}" for number in range(nodes)]
    speeds: dict[str, float] = {}
    delays: dict[str, float] = {}
    kills: list[Kill] = []
    shares: dict[str, float] = {}
    codecs: dict[str, str] = {}
    delay_s = 0.0
    try:
        codecs = parse_codecs(codec, names, config.train.rule)
    except ConfigError as error:
        problems.append(str(error))
    if codec and config.train.mode != "gossip":
        problems.append("--codec: only with --mode gossip")
    try:
        if widths is not None:
            shares = dict(zip(names, parse_widths(widths, nodes, "--nodes"), strict=True))
    except ConfigError as error:
        problems.append(str(error))
    for option, given in (("--widths", widths), ("--memory", config.ist.memory)):
        if given and config.train.mode != "ist":
            problems.append(f"{option}: only with --mode ist")
    for option, texts, out, zero in (
        ("--speed", speed, speeds, False),
        ("--delay-s", delay, delays, True),
    ):
        for text in texts:
            try:
                name, value = _number(option, text, names, zero=zero)
            except ConfigError as error:
                problems.append(str(error))
                continue
            if name:
                out[name] = value
            elif option == "--delay-s":
                delay_s = value
            else:
                speeds |= {each: value for each in names if each not in speeds}
    for text in kill:
        try:
            kills.append(parse_kill(text, names))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return Plan(
        nodes=nodes,
        config=config,
        speeds=speeds,
        widths=shares,
        delay_s=delay_s,
        delays_s=delays,
        kills=tuple(kills),
        every=every,
        codecs=codecs,
    )


_REFUSED = {
    "--slow": "say how many steps a second it makes: --speed NAME=STEPS",
    "--generator": "peers draw their own batches",
    "--trajectory": "nothing is kept on the way",
    "--checkpoint": "the same command gives the same run",
    "--metrics": "there is no process to ask; see --report",
}


def _number(option: str, text: str, names: Sequence[str], *, zero: bool) -> tuple[str, float]:
    """`node-0=0.25`, or a number for all of them."""
    match = re.fullmatch(r"(?:(.+)=)?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text)
    value = float(match[2] + (match[3] or "")) if match else -1.0
    if match is None or not (value > 0 or (zero and value == 0)) or value > SAMPLES_S:
        accepted = "seconds from 0 on" if zero else "steps in a second, above 0"
        raise ConfigError(f"{option} {text!r}: [NAME=]NUMBER, {accepted}, such as node-0=0.25")
    return (known(option, match[1], names) if match[1] else ""), value


# -- the run ---------------------------------------------------------------------------------------


def engine(mode: str) -> Callable[[Task], Engine]:
    """What trains in this mode."""
    if mode == "gossip":
        from murmurate.sim.gossip import GossipWorld

        return GossipWorld
    found = {each.name: each for each in entry_points(group=GROUP)}
    if mode not in found:
        have = ", ".join(sorted({"gossip", *found}))
        raise ConfigError(f"--mode {mode}: not in virtual time; {have}")
    make: Callable[[Task], Engine] = found[mode].load()
    return make


def _encoders(codecs: Mapping[str, str]) -> dict[str, Callable[[int], Encodes]]:
    """The simulator does not know how numbers are encoded; it is told here."""
    from murmurate.io.codec import Encoder

    choices = {name: parse_codec(codec) for name, codec in codecs.items()}
    return {name: partial(Encoder, choice) for name, choice in choices.items() if not choice.plain}


class _Run:
    def __init__(self, plan: Plan, view: View) -> None:
        self.plan, self.view = plan, view
        node, train = plan.config.node, plan.config.train
        self.workload = load_workload(
            train.workload, data=train.data, batch_size=train.batch_size, lr=train.lr
        )
        import torch

        from murmurate.sim.task import Task

        torch.set_num_threads(node.threads or 1)  # models are small, and the order is part of it
        self.engine = engine(train.mode)(
            Task(
                workload=self.workload,
                nodes=plan.nodes,
                rule=train.rule,
                seed=node.seed,
                speeds=plan.speeds,
                widths=plan.widths,
                memory_bytes=plan.config.ist.memory or None,
                delay_s=plan.delay_s,
                delays_s=plan.delays_s,
                every=plan.every,
                topology=train.topology,
                split=train.split,
                encoders=_encoders(plan.codecs),
            )
        )
        self.seconds = train.seconds
        self.samples = train.samples
        if self.seconds is None and self.samples is None:
            self.samples = self.workload.samples
        self.kills = sorted(plan.kills, key=lambda kill: kill.part)
        self.curves: dict[str, list[report.Point]] = {}
        self.computed = 0.0

    @property
    def part(self) -> float:
        """Of the budget, whichever ends first."""
        parts = [0.0]
        if self.samples:
            parts.append(self.engine.samples() / self.samples)
        if self.seconds:
            parts.append(self.engine.events.time / self.seconds)
        return min(1.0, max(parts))

    def run(self) -> None:
        """To the end of the budget. What happens when depends on virtual time and samples alone."""
        began = time.monotonic()
        looks = 0
        events = self.engine.events
        while True:
            looks += 1
            until = self.seconds or SAMPLES_S
            if self.seconds:
                until = self.seconds * min(1.0, looks / SLICES)
            elif self.samples:
                until = events.time + self._slice()
            over = events.run_until(until, self._watch)
            self._look(began)
            if over or self.part >= 1.0:
                break
        self.computed = time.monotonic() - began

    def _slice(self) -> float:
        """Virtual seconds for a part of the samples; at least a step of somebody."""
        assert self.samples is not None
        steps_per_s = sum(self.plan.speeds.get(f"node-{k}", 1.0) for k in range(self.plan.nodes))
        per_s = steps_per_s * self.workload.batch_size
        return max(self.samples / SLICES / per_s, 1e-6)

    def _watch(self) -> bool:
        """After each event: is it over, and is somebody to be killed?"""
        part = self.part if self.kills or self.samples else 0.0
        while self.kills and part >= self.kills[0].part:
            name = self.kills.pop(0).name
            self.engine.kill(name)
            self.view.say(f"{name} killed at {part:.0%}, as asked")
        return bool(self.samples) and self.engine.samples() >= (self.samples or 0)

    def _look(self, began: float) -> None:
        for text in self.engine.news():
            self.view.say(f"{self.engine.events.time:.4g} s: {text}")
        now = self.engine.events.time
        figures = self.engine.figures()
        for one in figures:
            loss, accuracy = report.number(one.loss), report.number(one.accuracy)
            self.curves.setdefault(one.name, []).append((now, one.samples, loss, accuracy))
        self.view.show(
            Scene(
                title=self.plan.config.train.workload,
                elapsed_s=now,
                part=self.part,
                rows=self._rows(figures, now),
                note=f"virtual, {time.monotonic() - began:.0f} s real",
            )
        )

    def _rows(self, figures: Sequence[Figures], now: float) -> list[report.Json]:
        return [
            report.empty_row(one.name)
            | {
                "role": one.role,
                "samples": one.samples,
                "samples_per_s": one.samples / now if now else 0.0,
                "loss": report.number(one.loss),
                "accuracy": report.number(one.accuracy),
                "accuracy_by_class": [report.number(each) for each in one.accuracy_of],
                "updates_published": one.published,
                "updates_applied": one.applied,
                "duplicates": one.duplicates,
                "rejected": dict(sorted(one.rejected.items())),
                "staleness": one.staleness.report(),
                "wait_s": one.wait_s,
                "step_s": (now - one.wait_s) / one.published if one.published else 0.0,
                "bytes_sent": one.bytes_sent,
                "bytes_by_codec": dict(sorted(one.bytes_by_codec.items())),
                "state": one.state,
            }
            | one.more
            for one in figures
        ]

    def report(self) -> report.Json:
        node, train = self.plan.config.node, self.plan.config.train
        wall_s = self.engine.events.time  # before what is on its way arrives
        more: dict[str, Any] = self.engine.finish()
        figures = self.engine.figures()
        rows = self._rows(figures, wall_s)
        made = report.assemble(
            {
                "run": node.run,
                "mode": train.mode,
                "rule": train.rule,
                "workload": train.workload,
                "seed": node.seed,
            },
            rows,
            wall_s=wall_s,
            distance=more.pop("replica_distance_max", None),
            staleness=report.pooled_staleness(report.counts(one.staleness) for one in figures),
            predicted=self._predicted() if (train.mode, train.rule) == ("gossip", "sum") else None,
        )
        if train.mode != "gossip":
            made["samples"] = self.engine.samples()
        for one in figures:
            accuracy = report.number(one.accuracy)
            last = (wall_s, one.samples, report.number(one.loss), accuracy)
            self.curves.setdefault(one.name, []).append(last)
        return (
            made
            | {
                "virtual": True,
                "speeds": dict(self.plan.speeds),
                "delay_s": self.plan.delay_s,
                "delays_s": dict(self.plan.delays_s),
                "curves": {name: report.thinned(each, 0.0) for name, each in self.curves.items()},
                "staleness_counts": {
                    one.name: sorted(report.counts(one.staleness).items()) for one in figures
                },
            }
            | more
        )

    def _predicted(self) -> float | None:
        """By the law, from what was set; the staleness that was counted is not used."""
        plan, every = self.plan, self.plan.every or 1
        if plan.kills or plan.delays_s or plan.config.train.topology != "full":
            return None
        rates = [plan.speeds.get(f"node-{k}", 1.0) / every for k in range(plan.nodes)]
        return gossip_expected_unequal(rates, [1 / rate for rate in rates], plan.delay_s)


def run(plan: Plan) -> int:
    """Carry a plan out; 0, or 130 when it was interrupted (the report is then of what there is)."""
    view = View()
    interrupted = False
    going = _Run(plan, view)
    with view:
        try:
            going.run()
        except KeyboardInterrupt:
            interrupted = True
            view.say("stopped: this is what there is")
    result = going.report()
    view.end(result)
    for text in result.get("advice", ()):
        view.say(f"advice: {text}")
    ratio = result["wall_s"] / going.computed if going.computed else 0.0
    view.say(
        f"virtual: {result['wall_s']:.4g} s in {going.computed:.1f} s of this machine"
        f" ({ratio:.3g} times real time)"
    )
    if plan.config.report.path is not None:
        text = json.dumps(result, indent=2, allow_nan=False) + "\n"
        Path(plan.config.report.path).write_text(text, encoding="utf-8")
    return 130 if interrupted else 0


__all__ = ["Plan", "engine", "plan", "run"]
