"""`murmurate node`: one peer that trains a workload until the swarm's budget is spent.

The loop is an ordinary training loop; what makes it a peer is `murmurate.join`. What every program
does beside its work is `programs.run`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmurate.core.figures.training_loss import TrainingLoss
from murmurate.core.synchronous.rules import ALLREDUCE, HOGWILD
from murmurate.programs.keys.credentials import own_credentials
from murmurate.programs.keys.kinds import STDIN
from murmurate.programs.keys.table import Config
from murmurate.programs.roles.budget import SwarmBudget
from murmurate.programs.roles.evaluating import EvaluationTimes, named
from murmurate.programs.roles.loading import share_of, workload_of
from murmurate.programs.roles.progress_lines import ProgressLines
from murmurate.programs.roles.rounds import OVER, all_there_was, rounds
from murmurate.programs.roles.slowed import SlowedSteps
from murmurate.programs.roles.threads import ThreadShare
from murmurate.programs.run import GATE_S, Outcome, Program
from murmurate.watch import report

if TYPE_CHECKING:
    import torch

    from murmurate.edge.disk.trajectory import Trajectory
    from murmurate.programs.roles.budget import Session
    from murmurate.training.feed import Feed
    from murmurate.training.recipes import RateSchedule
    from murmurate.workloads import DataShare, Workload
    from murmurate.workloads.growing import GrowingBatches

    Batches = Iterator[tuple[torch.Tensor, ...]]

COUNTS_SMALL, COUNTS_EVERY = 256, 8
"""Up to so many values the distribution of staleness is in each event, beyond in one of so many."""
EVALUATE_S = 1.0
MEET_S = 3.0
FINISH_S = 10.0
SETTLE_S = 1.0
"""Told to stop, a node says so within 2 s: whoever has not all by then gets it while it leaves."""
LEAVE_S = 1.0
"""When all have everything, leaving is only a word to the others."""
DRAIN_S = 6.0
"""Told to stop, a node stays so long for its last updates and for the vote that lets it go."""


class PeerRole:
    """A node in a swarm: of gossip, in step, or in one memory."""

    program: Program
    swarm: Session
    workload: Workload
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batches: Batches
    budget: SwarmBudget
    threads: ThreadShare
    lines: ProgressLines
    slowed: SlowedSteps
    evaluations: EvaluationTimes

    def __init__(self, config: Config) -> None:
        self.config = config
        self.told = 0
        self.waited_s = 0.0
        self.went = False
        self.began = 0.0
        self.samples = config.train.samples
        self.generator = config.train.generator
        self.loss = TrainingLoss()
        self.feed: Feed | None = None
        self.trajectory: Trajectory | None = None
        self.precision_of: tuple[float, ...] = ()
        self.cc_ratio = math.nan
        self.rates: RateSchedule | None = None
        self.growing: GrowingBatches | None = None

    # -- beginning ---------------------------------------------------------------------------------

    def open(self, program: Program) -> bool:
        """Load everything, join the others, wait for go."""
        node = self.config.node
        self.program = program
        flops = self._load()
        program.emit("ready", samples=self.workload.samples)
        peers: Sequence[str] = node.peers
        if program.launcher is not None:
            if (line := program.first_line("")) is None:
                return False
            peers = tuple(line.replace(",", " ").split())
        self.swarm = swarm = self._join(peers)
        program.stack.enter_context(swarm)
        program.stop.told = swarm.going
        program.stop.training = True
        swarm.log(flops_per_sample=flops)
        page = swarm.metrics_address
        program.listens(swarm.name, swarm.address, page)
        more = f", figures at http://{page}/" if page is not None else ""
        program.announce(f"{swarm.name} listens at {swarm.address}{more}")
        self._wait_for_start()
        if self.generator == STDIN:
            program.end_for("no generator")
        elif self.generator is not None:
            self.batches = self._fed()
        if self.config.report.trajectory is not None:
            from murmurate.edge.disk.trajectory import Trajectory

            self.trajectory = Trajectory(len(swarm.weights()))
            self._keep_point()
        self._begin()
        return True

    def _load(self) -> float:
        """Workload, model, batches; operations for a sample."""
        import torch  # 2 to 3 s: everything that can be wrong without it has been checked

        from murmurate.training.recipes import RateSchedule
        from murmurate.workloads.flops import cc_ratio, flops_per_sample
        from murmurate.workloads.growing import GrowingBatches, batches_of
        from murmurate.workloads.warmup import warm_up

        node, train, say = self.config.node, self.config.train, self.program.say
        self.threads = ThreadShare(node.threads, say)
        self.threads.look(time.monotonic())
        self.workload = workload = workload_of(train, node.seed)
        share = share_of(self.config, workload)
        torch.manual_seed(node.seed)  # the founder's first weights; later ones take a snapshot
        self.model = model = workload.model()
        self.optimizer = workload.optimizer(model)
        self.rates = RateSchedule(self.optimizer, train.recipe)

        def without_end(share: DataShare) -> Batches:
            return rounds(workload, share, say, again=lambda: self.limited)

        self.batches = batches = batches_of(without_end, share, train.batch_warmup)
        torch.manual_seed((node.seed << 20) + train.shard.index)  # dropout: to each its own
        if (first := next(batches, None)) is None:
            return math.nan
        if isinstance(batches, GrowingBatches):
            self.growing = batches  # this one was of full size: it is not trained on
        else:
            self.batches = itertools.chain([first], batches)
        warm_up(workload, model, first)
        flops = flops_per_sample(workload, model, first)
        self.cc_ratio = cc_ratio(flops, sum(p.numel() for p in model.parameters()))
        return flops

    def _join(self, peers: Sequence[str]) -> Session:
        import murmurate

        node, train = self.config.node, self.config.train
        model, optimizer = self.model, self.optimizer
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
            return murmurate.join(
                model,
                optimizer,
                mode="allreduce",
                group=train.group,
                regroup=train.regroup,
                coordinator=self.config.ist.coordinator,
                **common,
            )
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
            wait_for=node.wait_for,
            **common,
        )

    def _wait_for_start(self) -> None:
        """With a launcher: say when all have spoken to me, and fold in what comes until it says go.

        Dialling takes a second once every core is training, so nobody trains before."""
        program, swarm = self.program, self.swarm
        if program.launcher is None or not program.events:
            return
        began = time.monotonic()
        everyone = self.config.train.shard.count
        swarm.follow(lambda: self._may_start() or len(swarm.board) >= everyone, MEET_S)
        program.emit("met")
        if not swarm.follow(self._may_start, GATE_S):
            program.stop.reason = "no go from the launcher"
        self.waited_s = time.monotonic() - began

    def _may_start(self) -> bool:
        if self.went:
            return True
        words = self.program.heard_go()
        for word in words or ():
            if word.isdecimal():
                self.samples = int(word)
            elif self.generator == STDIN:
                self.generator = word
        self.went = words is not None or bool(self.program.stop.reason) or self.program.abandoned
        return self.went

    def _begin(self) -> None:
        train, swarm = self.config.train, self.swarm
        self.slowed = SlowedSteps(train.slow_s, self.config.node.seed, swarm.name, self.program.nap)
        self.lines = ProgressLines(self.program.say, shown=not self.program.events)
        self.budget = SwarmBudget(swarm, self.program.stop)
        self.began = time.monotonic()
        self.evaluations = EvaluationTimes(train.evaluate_s, EVALUATE_S, self.began)
        self.program.emit("began", at=self.began, samples=swarm.progress().samples)
        self._follow_recipe(0.0)

    # -- training ----------------------------------------------------------------------------------

    def step(self) -> None:
        """An ordinary one; the value of a loss is looked at only now and then."""
        size = self.workload.batch_size if self.growing is None else self.growing.size
        if (batch := next(self.batches, None)) is None:
            if self.feed is None:  # a generator ends for a reason of its own
                self.program.end_for(OVER)
            return
        size = self.feed.samples if self.feed is not None else size
        self.optimizer.zero_grad()
        loss = self.workload.loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.swarm.log(samples=size)
        self.loss.add(loss)
        own = self.config.train.own_samples
        if own is not None and self.swarm.samples_of[self.swarm.name] >= own:
            self.program.end_for("own samples")  # 002's rule, to the step
        self.slowed.stepped()

    def over(self, now: float) -> str:
        """By the budget."""
        train = self.config.train
        if self.samples is not None and self.budget.spent(self.samples):
            return "samples"
        return "seconds" if train.seconds is not None and now - self.began >= train.seconds else ""

    def look(self, now: float) -> None:
        """Cores, rate, trajectory, evaluations."""
        self.threads.look(now)
        self._follow_recipe(now - self.began)
        if self.trajectory is not None and self.trajectory.due(now):
            self._keep_point()
        if self.evaluations.due(now) and not self.program.stop.reason:
            self._evaluate(validation=self.validates)
            self.evaluations.took(now, time.monotonic())

    def progress(self, now: float) -> None:
        """The loss, and a line for people."""
        self._log_loss()
        self.lines.look(now, self.swarm, self.samples)

    def _log_loss(self) -> None:
        """A node that waits for its first batch has none: that is no loss that is no number."""
        if self.loss.known:
            self.swarm.log(loss=self.loss.mean())

    def _follow_recipe(self, trained_s: float) -> None:
        """Rate and batch size of the part of the budget that the whole swarm has spent."""
        train, swarm = self.config.train, self.swarm
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
    def limited(self) -> bool:
        """Whether something ends this run."""
        return self.samples is not None or self.config.train.seconds is not None

    @property
    def validates(self) -> bool:
        """Whether a part of the training data is evaluated on until the end, not the test set."""
        return self.config.train.validation is not None

    def _evaluate(self, *, validation: bool = False) -> None:
        """The model as it is now; training does not notice (`workloads.measuring`)."""
        from murmurate.workloads.measuring import measured

        began, swarm = time.monotonic(), self.swarm
        self._log_loss()
        found = measured(self.workload, self.model, validation=validation)
        figures = named(found, validation=validation)
        swarm.log(**figures, accuracy_of=None if validation else found.accuracy_of)
        if not validation:
            self.precision_of = found.precision_of
        progress = swarm.progress()
        told = {key: report.number(each) for key, each in figures.items()}
        told["loss"] = report.number(progress.loss)
        self.program.emit("evaluated", at=began, samples=progress.samples, **told)

    def _keep_point(self) -> None:
        assert self.trajectory is not None
        swarm = self.swarm
        self.trajectory.take(time.monotonic(), swarm.progress().samples, swarm.weights().numpy())

    def _fed(self) -> Batches:
        """Batches from the generator, until it says that all are consumed."""
        from murmurate.training.feed import Feed
        from murmurate.training.swarm import Swarm

        assert self.generator is not None
        assert isinstance(self.swarm, Swarm)
        self.feed = feed = Feed(self.swarm, self.generator, audit=self.config.report.audit)
        while (batch := feed.next(self.program.look)) is not None:
            yield batch
        self.program.end_for("generator")

    # -- the end -----------------------------------------------------------------------------------

    def end(self) -> Outcome:
        """All that was made reaches the others; then what it came to."""
        swarm, reason, files = self.swarm, self.program.stop.reason, self.config.report
        self._log_loss()
        self.program.tell("progress")
        if self.feed is not None:
            self.feed.close()
        if reason == OVER:
            self.program.say(all_there_was(swarm.samples, self.samples))
        if reason in ("samples", "seconds", "generator", OVER):
            settled = swarm.finish(FINISH_S)
        else:
            settled = swarm.settle(SETTLE_S)
            swarm.leave(DRAIN_S)  # first of all: an evaluation may take longer than patience lasts
        if self.validates:
            self._evaluate(validation=True)
        self._evaluate()
        if files.weights is not None:
            import numpy as np

            with Path(files.weights).open("wb") as file:
                np.save(file, swarm.weights().numpy(), allow_pickle=False)
        if self.trajectory is not None and files.trajectory is not None:
            self._keep_point()
            self.trajectory.save(Path(files.trajectory), self._about())
        row = self.row()
        return Outcome(settled=settled, report=row, sentence=_sentence(row, reason))

    def leave(self, outcome: Outcome) -> None:
        """When all have everything, it is only a word."""
        if outcome.settled:
            self.swarm.leave(LEAVE_S)

    def _about(self) -> dict[str, str]:
        """What one must know to put this node's weights back into a model."""
        train, swarm = self.config.train, self.swarm
        words = {"name": swarm.name, "workload": train.workload, "schema": swarm.schema}
        if train.data is not None:
            words["data"] = str(Path(train.data).resolve())
        return words

    # -- telling -----------------------------------------------------------------------------------

    def row(self) -> report.Json:
        """As the report has it."""
        swarm = self.swarm
        progress = swarm.progress()
        waited_s = self.waited_s + self.budget.waited_s
        row = report.node_row(replace(progress, wait_s=progress.wait_s + waited_s))
        row |= report.by_class(swarm.accuracy_of, self.precision_of)
        row["cc_ratio"] = report.number(self.cc_ratio)
        row["delay_updates"], row["overtaken_updates"] = swarm.delays
        row["warnings"] = report.warnings_json(swarm.warnings)  # also those that are over
        return row

    def details(self, event: str) -> report.Json:
        """The distribution of staleness; at the end, which updates this node has."""
        more: report.Json = {}
        if event == "done":
            clock = self.swarm.clock
            more["known"] = {
                span.origin: span.last
                for span in clock.ranges()
                if span.epoch == clock.epoch(span.origin)
            }
            more["samples_of"] = self.swarm.samples_of
        counts = self.swarm.staleness_level.counts()
        if event == "done" or len(counts) <= COUNTS_SMALL or self.told % COUNTS_EVERY == 0:
            more["staleness_counts"] = list(counts.items())
        self.told += 1
        return more


def _sentence(row: report.Json, reason: str) -> str:
    accuracy = "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.1%}"
    return (
        f"{row['name']} ends ({reason}): {row['samples']:,} samples{accuracy},"
        f" staleness {row['staleness']['mean']:.1f} on average"
    )
