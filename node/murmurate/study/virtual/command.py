"""`murmurate up --virtual`: the same training in virtual time, in one process.

Speeds and delays are what they are said to be, whatever this machine does, and the rng seed decides
all the rest: the same command gives the same report, to the last digit. Gossip runs on the core
that nodes run (`study.virtual.gossip`); subnets on the coordinator's rules, which are found by
entry point, because murmurate does not import its coordinator.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmurate.core.codecs.choice import parse_codec
from murmurate.core.gossip.ways import WAYS, mixes_weights
from murmurate.core.synchronous.rules import (
    ALLREDUCE,
    GROUP_SIZE,
    GROUPED,
)
from murmurate.core.theory import folding_rates, gossip_expected_unequal
from murmurate.errors import ConfigError
from murmurate.study.virtual.evaluating import EvaluationPlan
from murmurate.study.virtual.plan import VirtualPlan
from murmurate.watch import report
from murmurate.watch.view import LiveView, Scene
from murmurate.workloads import load as load_workload

if TYPE_CHECKING:  # torch comes with them
    from murmurate.study.virtual.kept import VirtualTrajectory
    from murmurate.study.virtual.task import Engine, Figures, VirtualTraining

GROUP = "murmurate.virtual"
SLICES = 400
"""Looks at the run, so many in all; more would cost, fewer would not look alive."""
SAMPLES_S = 1e9
"""A run that ends by its samples ends before that."""


# -- the run ---------------------------------------------------------------------------------------


def engine(mode: str) -> Callable[[VirtualTraining], Engine]:
    """What trains in this mode."""
    if mode == "gossip":
        from murmurate.study.virtual.gossip import GossipWorld

        return GossipWorld
    if mode == ALLREDUCE:
        from murmurate.study.virtual.synchronous import SynchronousMean

        return SynchronousMean
    found = {each.name: each for each in entry_points(group=GROUP)}
    if mode not in found:
        have = ", ".join(sorted({"gossip", ALLREDUCE, *found}))
        raise ConfigError(f"--mode {mode}: not in virtual time; {have}")
    make: Callable[[VirtualTraining], Engine] = found[mode].load()
    return make


class _Run:
    def __init__(self, plan: VirtualPlan, view: LiveView) -> None:
        self.plan, self.view = plan, view
        node, train = plan.config.node, plan.config.train
        self.workload = load_workload(
            train.workload,
            data=train.data,
            batch_size=train.batch_size,
            lr=train.lr,
            validation=train.validation,
            seed=node.seed,
            recipe=train.recipe,
        )
        self.seconds = train.seconds
        self.samples = train.samples
        if train.own_samples is not None:  # each ends by itself, after its last whole batch
            size = self.workload.batch_size
            self.samples = plan.nodes * -(-train.own_samples // size) * size
        elif self.seconds is None and self.samples is None:
            self.samples = self.workload.samples
        import torch

        from murmurate.study.virtual.task import VirtualTraining

        torch.set_num_threads(node.threads or 1)  # models are small, and the order is part of it
        self.costs = plan.costs.found(self.workload)
        self.task = VirtualTraining(
            workload=self.workload,
            nodes=plan.nodes,
            rule=train.rule,
            strength=train.strength,
            mode=train.mode,
            hub=plan.config.hub.given,
            seed=node.seed,
            speeds=plan.speeds,
            generator=plan.generator,
            batches_per_s=plan.batches_per_s,
            slow_s=plan.slow_s,
            own_samples=train.own_samples,
            costs=self.costs,
            cores=plan.cores,
            widths=plan.widths,
            memory_bytes=plan.config.ist.memory or None,
            delay_s=plan.delay_s,
            delays_s=plan.delays_s,
            link_bytes_s=plan.link_bytes_s,
            links_bytes_s=plan.links_bytes_s,
            joins_s=plan.joins_s,
            leaves_s=plan.leaves_s,
            group=train.group or GROUP_SIZE,
            regroup=train.regroup,
            every=train.every,
            topology=train.topology,
            split=train.split,
            data=train.data_of_peers,
            recipe=train.recipe,
            samples=self.samples,
            seconds=self.seconds,
            validates=train.validation is not None,
            codecs={name: parse_codec(codec) for name, codec in plan.codecs.items()},
        )
        self.engine = self._engine()
        self.kills = sorted(plan.kills, key=lambda kill: kill.part)
        self.curves: dict[str, list[report.CurvePoint]] = {}
        self.evaluations = EvaluationPlan(train.evaluate_s)
        self.validates = train.validation is not None
        self.trajectory: VirtualTrajectory | None = None
        if plan.trajectory:
            from murmurate.study.virtual.kept import VirtualTrajectory

            self.trajectory = VirtualTrajectory(self.engine)
            self.trajectory.take(0.0)
        self.computed = 0.0

    def _engine(self) -> Engine:
        if self.task.rule in GROUPED:
            from murmurate.study.virtual.groups import Groups

            return Groups(self.task, engine)
        return engine(self.task.mode)(self.task)

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
        self._evaluate_when_due()
        while True:
            until = self.seconds or SAMPLES_S
            if self.seconds:
                until = self.seconds * min(1.0, (looks + 1) / SLICES)
            elif self.samples:
                until = events.time + self._slice()
            if until <= self.evaluations.next_s:
                looks += 1
            else:
                until = self.evaluations.next_s
            over = events.run_until(until, self._watch)
            self._look(began)
            self._evaluate_when_due()
            if over or self.part >= 1.0:
                break
            if not len(events):
                where = f"over at {self.part:.0%} of the budget"
                self.view.say(f"{events.time:.4g} s: nobody trains any more; {where}")
                break
        self.computed = time.monotonic() - began

    def _evaluate_when_due(self) -> None:
        """One node, or the whole model; at the end all are."""
        now = self.engine.events.time
        if self.evaluations.due(now, self.part):
            if self.trajectory is not None:
                self.trajectory.take(now)
            one = self.engine.evaluate(validation=self.validates)
            if one is not None:
                self._note(one, now, evaluated=True)

    def _note(self, one: Figures, now: float, *, evaluated: bool = False) -> None:
        """A point of its curve. What was found in an evaluation stands at that instant alone."""
        point = report.CurvePoint(now, self.engine.samples(), one.samples, report.number(one.loss))
        if evaluated:
            point = point._replace(
                test_loss=report.number(one.test_loss),
                accuracy=report.number(one.accuracy),
                validation_loss=report.number(one.validation_loss),
                validation_accuracy=report.number(one.validation_accuracy),
            )
        self.curves.setdefault(one.name, []).append(point)

    def _slice(self) -> float:
        """Virtual seconds for a part of the samples, as fast as they have been made so far: who
        waits after each step makes fewer than its steps alone would say."""
        assert self.samples is not None
        steps_per_s = sum(1.0 / self.task.step_s(name) for name in self.task.names)
        per_s = steps_per_s * self.workload.batch_size
        now, made = self.engine.events.time, self.engine.samples()
        if now > 0.0 and made:
            per_s = min(per_s, made / now)
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
            self._note(one, now)
        if self.view.due:
            scene = Scene(
                title=self.plan.config.train.workload,
                elapsed_s=now,
                part=self.part,
                rows=self._rows(figures, now),
                note=f"virtual, {time.monotonic() - began:.0f} s real",
            )
            self.view.show(scene)

    def _rows(self, figures: Sequence[Figures], now: float) -> list[report.Json]:
        return [
            report.empty_row(one.name)
            | {
                "role": one.role,
                "samples": one.samples,
                "samples_per_s": one.samples / now if now else 0.0,
                "loss": report.number(one.loss),
                "test_loss": report.number(one.test_loss),
                "accuracy": report.number(one.accuracy),
                "validation_loss": report.number(one.validation_loss),
                "validation_accuracy": report.number(one.validation_accuracy),
                **report.by_class(one.accuracy_of, one.precision_of),
                "updates_published": one.published,
                "updates_applied": one.applied,
                "duplicates": one.duplicates,
                "rejected": dict(sorted(one.rejected.items())),
                "staleness": one.staleness.report(),
                "wait_s": one.wait_s,
                "step_s": (now - one.wait_s) / one.published if one.published else 0.0,
                "bytes_sent": one.bytes_sent,
                "bytes_by_codec": dict(sorted(one.bytes_by_codec.items())),
                "warnings": report.warnings_json(one.learning.ever),
                "state": one.state,
            }
            | one.more
            for one in figures
        ]

    def _cc_ratio(self) -> float | None:
        """Of the workload's model; None: it cannot be counted here."""
        from murmurate.workloads import DataShare, parse_split
        from murmurate.workloads.flops import cc_ratio, flops_per_sample

        seed, size = self.plan.config.node.seed, self.workload.batch_size
        model = self.workload.model()
        batch = next(self.workload.batches(DataShare(0, 1, parse_split("none"), seed, size)), None)
        if batch is None:
            return None
        flops = flops_per_sample(self.workload, model, batch)
        return report.number(cc_ratio(flops, sum(p.numel() for p in model.parameters())))

    def report(self) -> report.Json:
        node, train = self.plan.config.node, self.plan.config.train
        wall_s = self.engine.events.time  # before what is on its way arrives
        more: dict[str, Any] = self.engine.finish()
        figures = self.engine.figures()
        rows = self._rows(figures, wall_s)
        predictable = train.mode == "gossip" and not mixes_weights(train.rule)
        predictable = predictable and not self.plan.generator  # nodes may wait for it
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
            staleness=report.pooled_staleness(one.staleness.counts() for one in figures),
            predicted=0.0
            if train.mode == ALLREDUCE and train.rule not in GROUPED
            else self._predicted()
            if predictable
            else None,
        )
        if train.mode != "gossip":
            made["samples"] = self.engine.samples()
        for one in figures:
            self._note(one, wall_s, evaluated=one.state == "done")
        more["trajectory"] = self._kept(wall_s)
        return (
            made
            | {
                "virtual": True,
                "speeds": dict(self.plan.speeds),
                "costs": asdict(self.costs),
                "cores": self.plan.cores,
                "slow_s": {name: str(slow) for name, slow in self.plan.slow_s.items()},
                "delay_s": self.plan.delay_s,
                "delays_s": dict(self.plan.delays_s),
                "link_bytes_s": self.plan.link_bytes_s,
                "links_bytes_s": dict(self.plan.links_bytes_s),
                "joins_s": dict(self.plan.joins_s),
                "leaves_s": dict(self.plan.leaves_s),
                "cc_ratio": self._cc_ratio(),
                **report.curves(self.curves),
                "staleness_counts": {
                    one.name: sorted(one.staleness.counts().items()) for one in figures
                },
            }
            | more
        )

    def _kept(self, wall_s: float) -> dict[str, str]:
        """The files of the trajectory, with its last point: of the end."""
        train, path = self.plan.config.train, self.plan.config.report.path
        if self.trajectory is None or path is None:
            return {}
        self.trajectory.take(wall_s)
        about = {"workload": train.workload}
        if train.data is not None:
            about["data"] = str(Path(train.data).resolve())
        return self.trajectory.save(Path(path).with_suffix(".trajectory"), about)

    def _predicted(self) -> float | None:
        """By the law, from what was set; the staleness that was counted is not used."""
        plan = self.plan
        train = plan.config.train
        every = train.every or WAYS[train.rule].every[train.data_of_peers]
        churn = plan.kills or plan.joins_s or plan.leaves_s or train.own_samples
        if plan.slow_s or plan.cores is not None or self.costs.message_s:
            return None
        narrow = plan.link_bytes_s is not None or plan.links_bytes_s
        if churn or narrow or plan.delays_s or train.topology != "full":
            return None
        task = self.task
        try:
            rates = folding_rates(
                [every * task.step_s(name) for name in task.names],
                [task.fold_s(name) for name in task.names],
            )
        except ConfigError:
            return None  # somebody folds and never computes
        return gossip_expected_unequal(rates, [1 / rate for rate in rates], plan.delay_s)


def run(plan: VirtualPlan) -> int:
    """Carry a plan out; 0, or 130 when it was interrupted (the report is then of what there is)."""
    view = LiveView()
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
