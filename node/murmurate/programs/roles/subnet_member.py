"""`murmurate node --mode ist` or `hub`: trains for a coordinator until it says stop.

Mode ist: the whole model is never here; it is made on the meta device, which has shapes and no
values. Mode hub: it is, and its weights are the hub's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from murmurate.core.figures.training_loss import TrainingLoss
from murmurate.core.values.member_half import HUB_RULES
from murmurate.programs.keys.credentials import own_credentials
from murmurate.programs.keys.kinds import STDIN
from murmurate.programs.keys.table import Config
from murmurate.programs.roles.loading import share_of, workload_of
from murmurate.programs.roles.progress_lines import ProgressLines, line
from murmurate.programs.roles.rounds import OVER, all_there_was, rounds
from murmurate.programs.roles.slowed import SlowedSteps
from murmurate.programs.roles.threads import ThreadShare
from murmurate.programs.run import Outcome, Program
from murmurate.watch import report

if TYPE_CHECKING:
    import torch

    from murmurate.training.member import Member
    from murmurate.training.recipes import RateSchedule
    from murmurate.workloads import Workload

LEAVE_S = 3.0


class MemberRole:
    """A member of a coordinator."""

    program: Program
    workload: Workload
    optimizer: torch.optim.Optimizer
    batches: Iterator[tuple[torch.Tensor, ...]]
    rates: RateSchedule
    threads: ThreadShare
    lines: ProgressLines
    slowed: SlowedSteps

    def __init__(self, config: Config) -> None:
        self.config = config
        self.joined: Member | None = None
        self.loss = TrainingLoss()
        self.began = 0.0
        self.tells_each = False
        """The gradient of each step goes to the hub, and its loss with it: nothing is fetched
        early."""

    @property
    def member(self) -> Member:
        assert self.joined is not None
        return self.joined

    def open(self, program: Program) -> bool:
        """Load everything, and come to the coordinator."""
        import torch

        from murmurate.errors import PeerUnavailable
        from murmurate.programs.cli.partition import example_of
        from murmurate.training.member import Member
        from murmurate.training.recipes import RateSchedule

        self.program = program
        node, train, ist = self.config.node, self.config.train, self.config.ist
        self.lines = ProgressLines(program.say, shown=not program.events)
        self.threads = ThreadShare(node.threads, program.say)
        self.threads.look(time.monotonic())
        self.workload = workload = workload_of(train, node.seed)
        ours = train.mode == "hub"
        model = workload.model() if ours else _hollow(workload)
        self.optimizer = workload.optimizer(model)
        example = None if ours else example_of(workload, model)
        share = share_of(self.config, workload)
        self.batches = rounds(workload, share, program.say, again=lambda: True)
        torch.manual_seed((node.seed << 20) + train.shard.index)  # dropout: to each its own
        program.emit("ready", samples=workload.samples)
        coordinator = ist.coordinator
        assert coordinator is not None
        if (line := program.first_line(coordinator)) is None:
            return False
        program.stop.training = True
        try:
            self.joined = Member(
                model,
                self.optimizer,
                run=node.run,
                coordinator=line.strip() if coordinator == STDIN else coordinator,
                name=node.name,
                width=ist.width,
                memory_bytes=ist.memory,
                example=example,
                metrics=self.config.metrics.listen,
                idle=program.look,
                mode=train.mode,
                credentials=own_credentials(),
            )
        except PeerUnavailable:
            if program.stop.reason:
                return False  # told to stop before there was anything to train
            raise
        member = program.stack.enter_context(self.joined)
        page = member.metrics_address
        program.listens(member.name, "", page)
        more = f", figures at http://{page}/metrics" if page is not None else ""
        what = f"by rule {member.rule}" if ours else f"{member.share:.1%} of the model"
        program.announce(f"{member.name} trains {what}{more}")
        self.rates = RateSchedule(self.optimizer, train.recipe)
        self.slowed = SlowedSteps(train.slow_s, node.seed, member.name, program.nap)
        self.tells_each = ours and HUB_RULES[member.rule].central
        self.began = time.monotonic()
        return True

    def step(self) -> None:
        """An ordinary one; the value of a loss is looked at only now and then."""
        member = self.member
        if (batch := next(self.batches, None)) is None:
            self.program.end_for(OVER)
            self.program.say(all_there_was(member.samples, None))
            return
        self.rates.at(member.spent)
        self.optimizer.zero_grad()
        loss = self.workload.loss(member.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.tells_each:
            member.log(loss=float(loss.detach()))
        self.optimizer.step()
        self.loss.add(loss)
        own = self.config.train.own_samples
        if own is not None and member.samples >= own:
            self.program.end_for("own samples")  # 002's rule, to the step
        self.slowed.stepped()

    def over(self, now: float) -> str:
        """When the coordinator says so, or the time is."""
        member, train = self.joined, self.config.train
        if member is None:
            return ""
        if member.stopped:
            return f"coordinator: {member.stopped}"
        seconds = train.seconds
        return "seconds" if seconds is not None and now - self.began >= seconds else ""

    def look(self, now: float) -> None:
        """Nothing: all that there is waits for the next word."""

    def progress(self, now: float) -> None:
        """Cores, the loss, and a line for people."""
        self.threads.look(now)
        self._log_loss()
        if self.lines.due(now):
            self.program.say(_line(self.member))

    def _log_loss(self) -> None:
        if self.loss.known:
            self.member.log(loss=self.loss.mean())

    def end(self) -> Outcome:
        """The last push is in, if the coordinator wants it."""
        member = self.member
        self._log_loss()
        self.program.tell("progress")
        settled = bool(member.stopped) or member.settle(LEAVE_S)
        member.conclude()
        row = self.row()
        sentence = (
            f"{row['name']} ends ({self.program.stop.reason}): {row['samples']:,} samples,"
            f" {row['updates_applied']:,} pushes, {row['steps_lost']:,} of {row['steps']:,}"
            " steps lost"
        )
        return Outcome(settled=settled, report=row, sentence=sentence)

    def leave(self, outcome: Outcome) -> None:
        """Without waiting for what nobody takes."""
        self.member.leave(LEAVE_S if outcome.settled else 0.0)

    # -- telling -----------------------------------------------------------------------------------

    def row(self) -> report.Json:
        """As the report has it."""
        member = self.member
        return report.node_row(member.progress()) | {
            "role": "member",
            "steps": member.steps,
            "steps_lost": member.steps_lost,
            "plan": member.plan,
            "lease": member.lease,
            "share": member.share,
        }

    def details(self, event: str) -> report.Json:
        """The distribution of staleness."""
        counts = list(self.member.staleness.counts().items())
        return {"known": {}, "staleness_counts": counts}


def _line(member: Member) -> str:
    mine = member.progress()
    if not member.connected:
        where = "the coordinator is not there, training goes on"
    else:
        where = f"plan {member.plan}, {member.share:.1%} of the parameters"
    return line(mine.name, mine.samples, None, mine.samples_per_s, mine.loss, math.nan, where)


def _hollow(workload: Workload) -> torch.nn.Module:
    """The model without values; with them where it cannot be made without."""
    import torch

    try:
        with torch.device("meta"):
            return workload.model()
    except (RuntimeError, NotImplementedError):
        return workload.model()
