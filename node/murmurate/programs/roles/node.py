"""`murmurate node`: one peer that trains a workload until the swarm's budget is spent.

The loop is an ordinary training loop; what makes it a peer is `murmurate.join`. Beside it the
program watches for three things, none of which costs a step more than a comparison: a signal, the
budget, and the launcher (`murmurate up`) at the other end of standard input.

A first SIGTERM or SIGINT ends training after the step at hand: what it made is published, the node
leaves, exit code 0. A second one does not wait.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmurate.core.figures.training_loss import TrainingLoss
from murmurate.core.synchronous.rules import ALLREDUCE, HOGWILD
from murmurate.core.values.member_half import RULES_OF
from murmurate.edge.runtime.malloc import keep_memory
from murmurate.programs.keys.credentials import own_credentials
from murmurate.programs.keys.kinds import STDIN
from murmurate.programs.keys.table import Config
from murmurate.programs.roles.evaluating import EvaluationTimes, named
from murmurate.programs.roles.launcher import Launcher
from murmurate.programs.roles.progress_lines import ProgressLines, alive
from murmurate.programs.roles.rounds import OVER, all_there_was, rounds
from murmurate.programs.roles.slowed import SlowedSteps
from murmurate.programs.roles.spending import UNHEARD_S, Spending, fresh
from murmurate.programs.roles.threads import ThreadShare
from murmurate.training.signals import Stop, Stopped, stopped_by_signals
from murmurate.watch import report

if TYPE_CHECKING:
    import torch

    from murmurate.core.figures.progress import Progress
    from murmurate.edge.disk.trajectory import Trajectory
    from murmurate.training.feed import Feed
    from murmurate.training.hogwild import HogwildSwarm
    from murmurate.training.recipes import RateSchedule
    from murmurate.training.swarm import Swarm
    from murmurate.training.synchronous import SynchronousSwarm
    from murmurate.workloads import DataShare, Workload
    from murmurate.workloads.growing import GrowingBatches

    Session = Swarm | SynchronousSwarm | HogwildSwarm

LOOK_S = 0.02
"""Between two looks at the budget and the launcher."""
TELL_S = 0.25
"""Between two events, at multiples of it on the machine's clock: so nodes are sampled together."""
COUNTS_SMALL, COUNTS_EVERY = 256, 8
"""Up to so many values the distribution of staleness is in each event, beyond in one of so many."""
EVALUATE_S = 1.0
GATE_S = 120.0
MEET_S = 3.0
FINISH_S = 10.0
SETTLE_S = 1.0
"""Told to stop, a node says so within 2 s: whoever has not all by then gets it while it leaves."""
LEAVE_S = 1.0
"""When all have everything, leaving is only a word to the others."""
DRAIN_S = 6.0
"""Told to stop, a node stays so long for its last updates and for the vote that lets it go."""
NAP_S = 0.1


def run(config: Config, *, events: bool = False) -> int:
    """Train until the budget is spent or somebody says stop."""
    with stopped_by_signals() as stop:
        node = _Node(config, stop, Launcher() if config.node.peers == (STDIN,) else None, events)
        try:
            node.run()
        except Stopped:
            return 0  # before there was anything to leave
    return 0


class _Node:
    def __init__(self, config: Config, stop: Stop, launcher: Launcher | None, events: bool) -> None:
        self.config = config
        self.stop = stop
        self.launcher = launcher
        self.events = events
        self.told = 0
        self.waited_s = 0.0
        self.went = False
        self.samples = config.train.samples
        self.generator = config.train.generator
        self.loss = TrainingLoss()
        self.spending = Spending()
        self.lines = ProgressLines(self.say, shown=not events)
        self.threads: ThreadShare
        self.feed: Feed | None = None
        self.trajectory: Trajectory | None = None
        self.cc_ratio = math.nan
        self.rates: RateSchedule | None = None
        self.growing: GrowingBatches | None = None

    def run(self) -> None:
        keep_memory()
        if self.config.node.role == "generator":
            from murmurate.programs.roles import generator

            generator.serve(self)
            return
        # Until all is loaded nothing is garbage; looking for it takes 13 % of a start (measured).
        gc.disable()
        try:
            if self.config.train.mode in RULES_OF:
                from murmurate.programs.roles import subnet_member

                subnet_member.train(self)
            else:
                self.gossip()
        finally:
            gc.enable()

    def gossip(self) -> None:
        """Load everything, join the others, train."""
        import torch  # 2 to 3 s: everything that can be wrong without it has been checked

        from murmurate import workloads
        from murmurate.training.recipes import RateSchedule
        from murmurate.workloads.flops import cc_ratio, flops_per_sample
        from murmurate.workloads.growing import GrowingBatches, batches_of
        from murmurate.workloads.warmup import warm_up

        node, train = self.config.node, self.config.train
        self.threads = ThreadShare(node.threads, self.say)
        self.threads.look(time.monotonic())
        workload = workloads.load(
            train.workload,
            data=train.data,
            batch_size=train.batch_size,
            lr=train.lr,
            validation=train.validation,
            seed=node.seed,
            recipe=train.recipe,
        )
        share = workloads.DataShare(
            train.shard.index,
            train.shard.count,
            workloads.parse_split(train.split),
            node.seed,
            workload.batch_size,
        )
        torch.manual_seed(node.seed)  # the founder's first weights; later ones take a snapshot
        model = workload.model()
        optimizer = workload.optimizer(model)
        self.rates = RateSchedule(optimizer, train.recipe)

        def without_end(share: DataShare) -> Iterator[tuple[torch.Tensor, ...]]:
            return rounds(workload, share, self.say, again=lambda: self.limited)

        batches = batches_of(without_end, share, train.batch_warmup)
        torch.manual_seed((node.seed << 20) + train.shard.index)  # dropout: to each its own
        flops = math.nan
        if (first := next(batches, None)) is not None:
            if isinstance(batches, GrowingBatches):
                self.growing = batches  # this one was of full size: it is not trained on
            else:
                batches = itertools.chain([first], batches)
            warm_up(workload, model, first)
        if first is not None:
            flops = flops_per_sample(workload, model, first)
            self.cc_ratio = cc_ratio(flops, sum(p.numel() for p in model.parameters()))
        self.emit("ready", samples=workload.samples)

        peers: tuple[str, ...] = node.peers
        if self.launcher is not None:
            line = self.launcher.line()
            if line is None:
                return
            peers = tuple(line.replace(",", " ").split())
        swarm = self._join(model, optimizer, peers)
        with swarm:
            self.stop.told = swarm.going
            self.stop.training = True
            swarm.log(flops_per_sample=flops)
            page = swarm.metrics_address
            self.emit("listening", name=swarm.name, address=swarm.address, metrics=page)
            if not self.events:
                more = f", figures at http://{page}/" if page is not None else ""
                self.say(f"{swarm.name} listens at {swarm.address}{more}")
            # All that torch has loaded stays: looking through it again and again for garbage
            # would hold up a step for 145 ms each time (measured).
            gc.collect()
            gc.freeze()
            gc.enable()
            self.wait_for_start(swarm)
            if self.generator == STDIN:
                self.stop.reason = self.stop.reason or "no generator"
            elif self.generator is not None:
                batches = self.fed(swarm)
            if self.config.report.trajectory is not None:
                from murmurate.edge.disk.trajectory import Trajectory

                self.trajectory = Trajectory(len(swarm.weights()))
                self.keep_point(swarm)
            self.train(swarm, workload, model, optimizer, batches)
            self.end(swarm, workload, model)

    def _join(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, peers: Sequence[str]
    ) -> Session:
        import murmurate

        node, train = self.config.node, self.config.train
        common: dict[str, Any] = {
            "run": node.run,
            "peers": peers,
            "name": node.name,
            "listen": node.listen,
            "advertise": node.advertise,
            "rule": train.rule,
            "found": node.found,
            "insecure": node.insecure,
            "seed": node.seed,
            "metrics": self.config.metrics.listen,
            "_credentials": own_credentials(),
        }
        if train.mode == ALLREDUCE:
            return murmurate.join(model, optimizer, mode="allreduce", group=train.group, **common)
        if train.mode == HOGWILD:
            return murmurate.join(model, optimizer, mode="hogwild", **common)
        return murmurate.join(
            model,
            optimizer,
            mode="gossip",
            strength=train.strength,
            every=train.every,
            data=train.data_of_peers,
            topology=train.topology,
            codec=train.codec,
            checkpoint=self.config.checkpoint.dir,
            checkpoint_s=self.config.checkpoint.every_s,
            **common,
        )

    def wait_for_start(self, swarm: Session) -> None:
        """With a launcher: say when all have spoken to me, and fold in what comes until it says go.

        Dialling takes a second once every core is training, so nobody trains before."""
        if self.launcher is None or not self.events:
            return
        began = time.monotonic()
        everyone = self.config.train.shard.count
        swarm.follow(lambda: self._may_start() or len(swarm.board) >= everyone, MEET_S)
        self.emit("met")
        if not swarm.follow(self._may_start, GATE_S):
            self.stop.reason = "no go from the launcher"
        self.waited_s = time.monotonic() - began

    def _may_start(self) -> bool:
        assert self.launcher is not None
        if self.went:
            return True
        line = self.launcher.next() or ""
        for word in line.split()[1:] if line.startswith("go") else ():
            if word.isdecimal():
                self.samples = int(word)
            elif self.generator == STDIN:
                self.generator = word
        self.went = line.startswith("go") or bool(self.stop.reason) or self.launcher.gone
        return self.went

    def train(
        self,
        swarm: Session,
        workload: Workload,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Iterator[tuple[torch.Tensor, ...]],
    ) -> None:
        """An ordinary loop; the value of a loss is looked at only now and then."""
        stop, size, train = self.stop, workload.batch_size, self.config.train
        slowed = SlowedSteps(train.slow_s, self.config.node.seed, swarm.name, self._sleep)
        began = time.monotonic()
        look_at = began
        tell_at = _grid(began)
        evaluations = EvaluationTimes(self.config.train.evaluate_s, EVALUATE_S, began)
        self.emit("began", at=began, samples=swarm.progress().samples)
        if self.launcher is not None and self.launcher.gone:
            stop.reason = stop.reason or "the launcher is gone"
        self.follow_recipe(swarm, 0.0)
        while not stop.reason:
            if self.growing is not None:
                size = self.growing.size
            if (batch := next(batches, None)) is None:
                stop.reason = OVER
                break
            size = self.feed.samples if self.feed is not None else size
            optimizer.zero_grad()
            loss = workload.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            swarm.log(samples=size)
            self.loss.add(loss)
            slowed.stepped()
            now = time.monotonic()
            if now < look_at:
                continue
            look_at = now + LOOK_S
            self._end_when_over(swarm, now - began)
            self.threads.look(now)
            self.follow_recipe(swarm, now - began)
            if now >= tell_at:
                swarm.log(loss=self.loss.mean())
                self.lines.look(now, swarm, self.samples)
                self.tell("progress", swarm)
                tell_at = _grid(now)
            if self.trajectory is not None and self.trajectory.due(now):
                self.keep_point(swarm)
            if evaluations.due(now) and not stop.reason:
                self.evaluate(swarm, workload, model, validation=self.validates)
                evaluations.took(now, time.monotonic())

    def follow_recipe(self, swarm: Session, trained_s: float) -> None:
        """Rate and batch size of the part of the budget that the whole swarm has spent."""
        train = self.config.train
        if self.rates is None or not train.recipe.changes:
            return
        parts = [0.0]
        if self.samples:
            parts.append(swarm.samples / self.samples)
        if train.own_samples:
            parts.append(swarm.samples_of[swarm.name] / train.own_samples)
        if train.seconds:
            parts.append(trained_s / train.seconds)
        part = min(1.0, max(parts))
        self.rates.at(part)
        if self.growing is not None:
            self.growing.at(part)

    @property
    def validates(self) -> bool:
        """Whether a part of the training data is evaluated on until the end, not the test set."""
        return self.config.train.validation is not None

    def evaluate(
        self,
        swarm: Session,
        workload: Workload,
        model: torch.nn.Module,
        *,
        validation: bool = False,
    ) -> None:
        """The model as it is now; training does not notice (`workloads.measuring`)."""
        from murmurate.workloads.measuring import measured

        began = time.monotonic()
        swarm.log(loss=self.loss.mean())
        found = measured(workload, model, validation=validation)
        figures = named(found, validation=validation)
        swarm.log(**figures, accuracy_of=None if validation else found.accuracy_of)
        progress = swarm.progress()
        told = {key: report.number(each) for key, each in figures.items()}
        told["loss"] = report.number(progress.loss)
        self.emit("evaluated", at=began, samples=progress.samples, **told)

    def keep_point(self, swarm: Session) -> None:
        assert self.trajectory is not None
        self.trajectory.take(time.monotonic(), swarm.progress().samples, swarm.weights().numpy())

    def fed(self, swarm: Session) -> Iterator[tuple[torch.Tensor, ...]]:
        """Batches from the generator, until it says that all are consumed."""
        from murmurate.training.feed import Feed
        from murmurate.training.swarm import Swarm

        assert self.generator is not None
        assert isinstance(swarm, Swarm)
        self.feed = feed = Feed(swarm, self.generator, audit=self.config.report.audit)
        tell_at = _grid(time.monotonic())

        def idle() -> bool:
            nonlocal tell_at
            now = time.monotonic()
            if now >= tell_at:
                self.tell("progress", swarm)
                tell_at = _grid(now)
            self._end_when_over(swarm, now - began)
            return bool(self.stop.reason)

        began = time.monotonic()
        while (batch := feed.next(idle)) is not None:
            yield batch
        self.stop.reason = self.stop.reason or "generator"

    def _end_when_over(self, swarm: Session, trained_s: float) -> None:
        seconds, own = self.config.train.seconds, self.config.train.own_samples
        if self.stop.reason:
            pass  # a signal came first
        elif self.samples is not None and self._spent(swarm, self.samples):
            self.stop.reason = "samples"
        elif own is not None and swarm.samples_of[swarm.name] >= own:
            self.stop.reason = "own samples"
        elif seconds is not None and trained_s >= seconds:
            self.stop.reason = "seconds"
        elif self.launcher is not None and self.launcher.gone:
            self.stop.reason = "the launcher is gone"

    def _spent(self, swarm: Session, budget: int) -> bool:
        """Whether the swarm has trained on that many. Where it probably has, by what the others
        make in a second, this node waits for their next word instead of training beyond it."""
        own, others = swarm.samples_of[swarm.name], self._others(swarm)
        now = time.monotonic()
        if own + sum(each.samples for each in others) >= budget:
            return True
        if self.spending.likely(now, own, others, alive(swarm)) < budget:
            return False

        def known() -> bool:
            told = self._others(swarm)
            spent = own + sum(each.samples for each in told) >= budget
            return spent or bool(self.stop.reason) or fresh(others, told, alive(swarm))

        swarm.follow(known, UNHEARD_S)
        self.waited_s += time.monotonic() - now
        return not self.stop.reason and swarm.samples >= budget

    def _others(self, swarm: Session) -> list[Progress]:
        return [each for each in swarm.board if each.name != swarm.name]

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.stop.reason:
            time.sleep(min(left, NAP_S))

    def end(self, swarm: Session, workload: Workload, model: torch.nn.Module) -> None:
        """All that was made reaches the others; then what it came to."""
        swarm.log(loss=self.loss.mean())
        self.tell("progress", swarm)
        if self.feed is not None:
            self.feed.close()
        if self.stop.reason == OVER:
            self.say(all_there_was(swarm.samples, self.samples))
        if self.stop.reason in ("samples", "seconds", "generator", OVER):
            settled = swarm.finish(FINISH_S)
        else:
            settled = swarm.settle(SETTLE_S)
            swarm.leave(DRAIN_S)  # first of all: an evaluation may take longer than patience lasts
        if self.validates:
            self.evaluate(swarm, workload, model, validation=True)
        self.evaluate(swarm, workload, model)
        files = self.config.report
        if files.weights is not None:
            import numpy as np

            with Path(files.weights).open("wb") as file:
                np.save(file, swarm.weights().numpy(), allow_pickle=False)
        if self.trajectory is not None and files.trajectory is not None:
            self.keep_point(swarm)
            self.trajectory.save(Path(files.trajectory), self.about(swarm))
        self.tell("done", swarm, settled=settled, reason=self.stop.reason)
        row = self.row(swarm)
        if files.path is not None:
            Path(files.path).write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
        if not self.events:
            self.say(_sentence(row, self.stop.reason))
        if settled:
            swarm.leave(LEAVE_S)

    def about(self, swarm: Session) -> dict[str, str]:
        """What one must know to put this node's weights back into a model."""
        train = self.config.train
        words = {"name": swarm.name, "workload": train.workload, "schema": swarm.schema}
        if train.data is not None:
            words["data"] = str(Path(train.data).resolve())
        return words

    # -- telling -----------------------------------------------------------------------------------

    def row(self, swarm: Session) -> report.Json:
        progress = swarm.progress()
        row = report.node_row(replace(progress, wait_s=progress.wait_s + self.waited_s))
        row["accuracy_by_class"] = [report.number(each) for each in swarm.accuracy_of]
        row["cc_ratio"] = report.number(self.cc_ratio)
        row["delay_updates"], row["overtaken_updates"] = swarm.delays
        row["warnings"] = report.warnings_json(swarm.warnings)  # also those that are over
        return row

    def tell(self, event: str, swarm: Session, **more: object) -> None:
        if not self.events:
            return
        more |= {"at": time.monotonic(), "node": self.row(swarm)}
        if event == "done":
            clock = swarm.clock
            more["known"] = {
                span.origin: span.last
                for span in clock.ranges()
                if span.epoch == clock.epoch(span.origin)
            }
            more["samples_of"] = swarm.samples_of
        counts = swarm.staleness_level.counts()
        if event == "done" or len(counts) <= COUNTS_SMALL or self.told % COUNTS_EVERY == 0:
            more["staleness_counts"] = list(counts.items())
        self.told += 1
        self.emit(event, **more)

    @property
    def limited(self) -> bool:
        """Whether something ends this run."""
        return self.samples is not None or self.config.train.seconds is not None

    def say(self, text: str) -> None:
        """One line for people."""
        print(text, file=sys.stderr, flush=True)

    def emit(self, event: str, **more: Any) -> None:
        """One line of JSON for whoever started this node."""
        if not self.events:
            return
        line = json.dumps({"event": event, **more}, separators=(",", ":")) + "\n"
        try:
            sys.stdout.write(line)
            sys.stdout.flush()
        except BrokenPipeError:
            self.stop.reason = self.stop.reason or "the launcher is gone"


def _grid(now: float) -> float:
    return (now // TELL_S + 1) * TELL_S


def _sentence(row: report.Json, reason: str) -> str:
    accuracy = "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.1%}"
    return (
        f"{row['name']} ends ({reason}): {row['samples']:,} samples{accuracy},"
        f" staleness {row['staleness']['mean']:.1f} on average"
    )
